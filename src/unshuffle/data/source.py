"""The interface of a data source: a collection of images or clips, wherever they are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from unshuffle.config import LimitsConfig

Pixels = npt.NDArray[np.uint8]
Items = npt.NDArray[np.int64]
Skipped = tuple[str, str]
"""An item that cannot be used, and the reason."""


class Source(Protocol):
    """A read-only collection of items; an item is a clip of frames, and an image is a clip of one frame."""

    @property
    def names(self) -> Sequence[str]:
        """One name per item, unique and stable from one run to the next."""

    def __len__(self) -> int:
        """Number of items."""

    def num_frames(self, item: int) -> int:
        """Number of frames of one item: 1 for an image."""

    def size(self, item: int) -> tuple[int, int]:
        """Height and width of an item's frames."""

    def read(self, item: int, frames: Sequence[int]) -> Pixels:
        """Read the chosen frames of one item, as (len(frames), height, width, 3) RGB."""


@runtime_checkable
class FlatSource(Source, Protocol):
    """A source whose frames are contiguous in memory or in a memory map."""

    @property
    def flat_bytes(self) -> int | None:
        """Size of all frames in bytes; None if they are compressed."""

    def flat(self) -> tuple[Pixels, Items]:
        """Return the bytes of all frames, and the offset of each item."""


class IndexedSource:
    """The common part of sources that list the shapes of all their items in memory."""

    names: Sequence[str]
    counts: Items
    """Number of frames of each item."""
    sizes: Items
    """(items, 2) height and width of each item's frames."""

    def __len__(self) -> int:
        """Number of items."""
        return len(self.names)

    def num_frames(self, item: int) -> int:
        """Number of frames of one item: 1 for an image."""
        return int(self.counts[item])

    def size(self, item: int) -> tuple[int, int]:
        """Height and width of an item's frames."""
        height, width = self.sizes[item].tolist()
        return height, width

    def check_frames(self, item: int, frames: Sequence[int]) -> None:
        """Raise an IndexError for a frame that the item does not have."""
        count = self.num_frames(item)
        for frame in frames:
            if not 0 <= frame < count:
                raise IndexError(f"frame {frame} of {self.names[item]} is out of range: it has {count} frames")


@dataclass(frozen=True)
class EncodedImage:
    """The bytes of an image file or of an encoded frame, and the size to decode it to."""

    name: str
    data: bytes
    height: int
    width: int
    plain: bool
    """Whether it is an upright JPEG in RGB or grayscale, which any JPEG decoder reads as Pillow does."""
    memory_gb: float = LimitsConfig.memory_gb
    """Memory in GB for all files that are decoded at the same time."""
