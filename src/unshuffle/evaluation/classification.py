"""What the evaluations that classify images have in common: folders by class, training crops, accuracies."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.accelerator import choose_device
from unshuffle.data.media import BadMedia, read_image
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.backbones import find_backbone
from unshuffle.evaluation.coverage import check_covered, note, shared_files, sharing, tell_few, tell_shared
from unshuffle.evaluation.fine_tuning import Recipe, Workshop, drawn, fine_tune
from unshuffle.evaluation.identity import digest, fingerprint
from unshuffle.evaluation.items import Items, class_folders
from unshuffle.evaluation.kept import Kept, kept_features
from unshuffle.evaluation.protocol import Evaluation
from unshuffle.evaluation.skips import skipped_figures, tell_skipped
from unshuffle.evaluation.streaming import readable, stream
from unshuffle.models import Backbone
from unshuffle.randomness import numpy_rng, seed_everything

MARGIN = 256 / 227  # short side of an image over the side of a crop, in training and in the test
FEW_STEPS = 50
"""Fewer iterations than this teach little."""
Augment = Callable[[Pixels, int, np.random.Generator], Pixels]


class Labelled(NamedTuple):
    """A batch to learn from."""

    pixels: Tensor
    """(N, side, side, 3) bytes"""
    labels: Tensor


class Setting(NamedTuple):
    """What a classifier is trained and tested with."""

    backbone: Backbone
    weights: str
    """Tells the backbone's weights from others, as they were before any training."""
    device: torch.device
    training: Items
    testing: Items
    shared: int
    """Test images that are also learned from."""
    idle: frozenset[str]
    """Options that change nothing."""

    @property
    def learned(self) -> int:
        """Classes that there are training images of: a low --limit leaves some out."""
        return len(set(self.training.labels))


@dataclass(frozen=True)
class Classification(Evaluation):
    """Options of every evaluation that classifies images."""

    train: Path | None = None
    """Images to learn from, in a folder for each class."""
    test: Path | None = None
    """Images to measure on, in the same classes."""
    limit: int = 0
    """At most so many images on each side, evenly over the classes; 0 is no limit."""
    batch_size: int = 256
    """Images of a step."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 5e-4
    """Of SGD; biases have none, and learn twice as fast."""
    workers: int = os.cpu_count() or 1
    """Threads that read images."""
    save_every: int = 1000
    """Iterations between checkpoints in --out."""

    training_title: ClassVar[str] = "training the classifiers"
    """What the training is called while it goes on."""
    may_be_zero = Evaluation.may_be_zero | {"limit", "momentum", "weight_decay"}

    def prepare(self, console: Console) -> Setting:
        """The backbone on its device, and the images to learn from and to measure on; draws are seeded."""
        if self.train is None or self.test is None:
            raise UserError("say what to classify: give --train and --test, folders with a subfolder for each class")
        if self.batch_size < 2:
            raise UserError(f"batch_size is {self.batch_size}, but batch normalisation needs two images or more")
        device = choose_device(self.device)
        backbone = find_backbone(self.weights, self.seed).to(device)
        training = class_folders(self.train)
        testing = class_folders(self.test, training.classes)
        for items, folder in ((training, self.train), (testing, self.test)):
            if items.kind != "images":
                raise UserError(f"{folder} holds {items.kind}, but this evaluation classifies images")
        seed_everything(self.seed)
        idle = frozenset({"limit"} if all(items.idle(self.limit) for items in (training, testing)) else ())
        training, testing = (
            replace(items, side=backbone.eval_size, margin=MARGIN).first(self.limit) for items in (training, testing)
        )
        shared = len(shared_files(*([item.path for item in items.items] for items in (training, testing))))
        tell_shared(console, shared)
        return Setting(backbone, fingerprint(backbone), device, training, testing, shared, idle)

    def readable(self, setting: Setting, console: Console) -> Setting:
        """The same without the training images that cannot be read, which are named; each is read once."""
        kept = kept_features(self.folder("features/readable"), [setting.training.fingerprint()])
        training = readable(setting.training, console, workers=self.workers, kept=kept)
        self.check_training(setting.training, training.labels, console)
        return setting._replace(training=training)

    def check_training(self, training: Items, labels: Sequence[int], console: Console) -> None:
        """Name the images that cannot be read, refuse a class that has no others, and say if there are few."""
        tell_skipped(console, training.skipped, "training images")
        check_covered(labels, training.labels, training.classes, f"image in {self.train}")
        tell_few(console, labels, training.classes, "training images")

    def workshop(self, setting: Setting, console: Console) -> Workshop:
        """Where and how the training goes on."""
        identity = digest([self.options(), setting.weights, setting.training.fingerprint()])
        folder = self.folder("checkpoints")
        title = self.training_title
        return Workshop(console, self.seed, self.workers, folder, identity, self.save_every, title)

    def steps(self, epochs: Sequence[float], items: Items, least: int, console: Console) -> tuple[int, ...]:
        """Iterations at the ends of stretches of epochs, all longer alike if the last would come before `least`."""
        each = max(len(items) / self.batch_size, least / epochs[-1])
        steps = tuple(max(1, round(epoch * each)) for epoch in epochs)
        if steps[-1] < FEW_STEPS:
            note(console, f"only {steps[-1]} iterations, as there are few images: give more epochs, or smaller batches")
        return steps

    def batches(self, items: Items, augment: Augment) -> Callable[[int], Labelled]:
        """Batches of training crops as a function of the iteration."""

        def crop(position: int, rng: np.random.Generator) -> Pixels:
            path = items.items[position].path
            try:
                pixels = read_image(path, round(items.side * MARGIN))
            except BadMedia as reason:
                raise UserError(f"{path} could be read before, and no more: {reason}") from None
            return mirrored(augment(pixels, items.side, rng), rng)

        def batch(iteration: int) -> Labelled:
            rng = numpy_rng(self.seed, "crops", iteration)
            positions = drawn(self.seed, len(items), iteration, self.batch_size).tolist()
            crops = np.stack([crop(position, rng) for position in positions])
            return Labelled(torch.from_numpy(crops), torch.tensor([items.items[place].label for place in positions]))

        return batch

    def train_and_test(
        self,
        network: nn.Module,
        recipe: Recipe,
        scores_of: Callable[[Tensor], Tensor],
        augment: Augment,
        setting: Setting,
        console: Console,
    ) -> tuple[Tensor, Tensor]:
        """Fit a network to the labels of batches; scores and labels of the test images.

        Scores are (N, classes), or (N, classifiers, classes) whose losses are summed, as none is to learn more slowly
        because there are others.
        """

        def loss(batch: Labelled) -> Tensor:
            scores = scores_of(batch.pixels.to(setting.device))
            labels = batch.labels.to(setting.device)
            each = labels.view(-1, *[1] * (scores.dim() - 2)).expand(scores.shape[:-1])
            return F.cross_entropy(scores.flatten(0, -2), each.flatten(), reduction="sum") / len(labels)

        batches = self.batches(setting.training, augment)
        last = fine_tune(network, recipe, batches, loss, self.workshop(setting, console))
        network.eval()
        with torch.no_grad():
            scores, labels = self.scores(setting.testing, scores_of, setting.device, console, "test")
        tell_skipped(console, setting.testing.skipped, "test images")
        tell_unlearned(console, last / scores[0, ..., 0].numel(), setting.learned)
        return scores, labels

    def scores(
        self,
        items: Items,
        compute: Callable[[Tensor], Tensor],
        device: torch.device,
        console: Console,
        title: str,
        kept: Kept | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`compute` on the centre crops of all readable images, on the CPU, and their labels."""
        chunks = list(stream(items, compute, device, console, title, workers=self.workers, kept=kept))
        labels = torch.tensor(items.labels)[torch.cat([chunk.items for chunk in chunks])]
        return torch.cat([chunk.values for chunk in chunks]), labels

    def statement(self, setting: Setting, trained_on: int, labels: Tensor, how: str) -> str:
        """What is measured on what, by the number of training images and the labels of the test images."""
        tested, classes = len(labels.unique()), setting.learned
        lacking = f", {tested} of which are tested" if tested < classes else ""
        shared = f" ({sharing(setting.shared)})" if setting.shared else ""
        side = setting.testing.side
        return (
            f"{trained_on:,} training images ({self.train}), {len(labels):,} test images ({self.test}), "
            f"{classes} classes{lacking}{shared}; {how}; one centre crop of {side} px "
            f"(short side {round(side * MARGIN)}); percent of the test images"
        )

    def figures(self, setting: Setting, trained_on: int, labels: Tensor) -> dict[str, Any]:
        """What every such evaluation puts beside its accuracies."""
        return {
            "chance": 100 / setting.learned,
            "train_images": trained_on,
            "test_images": len(labels),
            "shared_files": setting.shared,
            "skipped": skipped_figures([*setting.training.skipped, *setting.testing.skipped]),
        }


