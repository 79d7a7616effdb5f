"""Which pixels a fine-tuned network goes by: class saliency maps, for several networks side by side (appendix I.2)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor

from unshuffle.accelerator import choose_device
from unshuffle.analysis.figures import INK, QUIET
from unshuffle.analysis.names import chosen_names
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis, Row
from unshuffle.data.dataset import FileSource, LabelledDataset, Square, one_per_class, open_dataset
from unshuffle.data.media import BadMedia
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.classification import MARGIN
from unshuffle.evaluation.features import network_input
from unshuffle.evaluation.finetuning import TrainedClassifier
from unshuffle.evaluation.voc import CLASSES, Devkit, ImageSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from unshuffle.analysis.sheet import Picture

LETTERS = 22  # that fit below a picture
BRIGHTEST = 0.99  # quantile of a map that is drawn white: a few pixels lie far above the rest


@dataclass(frozen=True)
class Salience:
    """One image as one network sees it."""

    model: str
    file: str
    label: str
    """The image's class, whose score is followed back to the pixels."""
    said: str
    """The class with the highest score."""
    score: float
    """Logit of the image's own class."""
    half_area: float
    """Percent of the pixels, the most salient first, that hold half of the map's sum."""
    map: npt.NDArray[np.float32]
    """(side, side)"""
    pixels: Pixels


# ---- numbers


