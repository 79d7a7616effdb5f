"""VOC segmentation (the paper's Tab. 4): FCN-32s on the backbone."""

from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from rich.console import Console, Group
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.config import Count
from unshuffle.data.media import read_image
from unshuffle.data.voc import CLASSES, IGNORE_INDEX, Devkit, ImageSet, VocImage, read_mask
from unshuffle.evaluation.features import prefetched, to_floats
from unshuffle.evaluation.finetuning import Recipe, batch_items, fine_tune, init_layer
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.voc.base import (
    Setting,
    VocEvaluation,
    byte_tensor,
    class_percentages,
    class_table,
    mean_percent,
)
from unshuffle.evaluation.voc.metrics import class_ious, confusion_matrix, pixel_accuracy
from unshuffle.models import Backbone
from unshuffle.models.chain import Geometry, chain_of, first_convolution, geometry

SCHEDULES = {
    "100k": Recipe(100_000, lr=1e-4, accumulate=20),
    "150k": Recipe(150_000, lr=1e-4, milestones=(50_000, 100_000), accumulate=20),
}
LABEL_NAMES = ("background", *CLASSES)
CHANCE_MARGIN = 0.5
"""A mean IoU less than this many percentage points above chance counts as chance."""
FC6_KERNEL_SIZE = 6
PADDING_IN_STRIDES = 100 / 32
"""Padding of conv1 in strides of the backbone: 100 pixels for CaffeNet's 32, so that fc6 fits into any image."""


@dataclass(frozen=True)
class VocSegmentation(VocEvaluation):
    """Fine-tune FCN-32s to label each pixel with its class; mean IoU (Tab. 4)."""

    year: Count = 2012
    """Year of the devkit, such as 2007 or 2012."""
    train_set: str = "train"
    """Image set to fine-tune on: its name in the devkit, or a text file with one image name per line."""
    test_set: str = "val"
    """Image set to test on, given like --train_set; the literature's seg11valid is such a text file."""
    masks: str = "SegmentationClass"
    """Folder of the devkit that holds the masks; the extended annotations are usually in SegmentationClassAug."""
    schedule: Literal["100k", "150k"] = "100k"
    """100k: that of FCN-AlexNet, with a constant learning rate; 150k: that of the literature on unsupervised learning,
    with two learning-rate drops."""
    accumulate: Count = 20
    """Images per iteration; their gradients are accumulated one image at a time."""

    @classmethod
    def quick(cls) -> Self:
        """Return options for minutes on a CPU: narrow layers, and a short schedule with a high learning rate."""
        return cls(preset="quick", iterations=100, lr=0.01, hidden=256, init_std=0.03, accumulate=4)

    image_sets_folder = "Segmentation"
    paper_images = 1464  # VOC2012 train

    @classmethod
    def published_recipe(cls, schedule: str | None) -> Recipe:
        """Return the schedule of this name."""
        return SCHEDULES[schedule or cls.schedule]

    def measure(self, console: Console) -> Result:
        """Fine-tune on one image set, test on another."""
        setting = self.prepare(lambda backbone: FCN32s(backbone, self.hidden, self.init_std), console)
        self._train(setting)
        return self._result(setting, self._confusion(setting))

    def image_sets(self, devkit: Devkit) -> tuple[ImageSet, ImageSet]:
        """Return the images to train and to test on, with their masks."""
        train, test = (devkit.with_masks(name, self.masks, self.limit) for name in (self.train_set, self.test_set))
        return train, test

    def _train(self, setting: "Setting[FCN32s]") -> None:
        recipe = SCHEDULES[self.schedule].changed(self.iterations, self.lr)
        images = setting.train.images

        def batch(step: int) -> tuple[Tensor, Tensor]:
            return read_image_and_mask(images[int(batch_items(self.seed, len(images), step, 1)[0])])

        def loss(image_and_mask: tuple[Tensor, Tensor]) -> Tensor:
            image, mask = (tensor.to(setting.device) for tensor in image_and_mask)
            return F.cross_entropy(setting.network(image)[None], mask.long()[None], ignore_index=IGNORE_INDEX)

        fine_tune(setting.network, replace(recipe, accumulate=self.accumulate), batch, loss, setting.setup)

    @torch.no_grad()
    def _confusion(self, setting: "Setting[FCN32s]") -> Tensor:
        network, images, labels = setting.network.eval(), setting.test.images, len(LABEL_NAMES)
        confusion = torch.zeros(labels, labels, dtype=torch.long)

        def read(item: int) -> tuple[Tensor, Tensor]:
            return read_image_and_mask(images[item])

        for image, mask in prefetched(read, len(images), self.workers, setting.setup.console, "testing"):
            predicted = network(image.to(setting.device)).argmax(dim=0).cpu()
            confusion += confusion_matrix(predicted, mask, labels, IGNORE_INDEX)
        return confusion

    def _result(self, setting: "Setting[FCN32s]", confusion: Tensor) -> Result:
        ious = class_ious(confusion).tolist()
        statement = (
            f"FCN-32s, schedule {self.schedule}: {self.iterations_statement(SCHEDULES[self.schedule])} of "
            f"{self.accumulate} whole images at one scale; "
            f"mean IoU over {len(LABEL_NAMES)} classes from one confusion matrix"
        )
        metrics: dict[str, Any] = {
            "mIoU": mean_percent(ious),
            "pixel_accuracy": 100 * pixel_accuracy(confusion),
            "chance": mean_percent(class_ious(all_background(confusion)).tolist()),
            "IoU": class_percentages(LABEL_NAMES, ious),
        }
        column = "segmentation"
        ours = {"this network": {column: metrics["mIoU"]}, "all background": {column: metrics["chance"]}}
        accuracy = f"pixel accuracy {metrics['pixel_accuracy']:.1f}"
        if metrics["mIoU"] < metrics["chance"] + CHANCE_MARGIN:
            accuracy += "; nearly every pixel is predicted as background: raise --iterations or --lr"
        table = Group(class_table(LABEL_NAMES, {"IoU": ious}), accuracy)
        return self.with_data(Result("voc-segmentation, mean IoU of FCN-32s", statement, metrics, table), ours, setting)


