"""Where the pixels of a batch lie: copied into a batch of their own, or in place among all data on the device."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.source import FlatSource, Items, Pixels, Source

COPY_BYTES = 256 << 20  # copied to the device at a time


@dataclass(frozen=True)
class RankSlice:
    """The contiguous slice of a batch that one process of a distributed training works on.

    Everything random is sampled for the whole batch and then sliced, so it does not depend on the number of processes.
    """

    rank: int = 0
    world_size: int = 1

    def rows(self, total: int) -> slice:
        """Return this process's rows of `total`; slices are as equal as they can be."""
        return slice(total * self.rank // self.world_size, total * (self.rank + 1) // self.world_size)


WHOLE = RankSlice()


@dataclass(frozen=True)
class Windows:
    """The parts of the data that make a batch: frames of items, and a square window in each frame."""

    items: Items
    """(B,)"""
    frames: Items
    """(B, F) in temporal order, or reversed."""
    corners: Items
    """(B, F, 2) top and left of the window in each frame."""

    def slice(self, part: RankSlice) -> "Windows":
        """Return one process's slice of the batch."""
        rows = part.rows(len(self.items))
        return Windows(self.items[rows], self.frames[rows], self.corners[rows])


@dataclass(frozen=True)
class Squares:
    """B · F square windows of frames inside a flat array of bytes, either the batch's own or all of the data."""

    data: Tensor
    """(bytes,) RGB, row by row."""
    offsets: Tensor
    """(2, B · F): the first byte of each square, and the number of bytes from one of its rows to the next."""
    side: int
    frames: int
    dense: bool = False
    """Whether the bytes are exactly the squares, one after another."""

    @classmethod
    def of(cls, pixels: Tensor) -> "Squares":
        """Wrap (B, F, side, side, 3) bytes."""
        batch, frames, side = pixels.shape[:3]
        starts = torch.arange(batch * frames, device=pixels.device) * (side * side * 3)
        offsets = torch.stack([starts, torch.full_like(starts, side * 3)])
        # a copy of unpinned memory to a GPU blocks
        return cls(pixels.flatten(), offsets.pin_memory() if pixels.is_pinned() else offsets, side, frames, True)

    def __len__(self) -> int:
        return self.offsets.shape[1] // self.frames

    def to(self, device: torch.device) -> "Squares":
        """Copy to a device without waiting for it."""
        data, offsets = (tensor.to(device, non_blocking=True) for tensor in (self.data, self.offsets))
        return replace(self, data=data, offsets=offsets)

    def pixels(self) -> Tensor:
        """Return (B · F, side, side, 3) bytes."""
        if self.dense:
            return self.data.view(-1, self.side, self.side, 3)
        span = torch.arange(self.side, device=self.data.device)
        starts, strides = self.offsets
        rows = starts[:, None] + strides[:, None] * span
        inside = torch.arange(self.side * 3, device=self.data.device)
        return self.data[rows[:, :, None] + inside].view(-1, self.side, self.side, 3)


class Resident:
    """All bytes of a source on a device, so that a batch is only a list of offsets."""

    def __init__(self, data: Pixels, starts: Items, sizes: Items, device: torch.device) -> None:
        self.starts, self.sizes = starts, sizes
        self.data = torch.empty(len(data), dtype=torch.uint8, device=device)
        for begin in range(0, len(data), COPY_BYTES):
            self.data[begin : begin + COPY_BYTES] = torch.from_numpy(data[begin : begin + COPY_BYTES].copy())

    def squares(self, windows: Windows, side: int) -> Squares:
        """Return the squares of a batch in place."""
        height, width = self.sizes[windows.items].T
        top, left = np.moveaxis(windows.corners, -1, 0)
        inside = (windows.frames * height[:, None] + top) * width[:, None] + left
        starts = self.starts[windows.items][:, None] + 3 * inside
        strides = np.broadcast_to(3 * width[:, None], starts.shape)
        offsets = torch.from_numpy(np.stack([starts.ravel(), strides.ravel()]))
        if self.data.is_cuda:
            offsets = offsets.pin_memory()
        return Squares(self.data, offsets, side, windows.frames.shape[1])


def make_resident(source: Source, device: torch.device, memory_fraction: float) -> Resident | None:
    """Copy a source to a GPU if its frames are stored decoded and fit into a fraction of the free memory."""
    if device.type != "cuda" or not isinstance(source, FlatSource):
        return None
    size = source.flat_bytes
    if size is None or size > memory_fraction * torch.cuda.mem_get_info(device)[0]:
        return None
    return Resident(*source.flat(), np.array([source.size(item) for item in range(len(source))]), device)
