"""What every collection of images or clips looks like to the rest of the program."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Items = npt.NDArray[np.int64]


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

    @property
    def flat_bytes(self) -> int | None:
        """How many bytes all frames take; None if they are compressed."""

    def flat(self) -> tuple[Pixels, Items]:
        """All of them, and where each item begins."""


@runtime_checkable
class OrderedSource(Source, Protocol):
    """A source in which some orders are far cheaper to read than others, and so has its own."""

    def order(self, items: Items, rng: np.random.Generator) -> Items:
        """Positions in `items` for one epoch: a random order of all of them."""

    def share(self, items: Items, seed: int, rank: int, world: int) -> Items:
        """Those of `items` that one of `world` processes trains on; every item belongs to one of them."""


@dataclass(frozen=True)
class Encoded:
    """One image or frame as it lies in a file, and the size at which it is wanted."""

    name: str
    data: bytes
    height: int
    width: int
    plain: bool
    """Whether a bare JPEG decoder makes of it what Pillow does: RGB or grey, stored upright."""


@runtime_checkable
class EncodedSource(Source, Protocol):
    """A source whose frames can be had as they are encoded, to be decoded elsewhere."""

    @property
    def encoded(self) -> bool:
        """Whether that is so for every item."""

    def read_encoded(self, item: int, frames: Sequence[int]) -> list[Encoded]:
        """The chosen frames of one item; decoded they have the size that `size` tells."""