class FCN32s(nn.Module):
    """FCN-32s: fc6 to fc8 as convolutions, whose scores are interpolated to the pixels of the image."""

    def __init__(self, backbone: Backbone, hidden: int, init_std: float) -> None:
        super().__init__()
        self.normalise = backbone.normalise
        self.layers = chain_of(backbone)
        for layer in self.layers:
            if isinstance(layer, nn.MaxPool2d):
                layer.ceil_mode = True  # as in Caffe; otherwise the last pixels would have no score
        conv1 = first_convolution(self.layers)
        conv1.padding = (round(PADDING_IN_STRIDES * geometry(self.layers).stride),) * 2
        self.head = nn.Sequential(
            init_layer(nn.Conv2d(backbone.channels, hidden, FC6_KERNEL_SIZE), init_std, 0.1),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            init_layer(nn.Conv2d(hidden, hidden, 1), init_std, 0.1),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            init_layer(nn.Conv2d(hidden, len(LABEL_NAMES), 1), 0.0, 0.0),
        )
        self.geometry = geometry([*self.layers, *self.head])

    def forward(self, image: Tensor) -> Tensor:
        """Return (21, H, W) scores of one (H, W, 3) image of bytes."""
        cell_scores = self.head(self.layers(self.normalise(to_floats(image[None]))))[0]
        rows, columns = (
            interpolation_matrix(self.geometry, cells, pixels).to(cell_scores)
            for cells, pixels in zip(cell_scores.shape[1:], image.shape[:2], strict=True)
        )
        scores: Tensor = rows @ cell_scores @ columns.T
        return scores


def interpolation_matrix(grid: Geometry, cells: int, pixels: int) -> Tensor:
    """Return the (pixels, cells) weights of linear interpolation between the centres of the cells.

    Along each side this equals FCN's fixed deconvolution and crop (63 x 63, stride 32, offset 18 for CaffeNet).
    """
    centres = grid.stride * torch.arange(cells) + grid.centre
    distances = (torch.arange(pixels)[:, None] - centres).abs() / grid.stride
    return (1 - distances).clamp(min=0)


def all_background(confusion: Tensor) -> Tensor:
    """Return the confusion matrix of predicting background everywhere, which is the chance level."""
    chance = torch.zeros_like(confusion)
    chance[:, 0] = confusion.sum(dim=1)
    return chance


def read_image_and_mask(image: VocImage) -> tuple[Tensor, Tensor]:
    """Read an image and the labels of its mask, both as bytes."""
    assert image.mask is not None
    return byte_tensor(read_image(image.path)), byte_tensor(read_mask(image.mask))
