"""Features of any number of items, a part at a time: images are decoded by threads and never all in memory."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from unshuffle.data.batches import Prefetcher
from unshuffle.data.media import BadMedia
from unshuffle.errors import UserError
from unshuffle.evaluation.items import Items
from unshuffle.evaluation.kept import Kept, Part
from unshuffle.evaluation.progress import progress
from unshuffle.evaluation.skips import Skipped

WORKERS = os.cpu_count() or 1
PART = 256
"""Frames in a part: what a kill can cost."""


class Chunk(NamedTuple):
    """What a function made of the frames of some items."""

    values: Tensor
    """(frames, ...)"""
    items: Tensor
    """(frames,) which item each frame is of"""


class _Read(NamedTuple):
    pixels: Tensor | None
    items: list[int]
    skipped: list[Skipped]


def stream(
    items: Items,
    compute: Callable[[Tensor], Tensor],
    device: torch.device,
    console: Console,
    title: str,
    *,
    batch: int = 64,
    workers: int = WORKERS,
    kept: Kept | None = None,
) -> Iterator[Chunk]:
    """`compute` on the (frames, side, side, 3) bytes of all items in their order.

    Unreadable ones are left out and noted in `items.skipped`. Parts that were kept are not computed again.
    """
    frames = items.frames if items.kind == "videos" else 1
    parts = _ranges(range(len(items)), max(1, PART // frames))
    missing = [part for part in parts if kept is None or part not in kept]
    batches = [_ranges(part, max(1, batch // frames)) for part in missing]
    flat = [some for part in batches for some in part]
    coming = iter(Prefetcher(lambda number: _read(items, flat[number]), 0, len(flat), workers))
    plan = dict(zip(missing, batches, strict=True))
    found = 0
    with closing(coming), progress(console, title, len(items)) as advance:
        for part in parts:
            if part in plan:
                made = _compute(islice(coming, len(plan[part])), compute, device)
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
        raise UserError(f"none of the {len(items)} {items.kind} of the {title} can be read, such as {file}: {reason}")


def readable(items: Items, console: Console, *, workers: int, kept: Kept | None) -> Items:
    """The items that can be read; the others are noted as skipped."""

    def nothing(pixels: Tensor) -> Tensor:
        return torch.zeros(len(pixels), 0)

    chunks = stream(items, nothing, torch.device("cpu"), console, "reading", workers=workers, kept=kept)
    positions = torch.cat([chunk.items for chunk in chunks]).tolist()
    return replace(items, items=[items.items[position] for position in positions])


def _ranges(whole: range, length: int) -> list[range]:
    return [whole[start : start + length] for start in range(0, len(whole), length)]


def _read(items: Items, positions: range) -> _Read:
    frames, owners, skipped = [], [], []
    for position in positions:
        try:
            pixels = items.read(position)
        except BadMedia as reason:
            skipped.append((str(items.items[position].path), str(reason)))
        else:
            frames.append(pixels)
            owners += [position] * len(pixels)
    return _Read(torch.from_numpy(np.concatenate(frames)) if frames else None, owners, skipped)


def _compute(batches: Iterable[_Read], compute: Callable[[Tensor], Tensor], device: torch.device) -> Part:
    values, owners, skipped = [], list[int](), list[Skipped]()
    for batch in batches:
        if batch.pixels is not None:
            values.append(compute(batch.pixels.to(device)))
        owners += batch.items
        skipped += batch.skipped
    return Part(torch.cat(values) if values else torch.zeros(0), torch.tensor(owners, dtype=torch.long), skipped)
