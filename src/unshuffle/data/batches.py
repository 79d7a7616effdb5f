"""Batches of samples as bytes: which items, which frames, which window, ready to go to the device.

A batch is a function of the seed and the iteration alone, so any thread may make it at any time.
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.source import Items, OrderedSource, Pixels, Source
from unshuffle.randomness import numpy_rng

T = TypeVar("T")


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

    def __len__(self) -> int:
        return len(self.items)

    def draw(self, item: int, rng: np.random.Generator) -> Pixels:
        """A training sample: random frames in temporal order, a random square shared by them."""
        frames = choose_frames(self.source.num_frames(item), self.frames, self.span, rng)
        height, width = self.source.size(item)
        top, left = rng.integers(height - self.side + 1), rng.integers(width - self.side + 1)
        return self._square(item, frames, int(top), int(left))

    def centre(self, item: int) -> Pixels:
        """A validation sample: evenly spaced frames, the centre square."""
        frames = spaced_frames(self.source.num_frames(item), self.frames, self.span)
        height, width = self.source.size(item)
        return self._square(item, frames, (height - self.side) // 2, (width - self.side) // 2)

    def _square(self, item: int, frames: Sequence[int], top: int, left: int) -> Pixels:
        return self.source.read(item, frames)[:, top : top + self.side, left : left + self.side]

    def digest(self) -> str:
        """A fingerprint of the names of the samples, to tell whether they are still the same."""
        names = "\n".join(self.source.names[item] for item in self.items.tolist())
        return hashlib.sha256(os.fsencode(names)).hexdigest()

    def centres(self) -> Tensor:
        """All samples in their validation form, (N, frames, side, side, 3) bytes."""
        return torch.from_numpy(np.stack([self.centre(int(item)) for item in self.items]))


def choose_frames(available: int, count: int, span: int, rng: np.random.Generator) -> list[int]:
    """`count` different frames at random, in temporal order."""
    window = min(available, max(span, count)) if span else available
    start = int(rng.integers(available - window + 1))
    chosen = np.sort(rng.choice(window, count, replace=False)) + start
    return [int(frame) for frame in chosen]


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


@dataclass(frozen=True)
class BatchStream:
    """An endless stream of training batches: every epoch is a new order of all samples."""

    samples: Samples
    batch_size: int
    seed: int
    task: str

    def items(self, step: int) -> Items:
        """The items of the batch at a step, across the end of an epoch if need be."""
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        epochs, places = np.divmod(positions, len(self.samples))
        chosen = [
            own_order(self.samples, self.seed, self.task, int(epoch))[place]
            for epoch, place in zip(epochs, places, strict=True)
        ]
        return self.samples.items[chosen]

    def batch(self, step: int) -> Tensor:
        """The batch at a step, (B, frames, side, side, 3) bytes."""
        rng = numpy_rng(self.seed, "batch", self.task, step)
        return torch.from_numpy(np.stack([self.samples.draw(int(item), rng) for item in self.items(step)]))


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
