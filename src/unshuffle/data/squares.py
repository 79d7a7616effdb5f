"""Where the pixels of a batch lie: in a batch of their own, or among all of the data on the device."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.share import Share
from unshuffle.data.source import FlatSource, Items, Pixels, Source

COPY_BYTES = 256 << 20  # that go to the device at a time


@dataclass(frozen=True)
class Windows:
    """Which parts of the data a batch is: some frames of some items, and a square out of them."""

    items: Items
    """(B,)"""
    frames: Items
    """(B, F) in temporal order, or against it."""
    corners: Items
    """(B, 2) top and left of the square that an item's frames share."""

    def part(self, share: Share) -> "Windows":
        """Those of one share of the batch."""
        rows = share.rows(len(self.items))
        return Windows(self.items[rows], self.frames[rows], self.corners[rows])


@dataclass(frozen=True)
class Squares:
    """B · F square frames of a batch, somewhere in a long row of bytes: a batch of their own, or all of the data."""

    data: Tensor
    """(bytes,) RGB, row after row."""
    places: Tensor
    """(2, B · F) of each square: its first byte, and the bytes from one of its rows to the next."""
    side: int
    frames: int
    dense: bool = False
    """Whether the bytes are the squares, one after another, and nothing else."""

    @classmethod
    def of(cls, pixels: Tensor) -> "Squares":
        """Of (B, F, side, side, 3) bytes."""
        batch, frames, side = pixels.shape[:3]
        starts = torch.arange(batch * frames, device=pixels.device) * (side * side * 3)
        places = torch.stack([starts, torch.full_like(starts, side * 3)])
        # what is not pinned is waited for on its way to a GPU
        return cls(pixels.flatten(), places.pin_memory() if pixels.is_pinned() else places, side, frames, True)

    def __len__(self) -> int:
        return self.places.shape[1] // self.frames

    def to(self, device: torch.device) -> "Squares":
        """The same on a device, without waiting for it."""
        data, places = (one.to(device, non_blocking=True) for one in (self.data, self.places))
        return replace(self, data=data, places=places)

    def pixels(self) -> Tensor:
        """(B · F, side, side, 3) bytes."""
        if self.dense:
            return self.data.view(-1, self.side, self.side, 3)
        span = torch.arange(self.side, device=self.data.device)
        starts, strides = self.places
        rows = starts[:, None] + strides[:, None] * span
        inside = torch.arange(self.side * 3, device=self.data.device)
        return self.data[rows[:, :, None] + inside].view(-1, self.side, self.side, 3)


class Resident:
    """All bytes of a source on a device: a batch is then only a list of places."""

    def __init__(self, data: Pixels, starts: Items, sizes: Items, device: torch.device) -> None:
        self.starts, self.sizes = starts, sizes
        self.data = torch.empty(len(data), dtype=torch.uint8, device=device)
        for begin in range(0, len(data), COPY_BYTES):
            self.data[begin : begin + COPY_BYTES] = torch.from_numpy(data[begin : begin + COPY_BYTES].copy())

    def squares(self, windows: Windows, side: int) -> Squares:
        """The squares of a batch, where they lie."""
        height, width = self.sizes[windows.items].T
        top, left = windows.corners.T
        inside = (windows.frames * height[:, None] + top[:, None]) * width[:, None] + left[:, None]
        starts = self.starts[windows.items][:, None] + 3 * inside
        strides = np.broadcast_to(3 * width[:, None], starts.shape)
        places = torch.from_numpy(np.stack([starts.ravel(), strides.ravel()]))
        if self.data.is_cuda:
            places = places.pin_memory()
        return Squares(self.data, places, side, windows.frames.shape[1])


def make_resident(source: Source, device: torch.device, share: float) -> Resident | None:
    """All of a source's bytes on a GPU, if they are decoded and fit into a share of its free memory."""
    if device.type != "cuda" or not isinstance(source, FlatSource):
        return None
    wanted = source.flat_bytes
    if wanted is None or wanted > share * torch.cuda.mem_get_info(device)[0]:
        return None
    return Resident(*source.flat(), np.array([source.size(item) for item in range(len(source))]), device)
