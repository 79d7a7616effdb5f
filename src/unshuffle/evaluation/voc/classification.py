"""VOC classification (the paper's Tab. 4 and 5): fine-tuning with 20 independent sigmoids, by Krähenbühl's protocol."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.console import Console, Group
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import Count, Positive
from unshuffle.console import progress
from unshuffle.data.batches import Prefetcher
from unshuffle.data.media import read_image
from unshuffle.data.source import Pixels
from unshuffle.data.voc import CLASSES, ImageSet, VocImage
from unshuffle.evaluation.features import network_input
from unshuffle.evaluation.finetuning import Recipe, TrainedClassifier, TrainingSetup, batch_items, fine_tune
from unshuffle.evaluation.protocol import Result, published_table
from unshuffle.evaluation.voc.base import (
    VocEvaluation,
    class_percentages,
    class_table,
    fc6_and_fc7,
    init_layer,
    mean_percent,
)
from unshuffle.evaluation.voc.metrics import average_precision, precision_recall_curve, voc2007_average_precision
from unshuffle.models import Backbone
from unshuffle.models.registry import backbone_features
from unshuffle.randomness import numpy_rng

SCALES = (0.5, 2.0)
TEST_BATCH_SIZE = 8
RECIPE = Recipe(
    80_000, lr=0.001, weight_decay=1e-6, milestones=tuple(range(10_000, 80_000, 10_000)), decay=0.5, clip=10
)
UNKNOWN = -1
"""Label of a class whose objects in an image are all difficult."""


@dataclass(frozen=True)
class VocClassification(VocEvaluation):
    """Fine-tune all layers to tell which of 20 classes an image shows; mAP (Tab. 4)."""

    batch_size: Count = 16
    """Images per iteration."""
    crops: Count = 10
    """Random crops of each test image, whose scores are summed; fewer are faster and less accurate."""
    init_std: Positive = 0.01
    """Standard deviation of the initial weights of fc6, fc7 and fc8; raise it for narrow layers. Biases: 0.1."""

    @classmethod
    def quick(cls) -> Self:
        """Return options for minutes on a CPU: narrow layers, and a short schedule with a high learning rate."""
        return cls(preset="quick", iterations=400, lr=0.01, hidden=512, crops=4, init_std=0.03)

    def measure(self, console: Console) -> Result:
        """Fine-tune on one image set, test on another."""
        devkit = self.devkit()
        backbone, weights, device = self.prepare_backbone()
        network = MultiLabelClassifier(backbone, self.hidden, self.init_std).to(device)
        train = devkit.with_objects(self.train_set, self.limit)
        test = devkit.with_objects(self.test_set, self.limit)
        self.report_image_sets(train, test, console)
        self._train(network, train, self.training_setup(console, weights, train), device)
        if self.out is not None:
            TrainedClassifier(network.backbone, network.head, CLASSES).save(self.out.expanduser())
        scores = self._scores(network, test, console, device)
        return self._result(scores, train, test)

    def _train(
        self, network: "MultiLabelClassifier", train: ImageSet, setup: TrainingSetup, device: torch.device
    ) -> None:
        labels = image_labels(train.images)

        def batch(step: int) -> tuple[Tensor, Tensor]:
            rng = numpy_rng(self.seed, "crops", step)
            items = batch_items(self.seed, len(train), step, self.batch_size)
            crops = [random_scaled_crop(read_image(train.images[item].path), network.size, rng) for item in items]
            return torch.from_numpy(np.stack(crops)), labels[items]

        def loss(crops_and_labels: tuple[Tensor, Tensor]) -> Tensor:
            crops, targets = (tensor.to(device) for tensor in crops_and_labels)
            return multi_label_loss(network(crops), targets)

        fine_tune(network, RECIPE.changed(self.iterations, self.lr), batch, loss, setup)

    @torch.no_grad()
    def _scores(
        self, network: "MultiLabelClassifier", test: ImageSet, console: Console, device: torch.device
    ) -> Tensor:
        """Return (images, crops, classes) logits."""
        network.eval()
        scores: list[Tensor] = []

        def crops(item: int) -> Tensor:
            pixels, rng = read_image(test.images[item].path), numpy_rng(self.seed, "test", item)
            return torch.from_numpy(
                np.stack([random_scaled_crop(pixels, network.size, rng) for _ in range(self.crops)])
            )

        with progress(console, "testing", len(test)) as advance:
            for batch in _batches(iter(Prefetcher(crops, 0, len(test), self.workers)), TEST_BATCH_SIZE):
                logits = network(torch.cat(batch).to(device)).cpu()
                scores += logits.unflatten(0, (len(batch), self.crops))
                advance(len(scores))
        return torch.stack(scores)

    def _result(self, scores: Tensor, train: ImageSet, test: ImageSet) -> Result:
        labels = image_labels(test.images).numpy()
        all_crops = class_average_precisions(scores.double().sum(dim=1).numpy(), labels)
        one_crop = class_average_precisions(scores[:, 0].double().numpy(), labels)
        statement = (
            f"{self.data_statement(train, test)}; Krähenbühl's protocol: {self.iterations_statement(RECIPE)} of "
            f"{self.batch_size} images; mAP over classes, {self.crops} random crops at scales {SCALES[0]} to "
            f"{SCALES[1]}, difficult objects ignored; area is scikit-learn's average precision, "
            "11-point that of VOC 2007"
        )
        metrics: dict[str, Any] = {
            "mAP_area": mean_percent(all_crops["area"]),
            "mAP_11_point": mean_percent(all_crops["11-point"]),
            "mAP_area_1_crop": mean_percent(one_crop["area"]),
            "chance": chance_level(labels),
            "AP_area": class_percentages(CLASSES, all_crops["area"]),
            "AP_11_point": class_percentages(CLASSES, all_crops["11-point"]),
            **self.data_metrics(train, test),
        }
        column = "classification"
        ours = {"this network, area": {column: metrics["mAP_area"]}, "chance": {column: metrics["chance"]}}
        table = Group(
            class_table(CLASSES, {"AP (area)": all_crops["area"], "AP (11-point)": all_crops["11-point"]}),
            "",
            published_table("4", ours, "VOC 2007", same=self.uses_paper_data()),
        )
        return Result("voc-classification, mAP", statement, metrics, table)


class MultiLabelClassifier(nn.Module):
    """A backbone with new layers fc6, fc7 and fc8."""

    def __init__(self, backbone: Backbone, hidden: int, init_std: float) -> None:
        super().__init__()
        self.backbone, self.size = backbone, backbone.eval_size
        self.head = nn.Sequential(
            *fc6_and_fc7(backbone_features(backbone, self.size), hidden, init_std),
            init_layer(nn.Linear(hidden, len(CLASSES)), init_std, 0.1),
        )

    def forward(self, crops: Tensor) -> Tensor:
        """Return (N, 20) logits of (N, size, size, 3) crops of bytes."""
        logits: Tensor = self.head(self.backbone(network_input(self.backbone, crops)))
        return logits


def image_labels(images: Sequence[VocImage]) -> Tensor:
    """Return (images, 20) labels: 1 for present, 0 for absent, UNKNOWN for present only as difficult objects."""
    labels = torch.zeros(len(images), len(CLASSES), dtype=torch.long)
    for row, image in zip(labels, images, strict=True):
        # difficult objects first, so that an object that is not difficult overrides them
        for label, _, difficult in sorted(image.objects, key=lambda annotated: not annotated.difficult):
            row[label] = UNKNOWN if difficult else 1
    return labels


def multi_label_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the binary cross-entropy, summed over the classes that are not UNKNOWN and averaged over images."""
    known = labels != UNKNOWN
    losses = F.binary_cross_entropy_with_logits(logits, labels.clamp(min=0).float(), reduction="none")
    return (losses * known).sum() / len(logits)


