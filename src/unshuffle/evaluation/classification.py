"""Classification of labelled images: data, training crops and accuracies of all classifiers, and fine-tuning."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from annotated_types import Ge, Interval
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.accelerator import choose_device
from unshuffle.config import Count, NonNegative, Positive
from unshuffle.data.dataset import LabelledDataset, Square, digest, open_dataset, shared_files
from unshuffle.data.media import BadMedia
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.features import (
    WORKERS,
    FeatureCache,
    extract_features,
    find_backbone,
    merge_chunks,
    network_input,
    open_pair,
    readable_items,
    weights_digest,
)
from unshuffle.evaluation.finetuning import Classifier, Recipe, TrainingSetup, batch_items, fine_tune
from unshuffle.evaluation.protocol import (
    Evaluation,
    Result,
    check_covered,
    figure_table,
    note,
    note_few,
    note_shared,
    note_skipped,
    shared_sentence,
    skipped_figures,
)
from unshuffle.models import Backbone
from unshuffle.models.registry import backbone_features
from unshuffle.randomness import numpy_rng, seed_everything
from unshuffle.wording import counted

MARGIN = 256 / 227  # short side of an image divided by the side of a crop, in training and in the test
MIN_STEPS, MAX_STEPS = 100, 20_000
"""Steps of fine-tuning that the preset auto chooses, whatever the number of images."""
SAVE_EVERY = 100
"""Iterations between checkpoints of the preset auto."""
FEW_ITERATIONS = 50
"""Fewer iterations than this teach little."""
Augment = Callable[[Pixels, int, np.random.Generator], Pixels]


class LabelledBatch(NamedTuple):
    """A batch to train on."""

    pixels: Tensor
    """(N, side, side, 3) bytes"""
    labels: Tensor


class Setting(NamedTuple):
    """The backbone and the data that a classifier is trained and tested with."""

    backbone: Backbone
    weights: str
    """Digest of the backbone's weights before any training."""
    device: torch.device
    training: LabelledDataset
    testing: LabelledDataset
    shared: int
    """Test images that are training images too."""
    idle: frozenset[str]
    """Options that change nothing."""
    console: Console

    @property
    def trained_classes(self) -> int:
        """Number of classes that have training images: a low --limit leaves some out."""
        return len(set(self.training.labels))


