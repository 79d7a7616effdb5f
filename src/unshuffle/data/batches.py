"""Batches of samples as bytes: which items, which frames, which window, ready to go to the device.

A batch is a function of the seed and the iteration alone, so any thread may make it at any time.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.decode import EncodedSquares, decode
from unshuffle.data.share import WHOLE, Share
from unshuffle.data.source import EncodedSource, Items, OrderedSource, Source
from unshuffle.data.squares import Resident, Squares, Windows
from unshuffle.randomness import numpy_rng

T = TypeVar("T")
Batch = Mapping[str, "Squares | EncodedSquares"]
"""What is trained on in one step, of each task."""


@dataclass(frozen=True, eq=False)  # hashed by identity, which the cache of orders needs
class Samples:
    """The samples of one task: some items of a source, as squares of one size."""

    source: Source
    items: Items
    frames: int
    """Frames of a sample; 1 for the spatial task."""
    side: int
    """Side of the square cut out of each frame."""
    span: int = 0
    """Draw the frames from a window of so many; 0: from the whole item."""
    reverse: bool = False
    """Play half of the items backwards in training."""

    def __len__(self) -> int:
        return len(self.items)

    def draw(self, items: Items, rng: np.random.Generator) -> Windows:
        """Training samples: random frames in temporal order, or against it, a random square shared by them."""
        available, sizes = self._shapes
        frames = choose_frames(available[items], self.frames, self.span, rng)
        corners = rng.integers(sizes[items] - self.side + 1)
        if self.reverse:
            backwards = rng.random(len(items)) < 0.5
            frames[backwards] = frames[backwards, ::-1]
        return Windows(items, frames, corners)

    def centre(self, items: Items) -> Windows:
        """Validation samples: evenly spaced frames, the centre square."""
        available, sizes = self._shapes
        frames = [spaced_frames(int(count), self.frames, self.span) for count in available[items]]
        return Windows(items, np.array(frames), (sizes[items] - self.side) // 2)

    def read(self, windows: Windows, pinned: bool = False) -> Tensor:
        """(B, frames, side, side, 3) bytes; pinned memory goes to a GPU without being waited for."""
        shape = (len(windows.items), self.frames, self.side, self.side, 3)
        pixels = torch.empty(shape, dtype=torch.uint8, pin_memory=pinned)
        for target, item, frames, (top, left) in zip(
            pixels.numpy(), windows.items.tolist(), windows.frames.tolist(), windows.corners.tolist(), strict=True
        ):
            target[:] = self.source.read(item, frames)[:, top : top + self.side, left : left + self.side]
        return pixels

    @cached_property
    def _shapes(self) -> tuple[Items, Items]:
        """Number of frames, and height and width, of every item of the source."""
        everything = range(len(self.source))
        counts = np.array([self.source.num_frames(item) for item in everything])
        return counts, np.array([self.source.size(item) for item in everything])

    def digest(self) -> str:
        """A fingerprint of the names of the samples, to tell whether they are still the same."""
        names = "\n".join(self.source.names[item] for item in self.items.tolist())
        return hashlib.sha256(os.fsencode(names)).hexdigest()

    def centres(self) -> Tensor:
        """All samples in their validation form, (N, frames, side, side, 3) bytes."""
        return self.read(self.centre(self.items))


def choose_frames(available: Items, count: int, span: int, rng: np.random.Generator) -> Items:
    """`count` different frames at random out of each number of available ones, in temporal order."""
    window = np.minimum(available, max(span, count)) if span else available
    start = rng.integers(available - window + 1)
    # Floyd's way to draw without replacement, for all rows at once: of 0 ... last, or last itself if that is taken
    chosen = np.full((len(available), count), -1)
    for place in range(count):
        last = window - count + place
        drawn = rng.integers(last + 1)
        taken = (chosen == drawn[:, None]).any(axis=1)
        chosen[:, place] = np.where(taken, last, drawn)
    ordered: Items = np.sort(chosen, axis=1) + start[:, None]
    return ordered


def spaced_frames(available: int, count: int, span: int) -> list[int]:
    """`count` frames evenly over the middle window."""
    window = min(available, max(span, count)) if span else available
    start = (available - window) // 2
    if count == 1:
        return [start + (window - 1) // 2]
    return [start + round(position) for position in np.linspace(0, window - 1, count).tolist()]


@lru_cache(maxsize=8)  # an order of a million samples is drawn once an epoch, not once a batch
def epoch_order(seed: int, task: str, epoch: int, total: int) -> Items:
    """The order of all samples in one epoch."""
    return numpy_rng(seed, "epoch", task, epoch).permutation(total)


@lru_cache(maxsize=8)
def own_order(samples: Samples, seed: int, task: str, epoch: int) -> Items:
    """The order of all samples in one epoch: the source's own, if it has one."""
    if isinstance(samples.source, OrderedSource):
        return samples.source.order(samples.items, numpy_rng(seed, "epoch", task, epoch))
    return epoch_order(seed, task, epoch, len(samples))


