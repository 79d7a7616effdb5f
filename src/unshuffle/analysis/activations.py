"""Appendix I.1: the images with the highest activations of conv5 units, in several datasets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from unshuffle.accelerator import choose_device
from unshuffle.analysis.analysis import Analysis, AnalysisResult, chosen_names, metrics_table
from unshuffle.analysis.figures import INK, Sheet, shortened, title_width
from unshuffle.data.dataset import LabelledDataset, Square, open_dataset
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.features import WORKERS, extract_features, find_backbone, merge_chunks, network_input
from unshuffle.evaluation.protocol import note_skipped
from unshuffle.models import Backbone
from unshuffle.randomness import numpy_rng

OUTLINE = (255, 221, 0)


class DatasetActivations(NamedTuple):
    """The highest activation of each unit in each image of a dataset."""

    name: str
    images: LabelledDataset
    maxima: Tensor
    """(N, units) highest activation over the positions of an image."""
    items: Tensor
    """(N,) index of the item of each row."""


@dataclass(frozen=True)
class TopImages:
    """The images of a dataset with the highest activations of a unit."""

    unit: int
    dataset: str
    files: list[str]
    """The highest activation first."""
    activations: list[float]
    """Highest activation of the unit in each."""
    selectivity: float
    """Distance of their mean from the mean of all images, in standard deviations."""
    pictures: list[Pixels]
    """The network's input, with an outline around the region of at least half of that activation."""


# ---- numbers


@torch.no_grad()
def conv5(backbone: Backbone, pixels: Tensor) -> Tensor:
    """Return the (N, units, h, w) map before pool5, after its ReLU, of (N, side, side, 3) bytes."""
    maps: Tensor = list(backbone.stages(network_input(backbone, pixels)).values())[-1]
    return maps.float()


def selectivities(maxima: Tensor, top: int) -> Tensor:
    """Return by how many std the mean of each unit's `top` highest of (N, units) values exceeds its mean."""
    std = maxima.std(dim=0, correction=0)
    highest = maxima.topk(min(top, len(maxima)), dim=0).values.mean(dim=0)
    return torch.where(std > 0, (highest - maxima.mean(dim=0)) / std, 0.0)


def selective_units(maxima: Sequence[Tensor], count: int, top: int) -> list[int]:
    """Return the units with the highest selectivity in the dataset where theirs is lowest.

    Many units may respond to the same few images. A unit most of whose images belong to a chosen unit is used only
    if there are no others.
    """
    lowest = torch.stack([selectivities(dataset_maxima, top) for dataset_maxima in maxima]).amin(dim=0)
    chosen: list[int] = []
    similar: list[int] = []
    seen: set[tuple[int, int]] = set()
    for unit in lowest.argsort(descending=True, stable=True).tolist():
        best = {
            (dataset, index)
            for dataset, dataset_maxima in enumerate(maxima)
            for index in dataset_maxima[:, unit].topk(min(top, len(dataset_maxima))).indices.tolist()
        }
        if 2 * len(best & seen) > len(best):
            similar.append(unit)
        elif len(chosen) < count:
            chosen.append(unit)
            seen |= best
    return (chosen + similar)[:count]


