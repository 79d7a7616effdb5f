"""Batches of samples as bytes: which items, which frames, which windows, ready to be copied to the device.

A batch is a function of the seed and the iteration alone, so any thread may make it at any time.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.decode import EncodedSquares, decode
from unshuffle.data.shards import ShardSource
from unshuffle.data.source import Items, Source
from unshuffle.data.squares import WHOLE, RankSlice, Resident, Squares, Windows
from unshuffle.errors import UserError
from unshuffle.randomness import numpy_rng
from unshuffle.stopping import worker_pool

T = TypeVar("T")
Batch = Mapping[str, "Squares | EncodedSquares"]
"""The samples of one training step, of each task."""


@dataclass(frozen=True, eq=False)  # hashed by identity, as the cache of epochs needs
class Samples:
    """The samples of one task: some items of a source, as squares of one size."""

    source: Source
    items: Items
    frames: int
    """Frames of a sample; 1 for an image."""
    side: int
    """Side of the square window in each frame, in pixels."""
    span: int = 0
    """Sample the frames from a window of so many; 0: from the whole item."""
    reverse: bool = False
    """Play half of the items backwards in training."""
    window_per_frame: bool = False
    """Sample a window for each frame in training; otherwise the frames of an item share one."""

    def __len__(self) -> int:
        return len(self.items)

    def random_windows(self, items: Items, rng: np.random.Generator) -> Windows:
        """Return training samples: random frames in temporal order, or reversed, and random windows in them."""
        available, _ = self._shapes
        frames = choose_frames(available[items], self.frames, self.span, rng)
        sampled = self.frames if self.window_per_frame else 1
        corners = rng.integers(self._room(items) + 1, size=(len(items), sampled, 2))
        if self.reverse:
            backwards = rng.random(len(items)) < 0.5
            frames[backwards] = frames[backwards, ::-1]
        return Windows(items, frames, np.broadcast_to(corners, (*frames.shape, 2)))

    def centre_windows(self, items: Items) -> Windows:
        """Return validation samples: evenly spaced frames, the centre window."""
        available, _ = self._shapes
        spaced = [spaced_frames(int(count), self.frames, self.span) for count in available[items]]
        frames = np.array(spaced, dtype=np.int64).reshape(len(items), self.frames)  # a process may have no items
        return Windows(items, frames, np.broadcast_to(self._room(items) // 2, (*frames.shape, 2)))

    def read(self, windows: Windows, pinned: bool = False) -> Tensor:
        """Read (B, frames, side, side, 3) bytes, into pinned memory if they go to a GPU."""
        shape = (len(windows.items), self.frames, self.side, self.side, 3)
        pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        for squares, item, frames, corners in zip(
            pixels.numpy(), windows.items.tolist(), windows.frames.tolist(), windows.corners.tolist(), strict=True
        ):
            for square, frame, (top, left) in zip(squares, self.source.read(item, frames), corners, strict=True):
                square[:] = frame[top : top + self.side, left : left + self.side]
        return pixels

    def _room(self, items: Items) -> Items:
        """Return the pixels by which the window may be shifted down and right in each item, (B, 1, 2)."""
        _, sizes = self._shapes
        room: Items = sizes[items] - self.side
        if (room < 0).any():
            name = self.source.names[items[room.min(axis=1).argmin()]]
            raise UserError(f"{name} is smaller than a window of {self.side} px: pack the data at one short side")
        return room[:, None]

    @cached_property
    def _shapes(self) -> tuple[Items, Items]:
        """Number of frames, and height and width, of every item of the source."""
        items = range(len(self.source))
        counts = np.array([self.source.num_frames(item) for item in items])
        return counts, np.array([self.source.size(item) for item in items])

    def digest(self) -> str:
        """Return a hash of the names of the samples, to detect a change of the data."""
        names = "\n".join(self.source.names[item] for item in self.items.tolist())
        return hashlib.sha256(os.fsencode(names)).hexdigest()

    def centres(self) -> Tensor:
        """Read all samples in their validation form, (N, frames, side, side, 3) bytes."""
        return self.read(self.centre_windows(self.items))


def choose_frames(available: Items, count: int, span: int, rng: np.random.Generator) -> Items:
    """Sample `count` different frames out of each number of available ones, in temporal order."""
    window = np.minimum(available, max(span, count)) if span else available
    start = rng.integers(available - window + 1)
    # Floyd's sampling without replacement, for all rows at once: one of 0 ... last, or last itself if that is taken
    chosen = np.full((len(available), count), -1)
    for column in range(count):
        last = window - count + column
        candidate = rng.integers(last + 1)
        taken = (chosen == candidate[:, None]).any(axis=1)
        chosen[:, column] = np.where(taken, last, candidate)
    ordered: Items = np.sort(chosen, axis=1) + start[:, None]
    return ordered


def spaced_frames(available: int, count: int, span: int) -> list[int]:
    """Return `count` frames evenly spaced over the middle window."""
    window = min(available, max(span, count)) if span else available
    start = (available - window) // 2
    if count == 1:
        return [start + (window - 1) // 2]
    return [start + round(position) for position in np.linspace(0, window - 1, count).tolist()]


@lru_cache(maxsize=8)  # shuffling a million samples takes too long to do it for every batch
def epoch_order(seed: int, task: str, epoch: int, total: int) -> Items:
    """Return the random order of all samples in an epoch."""
    return numpy_rng(seed, "epoch", task, epoch).permutation(total)


@lru_cache(maxsize=8)
def source_order(samples: Samples, seed: int, task: str, epoch: int) -> Items:
    """Return the order of all samples in an epoch; shards are read a few at a time."""
    if isinstance(samples.source, ShardSource):
        return samples.source.order(samples.items, numpy_rng(seed, "epoch", task, epoch))
    return epoch_order(seed, task, epoch, len(samples))


@dataclass(frozen=True, eq=False)
class BatchStream:
    """An endless stream of training batches; every epoch shuffles all samples anew."""

    samples: Samples
    batch_size: int
    seed: int
    task: str
    resident: Resident | None = None
    """The source's bytes on the device, if they are kept there."""
    gpu: bool = False
    """Whether the batches go to a GPU: from pinned memory, or still encoded."""

    def items(self, step: int) -> Items:
        """Return the items of the batch at a step; a batch may span two epochs."""
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, ranks = np.divmod(positions, len(self.samples))
        chosen = [
            source_order(self.samples, self.seed, self.task, epoch)[ranks[epochs == epoch]]
            for epoch in np.unique(epochs).tolist()
        ]
        items: Items = self.samples.items[np.concatenate(chosen)]
        return items

    def names(self, step: int, part: RankSlice = WHOLE) -> list[str]:
        """Return the names of the items in one process's slice of the batch at a step."""
        if part.world_size > 1 and isinstance(self.samples.source, ShardSource):
            return self._of_rank(part).names(step)
        return [self.samples.source.names[item] for item in self.items(step)[part.rows(self.batch_size)].tolist()]

    def batch(self, step: int, part: RankSlice = WHOLE) -> Squares | EncodedSquares:
        """Read one process's slice of the batch at a step."""
        if part.world_size > 1 and isinstance(self.samples.source, ShardSource):
            return self._of_rank(part).batch(step)
        rng = numpy_rng(self.seed, "batch", self.task, step)
        windows = self.samples.random_windows(self.items(step), rng).slice(part)
        if self.resident is not None:
            return self.resident.squares(windows, self.samples.side)
        source = self.samples.source
        if self.gpu and isinstance(source, ShardSource) and source.encoded:
            clips = zip(windows.items.tolist(), windows.frames.tolist(), strict=True)
            images = [image for item, frames in clips for image in source.read_encoded(item, frames)]
            readable = [image if image.plain else decode(image) for image in images]
            return EncodedSquares(readable, windows, self.samples.side)
        return Squares.of(self.samples.read(windows, self.gpu))

    @lru_cache(maxsize=8)  # noqa: B019, there are as many streams as tasks
    def _of_rank(self, part: RankSlice) -> "BatchStream":
        """Return a stream of the shards that belong to one process, so that no shard is fetched twice."""
        source = self.samples.source
        assert isinstance(source, ShardSource)
        samples = replace(
            self.samples, items=source.rank_items(self.samples.items, self.seed, part.rank, part.world_size)
        )
        size = self.batch_size // part.world_size
        return replace(self, samples=samples, batch_size=size, task=f"{self.task} {part.rank} of {part.world_size}")


