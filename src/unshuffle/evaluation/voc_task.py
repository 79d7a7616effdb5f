"""What the three VOC tasks have in common: their options, their trunk and their table of classes."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from unshuffle.accelerator import choose_device
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.backbones import find_backbone
from unshuffle.evaluation.fine_tuning import Workshop
from unshuffle.evaluation.protocol import Evaluation
from unshuffle.evaluation.voc import Devkit
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

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, int | float) and name != "seed" and value <= 0:
                raise UserError(f"--{name} is {value}: it must be more than 0")

    def devkit(self) -> Devkit:
        """The devkit that the options name."""
        if self.voc is None:
            raise UserError("say where the VOC devkit is: give --voc")
        return Devkit(self.voc, self.year)

    def prepare_trunk(self) -> tuple[Backbone, torch.device]:
        """The trunk to judge, without batch normalisation, and the device; new layers will be drawn with the seed."""
        device = choose_device(self.device)
        trunk = fold_batch_norm(find_backbone(self.weights, self.seed))
        seed_everything(self.seed)
        return trunk, device

    def workshop(self, console: Console) -> Workshop:
        """Where and how the fine-tuning goes on."""
        free = (
            "out",
            "device",
            "json",
            "workers",
            "save_every",
            "proposals_cache",
        )  # what may change when it is resumed
        options = {name: str(value) for name, value in asdict(self).items() if name not in free}
        folder = None if self.out is None else self.out.expanduser() / "checkpoints"
        return Workshop(console, self.seed, self.workers, folder, str(sorted(options.items())), self.save_every)


def to_floats(pixels: Tensor) -> Tensor:
    """(N, H, W, 3) bytes to (N, 3, H, W) in [0, 1]."""
    return pixels.permute(0, 3, 1, 2).float() / 255


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


def print_classes(console: Console, classes: Sequence[str], columns: Mapping[str, Sequence[float]]) -> None:
    """One row for each class and one for their mean, in percent; a class that cannot be measured has a dash."""
    table = Table(box=None, padding=(0, 2))
    table.add_column("class")
    for title in columns:
        table.add_column(title, justify="right")
    for row, name in enumerate(classes):
        table.add_row(name, *(_figure(100 * values[row]) for values in columns.values()))
    table.add_row("mean", *(_figure(percent(values)) for values in columns.values()), style="bold")
    console.print(table)
    missing = [name for row, name in enumerate(classes) if all(math.isnan(values[row]) for values in columns.values())]
    if missing:
        console.print(f"not in the mean, as the test images have none: {', '.join(missing)}", highlight=False)


def class_figures(classes: Sequence[str], values: Sequence[float]) -> dict[str, float | None]:
    """Percent by class, for JSON, which knows no NaN."""
    return {name: None if math.isnan(v) else 100 * v for name, v in zip(classes, values, strict=True)}


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"