@dataclass(frozen=True)
class Classification(Evaluation):
    """Options of every evaluation that classifies images."""

    train: str | None = None
    """Images to train on: class folders (torchvision's ImageFolder layout), a packed store or tar shards with labels,
    VOC2007/ImageSets/Main/trainval.txt for objects of VOC, or synthetic:images:COUNT:SEED."""
    test: str | None = None
    """Images to test on, with the same classes."""
    limit: Annotated[int, Ge(0)] = 0
    """Use at most this many images for training and for testing, evenly over the classes; 0 is no limit."""
    batch_size: Annotated[int, Ge(2)] = 256
    """Images per step, 2 or more."""
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """Momentum of SGD."""
    weight_decay: NonNegative = 5e-4
    """Weight decay of SGD; biases have none, and twice the learning rate."""
    workers: Count = WORKERS
    """Threads that decode images."""
    save_every: Count = 1000
    """Iterations between checkpoints in --out."""

    training_title: ClassVar[str] = "training the classifiers"
    """Title of the progress bar."""

    @classmethod
    def training_size(cls, given: Mapping[str, Any]) -> int | None:
        """Return the number of training images that the given options name; None if they name none."""
        if given.get("train") is None:
            return None
        try:
            size, limit = len(open_dataset(str(given["train"]))), given.get("limit", cls.limit)
        except UserError:  # stated when the evaluation opens it, after mistakes in the options
            return None
        return min(size, limit) if limit > 0 else size

    def prepare(self, console: Console) -> Setting:
        """Return the backbone on its device and the images to train and to test on, and seed all random numbers."""
        if self.train is None or self.test is None:
            raise UserError(
                "there is nothing to classify: give --train and --test, folders with a subfolder for each class"
            )
        device = choose_device(self.device)
        backbone = find_backbone(self.weights, self.seed, self.architecture, self.download).to(device)
        datasets = open_pair(self.train, self.test, square=Square(backbone.eval_size, margin=MARGIN))
        if datasets[0].kind == "videos":
            raise UserError(f"{self.train} holds videos, but this evaluation classifies images: see evaluate action")
        seed_everything(self.seed)
        idle = frozenset({"limit"} if not any(dataset.exceeds(self.limit) for dataset in datasets) else ())
        training, testing = (dataset.limited(self.limit) for dataset in datasets)
        shared = len(shared_files(training.paths(), testing.paths()))
        note_shared(console, shared)
        return Setting(backbone, weights_digest(backbone), device, training, testing, shared, idle, console)

    def readable(self, setting: Setting) -> Setting:
        """Read every training image once and leave out those that cannot be read, which are named."""
        cache = FeatureCache.at(self.folder("features/readable"), [setting.training.identity()])
        training = readable_items(setting.training, setting.console, workers=self.workers, cache=cache)
        self.check_training(setting, training.labels)
        return setting._replace(training=training)

    def check_training(self, setting: Setting, labels: Sequence[int]) -> None:
        """Name the images that cannot be read, refuse a class without others, and print a note if there are few."""
        training = setting.training
        note_skipped(setting.console, training, "training images", self.out)
        check_covered(labels, training.labels, training.classes, f"image in {self.train}")
        note_few(setting.console, labels, training.classes, "training images")

    def training_setup(self, setting: Setting) -> TrainingSetup:
        """Return checkpoint folder, identity and other settings of the training."""
        identity = digest([self.options(), setting.weights, setting.training.identity()])
        folder, title = self.folder("checkpoints"), self.training_title
        return TrainingSetup(setting.console, self.seed, self.workers, folder, identity, self.save_every, title)

    def iterations_until(
        self, epochs: Sequence[float], dataset: LabelledDataset, minimum: int, console: Console
    ) -> tuple[int, ...]:
        """Return the iterations at which the given epochs end, all longer alike if the last is below `minimum`."""
        per_epoch = max(len(dataset) / self.batch_size, minimum / epochs[-1])
        ends = tuple(max(1, round(epoch * per_epoch)) for epoch in epochs)
        if ends[-1] < FEW_ITERATIONS:
            note(
                console,
                f"only {ends[-1]} iterations, as there are few images: train longer, or with smaller batches",
            )
        return ends

    def batches(self, dataset: LabelledDataset, augment: Augment) -> Callable[[int], LabelledBatch]:
        """Return batches of training crops as a function of the iteration."""

        def crop(index: int, rng: np.random.Generator) -> Pixels:
            try:
                pixels = dataset.load_resized(index)
            except BadMedia as reason:
                raise UserError(f"{dataset.location(index)} could be read before and no longer can: {reason}") from None
            return random_hflip(augment(pixels, dataset.square.side, rng), rng)

        def batch(iteration: int) -> LabelledBatch:
            rng = numpy_rng(self.seed, "crops", iteration)
            indices = batch_items(self.seed, len(dataset), iteration, self.batch_size).tolist()
            crops = np.stack([crop(index, rng) for index in indices])
            return LabelledBatch(torch.from_numpy(crops), torch.tensor([dataset.labels[index] for index in indices]))

        return batch

    def train_and_test(
        self, setting: Setting, network: nn.Module, recipe: Recipe, input_of: Callable[[Tensor], Any], augment: Augment
    ) -> tuple[Tensor, Tensor]:
        """Train a network on the labels of batches; return scores and labels of the test images.

        `input_of` makes the network's input of (N, side, side, 3) bytes. Scores are (N, classes), or (N, classifiers,
        classes) whose losses are summed, so that the number of classifiers does not change the learning rate of each.
        """

        def scores_of(pixels: Tensor) -> Tensor:
            scores: Tensor = network(input_of(pixels))
            return scores

        def loss(batch: LabelledBatch) -> Tensor:
            scores = scores_of(batch.pixels.to(setting.device))
            labels = batch.labels.to(setting.device)
            each = labels.view(-1, *[1] * (scores.dim() - 2)).expand(scores.shape[:-1])
            return F.cross_entropy(scores.flatten(0, -2), each.flatten(), reduction="sum") / len(labels)

        batches = self.batches(setting.training, augment)
        last_loss = fine_tune(network, recipe, batches, loss, self.training_setup(setting))
        network.eval()
        with torch.no_grad():
            scores, labels = self.scores(setting, setting.testing, scores_of, "test")
        note_skipped(setting.console, setting.testing, "test images", self.out)
        note_unlearned(setting.console, last_loss / scores[0, ..., 0].numel(), setting.trained_classes)
        return scores, labels

    def scores(
        self,
        setting: Setting,
        dataset: LabelledDataset,
        compute: Callable[[Tensor], Tensor],
        title: str,
        cache: FeatureCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return `compute` of the centre crops of all readable images, on the CPU, and their labels."""
        device, console = setting.device, setting.console
        chunks = extract_features(dataset, compute, device, console, title, workers=self.workers, cache=cache)
        values, items, _ = merge_chunks(list(chunks))
        return values, torch.tensor(dataset.labels)[items]

    def with_data(self, result: Result, correct: str, setting: Setting, trained_on: int, labels: Tensor) -> Result:
        """Add the data to the statement and the figures of a result; `correct` says which test images count."""
        tested, classes = len(labels.unique()), setting.trained_classes
        lacking = f", {tested} of which {'is' if tested == 1 else 'are'} tested" if tested < classes else ""
        shared = f" ({shared_sentence(setting.shared)})" if setting.shared else ""
        side = setting.testing.square.side
        statement = (
            f"{trained_on:,} training images ({self.train}), {len(labels):,} test images ({self.test}), "
            f"{classes} classes{lacking}{shared}; {result.statement}; one centre crop of {side} px "
            f"(short side {round(side * MARGIN)}); percent of the test images {correct}"
        )
        metrics = {
            **result.metrics,
            "chance": 100 / classes,
            "train_images": trained_on,
            "test_images": len(labels),
            "shared_files": setting.shared,
            "skipped": skipped_figures([*setting.training.skipped, *setting.testing.skipped]),
        }
        return replace(result, statement=statement, metrics=metrics, idle=setting.idle)


def note_unlearned(console: Console, loss: float, classes: int) -> None:
    """Print a note if the training ended with a loss above that of uniform scores."""
    if loss > math.log(classes):
        chance = f"{math.log(classes):.2f} at chance"
        note(console, f"the last loss is {loss:.2f}, above {chance}: try a lower learning rate, or more epochs")


def random_crop(pixels: Pixels, side: int, rng: np.random.Generator) -> Pixels:
    """Return a random (side, side) crop of an image."""
    top, left = rng.integers(pixels.shape[0] - side + 1), rng.integers(pixels.shape[1] - side + 1)
    return pixels[top : top + side, left : left + side]


def random_resized_crop(pixels: Pixels, side: int, rng: np.random.Generator, min_area: float = 0.35) -> Pixels:
    """Return a random part of an image, from `min_area` of its area and not far from square, resized to a square."""
    height, width = pixels.shape[:2]
    area, shape = rng.uniform(min_area, 1) * height * width, np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
    w, h = min(width, np.sqrt(area * shape)), min(height, np.sqrt(area / shape))
    left, top = rng.uniform(0, width - w), rng.uniform(0, height - h)
    box = (left, top, left + w, top + h)
    return np.asarray(Image.fromarray(pixels).resize((side, side), Image.Resampling.BILINEAR, box=box))


def random_hflip(pixels: Pixels, rng: np.random.Generator) -> Pixels:
    """Return an image, flipped horizontally with probability 1/2."""
    return pixels[:, ::-1] if rng.random() < 0.5 else pixels


def accuracy(scores: Tensor, labels: Tensor, k: int = 1) -> float:
    """Return the percentage of rows whose label is among their k highest scores; a tie with another class is wrong."""
    own = scores.gather(1, labels[:, None])
    others_above = (~(scores < own)).sum(dim=1) - 1  # NaN, which compares with nothing, is above
    return 100 * float((others_above < k).double().mean())


def mean_class_accuracy(scores: Tensor, labels: Tensor) -> float:
    """Return the mean over the classes of their top-1 accuracy in percent; classes without any row do not count."""
    each = [accuracy(scores[labels == label], labels[labels == label]) for label in labels.unique()]
    return sum(each) / len(each)


def chance_accuracies(classes: int, top: Sequence[int] = (1, 5)) -> dict[str, float]:
    """Return the top-k accuracies in percent at chance."""
    return {f"top{k}": 100 * min(1.0, k / classes) for k in top}


def accuracies(scores: Tensor, labels: Tensor, top: Sequence[int] = (1, 5)) -> dict[str, float]:
    """Return the top-k accuracies in percent, for each k up to the number of classes."""
    return {f"top{k}": accuracy(scores, labels, k) for k in top if k <= scores.shape[1]}


# ---- fine-tuning


@dataclass(frozen=True)
class CosineRecipe(Recipe):
    """SGD whose learning rate falls to zero along half a cosine."""

    def learning_rate(self, iteration: int) -> float:
        """Return the learning rate of a step."""
        return self.lr * (1 + math.cos(math.pi * iteration / self.iterations)) / 2


@dataclass(frozen=True)
class FineTuning(Classification):
    """Fine-tune the whole backbone with a new classifier on labelled images."""

    epochs: Count = 50
    """Passes over the training images."""
    min_iterations: Count = 1
    """Minimum number of steps: with few images there are more epochs."""
    lr: Positive = 0.001
    """Initial learning rate; it falls to zero along half a cosine."""
    batch_size: Annotated[int, Ge(2)] = 64
    """Images per step, 2 or more."""
    weight_decay: NonNegative = 1e-4
    """Weight decay of SGD; biases have none, and twice the learning rate."""

    training_title = "fine-tuning"

    @classmethod
    def quick(cls) -> Self:
        """Return the options for 5 epochs, and 100 steps at least."""
        return cls(preset="quick", epochs=5, min_iterations=100, limit=2000, save_every=50)

    @classmethod
    def fitted(cls, given: Mapping[str, Any]) -> tuple[Self, str | None]:
        """Return as many epochs as make 100 steps at least and about 20,000 at most."""
        size = cls.training_size(given)
        if size is None:
            return cls(preset="auto"), None
        batch = max(1, given.get("batch_size", cls.batch_size))
        if "epochs" in given:
            return cls(preset="auto", save_every=SAVE_EVERY), None
        epochs = max(1, min(cls.epochs, MAX_STEPS * batch // size))
        options = cls(preset="auto", epochs=epochs, min_iterations=MIN_STEPS, save_every=SAVE_EVERY)
        return options, f"{counted(epochs, 'epochs')}, {MIN_STEPS} steps at least, for {size:,} training images"

    def measure(self, console: Console) -> Result:
        """Fine-tune, then test."""
        setting = self.readable(self.prepare(console))
        backbone, training = setting.backbone, setting.training
        layer = nn.Linear(backbone_features(backbone, backbone.eval_size), len(training.classes))
        network = Classifier(backbone, [layer], training.classes).to(setting.device)
        (steps,) = self.iterations_until([self.epochs], training, self.min_iterations, console)
        recipe = CosineRecipe(steps, self.lr, self.momentum, self.weight_decay)
        input_of = partial(network_input, backbone)
        scores, labels = self.train_and_test(setting, network, recipe, input_of, random_resized_crop)
        if self.out is not None:
            network.save(self.out.expanduser())
        figures = {**accuracies(scores, labels), "mean_class": mean_class_accuracy(scores, labels)}
        how = f"{steps:,} steps of SGD in batches of {self.batch_size}, random resized crops and flips"
        correct = "recognised, and the mean of that over the classes"
        titles = {"top1": "top 1", "top5": "top 5", "mean_class": "mean over classes"}
        chance = {**chance_accuracies(setting.trained_classes), "mean_class": 100 / setting.trained_classes}
        rows = {"this network": figures, "chance": chance}
        table = figure_table({name: {titles[key]: row[key] for key in figures} for name, row in rows.items()})
        result = Result("fine-tuning of the whole backbone", how, figures, table)
        return self.with_data(result, correct, setting, len(training), labels)
