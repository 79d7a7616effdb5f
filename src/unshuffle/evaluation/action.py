"""Action recognition (the paper's Tab. 3): the backbone is fine-tuned on single frames of videos.

Frames and crops are sampled as in Temporal Segment Networks (TSN): each frame is classified by itself, the video by the
mean of its logits. Sampling happens on the CPU, where only the chosen bytes are read; all arithmetic on pixels is
batched tensor code on the device.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
from annotated_types import Ge, Interval, Len
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.accelerator import choose_device
from unshuffle.config import Count, NonNegative, Positive
from unshuffle.console import say
from unshuffle.data.batches import epoch_order
from unshuffle.data.dataset import CACHE, LabelledDataset, Square, digest, packed, shared_files, split_dataset
from unshuffle.data.media import scaled_size
from unshuffle.data.pack import PackOptions
from unshuffle.data.source import Items, Pixels
from unshuffle.data.splits import SPLITS, check_missing, read_split_list
from unshuffle.data.store import Encoding
from unshuffle.errors import UserError
from unshuffle.evaluation.features import find_backbone, open_pair, prefetched, resized_floats, weights_digest
from unshuffle.evaluation.finetuning import Classifier, Recipe, TrainingSetup, fine_tune
from unshuffle.evaluation.protocol import (
    Evaluation,
    Result,
    check_covered,
    figure_table,
    note_few,
    note_skipped,
    published_table,
    skipped_figures,
)
from unshuffle.models import Backbone
from unshuffle.models.registry import backbone_features
from unshuffle.randomness import numpy_rng, seed_everything

SCALES = (1.0, 0.875, 0.75, 0.66)
"""Sides of a training crop as fractions of the frame's short side."""
POSITIONS = np.array(
    [(0, 0), (0, 4), (4, 0), (4, 4), (2, 2), (2, 0), (2, 4), (4, 2), (0, 2), (1, 1), (1, 3), (3, 1), (3, 3)]
)
"""The 13 positions of a training crop, top and left in quarters of the margin around it."""
TEST_POSITIONS = POSITIONS[:5]
"""Four corners and the centre."""

Normalise = Callable[[Tensor], Tensor]
Figures = dict[str, Any]
DropoutRate = Annotated[float, Interval(ge=0, lt=1)]
TEST_OPTIONS = {"split", "test_frames", "test_crops"}
"""Options that do not change the training."""


# ---- splits


