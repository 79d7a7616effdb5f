"""Appendix I.2: saliency maps of fine-tuned networks, side by side."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from unshuffle.accelerator import choose_device
from unshuffle.analysis.analysis import Analysis, AnalysisResult, chosen_names, metrics_table
from unshuffle.analysis.figures import INK, QUIET, RIGHT, WRONG, Picture, Sheet, shortened, title_width
from unshuffle.data.dataset import FileSource, LabelledDataset, Square, one_per_class, open_dataset
from unshuffle.data.media import BadMedia
from unshuffle.data.source import Pixels
from unshuffle.data.voc import CLASSES, Devkit, ImageSet
from unshuffle.errors import UserError
from unshuffle.evaluation.classification import MARGIN
from unshuffle.evaluation.features import network_input
from unshuffle.evaluation.finetuning import Classifier

LETTERS = 22
"""Length of the names below a picture."""
WHITE_QUANTILE = 0.99
"""Quantile of a map that is drawn white, as a few pixels lie far above the rest."""


@dataclass(frozen=True)
class SaliencyMap:
    """The saliency of one image for one network."""

    model: str
    file: str
    label: str
    """The class of the image, whose score is differentiated."""
    predicted: str
    """The class with the highest score."""
    score: float
    """Logit of the class of the image."""
    half_area: float
    """Smallest percentage of the pixels that holds half of the map's sum."""
    map: npt.NDArray[np.float32]
    """(side, side)"""
    pixels: Pixels


# ---- numbers


