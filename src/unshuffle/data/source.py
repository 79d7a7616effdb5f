"""The interface of a data source: a collection of images or clips, wherever they are stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

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


@runtime_checkable
class OrderedSource(Source, Protocol):
    """A source that is far cheaper to read in some orders than in others, and therefore shuffles itself."""

    def order(self, items: Items, rng: np.random.Generator) -> Items:
        """Shuffle `items` for one epoch; return the positions in `items` in the order of reading."""

    def rank_items(self, items: Items, seed: int, rank: int, world_size: int) -> Items:
        """Return the rank's slice of `items`; every item belongs to exactly one rank."""


@dataclass(frozen=True)
class EncodedImage:
    """The bytes of an image file or of an encoded frame, and the size to decode it to."""

    name: str
    data: bytes
    height: int
    width: int
    plain: bool
    """Whether it is an upright JPEG in RGB or grayscale, which any JPEG decoder reads as Pillow does."""


@runtime_checkable
class EncodedSource(Source, Protocol):
    """A source that can return its frames encoded, to be decoded on the device."""

    @property
    def encoded(self) -> bool:
        """Whether `read_encoded` works for every item."""

    def read_encoded(self, item: int, frames: Sequence[int]) -> list[EncodedImage]:
        """Read the chosen frames of one item; once decoded they have the size that `size` returns."""
