"""Options, backbone and tables that the three VOC evaluations share."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from annotated_types import Ge
from rich.console import Console, Group
from rich.table import Table
from torch import Tensor, nn

from unshuffle.accelerator import choose_device
from unshuffle.config import Count, Positive
from unshuffle.console import say
from unshuffle.data.dataset import digest, file_stamp, shared_files
from unshuffle.data.source import Pixels
from unshuffle.data.voc import CLASSES, Devkit, ImageSet
from unshuffle.errors import UserError
from unshuffle.evaluation.features import WORKERS, find_backbone, weights_digest
from unshuffle.evaluation.finetuning import Recipe, TrainingSetup
from unshuffle.evaluation.protocol import (
    FEW_PER_CLASS,
    Evaluation,
    Result,
    figure_table,
    note,
    note_shared,
    note_skipped,
    published_table,
    shared_sentence,
    skipped_figures,
)
from unshuffle.models import Backbone
from unshuffle.models.batch_norm import fold_batch_norm
from unshuffle.randomness import seed_everything
from unshuffle.wording import counted

N = TypeVar("N", bound=nn.Module)


@dataclass(frozen=True)
class VocEvaluation(Evaluation):
    """Options of every VOC evaluation."""

    voc: Path | None = None
    """VOC devkit: the folder that holds VOC2007, VOC2012 ..., or the folder of one year."""
    year: Count = 2007
    """Year of the devkit, such as 2007 or 2012."""
    train_set: str = "trainval"
    """Image set to fine-tune on: its name in the devkit, or a text file with one image name per line."""
    test_set: str = "test"
    """Image set to test on, given like --train_set."""
    limit: Annotated[int, Ge(0)] = 0
    """Use at most this many images of each image set, for a quick test; 0 is no limit."""
    iterations: Count | None = None
    """Iterations of fine-tuning, instead of the schedule's; the learning-rate drops move in proportion."""
    lr: Positive | None = None
    """Initial learning rate, instead of the schedule's."""
    hidden: Count = 4096
    """Units of each of the new layers fc6 and fc7; fewer train faster."""
    init_std: Positive = 0.005
    """Standard deviation of the initial weights of fc6 and fc7; raise it for narrow layers. Biases: 0.1."""
    workers: Count = WORKERS
    """Threads that read images; raise it if the accelerator waits for them."""
    save_every: Count = 1000
    """Iterations between checkpoints in --out."""

    image_sets_folder: ClassVar[str] = "Main"
    """Folder of ImageSets that lists the images."""
    paper_images: ClassVar[int] = 5011
    """Images of the set that the published schedules are for: VOC2007 trainval."""
    incidental = Evaluation.incidental | {"proposals_cache"}
    stated = Evaluation.stated | {"year", "train_set", "test_set", "masks", "schedule", "iterations", "proposals"}

    @classmethod
    def fitted(cls, given: Mapping[str, Any]) -> tuple[Self, str | None]:
        """Return as many epochs as the published schedule has on the paper's image set, and no more iterations."""
        voc, year = given.get("voc"), given.get("year", cls.year)
        if voc is None or given.get("iterations") is not None:
            return cls(preset="auto"), None
        names = Devkit(voc, year).names(cls.image_sets_folder, given.get("train_set", cls.train_set))
        size = len(names[: given.get("limit", cls.limit) or None])
        published = cls.published_recipe(given.get("schedule")).iterations
        if size >= cls.paper_images:
            return cls(preset="auto"), None
        steps = min(published, max(cls.quick().iterations or 1, round(published * size / cls.paper_images)))
        return cls(preset="auto", iterations=steps), f"{steps:,} iterations for {size:,} training images"

    @classmethod
    def published_recipe(cls, schedule: str | None) -> Recipe:
        """Return the published schedule of this name, or the only one."""
        raise NotImplementedError

    def prepare(self, build: Callable[[Backbone], N], console: Console) -> "Setting[N]":
        """Return the network that `build` makes of the backbone, with batch normalisation folded, and the data.

        Seeds the random generators, which the initial weights of the new layers depend on.
        """
        if self.voc is None:
            raise UserError("no VOC devkit given: use --voc with the folder that holds it")
        devkit, device = Devkit(self.voc, self.year), choose_device(self.device)
        backbone = fold_batch_norm(find_backbone(self.weights, self.seed, self.architecture, self.download))
        seed_everything(self.seed)
        weights = weights_digest(backbone)
        network = build(backbone).to(device)
        train, test = self.image_sets(devkit)
        shared = len(shared_files(train.paths(), test.paths()))
        for images in (train, test):
            say(console, f"{images.name}: {counted(len(images), 'images')}")
            note_skipped(console, images, images.name, self.out)
        note_shared(console, shared)
        if len(train) < FEW_PER_CLASS * len(CLASSES):
            note(console, f"only {len(train)} training images for {len(CLASSES)} classes: too few to learn much from")
        files = (image.mask or image.path for image in train.images)
        identity = digest([self.options(), weights, *train.images, *map(file_stamp, files)])
        setup = TrainingSetup(console, self.seed, self.workers, self.folder("checkpoints"), identity, self.save_every)
        return Setting(network, device, train, test, shared, setup)

    def image_sets(self, devkit: Devkit) -> tuple[ImageSet, ImageSet]:
        """Return the images to train and to test on, with their objects."""
        return devkit.with_objects(self.train_set, self.limit), devkit.with_objects(self.test_set, self.limit)

    def with_data(self, result: Result, ours: Mapping[str, Mapping[str, float]], setting: "Setting[Any]") -> Result:
        """Add the image sets to the statement and the metrics of a result, and to its table the published figures."""
        train, test, shared = setting.train, setting.test, setting.shared
        remark = f", {shared_sentence(shared)}" if shared else ""
        data = f"trained on {train.name} ({len(train)} images), tested on {test.name} ({len(test)}){remark}"
        metrics = {
            **result.metrics,
            "train_images": len(train),
            "test_images": len(test),
            "shared_files": shared,
            "skipped": skipped_figures([*train.skipped, *test.skipped]),
        }
        # both schedules are published ones, and files of proposals replace a run of selective search
        is_papers = self.is_papers(frozenset({"schedule", "proposals"}))
        figures = published_table("4", ours, f"VOC {type(self).year}") if is_papers else figure_table(ours)
        table = Group(result.table or "", "", figures)
        return replace(result, statement=f"{data}; {result.statement}", metrics=metrics, table=table)

    def iterations_statement(self, schedule: Recipe) -> str:
        """Return the part of the result's statement that gives the iterations, beside the schedule's if they differ."""
        if self.iterations is None or self.iterations == schedule.iterations:
            return f"{schedule.iterations:,} iterations"
        return f"{self.iterations:,} instead of {schedule.iterations:,} iterations"