def tell_unlearned(console: Console, loss: float, classes: int) -> None:
    """Say that a training has ended worse than it began, when all classes were as likely."""
    if loss > math.log(classes):
        blind = f"{math.log(classes):.2f} of a blind guess"
        note(console, f"the loss of the last step is {loss:.2f}, above the {blind}: try a lower rate, or more epochs")


def window(pixels: Pixels, side: int, rng: np.random.Generator) -> Pixels:
    """A random square of a side out of an image."""
    top, left = rng.integers(pixels.shape[0] - side + 1), rng.integers(pixels.shape[1] - side + 1)
    return pixels[top : top + side, left : left + side]


def zoom(pixels: Pixels, side: int, rng: np.random.Generator, least: float = 0.35) -> Pixels:
    """A random part of an image, from `least` of its area and not far from square, resized to a square."""
    height, width = pixels.shape[:2]
    area, shape = rng.uniform(least, 1) * height * width, np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
    w, h = min(width, np.sqrt(area * shape)), min(height, np.sqrt(area / shape))
    left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
    box = (left, top, left + w, top + h)
    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR, box=box))


def mirrored(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """An image or its mirror image, by the toss of a coin."""
    return pixels[:, ::-1] if rng.random() < 0.5 else pixels


def accuracy(scores: Tensor, labels: Tensor, k: int = 1) -> float:
    """Percent of the rows whose label is among their k highest scores; a tie with a wrong class does not count."""
    own = scores.gather(1, labels[:, None])
    others_above = (~(scores < own)).sum(dim=1) - 1  # NaN, which compares with nothing, is above
    return 100 * float((others_above < k).double().mean())


def mean_class_accuracy(scores: Tensor, labels: Tensor) -> float:
    """Mean over the classes of the percent of their rows that are recognised; classes without any do not count."""
    each = [accuracy(scores[labels == label], labels[labels == label]) for label in labels.unique()]
    return sum(each) / len(each)


def blind_accuracies(classes: int, top: Sequence[int] = (1, 5)) -> dict[str, float]:
    """The top-k accuracies in percent of a blind guess."""
    return {f"top{k}": 100 * min(1.0, k / classes) for k in top}


def accuracies(scores: Tensor, labels: Tensor, top: Sequence[int] = (1, 5)) -> dict[str, float]:
    """Top-k accuracies in percent, of each k that there are classes for."""
    return {f"top{k}": accuracy(scores, labels, k) for k in top if k <= scores.shape[1]}
