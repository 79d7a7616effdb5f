"""VOC classification (the paper's Tab. 4 and 5): fine-tuning with 20 independent sigmoids, by Krähenbühl's protocol."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.console import Console, Group
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.console import progress
from unshuffle.data.batches import Prefetcher
from unshuffle.data.images import read_image
from unshuffle.data.source import Pixels
from unshuffle.evaluation.average_precision import eleven_point, ranked_curve, step_area
from unshuffle.evaluation.features import network_input
from unshuffle.evaluation.finetuning import Recipe, TrainedClassifier, TrainingSetup, batch_items, fine_tune
from unshuffle.evaluation.protocol import Result, published_table
from unshuffle.evaluation.voc import CLASSES, ImageSet, VocImage
from unshuffle.evaluation.voc_task import (
    VocTask,
    class_figures,
    class_table,
    new_layer,
    percent,
)
from unshuffle.models import Backbone
from unshuffle.models.ordering import backbone_features
from unshuffle.randomness import numpy_rng

SCALES = (0.5, 2.0)
TEST_BATCH = 8
RECIPE = Recipe(
    80_000, lr=0.001, weight_decay=1e-6, milestones=tuple(range(10_000, 80_000, 10_000)), decay=0.5, clip=10
)
UNKNOWN = -1
"""The label of a class of which an image has difficult objects only."""


@dataclass(frozen=True)
class VocClassification(VocTask):
    """Which of 20 classes are in an image? mAP after fine-tuning all layers (Tab. 4)."""

    batch_size: int = 16
    """Images in a step."""
    crops: int = 10
    """Random crops of a test image whose scores are added."""
    deviation: float = 0.01
    """Deviation of the first weights of fc6, fc7 and fc8; their biases are 0.1."""

    @classmethod
    def quick(cls) -> Self:
        """Minutes on a CPU: a short schedule with a rate and new layers that learn from the start."""
        return cls(preset="quick", iterations=400, lr=0.01, hidden=512, crops=4, deviation=0.03)

    def measure(self, console: Console) -> Result:
        """Fine-tune on one image set, measure on another."""
        devkit = self.devkit()
        backbone, weights, device = self.prepare_backbone()
        network = Classifier(backbone, self.hidden, self.deviation).to(device)
        train = devkit.with_objects(self.train_set, self.limit)
        test = devkit.with_objects(self.test_set, self.limit)
        self.check_sets(train, test, console)
        self._train(network, train, self.training_setup(console, weights, train), device)
        if self.out is not None:
            TrainedClassifier(network.backbone, network.head, CLASSES).save(self.out.expanduser())
        scores = self._scores(network, test, console, device)
        return self._result(scores, train, test)

    def _train(self, network: "Classifier", train: ImageSet, setup: TrainingSetup, device: torch.device) -> None:
        truth = presence(train.images)

        def batch(step: int) -> tuple[Tensor, Tensor]:
            rng = numpy_rng(self.seed, "crops", step)
            items = batch_items(self.seed, len(train), step, self.batch_size)
            crops = [random_crop(read_image(train.images[item].path), network.size, rng) for item in items]
            return torch.from_numpy(np.stack(crops)), truth[items]

        def loss(crops_and_truth: tuple[Tensor, Tensor]) -> Tensor:
            crops, some = (tensor.to(device) for tensor in crops_and_truth)
            return presence_loss(network(crops), some)

        fine_tune(network, RECIPE.changed(self.iterations, self.lr), batch, loss, setup)

    @torch.no_grad()
    def _scores(self, network: "Classifier", test: ImageSet, console: Console, device: torch.device) -> Tensor:
        """(images, crops, classes) logits."""
        network.eval()
        scores: list[Tensor] = []

        def crops(item: int) -> Tensor:
            pixels, rng = read_image(test.images[item].path), numpy_rng(self.seed, "test", item)
            return torch.from_numpy(np.stack([random_crop(pixels, network.size, rng) for _ in range(self.crops)]))

        with progress(console, "testing", len(test)) as advance:
            for some in _grouped(iter(Prefetcher(crops, 0, len(test), self.workers)), TEST_BATCH):
                logits = network(torch.cat(some).to(device)).cpu()
                scores += logits.unflatten(0, (len(some), self.crops))
                advance(len(scores))
        return torch.stack(scores)

    def _result(self, scores: Tensor, train: ImageSet, test: ImageSet) -> Result:
        truth = presence(test.images).numpy()
        all_crops = class_precisions(scores.double().sum(dim=1).numpy(), truth)
        one_crop = class_precisions(scores[:, 0].double().numpy(), truth)
        statement = (
            f"{self.sides(train, test)}; Krähenbühl's protocol: {self.length(RECIPE)} of {self.batch_size} images; "
            f"mAP over classes, {self.crops} random crops at scales {SCALES[0]} to {SCALES[1]}, difficult objects "
            "ignored; area is scikit-learn's average precision, 11-point that of VOC 2007"
        )
        metrics: dict[str, Any] = {
            "mAP_area": percent(all_crops["area"]),
            "mAP_11_point": percent(all_crops["11-point"]),
            "mAP_area_1_crop": percent(one_crop["area"]),
            "chance": chance(truth),
            "AP_area": class_figures(CLASSES, all_crops["area"]),
            "AP_11_point": class_figures(CLASSES, all_crops["11-point"]),
            **self.counts(train, test),
        }
        column = "classification"
        ours = {"this network, area": {column: metrics["mAP_area"]}, "blind guess": {column: metrics["chance"]}}
        table = Group(
            class_table(CLASSES, {"AP (area)": all_crops["area"], "AP (11-point)": all_crops["11-point"]}),
            "",
            published_table("4", ours, "VOC 2007", same=self.has_usual_images()),
        )
        return Result("voc-classification, mAP", statement, metrics, table)


class Classifier(nn.Module):
    """A backbone with new layers fc6, fc7 and fc8, from bytes to logits."""

    def __init__(self, backbone: Backbone, hidden: int, deviation: float) -> None:
        super().__init__()
        self.backbone, self.size = backbone, backbone.eval_size
        self.head = nn.Sequential(
            nn.Flatten(),
            new_layer(nn.Linear(backbone_features(backbone, self.size), hidden), deviation, 0.1),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            new_layer(nn.Linear(hidden, hidden), deviation, 0.1),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            new_layer(nn.Linear(hidden, len(CLASSES)), deviation, 0.1),
        )

    def forward(self, crops: Tensor) -> Tensor:
        """(N, size, size, 3) bytes to (N, 20) logits."""
        logits: Tensor = self.head(self.backbone(network_input(self.backbone, crops)))
        return logits


def presence(images: Sequence[VocImage]) -> Tensor:
    """(images, 20): 1 where a class is there, 0 where it is not, UNKNOWN where only as a difficult object."""
    truth = torch.zeros(len(images), len(CLASSES), dtype=torch.long)
    for row, image in zip(truth, images, strict=True):
        for label, _, difficult in sorted(image.objects, key=lambda thing: not thing.difficult):
            row[label] = UNKNOWN if difficult else 1
    return truth


def presence_loss(logits: Tensor, truth: Tensor) -> Tensor:
    """Cross-entropy of the sigmoids, summed over the classes that are known, the mean over images."""
    known = truth != UNKNOWN
    losses = F.binary_cross_entropy_with_logits(logits, truth.clamp(min=0).float(), reduction="none")
    return (losses * known).sum() / len(logits)


def random_crop(pixels: Pixels, size: int, rng: np.random.Generator) -> Pixels:
    """A square of the image scaled by 0.5 to 2, at any place, mirrored or not; never more than the image has."""
    height, width, _ = pixels.shape
    side = min(size / rng.uniform(*SCALES), height, width)
    left, top = rng.uniform(0, width - side), rng.uniform(0, height - side)
    box = (left, top, left + side, top + side)
    crop = np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR, box))
    return crop[:, ::-1] if rng.random() < 0.5 else crop


def class_precisions(scores: npt.NDArray[np.float64], truth: npt.NDArray[np.int64]) -> dict[str, list[float]]:
    """Both forms of average precision of each class, over the images where it is known."""
    precisions: dict[str, list[float]] = {"area": [], "11-point": []}
    for label in range(truth.shape[1]):
        known = truth[:, label] != UNKNOWN
        positive = truth[known, label] == 1
        curve, count = ranked_curve(scores[known, label], positive), int(positive.sum())
        precisions["area"].append(step_area(curve, count))
        precisions["11-point"].append(eleven_point(curve, count))
    return precisions


def chance(truth: npt.NDArray[np.int64]) -> float:
    """About the mAP of a blind guess: the mean share of the images that a class is in, of classes that are there."""
    there = [column[column != UNKNOWN] for column in truth.T if np.any(column == 1)]
    return percent([float(column.mean()) for column in there])


def _grouped(items: Iterator[Tensor], size: int) -> Iterator[list[Tensor]]:
    group: list[Tensor] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
