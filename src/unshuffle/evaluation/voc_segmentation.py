"""VOC segmentation (the paper's Tab. 4): FCN-32s on the trunk."""

from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from unshuffle.data.batches import Prefetcher
from unshuffle.data.images import read_image
from unshuffle.evaluation.confusion import class_ious, confusion_matrix, pixel_accuracy
from unshuffle.evaluation.fcn import LABELS, Fcn32
from unshuffle.evaluation.fine_tuning import Recipe, drawn, fine_tune
from unshuffle.evaluation.progress import progress
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.voc import CLASSES, IGNORED, ImageSet, VocImage, read_mask
from unshuffle.evaluation.voc_task import VocTask, as_tensor, class_figures, percent, print_classes

SCHEDULES = {
    "100k": Recipe(100_000, lr=1e-4, accumulate=20),
    "150k": Recipe(150_000, lr=1e-4, milestones=(50_000, 100_000), accumulate=20),
}
NAMES = ("background", *CLASSES)


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
        return cls(preset="quick", iterations=100, lr=0.01, hidden=256, accumulate=4)

    def run(self, console: Console) -> Result:
        """Fine-tune on one image set, measure on another."""
        devkit = self.devkit()
        train = devkit.with_masks(self.train_set, self.masks, self.limit)
        test = devkit.with_masks(self.test_set, self.masks, self.limit)
        for images in (train, test):
            console.print(images.summary(), highlight=False, soft_wrap=True)
        trunk, device = self.prepare_trunk()
        network = Fcn32(trunk, self.hidden).to(device)
        self._train(network, train, console, device)
        confusion = self._confusion(network, test, console, device)
        return self._result(confusion, train, test, console)

    def _train(self, network: Fcn32, train: ImageSet, console: Console, device: torch.device) -> None:
        recipe = SCHEDULES[self.schedule].changed(self.iterations, self.lr, self.accumulate)

        def batch(step: int) -> tuple[Tensor, Tensor]:
            return read_pair(train.images[int(drawn(self.seed, len(train), step, 1)[0])])

        def loss(pair: tuple[Tensor, Tensor]) -> Tensor:
            pixels, truth = (tensor.to(device) for tensor in pair)
            return F.cross_entropy(network(pixels)[None], truth.long()[None], ignore_index=IGNORED)

        fine_tune(network, recipe, batch, loss, self.workshop(console))

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

    def _result(self, confusion: Tensor, train: ImageSet, test: ImageSet, console: Console) -> Result:
        ious = class_ious(confusion).tolist()
        print_classes(console, NAMES, {"IoU": ious})
        statement = (
            f"trained on {train.name} ({len(train)} images), tested on {test.name} ({len(test)}): FCN-32s, schedule "
            f"{self.schedule}, whole images at one scale; mean IoU over 21 classes from one confusion matrix"
        )
        metrics: dict[str, Any] = {
            "mIoU": percent(ious),
            "pixel accuracy": 100 * pixel_accuracy(confusion),
            "IoU": class_figures(NAMES, ious),
            "train images": len(train),
            "test images": len(test),
            "skipped": dict(train.skipped + test.skipped),
        }
        console.print(statement, highlight=False, soft_wrap=True)
        figures = f"mIoU {metrics['mIoU']:.1f}, pixel accuracy {metrics['pixel accuracy']:.1f}"
        console.print(figures, highlight=False)
        return Result(f"voc-segmentation, FCN-32s {self.schedule}", statement, metrics)


def read_pair(image: VocImage) -> tuple[Tensor, Tensor]:
    """An image and its labels, as bytes."""
    assert image.mask is not None
    return as_tensor(read_image(image.path)), as_tensor(read_mask(image.mask))
