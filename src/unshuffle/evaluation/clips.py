"""Labelled videos, decoded once into a packed store, and what is read of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.batches import epoch_order
from unshuffle.data.pack import cached_store
from unshuffle.data.source import Items
from unshuffle.data.store import Encoding, Store
from unshuffle.evaluation.coverage import check_covered
from unshuffle.evaluation.skips import Skipped
from unshuffle.evaluation.splits import Listing, Split, check_share
from unshuffle.evaluation.video_crops import Boxes, draw_boxes, middle_frames, segment_frames
from unshuffle.randomness import numpy_rng


@dataclass(frozen=True, eq=False)
class Clips:
    """Some videos of a store with a class each."""

    store: Store
    items: Items
    labels: Items
    skipped: list[Skipped]
    """Videos that were listed and are absent or unreadable."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def names(self) -> list[str]:
        """Of all videos, in their order."""
        return [self.store.names[item] for item in self.items.tolist()]

    @cached_property
    def lengths(self) -> Items:
        """Number of frames of each video."""
        return np.array([self.store.num_frames(item) for item in self.items.tolist()])

    @cached_property
    def sizes(self) -> Items:
        """(N, 2) height and width of each video."""
        return np.array([self.store.size(item) for item in self.items.tolist()])

    def evenly(self, row: int, frames: int) -> Tensor:
        """Evenly spaced frames of a video, (frames, height, width, 3) bytes."""
        chosen = middle_frames(int(self.lengths[row]), frames)
        return torch.from_numpy(self.store.read(int(self.items[row]), chosen.tolist()))


def open_splits(
    splits: Sequence[Split], cache: Path, *, short_side: int, encoding: Encoding, every: int, progress: bool
) -> list[tuple[Clips, Clips]]:
    """The videos to train and to test on in each split; every folder is decoded once for all of them."""
    wanted: dict[Path, set[str]] = {}
    for listing in (side for split in splits for side in (split.train, split.test)):
        wanted.setdefault(listing.folder, set()).update(listing.names)
    stores = {
        folder: cached_store(
            "videos",
            folder,
            cache,
            short_side=short_side,
            encoding=encoding,
            every=every,
            only=names,
            progress=progress,
        )
        for folder, names in wanted.items()
    }
    return [(_open(split.train, stores, split, "train"), _open(split.test, stores, split, "test")) for split in splits]


def _open(listing: Listing, stores: dict[Path, Store], split: Split, purpose: str) -> Clips:
    store = stores[listing.folder]
    numbers = {name: item for item, name in enumerate(store.names)}
    reasons = dict(store.skipped)
    skipped = [(name, reasons.get(name, "absent")) for name in listing.names if name not in numbers]
    skipped += [(name, "absent") for name in listing.absent]
    total = len(listing) + len(listing.absent)
    check_share(
        [f"{name} ({reason})" for name, reason in skipped],
        total,
        f"videos to {purpose} on in {listing.folder} are absent or cannot be read",
    )
    pairs = [
        (numbers[name], label) for name, label in zip(listing.names, listing.labels, strict=True) if name in numbers
    ]
    items, labels = np.array(pairs).T
    check_covered(
        labels.tolist(), range(len(split.classes)), split.classes, f"video in {listing.folder} to {purpose} on"
    )
    return Clips(store, items, labels, skipped)


@dataclass(frozen=True)
class ClipBatch:
    """Crops of one batch of videos, sorted by their shape."""

    cuts: list[Tensor]
    """(n, segments, h, w, 3) bytes of each shape."""
    mirrored: Tensor
    """(B,) whether left and right change places."""
    labels: Tensor
    """(B,)"""

    @property
    def segments(self) -> int:
        """Frames of each video."""
        return self.cuts[0].shape[1]

    def to(self, device: torch.device) -> "ClipBatch":
        """The same on a device."""
        cuts = [cut.to(device, non_blocking=True) for cut in self.cuts]
        return ClipBatch(cuts, self.mirrored.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class ClipStream:
    """Training batches, each a function of the seed and the step alone; every epoch is a new order of all videos."""

    clips: Clips
    batch_size: int
    segments: int
    seed: int
    pinned: bool = False
    """Whether the batches go to a GPU."""

    @property
    def steps(self) -> int:
        """Batches of an epoch; the last one may be smaller."""
        return -(-len(self.clips) // self.batch_size)

    def batch(self, step: int) -> ClipBatch:
        """The batch at a step: a random frame of each segment, and one crop for all frames of a video."""
        rows = self._rows(step)
        rng = numpy_rng(self.seed, "batch", "action", step)
        boxes = draw_boxes(self.clips.sizes[rows], rng)
        frames = segment_frames(self.clips.lengths[rows], self.segments, rng)
        groups = boxes.by_shape()
        cuts = [self._read(rows, frames, boxes, group) for group in groups]
        order = np.concatenate(groups)
        mirrored = torch.from_numpy(boxes.mirrored[order]).bool()
        return ClipBatch(cuts, mirrored, torch.from_numpy(self.clips.labels[rows[order]]))

    def _rows(self, step: int) -> Items:
        epoch, place = divmod(step, self.steps)
        order = epoch_order(self.seed, "action", epoch, len(self.clips))
        return order[place * self.batch_size : (place + 1) * self.batch_size]

    def _read(self, rows: Items, frames: Items, boxes: Boxes, group: Items) -> Tensor:
        """The crops of the same shape of some videos of a batch."""
        items = self.clips.items[rows]
        crops = [
            boxes.cut(place, self.clips.store.read(int(items[place]), frames[place].tolist()))
            for place in group.tolist()
        ]
        cut = torch.from_numpy(np.stack(crops))
        return cut.pin_memory() if self.pinned else cut