@dataclass(frozen=True)
class Split:
    """The videos to train on and to test on."""

    dataset: str
    number: int | None
    """Number of an official split."""
    train: LabelledDataset
    test: LabelledDataset

    @property
    def name(self) -> str:
        """The dataset, and the number of the split."""
        return self.dataset if self.number is None else f"{self.dataset} split {self.number}"

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes."""
        return self.train.classes

    @property
    def sides(self) -> dict[str, LabelledDataset]:
        """Both datasets by their purpose."""
        return {"train": self.train, "test": self.test}

    def limited(self, classes: int | None, per_class: int | None) -> "Split":
        """Return the first classes and the first videos of each; None keeps all."""
        if classes is None and per_class is None:
            return self
        train, test = (_first_videos(dataset, classes, per_class) for dataset in (self.train, self.test))
        return replace(self, train=train, test=test)

    def check(self) -> None:
        """Raise a UserError unless every class can be trained and tested, and on different videos."""
        for purpose, dataset in self.sides.items():
            if dataset.kind != "videos":
                raise UserError(f"{dataset.address} holds {dataset.kind}, but action recognition needs videos")
            self._check_covered(purpose, dataset)
        if both := shared_files(self.train.paths(), self.test.paths()):
            raise UserError(f"{both[0]} is in the training data and in the test data")

    def check_decoded(self) -> None:
        """Raise a UserError if too many videos are absent or cannot be read, or all of a class."""
        for purpose, dataset in self.sides.items():
            missing = [f"{file} ({reason})" for file, reason in dataset.skipped]
            problem = f"videos to {purpose} on in {dataset.address} are absent or cannot be read"
            check_missing(missing, len(dataset) + len(missing), problem)
            self._check_covered(purpose, dataset)

    def _check_covered(self, purpose: str, dataset: LabelledDataset) -> None:
        classes = range(len(self.classes))
        check_covered(dataset.labels, classes, self.classes, f"video in {dataset.address} to {purpose} on")


def _first_videos(dataset: LabelledDataset, classes: int | None, per_class: int | None) -> LabelledDataset:
    chosen, seen = list[int](), Counter[int]()
    for index, label in enumerate(dataset.labels):
        if (classes is None or label < classes) and (per_class is None or seen[label] < per_class):
            chosen.append(index)
            seen[label] += 1
    return replace(dataset.subset(chosen), classes=dataset.classes[:classes], skipped=[])


def official_split(lists: Path, videos: Path, number: int) -> Split:
    """Return a split of UCF-101 or HMDB-51."""
    train, test = (read_split_list(lists, videos, number, side) for side in ("train", "test"))
    return Split(train.dataset, number, split_dataset(train), split_dataset(test))


# ---- frames and crops


def frame_side(size: int) -> int:
    """Return the short side of a frame from which crops of a size are cut: 259 for 227, as 256 for 224."""
    return size * 256 // 224


def segment_frames(available: Items, segments: int, rng: np.random.Generator) -> Items:
    """Sample a frame from each of the equal segments of each video, (B, segments)."""
    edges = np.arange(segments + 1) * available[:, None] // segments
    first, end = edges[:, :-1], np.maximum(edges[:, 1:], edges[:, :-1] + 1)  # a short video has empty segments
    frames: Items = rng.integers(first, end)
    return frames


def middle_frames(available: int, count: int) -> Items:
    """Return the middle frame of each of `count` equal segments; a short video repeats some."""
    frames: Items = (2 * np.arange(count) + 1) * available // (2 * count)
    return frames


@dataclass(frozen=True)
class Crops:
    """A crop for each of B videos, the same in all of its frames."""

    corners: Items
    """(B, 2) top and left."""
    sides: Items
    """(B, 2) height and width."""
    hflip: Items
    """(B,) whether it is flipped horizontally."""

    def cut(self, row: int, frames: Pixels) -> Pixels:
        """Return the crop of a video from its (F, height, width, 3) frames."""
        (top, left), (height, width) = self.corners[row], self.sides[row]
        return frames[:, top : top + height, left : left + width]

    def by_shape(self) -> list[Items]:
        """Return the rows of the videos whose crops have the same height and width, group by group."""
        shapes, shape_of = np.unique(self.sides, axis=0, return_inverse=True)
        return [np.flatnonzero(shape_of.reshape(-1) == shape) for shape in range(len(shapes))]


def sample_crops(frame_sizes: Items, rng: np.random.Generator) -> Crops:
    """Sample crops: a scale for each side, at most one step apart, one of the 13 positions, flipped or not.

    `frame_sizes` are (B, 2) heights and widths.
    """
    steps = np.arange(len(SCALES))
    pairs = np.argwhere(np.abs(steps[:, None] - steps) <= 1)
    scales = np.array(SCALES)[pairs[rng.integers(len(pairs), size=len(frame_sizes))]]
    sides = (frame_sizes.min(axis=1, keepdims=True) * scales).astype(np.int64)
    positions = POSITIONS[rng.integers(len(POSITIONS), size=len(frame_sizes))]
    return Crops((frame_sizes - sides) * positions // 4, sides, rng.integers(2, size=len(frame_sizes)))


def training_crops(crops: Sequence[Tensor], hflip: Tensor, size: int, normalise: Normalise) -> Tensor:
    """Return crops of several shapes, (n, F, h, w, 3) bytes each, as one (B · F, 3, size, size) batch."""
    images = torch.cat([resized_floats(crop.flatten(0, 1), size, size) for crop in crops])
    flips = hflip.repeat_interleave(len(images) // len(hflip))
    return normalise(torch.where(flips[:, None, None, None], images.flip(3), images))


def evaluation_crops(frames: Tensor, size: int, count: int, normalise: Normalise) -> Tensor:
    """Return the corners and the centre of (F, H, W, 3) bytes, then these flipped, (count · F, 3, size, size).

    `count` is 10, or 1 for the centre alone.
    """
    width, height = scaled_size((frames.shape[2], frames.shape[1]), frame_side(size))
    images = resized_floats(frames, height, width)
    margin = np.array([height - size, width - size])
    positions = TEST_POSITIONS if count > 1 else TEST_POSITIONS[-1:]
    corners = [tuple((margin * position // 4).tolist()) for position in positions]
    crops = torch.cat([images[:, :, top : top + size, left : left + size] for top, left in corners])
    return normalise(torch.cat([crops, crops.flip(3)]) if count > 1 else crops)


# ---- batches


@dataclass(frozen=True)
class ClipBatch:
    """Crops of one batch of videos, sorted by their shape."""

    crops: list[Tensor]
    """(n, segments, h, w, 3) bytes of each shape."""
    hflip: Tensor
    """(B,) whether a video is flipped horizontally."""
    labels: Tensor
    """(B,)"""

    def to(self, device: torch.device) -> "ClipBatch":
        """Return the batch on a device."""
        crops = [crop.to(device, non_blocking=True) for crop in self.crops]
        return ClipBatch(crops, self.hflip.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class ClipBatches:
    """Training batches, each a function of the seed and the step alone; every epoch is a new order of all videos."""

    dataset: LabelledDataset
    batch_size: int
    segments: int
    seed: int
    pinned: bool = False
    """Whether the batches go to a GPU."""

    @cached_property
    def lengths(self) -> Items:
        """Number of frames of each video."""
        return np.array([self.dataset.source.num_frames(item) for item in self.dataset.items])

    @cached_property
    def sizes(self) -> Items:
        """(N, 2) height and width of each video."""
        return np.array([self.dataset.source.size(item) for item in self.dataset.items])

    @property
    def steps(self) -> int:
        """Batches of an epoch; the last one may be smaller."""
        return -(-len(self.dataset) // self.batch_size)

    def batch(self, step: int) -> ClipBatch:
        """Return the batch of a step: a random frame of each segment, and one crop for all frames of a video."""
        epoch, position = divmod(step, self.steps)
        order = epoch_order(self.seed, "action", epoch, len(self.dataset))
        rows = order[position * self.batch_size : (position + 1) * self.batch_size]
        rng = numpy_rng(self.seed, "batch", "action", step)
        crops = sample_crops(self.sizes[rows], rng)
        frames = segment_frames(self.lengths[rows], self.segments, rng)
        groups = crops.by_shape()
        pixels = [self._read(rows, frames, crops, group) for group in groups]
        by_shape = np.concatenate(groups)
        hflip = torch.from_numpy(crops.hflip[by_shape]).bool()
        return ClipBatch(pixels, hflip, torch.tensor([self.dataset.labels[row] for row in rows[by_shape]]))

    def _read(self, rows: Items, frames: Items, crops: Crops, group: Items) -> Tensor:
        """Return the crops of the same shape of some videos of a batch."""
        source, items = self.dataset.source, self.dataset.items
        pixels = [
            crops.cut(number, source.read(items[rows[number]], frames[number].tolist())) for number in group.tolist()
        ]
        crop = torch.from_numpy(np.stack(pixels))
        return crop.pin_memory() if self.pinned else crop


# ---- the network


def action_classifier(
    backbone: Backbone, classes: Sequence[str], hidden: int, dropout: tuple[float, float]
) -> Classifier:
    """Return a backbone with a new classifier of its pool5 map: fc6, fc7, classes."""
    layers: list[nn.Module] = []
    inputs = backbone_features(backbone, backbone.eval_size)
    for width, rate in zip((inputs, hidden), dropout, strict=True):
        layers += [nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(rate)]
    return Classifier(backbone, [*layers, nn.Linear(hidden, len(classes))], classes)


def consensus(logits: Tensor, segments: int) -> Tensor:
    """Return the logits of the videos: the mean over the frames of each, which follow one another."""
    return logits.view(-1, segments, logits.shape[1]).mean(dim=1)


def consensus_loss(network: Classifier, batch: ClipBatch) -> Tensor:
    """Return the cross-entropy of the videos of a batch on the network's device."""
    images = training_crops(batch.crops, batch.hflip, network.backbone.eval_size, network.backbone.normalise)
    return F.cross_entropy(consensus(network(images), len(images) // len(batch.labels)), batch.labels)


@torch.no_grad()
def predict(
    network: Classifier, dataset: LabelledDataset, frames: int, crops: int, workers: int, console: Console
) -> Tensor:
    """Return the mean logits of each video over evenly spaced frames and their crops, (N, classes) on the CPU."""
    network.eval()
    backbone, device = network.backbone, next(network.parameters()).device

    def clip(index: int) -> Tensor:
        item = dataset.items[index]
        chosen = middle_frames(dataset.source.num_frames(item), frames)
        return torch.from_numpy(dataset.source.read(item, chosen.tolist()))

    logits = []
    for pixels in prefetched(clip, len(dataset), workers, console, "testing"):
        images = evaluation_crops(pixels.to(device), backbone.eval_size, crops, backbone.normalise)
        logits.append(network(images).double().mean(dim=0).cpu())
    return torch.stack(logits)


# ---- the evaluation


@dataclass(frozen=True)
class ActionRecognition(Evaluation):
    """Action recognition, fine-tuned on single frames with the sampling of temporal segment networks (Tab. 3)."""

    train: str | None = None
    """Videos to train on: class folders (torchvision's ImageFolder layout), a packed store or tar shards with labels, a
    split list such as ucfTrainTestlist/trainlist01.txt, or synthetic:videos:COUNT:SEED."""
    test: str | None = None
    """Videos to test on, with the same classes."""
    list: Path | None = None
    """Instead of --train and --test: the folder of the official list files of UCF-101 or HMDB-51; with --videos."""
    videos: Path | None = None
    """The videos that the lists name, in class folders or in one folder."""
    split: Literal["1", "2", "3", "all"] = "all"
    """Official split to evaluate; all: each by itself, then the mean."""
    classes: Annotated[int, Ge(2)] | None = None
    """Use the first classes only, this many, 2 or more."""
    per_class: Count | None = None
    """Use the first videos of each class only, this many, in training and in testing."""
    epochs: Count = 80
    """Passes over the training videos."""
    lr: Positive = 0.001
    """Learning rate of all weights; biases have twice that."""
    milestones: tuple[Count, ...] = (30, 60)
    """Epochs after which the learning rate is divided by ten."""
    batch_size: Count = 128
    """Videos per step."""
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """Momentum of SGD."""
    weight_decay: NonNegative = 5e-4
    """Weight decay of SGD."""
    clip: Positive = 20.0
    """Maximum norm of the gradient."""
    hidden: Count = 4096
    """Width of the new layers fc6 and fc7."""
    dropout: Annotated[tuple[DropoutRate, DropoutRate], Len(2, 2)] = (0.5, 0.8)
    """Dropout after fc6 and after fc7, from 0 to below 1."""
    segments: Count = 3
    """Segments of a video in training; a random frame of each is used."""
    test_frames: Count = 25
    """Evenly spaced frames of a video in testing."""
    test_crops: Literal[10, 1] = 10
    """10: corners and centre, each also flipped; 1: the centre."""
    every: Count = 1
    """Keep every n-th frame when the videos are decoded."""
    encoding: Encoding = "jpeg"
    """How the decoded frames are stored: raw is fast, jpeg is small."""
    cache: Path = CACHE
    """Folder that the videos are decoded into."""
    workers: Count = 8
    """Threads that read frames ahead of their use."""

    incidental = Evaluation.incidental | {"cache"}
    stated = Evaluation.stated | {"split"}

    @classmethod
    def quick(cls) -> Self:
        """Return the options for a few classes, a few epochs and one crop: minutes without a GPU."""
        return cls(
            preset="quick",
            split="1",
            classes=10,
            per_class=20,
            epochs=12,
            lr=0.01,
            milestones=(9,),
            batch_size=16,
            hidden=1024,
            dropout=(0.5, 0.5),
            test_frames=5,
            test_crops=1,
            every=4,
            workers=2,
        )

    def measure(self, console: Console) -> Result:
        """Fine-tune and test on every split."""
        device = choose_device(self.device)
        side = frame_side(find_backbone(self.weights, self.seed, self.architecture, self.download).eval_size)
        splits = self._decoded(
            [split.limited(self.classes, self.per_class) for split in self._open(side)], side, console
        )
        for split in splits:
            note_few(console, split.train.labels, split.classes, "training videos")
        figures = {split.name: self._evaluate(split, device, console) for split in splits}
        return self._result(splits, figures)

    def _open(self, side: int) -> Sequence[Split]:
        if self.list and self.videos and not (self.train or self.test):
            numbers = SPLITS if self.split == "all" else (int(self.split),)
            lists, videos = self.list.expanduser(), self.videos.expanduser()
            splits = [official_split(lists, videos, number) for number in numbers]
        elif self.train and self.test and not (self.list or self.videos):
            cache = self.cache.expanduser()
            splits = [Split("own data", None, *open_pair(self.train, self.test, square=Square(side), cache=cache))]
        else:
            raise UserError("give --train and --test (class folders), or --list and --videos (official splits)")
        for split in splits:
            split.check()
        return splits

    def _decoded(self, splits: Sequence[Split], side: int, console: Console) -> Sequence[Split]:
        """Decode the videos, each folder once for all splits; refuse a split that lacks too many of them."""
        sides = [dataset for split in splits for dataset in split.sides.values()]
        options: PackOptions = {"short_side": side, "encoding": self.encoding, "every": self.every}
        datasets = packed(sides, self.cache.expanduser(), progress=console.is_terminal, **options)
        decoded = [
            replace(split, train=train, test=test)
            for split, train, test in zip(splits, datasets[::2], datasets[1::2], strict=True)
        ]
        for split in decoded:
            for purpose, dataset in split.sides.items():
                note_skipped(console, dataset, f"{split.name}, videos to {purpose} on", self.out)
            split.check_decoded()
        return decoded

    def _evaluate(self, split: Split, device: torch.device, console: Console) -> Figures:
        say(console, f"{split.name}: {len(split.train)} videos to train on, {len(split.test)} to test on")
        network = self._train(split, device, console)
        logits = predict(network, split.test, self.test_frames, self.test_crops, self.workers, console)
        return score(logits, torch.tensor(split.test.labels), split.classes)

    def _train(self, split: Split, device: torch.device, console: Console) -> Classifier:
        seed_everything(self.seed)
        backbone = find_backbone(self.weights, self.seed, self.architecture, self.download)
        options = {name: value for name, value in self.options().items() if name not in TEST_OPTIONS}
        identity = digest([options, split.train.identity(), weights_digest(backbone)])
        network = action_classifier(backbone, split.classes, self.hidden, self.dropout).to(device)
        batches = ClipBatches(split.train, self.batch_size, self.segments, self.seed, pinned=device.type == "cuda")
        recipe = Recipe(
            iterations=self.epochs * batches.steps,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            milestones=tuple(epoch * batches.steps for epoch in self.milestones),
            clip=self.clip,
        )
        folder = self.folder(f"checkpoints/{split.name.replace(' ', '-').lower()}")
        setup = TrainingSetup(console, self.seed, self.workers, folder, identity, save_every=batches.steps)
        fine_tune(network, recipe, batches.batch, lambda batch: consensus_loss(network, batch.to(device)), setup)
        return network

    def _result(self, splits: Sequence[Split], figures: Mapping[str, Figures]) -> Result:
        metrics = _mean(list(figures.values()))
        if len(splits) > 1:
            metrics["splits"] = {f"split_{split.number}": figures[split.name] for split in splits}
        metrics["chance"] = 100 / len(splits[0].classes)
        # Splits share videos: each is listed once.
        skipped = dict.fromkeys(entry for split in splits for side in split.sides.values() for entry in side.skipped)
        metrics["skipped"] = skipped_figures(list(skipped))
        crops = "10 crops (corners and centre, also flipped)" if self.test_crops == 10 else "the centre crop"
        statement = (
            f"{' and '.join(figures)}; "
            f"{' and '.join(str(len(split.train)) for split in splits)} videos to train on, "
            f"{' and '.join(str(len(split.test)) for split in splits)} to test on, {len(splits[0].classes)} classes; "
            f"{self.epochs} epochs of SGD on {self.segments} frames of each; "
            f"{self.test_frames} frames x {crops}, mean of the logits; mean of the accuracies of the classes"
        )
        return Result("action recognition", statement, metrics, self._table(metrics, splits[0].dataset))

    def _table(self, metrics: Figures, dataset: str) -> Table:
        classes, videos = "mean over classes", "all videos"
        ours = {
            "this network": {classes: metrics["mean_class_accuracy"], videos: metrics["accuracy"]},
            "chance": {classes: metrics["chance"], videos: metrics["chance"]},
        }
        if dataset not in ("UCF-101", "HMDB-51") or not self.is_papers():
            return figure_table(ours)
        return published_table("3", ours, dataset, {classes: dataset})


def score(logits: Tensor, labels: Tensor, classes: Sequence[str]) -> Figures:
    """Return accuracies in percent: of each class, their mean, and over all videos whatever their class."""
    predictions = logits.argmax(dim=1)
    hits = torch.bincount(labels[predictions == labels], minlength=len(classes))
    each = 100 * hits.double() / torch.bincount(labels, minlength=len(classes))
    return {
        "mean_class_accuracy": float(each.mean()),
        "accuracy": 100 * float((predictions == labels).double().mean()),
        "per_class": dict(zip(classes, each.tolist(), strict=True)),
    }


def _mean(figures: Sequence[Figures]) -> Figures:
    """Return the mean over the splits of every figure."""
    first = figures[0]
    return {
        key: _mean([row[key] for row in figures]) if isinstance(value, dict) else fmean(row[key] for row in figures)
        for key, value in first.items()
    }