def random_scaled_crop(pixels: Pixels, size: int, rng: np.random.Generator) -> Pixels:
    """Return a random square crop of the image at a random scale of SCALES, flipped horizontally half of the time.

    Where the image is too small for the scale, the crop spans its short side.
    """
    height, width, _ = pixels.shape
    side = min(size / rng.uniform(*SCALES), height, width)
    left, top = rng.uniform(0, width - side), rng.uniform(0, height - side)
    box = (left, top, left + side, top + side)
    crop = np.asarray(Image.fromarray(pixels).resize((size, size), Image.Resampling.BILINEAR, box))
    return crop[:, ::-1] if rng.random() < 0.5 else crop


def class_average_precisions(scores: npt.NDArray[np.float64], labels: npt.NDArray[np.int64]) -> dict[str, list[float]]:
    """Return both forms of average precision of each class, over the images where it is not UNKNOWN."""
    precisions: dict[str, list[float]] = {"area": [], "11-point": []}
    for label in range(labels.shape[1]):
        known = labels[:, label] != UNKNOWN
        positive = labels[known, label] == 1
        curve, positives = precision_recall_curve(scores[known, label], positive), int(positive.sum())
        precisions["area"].append(average_precision(curve, positives))
        precisions["11-point"].append(voc2007_average_precision(curve, positives))
    return precisions


def chance_level(labels: npt.NDArray[np.int64]) -> float:
    """Return about the mAP of random scores, in percent: the mean fraction of positives of the classes present."""
    known = [column[column != UNKNOWN] for column in labels.T if np.any(column == 1)]
    return mean_percent([float(column.mean()) for column in known])


def _batches(items: Iterator[Tensor], size: int) -> Iterator[list[Tensor]]:
    while batch := list(islice(items, size)):
        yield batch