def outlined(pixels: Pixels, activation: Tensor) -> Pixels:
    """Return a (side, side, 3) image with an outline around where a (h, w) map has at least half of its maximum."""
    side = pixels.shape[0]
    large = F.interpolate(activation[None, None].float(), (side, side), mode="bilinear", align_corners=False)
    inside = (large >= large.max() / 2).float()
    width = max(1, side // 75)
    grown = F.max_pool2d(inside, 2 * width + 1, stride=1, padding=width)
    result = pixels.copy()
    result[(grown > inside)[0, 0].numpy()] = OUTLINE
    return result


# ---- the analysis


@dataclass(frozen=True)
class Activations(Analysis):
    """Images with the highest conv5 activations, in several datasets (appendix I.1)."""

    weights: str
    """A run folder, a weights file, pretrained, hf:OWNER/NAME, torchvision:NAME, timm:NAME, or random (random:NAME)."""
    data: tuple[str, ...]
    """Folders of images or videos, flat or nested, packed stores or tar shards; the middle frame of a video is used."""
    architecture: str | None = None
    """Architecture of a weights file that does not name it and is not recognised: resnet34, timm:NAME ..."""
    download: bool = False
    """Download hf:OWNER/NAME if it is not in the Hugging Face cache of this machine, or not in its latest version."""
    names: tuple[str, ...] = ()
    """Names of the datasets; by default those of the folders."""
    units: tuple[int, ...] = ()
    """Units to show; by default the most selective ones in all datasets whose images differ."""
    count: int = 6
    """Number of units, if they are not given."""
    top: int = 5
    """Images per unit and dataset."""
    limit: int = 2000
    """Maximum number of images or videos per dataset, sampled at random; 0: all."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: int = 0
    """Seed of the sampling and of random weights."""
    workers: int = WORKERS
    """Threads that read files."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Compute the activations of all images, then those of the shown images again."""
        if min(self.top, self.count) < 1 or self.limit < 0:
            raise UserError("top and count must be 1 or more, limit not negative")
        if not self.data:
            raise UserError("give one or more folders of images or videos after the weights")
        names, device = chosen_names(self.names, self.data), choose_device(self.device)
        backbone = find_backbone(self.weights, self.seed, self.architecture, self.download).to(device)
        sampled = [self._sampled(address, backbone) for address in self.data]
        datasets = [
            self._activations(backbone, name, images, device, console)
            for name, images in zip(names, sampled, strict=True)
        ]
        total = datasets[0].maxima.shape[1]
        if any(not 0 <= unit < total for unit in self.units):
            raise UserError(f"units must be from 0 to {total - 1}")
        units = list(dict.fromkeys(self.units)) or selective_units(
            [dataset.maxima for dataset in datasets], self.count, self.top
        )
        images = [top_images(backbone, dataset, unit, self.top, device) for unit in units for dataset in datasets]
        return self._result(images, {dataset.name: len(dataset.maxima) for dataset in datasets}, total)

    def _sampled(self, address: str, backbone: Backbone) -> LabelledDataset:
        images = open_dataset(address, labelled=False, square=Square(backbone.eval_size), frames=1)
        if not images.exceeds(self.limit):
            return images
        return images.subset(
            sorted(numpy_rng(self.seed, "activations").permutation(len(images))[: self.limit].tolist())
        )

    def _activations(
        self, backbone: Backbone, name: str, images: LabelledDataset, device: torch.device, console: Console
    ) -> DatasetActivations:
        def highest(pixels: Tensor) -> Tensor:
            return conv5(backbone, pixels).amax((2, 3)).cpu()

        chunks = list(extract_features(images, highest, device, console, name, workers=self.workers))
        note_skipped(console, images, name)
        maxima, items, _ = merge_chunks(chunks)
        return DatasetActivations(name, images, maxima, items)

    def _result(self, top: list[TopImages], sizes: Mapping[str, int], total: int) -> AnalysisResult:
        images = ", ".join(f"{size:,} of {name}" for name, size in sizes.items())
        how = "as given" if self.units else "the most selective in all datasets"
        statement = (
            f"{len({entry.unit for entry in top})} of {total} units of conv5 of {self.weights}, {how}; "
            f"highest activation in an image, among {images}"
        )
        metrics = {
            "images": dict(sizes),
            "units": [
                {
                    "unit": entry.unit,
                    "dataset": entry.dataset,
                    "selectivity": entry.selectivity,
                    "highest": entry.activations[0],
                }
                for entry in top
            ],
        }
        rows = [
            {"unit": entry.unit, "dataset": entry.dataset, "rank": rank, "file": file, "activation": activation}
            for entry in top
            for rank, (file, activation) in enumerate(zip(entry.files, entry.activations, strict=True), start=1)
        ]
        highest = {name: {entry.unit: entry.activations[0] for entry in top if entry.dataset == name} for name in sizes}
        table = metrics_table("highest activation", highest, {entry.unit: f"unit {entry.unit}" for entry in top})
        return AnalysisResult("activations", statement, metrics, rows, lambda: draw(top, list(sizes)), table)


def top_images(backbone: Backbone, dataset: DatasetActivations, unit: int, top: int, device: torch.device) -> TopImages:
    """Return the images with the highest activations of a unit."""
    best = dataset.maxima[:, unit].topk(min(top, len(dataset.maxima)))
    chosen, images = dataset.items[best.indices].tolist(), dataset.images
    pixels = [images.load(index)[0] for index in chosen]
    maps = conv5(backbone, torch.from_numpy(np.stack(pixels)).to(device))[:, unit].cpu()
    return TopImages(
        unit,
        dataset.name,
        [images.location(index) for index in chosen],
        best.values.tolist(),
        float(selectivities(dataset.maxima[:, [unit]], top)),
        [outlined(*pair) for pair in zip(pixels, maps, strict=True)],
    )


def draw(top: Sequence[TopImages], datasets: Sequence[str]) -> Figure:
    """Draw a row per unit with the images of each dataset."""
    units, most = list(dict.fromkeys(entry.unit for entry in top)), max(len(entry.pictures) for entry in top)
    side, gap, between, left, head = 92, 5, 26, 78, 92
    block = most * (side + gap) - gap
    title = "Images with the highest conv5 activations; outlined: at least half of the maximum"
    sheet = Sheet(
        max(title_width(title), left + len(datasets) * (block + between)), head + len(units) * (side + 34) + 6
    )
    sheet.text(title, 18, 26, INK, fontsize=12)
    for column, name in enumerate(datasets):
        sheet.text(shortened(name, block // 9), left + column * (block + between), head - 34, INK, fontsize=10.5)
    for entry in top:
        upper = head + units.index(entry.unit) * (side + 34)
        start = left + datasets.index(entry.dataset) * (block + between)
        if entry.dataset == datasets[0]:
            sheet.text("unit", 18, upper + side / 2 - 9)
            sheet.text(str(entry.unit), 18, upper + side / 2 + 9, INK, fontsize=12)
        for rank, (picture, activation) in enumerate(zip(entry.pictures, entry.activations, strict=True)):
            sheet.picture(picture, start + rank * (side + gap), upper, side=side)
            sheet.text(f"{activation:.2f}", start + rank * (side + gap), upper - 9, fontsize=8)
    return sheet.figure
