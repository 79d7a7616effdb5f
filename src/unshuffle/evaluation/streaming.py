"""Features of any number of items, a batch at a time: images are decoded by threads and never all in memory."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from unshuffle.data.batches import Prefetcher
from unshuffle.errors import UserError
from unshuffle.evaluation.items import Items
from unshuffle.evaluation.progress import progress
from unshuffle.wording import counted

WORKERS = os.cpu_count() or 1


class Chunk(NamedTuple):
    """What a function made of the frames of some items."""

    values: Tensor
    """(frames, ...) on the device"""
    items: Tensor
    """(frames,) which item each frame is of"""


class _Read(NamedTuple):
    pixels: Tensor
    items: Tensor


def stream(
    items: Items,
    compute: Callable[[Tensor], Tensor],
    device: torch.device,
    console: Console,
    title: str,
    *,
    batch: int = 64,
    workers: int = WORKERS,
) -> Iterator[Chunk]:
    """`compute` on the (frames, side, side, 3) bytes of all items in their order; unreadable ones are skipped."""
    each = max(1, batch // (items.frames if items.kind == "videos" else 1))
    coming = iter(Prefetcher(lambda number: _read(items, number * each, each), 0, -(-len(items) // each), workers))
    found = 0
    with closing(coming), progress(console, title, len(items)) as advance:
        for number, part in enumerate(coming):
            if part is not None:
                yield Chunk(compute(part.pixels.to(device)), part.items)
                found += 1
            advance(min(len(items), (number + 1) * each))
    if not found:
        raise UserError(f"none of the {title} can be read ({counted(len(items), items.kind)})")


def _read(items: Items, begin: int, count: int) -> _Read | None:
    frames, positions = [], []
    for position in range(begin, min(begin + count, len(items))):
        pixels = items.read_or_skip(position)
        if pixels is not None:
            frames.append(pixels)
            positions += [position] * len(pixels)
    return _Read(torch.from_numpy(np.concatenate(frames)), torch.tensor(positions)) if frames else None


def tell_skipped(console: Console, items: Items, title: str, shown: int = 3) -> None:
    """Say what was left out."""
    if not items.skipped:
        return
    console.print(f"{title}: {len(items.skipped)} skipped", highlight=False)
    for reason in items.skipped[:shown]:
        console.print(f"  {reason}", highlight=False, soft_wrap=True, markup=False)
