"""What every collection of images or clips looks like to the rest of the program."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


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
        """The chosen frames of one item, as (len(frames), height, width, 3) RGB."""


@runtime_checkable
class FlatSource(Source, Protocol):
    """A source whose frames lie one after another in memory or in a memory map."""

    def flat(self) -> tuple[Pixels, npt.NDArray[np.int64]] | None:
        """All bytes, and where each item begins; None if they are compressed."""