def saliency(classifier: TrainedClassifier, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(N, H, W) maps of Simonyan et al., and (N, classes) scores, of images as the backbone wants them.

    A pixel's saliency is the gradient of the score of the image's class by that pixel, the largest absolute value of
    its channels.
    """
    images = images.detach().requires_grad_()
    scores = classifier.scores(images)
    (gradients,) = torch.autograd.grad(scores.gather(1, labels[:, None]).sum(), images)
    return gradients.abs().amax(dim=1), scores.detach()


def half_area(saliences: Tensor) -> float:
    """The smallest percentage of the pixels that holds half of the sum of a map."""
    ordered = saliences.flatten().double().sort(descending=True).values
    held = ordered.cumsum(0) < ordered.sum() / 2
    return 100 * (int(held.sum()) + 1) / len(ordered)


# ---- the analysis


@dataclass(frozen=True)
class Saliency(Question):
    """Pixels that fine-tuned networks go by, for several networks side by side (appendix I.2)."""

    images: str
    """Labelled images, such as the --test of the fine-tuning: class folders, a packed store, tar shards; or a VOC
    devkit."""
    classifiers: tuple[Path, ...]
    """The --out folders of `evaluate finetune` or `evaluate voc-classification`, or their classifier.safetensors."""
    names: tuple[str, ...] = ()
    """What to call them; by default the names of the folders."""
    count: int = 6
    """Images, each of another class."""
    year: int | None = None
    """The year, if a VOC devkit is given; the class of an image is that of its largest object."""
    image_set: str = "test"
    """Image set of the devkit."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""

    def answer(self, console: Console) -> Analysis:
        """A map for each image and network."""
        if self.count < 1 or not self.classifiers:
            raise UserError("give one classifier or more, and a count of 1 or more")
        names, device = chosen_names(self.names, self.classifiers), choose_device(self.device)
        models = {name: TrainedClassifier.load(path) for name, path in zip(names, self.classifiers, strict=True)}
        classes = models[names[0]].classes
        for name, model in models.items():
            if list(model.classes) != list(classes):
                raise UserError(f"{name} tells other classes apart than {names[0]}: they cannot be compared")
        chosen = readable_examples(self._open(classes), self.count)
        found = [one for name, model in models.items() for one in saliences(model, name, chosen, device)]
        return self._analysis(found, names)

    def _open(self, classes: Sequence[str]) -> LabelledDataset:
        if self.year is None:
            images = open_dataset(self.images, classes=classes)
        elif list(classes) == list(CLASSES):
            images = voc_images(Devkit(Path(self.images), self.year).with_objects(self.image_set))
        else:
            raise UserError("the classifiers do not tell the classes of VOC apart")
        if images.kind != "images":
            raise UserError(f"{self.images} holds {images.kind}, and saliency is for images")
        return images

    def _analysis(self, found: list[Salience], names: Sequence[str]) -> Analysis:
        files = {one.file for one in found}
        means = {name: [one for one in found if one.model == name] for name in names}
        metrics = {
            name: {
                "recognised": 100 * float(np.mean([one.said == one.label for one in some])),
                "half_area": float(np.mean([one.half_area for one in some])),
            }
            for name, some in means.items()
        }
        statement = (
            f"gradient of the score of an image's class by its pixels, {len(files)} images of {self.images}; "
            "half_area is the percent of the pixels that hold half of a map's sum"
        )
        return Analysis("saliency", statement, metrics, rows(found), lambda: draw(found, names))


def voc_images(images: ImageSet) -> LabelledDataset:
    """Return images of VOC, each with the class of its largest object."""
    paths, labels = [], []
    for image in images.images:
        if image.objects:
            areas = [(right - left) * (bottom - top) for _, (left, top, right, bottom), _ in image.objects]
            paths.append(image.path)
            labels.append(image.objects[areas.index(max(areas))].label)
    source = FileSource(images.images[0].path.parent, paths, "images")
    return LabelledDataset(images.name, source, range(len(paths)), labels, CLASSES, "images")


def readable_examples(images: LabelledDataset, count: int) -> LabelledDataset:
    """Return one image that can be read of each of at most `count` classes."""
    chosen: list[int] = []
    for first in one_per_class(torch.tensor(images.labels), count):
        same = (index for index, label in enumerate(images.labels) if label == images.labels[first])
        chosen += islice((index for index in same if _can_read(images, index)), 1)
    if not chosen:
        raise UserError(f"none of the {len(images)} images can be read")
    return images.subset(chosen)


def _can_read(images: LabelledDataset, index: int) -> bool:
    try:
        images.load(index)
    except BadMedia:
        return False
    return True


def saliences(model: TrainedClassifier, name: str, images: LabelledDataset, device: torch.device) -> list[Salience]:
    """What a network goes by in each of some images, cut as in the test of the fine-tuning."""
    backbone = model.backbone.to(device)
    model.head.to(device)
    images = images.with_square(Square(backbone.eval_size, margin=MARGIN))
    pixels = np.concatenate([images.load(index) for index in range(len(images))])
    labels = torch.tensor(images.labels, device=device)
    maps, scores = saliency(model, network_input(backbone, torch.from_numpy(pixels).to(device)), labels)
    return [
        Salience(
            name,
            images.location(index),
            model.classes[images.labels[index]],
            model.classes[int(scores[index].argmax())],
            float(scores[index, labels[index]]),
            half_area(maps[index]),
            maps[index].cpu().numpy(),
            pixels[index],
        )
        for index in range(len(images))
    ]


def rows(found: Sequence[Salience]) -> list[Row]:
    """A line for each image and network."""
    names = ("model", "file", "label", "said", "score", "half_area")
    return [{name: getattr(one, name) for name in names} for one in found]


def draw(found: Sequence[Salience], models: Sequence[str]) -> "Figure":
    """A row for each image, a column for each network."""
    from unshuffle.analysis.sheet import RIGHT, WRONG, Sheet, room_for, shortened

    files = list(dict.fromkeys(one.file for one in found))
    side, gap, margin, head, below = 150, 14, 18, 98, 24
    title = "Pixels that the score of an image's class depends on"
    width = max(room_for(title), 2 * margin + (len(models) + 1) * (side + gap) - gap)
    sheet = Sheet(width, head + len(files) * (side + below + 8) + 4)
    sheet.text(title, margin, 24, INK, fontsize=12)
    sheet.text("white: the most salient hundredth of a map", margin, 46)
    for one in found:
        top = head + files.index(one.file) * (side + below + 8)
        left = margin + (1 + models.index(one.model)) * (side + gap)
        if one.model == models[0]:
            sheet.picture(one.pixels, margin, top, side=side)
            sheet.text(shortened(one.label, LETTERS), margin, top + side + 12, INK, fontsize=9)
        sheet.picture(shades(one.map), left, top, side=side)
        colour = RIGHT if one.said == one.label else WRONG
        sheet.text(f"says {shortened(one.said, LETTERS - 5)}", left, top + side + 12, colour, fontsize=9)
    sheet.text("image", margin, head - 18, QUIET, fontsize=10)
    for column, name in enumerate(models):
        sheet.text(shortened(name, LETTERS - 4), margin + (column + 1) * (side + gap), head - 18, INK, fontsize=10)
    return sheet.figure


def shades(saliences: npt.NDArray[np.float32]) -> "Picture":
    """A map in grey, from black for none to white for its brightest hundredth."""
    white = max(float(np.quantile(saliences, BRIGHTEST)), 1e-30)
    grey = (255 * np.clip(saliences / white, 0, 1)).round().astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)