@dataclass(frozen=True, eq=False)
class BatchStream:
    """An endless stream of training batches: every epoch is a new order of all samples."""

    samples: Samples
    batch_size: int
    seed: int
    task: str
    resident: Resident | None = None
    """The source's bytes on the device, if they are there."""
    gpu: bool = False
    """Whether the batches go to a GPU: from pinned memory, or encoded as they are."""

    def items(self, step: int) -> Items:
        """The items of the batch at a step, across the end of an epoch if need be."""
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, places = np.divmod(positions, len(self.samples))
        chosen = [
            own_order(self.samples, self.seed, self.task, epoch)[places[epochs == epoch]]
            for epoch in np.unique(epochs).tolist()
        ]
        items: Items = self.samples.items[np.concatenate(chosen)]
        return items

    def batch(self, step: int, share: Share = WHOLE) -> Squares | EncodedSquares:
        """The batch at a step; of a share, only its own samples are read."""
        if share.of > 1 and isinstance(self.samples.source, OrderedSource):
            return self._apart(share).batch(step)
        windows = self.samples.draw(self.items(step), numpy_rng(self.seed, "batch", self.task, step)).part(share)
        if self.resident is not None:
            return self.resident.squares(windows, self.samples.side)
        source = self.samples.source
        if self.gpu and isinstance(source, EncodedSource) and source.encoded:
            frames = zip(windows.items.tolist(), windows.frames.tolist(), strict=True)
            images = [image for item, some in frames for image in source.read_encoded(item, some)]
            ready = [image if image.plain else decode(image) for image in images]
            return EncodedSquares(ready, windows, self.samples.side)
        return Squares.of(self.samples.read(windows, self.gpu))

    @lru_cache(maxsize=8)  # noqa: B019, there are as many streams as tasks
    def _apart(self, share: Share) -> "BatchStream":
        """A stream of the shards that belong to one process alone: no two should fetch the same."""
        source = self.samples.source
        assert isinstance(source, OrderedSource)
        samples = replace(self.samples, items=source.rank_items(self.samples.items, self.seed, share.index, share.of))
        size = self.batch_size // share.of
        return replace(self, samples=samples, batch_size=size, task=f"{self.task} {share.index} of {share.of}")


class Prefetcher(Generic[T]):
    """Results of `make(start)`, `make(start + 1)`, ... in order, computed by threads ahead of their use."""

    def __init__(self, make: Callable[[int], T], start: int, stop: int, workers: int) -> None:
        self.make, self.start, self.stop, self.workers = make, start, stop, max(1, workers)
        self.seconds_waited = 0.0

    def __iter__(self) -> Generator[T]:
        pending: deque[Future[T]] = deque()
        coming = iter(range(self.start, self.stop))
        with ThreadPoolExecutor(self.workers, thread_name_prefix="batch") as pool:
            try:
                for step in coming:
                    pending.append(pool.submit(self.make, step))
                    if len(pending) > 2 * self.workers:
                        yield self._wait(pending.popleft())
                while pending:
                    yield self._wait(pending.popleft())
            finally:
                for future in pending:
                    future.cancel()

    def _wait(self, future: "Future[T]") -> T:
        begin = time.perf_counter()
        result = future.result()
        self.seconds_waited += time.perf_counter() - begin
        return result


def ahead(batches: Prefetcher[Batch], device: torch.device) -> Generator[dict[str, Squares]]:
    """The batches on the device; on a GPU each travels while the one before it is used."""
    if device.type != "cuda":
        yield from ({task: some.to(device) for task, some in batch.items()} for batch in batches)
        return
    copies = torch.cuda.Stream(device)
    coming: _Sent | None = None
    with closing(iter(batches)) as source:  # type: ignore[type-var]
        for batch in source:
            begin = time.perf_counter()
            ready, coming = coming, _Sent(batch, device, copies)
            if any(isinstance(some, EncodedSquares) for some in batch.values()):
                batches.seconds_waited += time.perf_counter() - begin  # for the GPU's decoder; other bytes just travel
            if ready is not None:
                yield ready.received()
        if coming is not None:
            yield coming.received()


class _Sent:
    """A batch on its way to a GPU, on a stream of its own."""

    def __init__(self, batch: Batch, device: torch.device, copies: torch.cuda.Stream) -> None:
        self.device, self.arrived = device, torch.cuda.Event()
        with torch.cuda.stream(copies):
            self.batch = {task: squares.to(device) for task, squares in batch.items()}
            self.arrived.record()

    def received(self) -> dict[str, Squares]:
        """The batch, for the stream that trains."""
        here = torch.cuda.current_stream(self.device)
        here.wait_event(self.arrived)
        for squares in self.batch.values():
            for tensor in (squares.data, squares.places):
                tensor.record_stream(here)
        return self.batch
