"""VOC classification (the paper's Tab. 4 and 5): fine-tuning with 20 independent sigmoids, by Krähenbühl's protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import Count, Positive
from unshuffle.data.media import read_image
from unshuffle.data.source import Pixels
from unshuffle.data.voc import CLASSES, VocImage
from unshuffle.evaluation.classification import random_hflip
from unshuffle.evaluation.features import network_input, prefetched
from unshuffle.evaluation.finetuning import Classifier, Recipe, batch_items, fc6_and_fc7, fine_tune, init_layer
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.voc.base import (
    Setting,
    VocEvaluation,
    class_percentages,
    class_table,
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

    @classmethod
    def published_recipe(cls, schedule: str | None) -> Recipe:
        """Return Krähenbühl's schedule."""
        return RECIPE

    def measure(self, console: Console) -> Result:
        """Fine-tune on one image set, test on another."""
        setting = self.prepare(lambda backbone: multi_label_classifier(backbone, self.hidden, self.init_std), console)
        self._train(setting)
        if self.out is not None:
            setting.network.save(self.out.expanduser())
        return self._result(setting, self._scores(setting))

    def _train(self, setting: Setting[Classifier]) -> None:
        network, images = setting.network, setting.train.images
        labels = image_labels(images)

        def batch(step: int) -> tuple[Tensor, Tensor]:
            rng = numpy_rng(self.seed, "crops", step)
            items = batch_items(self.seed, len(images), step, self.batch_size)
            return random_crops([read_image(images[item].path) for item in items], network, rng), labels[items]

        def loss(crops_and_labels: tuple[Tensor, Tensor]) -> Tensor:
            crops, targets = (tensor.to(setting.device) for tensor in crops_and_labels)
            return multi_label_loss(network(network_input(network.backbone, crops)), targets)

        fine_tune(network, RECIPE.changed(self.iterations, self.lr), batch, loss, setting.setup)

    @torch.no_grad()
    def _scores(self, setting: Setting[Classifier]) -> Tensor:
        """Return (images, crops, classes) logits."""
        network, images = setting.network.eval(), setting.test.images
        scores: list[Tensor] = []

        def crops(item: int) -> Tensor:
            pixels = read_image(images[item].path)
            return random_crops([pixels] * self.crops, network, numpy_rng(self.seed, "test", item))

        coming = prefetched(crops, len(images), self.workers, setting.setup.console, "testing")
        while batch := list(islice(coming, TEST_BATCH_SIZE)):
            logits = network(network_input(network.backbone, torch.cat(batch).to(setting.device))).cpu()
            scores += logits.unflatten(0, (len(batch), self.crops))
        return torch.stack(scores)

    def _result(self, setting: Setting[Classifier], scores: Tensor) -> Result:
        labels = image_labels(setting.test.images).numpy()
        all_crops = class_average_precisions(scores.double().sum(dim=1).numpy(), labels)
        one_crop = class_average_precisions(scores[:, 0].double().numpy(), labels)
        statement = (
            f"Krähenbühl's protocol: {self.iterations_statement(RECIPE)} of {self.batch_size} images; mAP over "
            f"classes, {self.crops} random crops at scales {SCALES[0]} to {SCALES[1]}, difficult objects ignored; "
            "area is scikit-learn's average precision, 11-point that of VOC 2007"
        )
        metrics: dict[str, Any] = {
            "mAP_area": mean_percent(all_crops["area"]),
            "mAP_11_point": mean_percent(all_crops["11-point"]),
            "mAP_area_1_crop": mean_percent(one_crop["area"]),
            "chance": chance_level(labels),
            "AP_area": class_percentages(CLASSES, all_crops["area"]),
            "AP_11_point": class_percentages(CLASSES, all_crops["11-point"]),
        }
        column = "classification"
        ours = {"this network, area": {column: metrics["mAP_area"]}, "chance": {column: metrics["chance"]}}
        table = class_table(CLASSES, {"AP (area)": all_crops["area"], "AP (11-point)": all_crops["11-point"]})
        return self.with_data(Result("voc-classification, mAP", statement, metrics, table), ours, setting)


def multi_label_classifier(backbone: Backbone, hidden: int, init_std: float) -> Classifier:
    """Return a backbone with new layers fc6, fc7 and fc8."""
    layers = fc6_and_fc7(backbone_features(backbone, backbone.eval_size), hidden, init_std)
    return Classifier(backbone, [*layers, init_layer(nn.Linear(hidden, len(CLASSES)), init_std, 0.1)], CLASSES)


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
    return random_hflip(crop, rng)


def random_crops(images: Sequence[Pixels], network: Classifier, rng: np.random.Generator) -> Tensor:
    """Return a `random_scaled_crop` of each image, at the size of the network's input."""
    crops = [random_scaled_crop(pixels, network.backbone.eval_size, rng) for pixels in images]
    return torch.from_numpy(np.stack(crops))


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
