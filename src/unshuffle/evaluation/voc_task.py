"""What the three VOC tasks have in common: their options, their backbone and their table of classes."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console, Group
from rich.table import Table
from torch import Tensor, nn

from unshuffle.accelerator import choose_device
from unshuffle.console import say
from unshuffle.data.dataset import digest, file_stamp, shared_files
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.features import find_backbone, weights_digest
from unshuffle.evaluation.finetuning import Recipe, TrainingSetup
from unshuffle.evaluation.protocol import (
    FEW_PER_CLASS,
    Evaluation,
    note,
    note_shared,
    note_skipped,
    shared_sentence,
    skipped_figures,
)
from unshuffle.evaluation.voc import CLASSES, Devkit, ImageSet
from unshuffle.models import Backbone
from unshuffle.models.fold import fold_batch_norm
from unshuffle.randomness import seed_everything


@dataclass(frozen=True)
class VocTask(Evaluation):
    """Options of every VOC task."""

    voc: Path | None = None
    """The devkit: a folder that holds VOC2007 or another year."""
    year: int = 2007
    """The year of the devkit."""
    train_set: str = "trainval"
    """Image set to fine-tune on: its name, or a file with a name of an image in each line."""
    test_set: str = "test"
    """Image set to measure on."""
    limit: int | None = None
    """Use at most so many images of each set."""
    iterations: int | None = None
    """Length of the fine-tuning, instead of the schedule's; the rate drops at the same share of it."""
    lr: float | None = None
    """First learning rate, instead of the schedule's."""
    hidden: int = 4096
    """Width of the new layers fc6 and fc7."""
    deviation: float = 0.005
    """Deviation of the first weights of fc6 and fc7; their biases are 0.1, as in CaffeNet."""
    workers: int = os.cpu_count() or 1
    """Threads that read images."""
    save_every: int = 1000
    """Iterations between checkpoints in --out."""

    incidental = Evaluation.incidental | {"proposals_cache"}
    stated = Evaluation.stated | {"year", "train_set", "test_set", "masks", "schedule", "iterations", "proposals"}

    def devkit(self) -> Devkit:
        """The devkit that the options name."""
        if self.voc is None:
            raise UserError("say where the VOC devkit is: give --voc")
        return Devkit(self.voc, self.year)

    def prepare_backbone(self) -> tuple[Backbone, str, torch.device]:
        """The backbone to judge, without batch normalisation, what tells its weights from others, and the device.

        New layers will be drawn with the seed.
        """
        device = choose_device(self.device)
        backbone = fold_batch_norm(find_backbone(self.weights, self.seed))
        seed_everything(self.seed)
        return backbone, weights_digest(backbone), device

    def check_sets(self, train: ImageSet, test: ImageSet, console: Console) -> None:
        """Say what there is, what was left out, and what would make the figures doubtful."""
        for images in (train, test):
            say(console, images.summary())
            note_skipped(console, images.skipped, images.name)
        note_shared(console, len(shared_files(train.paths(), test.paths())))
        if len(train) < FEW_PER_CLASS * len(CLASSES):
            note(console, f"only {len(train)} training images for {len(CLASSES)} classes: little to learn from")

    def training_setup(self, console: Console, weights: str, train: ImageSet) -> TrainingSetup:
        """Where and how the fine-tuning goes on."""
        files = (image.mask or image.path for image in train.images)
        identity = digest([self.options(), weights, *train.images, *map(file_stamp, files)])
        return TrainingSetup(console, self.seed, self.workers, self.folder("checkpoints"), identity, self.save_every)

    def sides(self, train: ImageSet, test: ImageSet) -> str:
        """What is learned from and measured on, for the statement."""
        shared = len(shared_files(train.paths(), test.paths()))
        remark = f", {shared_sentence(shared)}" if shared else ""
        return f"trained on {train.name} ({len(train)} images), tested on {test.name} ({len(test)}){remark}"

    def has_usual_images(self) -> bool:
        """Whether the image sets are those of the paper's figures, and whole."""
        return self.unchanged("year", "train_set", "test_set", "limit")

    def length(self, usual: Recipe) -> str:
        """How long the fine-tuning is, and how long it should be."""
        if self.iterations is None or self.iterations == usual.iterations:
            return f"{usual.iterations:,} iterations"
        return f"{self.iterations:,} instead of {usual.iterations:,} iterations"

    def counts(self, train: ImageSet, test: ImageSet) -> dict[str, Any]:
        """What every task puts beside its figures."""
        return {
            "train_images": len(train),
            "test_images": len(test),
            "shared_files": len(shared_files(train.paths(), test.paths())),
            "skipped": skipped_figures([*train.skipped, *test.skipped]),
        }


def as_tensor(pixels: Pixels) -> Tensor:
    """Bytes that may be mirrored views."""
    return torch.from_numpy(np.ascontiguousarray(pixels))


def new_layer(layer: nn.Linear | nn.Conv2d, deviation: float, bias: float) -> nn.Linear | nn.Conv2d:
    """A layer that nothing was learned for yet: normal weights, constant biases."""
    nn.init.normal_(layer.weight, std=deviation)
    assert layer.bias is not None
    nn.init.constant_(layer.bias, bias)
    return layer


def percent(values: Sequence[float]) -> float:
    """The mean of those that exist, in percent."""
    real = [value for value in values if not math.isnan(value)]
    if not real:
        raise UserError("there is nothing to measure: the test images have no object that counts")
    return 100 * sum(real) / len(real)


def class_table(classes: Sequence[str], columns: Mapping[str, Sequence[float]]) -> Group:
    """One row for each class and one for their mean, in percent; a class that cannot be measured has a dash."""
    table = Table(box=None, padding=(0, 2))
    table.add_column("class [%]")
    for title in columns:
        table.add_column(title, justify="right")
    for row, name in enumerate(classes):
        table.add_row(name, *(_figure(100 * values[row]) for values in columns.values()))
    table.add_row("mean", *(_figure(percent(values)) for values in columns.values()), style="bold")
    missing = [name for row, name in enumerate(classes) if all(math.isnan(values[row]) for values in columns.values())]
    if not missing:
        return Group(table)
    return Group(table, f"not in the mean, as the test images have none: {', '.join(missing)}")


def class_figures(classes: Sequence[str], values: Sequence[float]) -> dict[str, float | None]:
    """Percent by class, for JSON, which knows no NaN."""
    return {name: None if math.isnan(v) else 100 * v for name, v in zip(classes, values, strict=True)}


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"