class Setting(NamedTuple, Generic[N]):
    """The network and the data of an evaluation."""

    network: N
    device: torch.device
    train: ImageSet
    test: ImageSet
    shared: int
    """Test images that are training images too."""
    setup: TrainingSetup


def byte_tensor(pixels: Pixels) -> Tensor:
    """Return pixels as a tensor; views with negative strides, such as flipped images, are copied."""
    return torch.from_numpy(np.ascontiguousarray(pixels))


def mean_percent(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN, in percent."""
    measured = [value for value in values if not math.isnan(value)]
    if not measured:
        raise UserError("nothing to measure: the test images have no objects that count; choose another --test_set")
    return 100 * sum(measured) / len(measured)


def class_percentages(classes: Sequence[str], values: Sequence[float]) -> dict[str, float | None]:
    """Return the values by class in percent, for JSON: None in place of NaN."""
    return {name: None if math.isnan(value) else 100 * value for name, value in zip(classes, values, strict=True)}


def class_table(classes: Sequence[str], columns: Mapping[str, Sequence[float]]) -> Group:
    """Return a table with one row per class and one for their mean, in percent; NaN is shown as a dash."""
    table = Table(box=None, padding=(0, 2))
    table.add_column("class [%]")
    for title in columns:
        table.add_column(title, justify="right")
    for row, name in enumerate(classes):
        table.add_row(name, *(_percentage(100 * values[row]) for values in columns.values()))
    table.add_row("mean", *(_percentage(mean_percent(values)) for values in columns.values()), style="bold")
    missing = [name for row, name in enumerate(classes) if all(math.isnan(values[row]) for values in columns.values())]
    if not missing:
        return Group(table)
    return Group(table, f"not in the mean, because no test image has them: {', '.join(missing)}")


def _percentage(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"
