"""Action recognition (the paper's Tab. 3): the backbone is fine-tuned on single frames of videos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Self

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from unshuffle.accelerator import choose_device
from unshuffle.console import progress
from unshuffle.data.store import Encoding
from unshuffle.errors import UserError
from unshuffle.evaluation.backbones import find_backbone
from unshuffle.evaluation.clips import Clips, ClipStream, open_splits
from unshuffle.evaluation.coverage import tell_few
from unshuffle.evaluation.fine_tuning import Recipe, Workshop, fine_tune
from unshuffle.evaluation.identity import digest, fingerprint
from unshuffle.evaluation.protocol import Evaluation, Result
from unshuffle.evaluation.published import published_table
from unshuffle.evaluation.skips import skipped_figures, tell_skipped
from unshuffle.evaluation.splits import SPLITS, Split, folder_split, official_split
from unshuffle.evaluation.tsn import ActionNetwork, class_accuracies, consensus_loss, predict
from unshuffle.evaluation.video_crops import frame_side
from unshuffle.randomness import seed_everything

Figures = dict[str, Any]
NOT_LEARNED_FROM = {"split", "test_frames", "test_crops"}


@dataclass(frozen=True)
class ActionRecognition(Evaluation):
    """Actions in videos, fine-tuned on single frames with the sampling of temporal segment networks."""

    train: Path | None = None
    """Videos to train on, a subfolder for each class; with --test."""
    test: Path | None = None
    """Videos to test on, the same classes."""
    list: Path | None = None
    """Official list files of UCF-101 or HMDB-51; with --videos."""
    videos: Path | None = None
    """The videos that the lists name, in folders by class or in one folder."""
    split: Literal["1", "2", "3", "all"] = "all"
    """Which official split; all: each by itself, then the mean."""
    classes: int | None = None
    """Only the first so many classes."""
    per_class: int | None = None
    """Only the first so many videos of each class, in training and in testing."""
    epochs: int = 80
    """Passes over the training videos."""
    lr: float = 0.001
    """Learning rate of all weights; biases have twice that."""
    milestones: tuple[int, ...] = (30, 60)
    """Epochs after which the rate is divided by ten."""
    batch_size: int = 128
    """Videos of a step."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 5e-4
    """Of SGD."""
    clip: float = 20.0
    """Largest norm of the gradient."""
    hidden: int = 4096
    """Width of fc6 and of fc7, which are new."""
    dropout: tuple[float, float] = (0.5, 0.8)
    """After fc6 and after fc7."""
    segments: int = 3
    """Segments of a video in training; a random frame of each."""
    test_frames: int = 25
    """Evenly spaced frames of a video in testing."""
    test_crops: Literal[10, 1] = 10
    """10: corners and centre, and their mirror images; 1: the centre."""
    every: int = 1
    """Keep every n-th frame when the videos are decoded."""
    encoding: Encoding = "jpeg"
    """How the decoded frames are kept: raw is fast, jpeg is small."""
    cache: Path = Path("~/.cache/unshuffle")
    """Where the videos are decoded to."""
    workers: int = 8
    """Threads that read frames ahead of their use."""

    incidental = Evaluation.incidental | {"cache"}
    stated = Evaluation.stated | {"split"}
    may_be_zero = Evaluation.may_be_zero | {"momentum", "weight_decay", "dropout"}

    @classmethod
    def quick(cls) -> Self:
        """A few classes, a few epochs, one crop: minutes without a GPU."""
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
        self._check()
        device = choose_device(self.device)
        side = frame_side(find_backbone(self.weights, self.seed).eval_size)
        splits = [split.limited(self.classes, self.per_class) for split in self._splits()]
        opened = open_splits(
            splits,
            self.cache.expanduser(),
            progress=console.is_terminal,
            short_side=side,
            encoding=self.encoding,
            every=self.every,
        )
        for split, clips in zip(splits, opened, strict=True):
            for purpose, some in zip(("train", "test"), clips, strict=True):
                tell_skipped(console, some.skipped, f"{split.name}, videos to {purpose} on")
            tell_few(console, clips[0].labels.tolist(), split.classes, "training videos")
        figures = {
            split.name: self._evaluate(split, *clips, device, console)
            for split, clips in zip(splits, opened, strict=True)
        }
        return self._result(splits, opened, figures)

    def _check(self) -> None:
        if self.classes == 1:
            raise UserError("--classes 1 is too few: the least is 2")
        if not all(share < 1 for share in self.dropout):
            raise UserError(f"--dropout {self.dropout} is not a pair of shares below 1")

    def _splits(self) -> Sequence[Split]:
        if self.list and self.videos and not (self.train or self.test):
            numbers = SPLITS if self.split == "all" else (int(self.split),)
            lists, videos = self.list.expanduser(), self.videos.expanduser()
            return [official_split(lists, videos, number) for number in numbers]
        if self.train and self.test and not (self.list or self.videos):
            return [folder_split(self.train.expanduser(), self.test.expanduser())]
        raise UserError("give --train and --test (folders by class), or --list and --videos (official splits)")

    def _evaluate(self, split: Split, train: Clips, test: Clips, device: torch.device, console: Console) -> Figures:
        console.print(f"{split.name}: {len(train)} videos to train on, {len(test)} to test on", highlight=False)
        network = self._train(split, train, device, console)
        with progress(console, "testing", len(test)) as advance:
            logits = predict(
                network,
                test,
                frames=self.test_frames,
                crops=self.test_crops,
                device=device,
                workers=self.workers,
                advance=advance,
            )
        return score(logits, torch.from_numpy(test.labels), split.classes)

    def _train(self, split: Split, clips: Clips, device: torch.device, console: Console) -> ActionNetwork:
        seed_everything(self.seed)
        backbone = find_backbone(self.weights, self.seed)
        options = {name: value for name, value in self.options().items() if name not in NOT_LEARNED_FROM}
        identity = digest([options, split.classes, *clips.names, fingerprint(backbone)])
        network = ActionNetwork(backbone, len(split.classes), self.hidden, self.dropout).to(device)
        stream = ClipStream(clips, self.batch_size, self.segments, self.seed, pinned=device.type == "cuda")
        recipe = Recipe(
            iterations=self.epochs * stream.steps,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            milestones=tuple(epoch * stream.steps for epoch in self.milestones),
            clip=self.clip,
        )
        folder = self.folder(f"checkpoints/{split.name.replace(' ', '-').lower()}")
        workshop = Workshop(console, self.seed, self.workers, folder, identity, save_every=stream.steps)
        fine_tune(network, recipe, stream.batch, lambda batch: consensus_loss(network, batch.to(device)), workshop)
        return network

    def _result(
        self, splits: Sequence[Split], opened: Sequence[tuple[Clips, Clips]], figures: Mapping[str, Figures]
    ) -> Result:
        metrics = _mean(list(figures.values()))
        if len(splits) > 1:
            metrics["splits"] = {f"split_{split.number}": figures[split.name] for split in splits}
        metrics["chance"] = 100 / len(splits[0].classes)
        skipped = {one: None for sides in opened for side in sides for one in side.skipped}  # splits share videos
        metrics["skipped"] = skipped_figures(list(skipped))
        crops = "10 crops (corners, centre, mirrored)" if self.test_crops == 10 else "the centre crop"
        statement = (
            f"{' and '.join(figures)}; "
            f"{' and '.join(str(len(train)) for train, _ in opened)} videos to train on, "
            f"{' and '.join(str(len(test)) for _, test in opened)} to test on, {len(splits[0].classes)} classes; "
            f"{self.epochs} epochs of SGD on {self.segments} frames of each; "
            f"{self.test_frames} frames x {crops}, mean of the logits; mean of the accuracies of the classes"
        )
        return Result("action recognition", statement, metrics, self._table(metrics, splits[0].dataset))

    def _table(self, metrics: Figures, dataset: str) -> Table:
        classes, videos = "mean over classes", "all videos"
        ours = {
            "this network": {classes: metrics["mean_class_accuracy"], videos: metrics["accuracy"]},
            "blind guess": {classes: metrics["chance"], videos: metrics["chance"]},
        }
        same = dataset in ("UCF-101", "HMDB-51") and self.unchanged("split", "classes", "per_class")
        theirs = "HMDB-51" if dataset == "HMDB-51" else "UCF-101"
        return published_table("3", ours, theirs, {classes: theirs}, same=same)


def score(logits: Tensor, labels: Tensor, classes: Sequence[str]) -> Figures:
    """Accuracies in percent: of each class, their mean, and over all videos whatever their class."""
    predictions = logits.argmax(dim=1)
    each = class_accuracies(predictions, labels, len(classes))
    return {
        "mean_class_accuracy": float(each.mean()),
        "accuracy": 100 * float((predictions == labels).double().mean()),
        "per_class": dict(zip(classes, each.tolist(), strict=True)),
    }


def _mean(figures: Sequence[Figures]) -> Figures:
    """The mean over the splits of every figure."""
    first = figures[0]
    return {
        key: _mean([one[key] for one in figures]) if isinstance(value, dict) else fmean(one[key] for one in figures)
        for key, value in first.items()
    }