def saliency(classifier: Classifier, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (N, H, W) maps of Simonyan et al. and the (N, classes) scores of preprocessed images.

    The saliency of a pixel is the largest absolute gradient, over its channels, of the score of the image's class.
    """
    images = images.detach().requires_grad_()
    scores = classifier(images)
    (gradients,) = torch.autograd.grad(scores.gather(1, labels[:, None]).sum(), images)
    return gradients.abs().amax(dim=1), scores.detach()


def half_area(saliency_map: Tensor) -> float:
    """Return the smallest percentage of the pixels that holds half of the sum of a map."""
    ordered = saliency_map.flatten().double().sort(descending=True).values
    below_half = ordered.cumsum(0) < ordered.sum() / 2
    return 100 * (int(below_half.sum()) + 1) / len(ordered)


# ---- the analysis


@dataclass(frozen=True)
class Saliency(Analysis):
    """Saliency maps of fine-tuned networks, side by side (appendix I.2)."""

    images: str
    """Labelled images, such as the --test of the fine-tuning: class folders, a packed store, tar shards; or a VOC
    devkit."""
    classifiers: tuple[Path, ...]
    """The --out folders of `evaluate finetune` or `evaluate voc-classification`, or their classifier.safetensors."""
    names: tuple[str, ...] = ()
    """Names of the networks; by default those of the folders."""
    count: int = 6
    """Number of images, each of another class."""
    year: int | None = None
    """Year of the VOC devkit, if one is given; the class of an image is that of its largest object."""
    image_set: str = "test"
    """Image set of the devkit."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Return a map per image and network."""
        if self.count < 1 or not self.classifiers:
            raise UserError("give one classifier or more, and a count of 1 or more")
        names, device = chosen_names(self.names, self.classifiers), choose_device(self.device)
        models = {name: Classifier.load(path) for name, path in zip(names, self.classifiers, strict=True)}
        classes = models[names[0]].classes
        for name, model in models.items():
            if list(model.classes) != list(classes):
                raise UserError(f"{name} was trained on other classes than {names[0]}: they cannot be compared")
        chosen = readable_images(self._open(classes), self.count)
        maps = [image for name, model in models.items() for image in saliency_maps(model, name, chosen, device)]
        return self._result(maps, names)

    def _open(self, classes: Sequence[str]) -> LabelledDataset:
        if self.year is None:
            images = open_dataset(self.images, classes=classes)
        elif list(classes) == list(CLASSES):
            images = voc_images(Devkit(Path(self.images), self.year).with_objects(self.image_set))
        else:
            raise UserError("the classifiers were not trained on the classes of VOC")
        if images.kind != "images":
            raise UserError(f"{self.images} contains {images.kind}, but saliency needs images")
        return images

    def _result(self, maps: list[SaliencyMap], names: Sequence[str]) -> AnalysisResult:
        files = {image.file for image in maps}
        by_model = {name: [image for image in maps if image.model == name] for name in names}
        metrics = {
            name: {
                "accuracy": 100 * float(np.mean([image.predicted == image.label for image in images])),
                "half_area": float(np.mean([image.half_area for image in images])),
            }
            for name, images in by_model.items()
        }
        statement = (
            f"gradient of the score of an image's class with respect to its pixels, {len(files)} images of "
            f"{self.images}; half_area is the smallest percentage of the pixels that holds half of a map's sum"
        )
        columns = ("model", "file", "label", "predicted", "score", "half_area")
        rows = [{column: getattr(image, column) for column in columns} for image in maps]
        titles = {"accuracy": "images classified correctly [%]", "half_area": "pixels with half of the map [%]"}
        table = metrics_table("saliency", metrics, titles)
        return AnalysisResult("saliency", statement, metrics, rows, lambda: draw(maps, names), table)


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


def readable_images(images: LabelledDataset, count: int) -> LabelledDataset:
    """Return one readable image of each of at most `count` classes."""
    chosen: list[int] = []
    for first in one_per_class(torch.tensor(images.labels), count):
        for index in (index for index, label in enumerate(images.labels) if label == images.labels[first]):
            with suppress(BadMedia):
                images.load(index)
                chosen.append(index)
                break
    if not chosen:
        raise UserError(f"none of the {len(images)} images can be read")
    return images.subset(chosen)


def saliency_maps(model: Classifier, name: str, images: LabelledDataset, device: torch.device) -> list[SaliencyMap]:
    """Return the saliency of images for a network, cropped as in the test of the fine-tuning."""
    backbone = model.to(device).backbone
    images = images.with_square(Square(backbone.eval_size, margin=MARGIN))
    pixels = np.concatenate([images.load(index) for index in range(len(images))])
    labels = torch.tensor(images.labels, device=device)
    maps, scores = saliency(model, network_input(backbone, torch.from_numpy(pixels).to(device)), labels)
    return [
        SaliencyMap(
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


def draw(maps: Sequence[SaliencyMap], models: Sequence[str]) -> Figure:
    """Draw a row per image and a column per network."""
    files = list(dict.fromkeys(image.file for image in maps))
    side, gap, margin, head, below = 150, 14, 18, 98, 24
    title = "Saliency of the pixels for the score of an image's class"
    width = max(title_width(title), 2 * margin + (len(models) + 1) * (side + gap) - gap)
    sheet = Sheet(width, head + len(files) * (side + below + 8) + 4)
    sheet.text(title, margin, 24, INK, fontsize=12)
    sheet.text("white: the most salient percent of a map", margin, 46)
    for image in maps:
        top = head + files.index(image.file) * (side + below + 8)
        left = margin + (1 + models.index(image.model)) * (side + gap)
        if image.model == models[0]:
            sheet.picture(image.pixels, margin, top, side=side)
            sheet.text(shortened(image.label, LETTERS), margin, top + side + 12, INK, fontsize=9)
        sheet.picture(grey_levels(image.map), left, top, side=side)
        colour = RIGHT if image.predicted == image.label else WRONG
        sheet.text(f"predicted {shortened(image.predicted, LETTERS - 10)}", left, top + side + 12, colour, fontsize=9)
    sheet.text("image", margin, head - 18, QUIET, fontsize=10)
    for column, name in enumerate(models):
        sheet.text(shortened(name, LETTERS - 4), margin + (column + 1) * (side + gap), head - 18, INK, fontsize=10)
    return sheet.figure


def grey_levels(saliency_map: npt.NDArray[np.float32]) -> Picture:
    """Return a map in grey, from black for 0 to white for its highest percent."""
    white = max(float(np.quantile(saliency_map, WHITE_QUANTILE)), 1e-30)
    grey = (255 * np.clip(saliency_map / white, 0, 1)).round().astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)