class WaitingStopped(Exception):
    """The program was asked to stop while it waited for a batch."""


class Prefetcher(Generic[T]):
    """Yields `make(start)`, `make(start + 1)`, ... in order, computed ahead of their use by threads.

    If `stops()` becomes true during a long wait, raises `WaitingStopped`: a thread may hang for ever, in a network file
    system for example.
    """

    def __init__(
        self, make: Callable[[int], T], start: int, stop: int, workers: int, stops: Callable[[], bool] = lambda: False
    ) -> None:
        self.make, self.start, self.stop, self.workers, self.stops = make, start, stop, max(1, workers), stops
        self.seconds_waited = 0.0

    def __iter__(self) -> Generator[T]:
        pending: deque[Future[T]] = deque()
        with worker_pool(self.workers, "batch") as pool:
            for step in range(self.start, self.stop):
                pending.append(pool.submit(self.make, step))
                if len(pending) > 2 * self.workers:
                    yield self._wait(pending.popleft())
            while pending:
                yield self._wait(pending.popleft())

    def _wait(self, future: "Future[T]") -> T:
        begin = time.perf_counter()
        while not wait([future], timeout=1.0).done:
            if self.stops():
                raise WaitingStopped
        self.seconds_waited += time.perf_counter() - begin
        return future.result()


def on_device(batches: Prefetcher[Batch], device: torch.device) -> Generator[dict[str, Squares]]:
    """Yield the batches on the device; on a GPU each is copied while the one before it is used."""
    if device.type != "cuda":
        yield from ({task: squares.to(device) for task, squares in batch.items()} for batch in batches)
        return
    copies = torch.cuda.Stream(device)
    upcoming: _Transfer | None = None
    with closing(iter(batches)) as source:  # type: ignore[type-var]
        for batch in source:
            begin = time.perf_counter()
            ready, upcoming = upcoming, _Transfer(batch, device, copies)
            if any(isinstance(squares, EncodedSquares) for squares in batch.values()):
                # for the GPU's decoder; other copies take no time
                batches.seconds_waited += time.perf_counter() - begin
            if ready is not None:
                yield ready.finish()
        if upcoming is not None:
            yield upcoming.finish()


class _Transfer:
    """A copy of a batch to a GPU, on a CUDA stream of its own."""

    def __init__(self, batch: Batch, device: torch.device, copies: torch.cuda.Stream) -> None:
        self.device, self.arrived = device, torch.cuda.Event()
        with torch.cuda.stream(copies):
            self.batch = {task: squares.to(device) for task, squares in batch.items()}
            self.arrived.record()

    def finish(self) -> dict[str, Squares]:
        """Return the batch, for use on the current stream."""
        here = torch.cuda.current_stream(self.device)
        here.wait_event(self.arrived)
        for squares in self.batch.values():
            for tensor in (squares.data, squares.offsets):
                tensor.record_stream(here)
        return self.batch
