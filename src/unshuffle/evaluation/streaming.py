"""Features of any number of items, a part at a time: images are decoded by threads and never all in memory."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from unshuffle.console import progress, say
from unshuffle.data.batches import Prefetcher
from unshuffle.data.media import BadMedia
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.items import Items
from unshuffle.evaluation.kept import Kept, Part
from unshuffle.evaluation.skips import Skipped
from unshuffle.wording import counted

WORKERS = os.cpu_count() or 1
PART = 256
"""Frames in a part: what a kill can cost."""


class Chunk(NamedTuple):
    """What a function made of the frames of some items."""

    values: Tensor
    """(frames, ...)"""
    items: Tensor
    """(frames,) which item each frame is of"""


class Readable(Protocol):
    """Things that are read one at a time: `Items`, or a `Collection`."""

    def __len__(self) -> int: ...

    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def frames(self) -> int: ...  # noqa: D102
    @property
    def skipped(self) -> list[Skipped]: ...  # noqa: D102

    def name(self, item: int, /) -> str: ...  # noqa: D102
    def read(self, item: int, /) -> Pixels: ...  # noqa: D102


class _Read(NamedTuple):
    pixels: Tensor | None
    items: list[int]
    skipped: list[Skipped]


def stream(
    items: Readable,
    compute: Callable[[Tensor], Tensor],
    device: torch.device,
    console: Console,
    title: str,
    *,
    batch: int = 64,
    workers: int = WORKERS,
    kept: Kept | None = None,
    means: bool = False,
) -> Iterator[Chunk]:
    """`compute` on the (frames, side, side, 3) bytes of all items in their order; what it gives comes to the CPU.

    Unreadable ones are left out and noted in `items.skipped`. Parts that were kept are not computed again. With `means`
    an item has one value, the mean of its frames'.
    """
    frames = items.frames if items.kind == "videos" else 1
    parts = _ranges(range(len(items)), max(1, PART // frames))
    missing = [part for part in parts if kept is None or part not in kept]
    batches = [_ranges(part, max(1, batch // frames)) for part in missing]
    flat = [some for part in batches for some in part]
    coming = iter(Prefetcher(lambda number: _read(items, flat[number]), 0, len(flat), workers))
    plan = dict(zip(missing, batches, strict=True))
    done = len(items) - sum(map(len, missing))
    if 0 < done < len(items):
        say(console, f"going on: {done} of {counted(len(items), items.kind)} were done before")
    found = 0
    with closing(coming), progress(console, title, len(items)) as advance:
        for part in parts:
            if part in plan:
                made = _compute(islice(coming, len(plan[part])), compute, device, means)
                if kept is not None:
                    kept.save(part, made)
            else:
                assert kept is not None
                made = kept.load(part)
            items.skipped.extend(made.skipped)
            if len(made.items):
                found += len(made.items)
                yield Chunk(made.values, made.items)
            advance(part.stop)
    if not found:
        file, reason = items.skipped[0]
        raise UserError(
            f"none of the {items.kind} can be read ({counted(len(items), items.kind)}; first problem: {file}: {reason})"
        )


def readable(items: Items, console: Console, *, workers: int, kept: Kept | None) -> Items:
    """The items that can be read; the others are noted as skipped."""

    def nothing(pixels: Tensor) -> Tensor:
        return torch.zeros(len(pixels), 0)

    chunks = stream(items, nothing, torch.device("cpu"), console, "reading", workers=workers, kept=kept)
    positions = torch.cat([chunk.items for chunk in chunks]).tolist()
    return replace(items, items=[items.items[position] for position in positions])


def _ranges(whole: range, length: int) -> list[range]:
    return [whole[start : start + length] for start in range(0, len(whole), length)]


def item_means(chunk: Chunk) -> Chunk:
    """One vector for each item: the mean of its frames'."""
    items, owners, counts = chunk.items.unique_consecutive(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(items), chunk.values.shape[1]).index_add_(0, owners, chunk.values)
    return Chunk(sums / counts[:, None], items)


def _read(items: Readable, positions: range) -> _Read:
    frames, owners, skipped = [], [], []
    for position in positions:
        try:
            pixels = items.read(position)
        except BadMedia as reason:
            skipped.append((items.name(position), str(reason)))
        else:
            frames.append(pixels)
            owners += [position] * len(pixels)
    return _Read(torch.from_numpy(np.concatenate(frames)) if frames else None, owners, skipped)


def _compute(batches: Iterable[_Read], compute: Callable[[Tensor], Tensor], device: torch.device, means: bool) -> Part:
    values, owners, skipped = [], list[int](), list[Skipped]()
    for batch in batches:
        if batch.pixels is not None:
            values.append(compute(batch.pixels.to(device)).cpu())
        owners += batch.items
        skipped += batch.skipped
    if not values:
        return Part(torch.zeros(0), torch.zeros(0, dtype=torch.long), skipped)
    chunk = Chunk(torch.cat(values), torch.tensor(owners))
    return Part(*(item_means(chunk) if means else chunk), skipped)
