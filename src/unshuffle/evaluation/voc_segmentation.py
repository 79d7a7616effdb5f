"""VOC segmentation (the paper's Tab. 4): FCN-32s on the backbone."""

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from rich.console import Console, Group
from torch import Tensor
from torch.nn import functional as F

from unshuffle.console import progress
from unshuffle.data.batches import Prefetcher
from unshuffle.data.images import read_image
from unshuffle.evaluation.confusion import class_ious, confusion_matrix, pixel_accuracy
from unshuffle.evaluation.fcn import LABELS, Fcn32
from unshuffle.evaluation.finetuning import Recipe, TrainingSetup, batch_items, fine_tune
from unshuffle.evaluation.protocol import Result, published_table
from unshuffle.evaluation.voc import CLASSES, IGNORED, ImageSet, VocImage, read_mask
from unshuffle.evaluation.voc_task import VocTask, as_tensor, class_figures, class_table, percent

SCHEDULES = {
    "100k": Recipe(100_000, lr=1e-4, accumulate=20),
    "150k": Recipe(150_000, lr=1e-4, milestones=(50_000, 100_000), accumulate=20),
}
NAMES = ("background", *CLASSES)
BLIND = 0.5
"""Percent of mean IoU above that of calling everything background, below which nothing is learned."""


@dataclass(frozen=True)
class VocSegmentation(VocTask):
    """Which class is each pixel? Mean IoU of FCN-32s after fine-tuning (Tab. 4)."""

    year: int = 2012
    """The year of the devkit."""
    train_set: str = "train"
    """Image set to fine-tune on: its name, or a file with a name of an image in each line."""
    test_set: str = "val"
    """Image set to measure on; the literature's seg11valid is a file of names."""
    masks: str = "SegmentationClass"
    """Folder of the devkit that holds the masks; the extended ones are often in SegmentationClassAug."""
    schedule: Literal["100k", "150k"] = "100k"
    """100k: FCN-AlexNet's own, one rate; 150k: of the literature on unsupervised learning, three rates."""
    accumulate: int = 20
    """Images in a step."""

    @classmethod
    def quick(cls) -> Self:
        """Minutes on a CPU: a short schedule with a rate that learns from the start."""
        return cls(preset="quick", iterations=100, lr=0.01, hidden=256, deviation=0.03, accumulate=4)

    def measure(self, console: Console) -> Result:
        """Fine-tune on one image set, measure on another."""
        devkit = self.devkit()
        backbone, weights, device = self.prepare_backbone()
        network = Fcn32(backbone, self.hidden, self.deviation).to(device)
        train = devkit.with_masks(self.train_set, self.masks, self.limit)
        test = devkit.with_masks(self.test_set, self.masks, self.limit)
        self.check_sets(train, test, console)
        self._train(network, train, self.training_setup(console, weights, train), device)
        confusion = self._confusion(network, test, console, device)
        return self._result(confusion, train, test)

    def _train(self, network: Fcn32, train: ImageSet, setup: TrainingSetup, device: torch.device) -> None:
        recipe = SCHEDULES[self.schedule].changed(self.iterations, self.lr, self.accumulate)

        def batch(step: int) -> tuple[Tensor, Tensor]:
            return read_pair(train.images[int(batch_items(self.seed, len(train), step, 1)[0])])

        def loss(pair: tuple[Tensor, Tensor]) -> Tensor:
            pixels, truth = (tensor.to(device) for tensor in pair)
            return F.cross_entropy(network(pixels)[None], truth.long()[None], ignore_index=IGNORED)

        fine_tune(network, recipe, batch, loss, setup)

    @torch.no_grad()
    def _confusion(self, network: Fcn32, test: ImageSet, console: Console, device: torch.device) -> Tensor:
        network.eval()
        total = torch.zeros(LABELS, LABELS, dtype=torch.long)
        pairs = Prefetcher(lambda item: read_pair(test.images[item]), 0, len(test), self.workers)
        with progress(console, "testing", len(test)) as advance:
            for done, (pixels, truth) in enumerate(pairs, start=1):
                total += confusion_matrix(network(pixels.to(device)).argmax(dim=0).cpu(), truth, LABELS, IGNORED)
                advance(done)
        return total

    def _result(self, confusion: Tensor, train: ImageSet, test: ImageSet) -> Result:
        ious = class_ious(confusion).tolist()
        statement = (
            f"{self.sides(train, test)}; FCN-32s, schedule {self.schedule}: {self.length(SCHEDULES[self.schedule])} of "
            f"{self.accumulate} whole images at one scale; mean IoU over {len(NAMES)} classes from one confusion matrix"
        )
        metrics: dict[str, Any] = {
            "mIoU": percent(ious),
            "pixel_accuracy": 100 * pixel_accuracy(confusion),
            "chance": percent(class_ious(all_background(confusion)).tolist()),
            "IoU": class_figures(NAMES, ious),
            **self.counts(train, test),
        }
        column = "segmentation"
        ours = {"this network": {column: metrics["mIoU"]}, "all background": {column: metrics["chance"]}}
        pixels = f"pixel accuracy {metrics['pixel_accuracy']:.1f}"
        if metrics["mIoU"] < metrics["chance"] + BLIND:
            pixels += "; it calls nearly everything background: the training was too short to tell classes apart"
        table = Group(
            class_table(NAMES, {"IoU": ious}),
            pixels,
            "",
            published_table("4", ours, "VOC 2012", same=self.has_usual_images()),
        )
        return Result("voc-segmentation, mean IoU of FCN-32s", statement, metrics, table)


def all_background(confusion: Tensor) -> Tensor:
    """The confusion matrix of a network that says background everywhere."""
    blind = torch.zeros_like(confusion)
    blind[:, 0] = confusion.sum(dim=1)
    return blind


def read_pair(image: VocImage) -> tuple[Tensor, Tensor]:
    """An image and its labels, as bytes."""
    assert image.mask is not None
    return as_tensor(read_image(image.path)), as_tensor(read_mask(image.mask))
