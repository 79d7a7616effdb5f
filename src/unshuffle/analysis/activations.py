"""What excites the units of conv5: the images with the highest activations, over several datasets (appendix I.1)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from unshuffle.accelerator import choose_device
from unshuffle.analysis.figures import INK
from unshuffle.analysis.names import chosen_names
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis, Row
from unshuffle.data.dataset import LabelledDataset, Square, open_dataset
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.features import WORKERS, extract_features, find_backbone, merge_chunks, network_input
from unshuffle.evaluation.protocol import note_skipped
from unshuffle.models import Backbone
from unshuffle.randomness import numpy_rng

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUTLINE = (255, 221, 0)


class Responses(NamedTuple):
    """The images of a dataset, and how much each unit is excited by each."""

    name: str
    images: LabelledDataset
    maxima: Tensor
    """(N, units) highest activation anywhere in an image."""
    items: Tensor
    """(N,) index of the item that each row is of."""


@dataclass(frozen=True)
class Excited:
    """The images of a dataset that excite a unit most."""

    unit: int
    dataset: str
    files: list[str]
    """The strongest first."""
    activations: list[float]
    """Highest activation of the unit anywhere in each."""
    selectivity: float
    """Deviations by which their mean lies above the mean of all images."""
    pictures: list[Pixels]
    """What the network sees, with an outline around where the unit has half of that activation or more."""


# ---- numbers


@torch.no_grad()
def conv5(backbone: Backbone, pixels: Tensor) -> Tensor:
    """The last map before pool5, after its ReLU, (N, units, h, w), of (N, side, side, 3) bytes."""
    maps: Tensor = list(backbone.stages(network_input(backbone, pixels)).values())[-1]
    return maps.float()


def selectivities(maxima: Tensor, top: int) -> Tensor:
    """(units,) deviations by which a unit's `top` highest of (N, units) values lie above its mean; 0 if all agree."""
    deviations = maxima.std(dim=0, correction=0)
    highest = maxima.topk(min(top, len(maxima)), dim=0).values.mean(dim=0)
    return torch.where(deviations > 0, (highest - maxima.mean(dim=0)) / deviations, 0.0)


def telling_units(maxima: Sequence[Tensor], count: int, top: int) -> list[int]:
    """The units that are most selective in all datasets: by the dataset where they are least so.

    Many units may go by the same few images. One whose images mostly belong to a unit that is chosen already waits
    until there is no other.
    """
    least = torch.stack([selectivities(some, top) for some in maxima]).amin(dim=0)
    chosen: list[int] = []
    waiting: list[int] = []
    seen: set[tuple[int, int]] = set()
    for unit in least.argsort(descending=True, stable=True).tolist():
        best = {
            (dataset, place)
            for dataset, some in enumerate(maxima)
            for place in some[:, unit].topk(min(top, len(some))).indices.tolist()
        }
        if 2 * len(best & seen) > len(best):
            waiting.append(unit)
        elif len(chosen) < count:
            chosen.append(unit)
            seen |= best
    return (chosen + waiting)[:count]


def outlined(pixels: Pixels, activation: Tensor) -> Pixels:
    """A (side, side, 3) image with a line around where a (h, w) map has half of its maximum or more."""
    side = pixels.shape[0]
    large = F.interpolate(activation[None, None].float(), (side, side), mode="bilinear", align_corners=False)
    inside = (large >= large.max() / 2).float()
    width = max(1, side // 75)
    grown = F.max_pool2d(inside, 2 * width + 1, stride=1, padding=width)
    drawn = pixels.copy()
    drawn[(grown > inside)[0, 0].numpy()] = OUTLINE
    return drawn


# ---- the analysis


@dataclass(frozen=True)
class Activations(Question):
    """Images that excite units of conv5 most, in several datasets (appendix I.1)."""

    weights: str
    """A run folder, a weights file, a torchvision model name, or random (random:ARCHITECTURE)."""
    data: tuple[str, ...]
    """Folders of images or of videos, flat or nested, packed stores or tar shards; of a video the middle frame is
    taken."""
    names: tuple[str, ...] = ()
    """What to call the datasets; by default the names of the folders."""
    units: tuple[int, ...] = ()
    """Which units; by default those that are most selective in all of the datasets, and differ in their images."""
    count: int = 6
    """So many of these."""
    top: int = 5
    """Images for each unit and dataset."""
    limit: int = 2000
    """At most so many images or videos of each dataset, drawn with the seed; 0 is no limit."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: int = 0
    """Seed of the draw, and of random weights."""
    workers: int = WORKERS
    """Threads that read files."""

    def answer(self, console: Console) -> Analysis:
        """All images of all datasets through the network once, then again those that are shown."""
        if min(self.top, self.count) < 1 or self.limit < 0:
            raise UserError("top and count must be 1 or more, limit not negative")
        if not self.data:
            raise UserError("say which folders to look into: give one or more after the weights")
        names, device = chosen_names(self.names, self.data), choose_device(self.device)
        backbone = find_backbone(self.weights, self.seed).to(device)
        sampled = [self._sampled(address, backbone) for address in self.data]
        datasets = [
            self._look(backbone, name, images, device, console) for name, images in zip(names, sampled, strict=True)
        ]
        total = datasets[0].maxima.shape[1]
        if any(not 0 <= unit < total for unit in self.units):
            raise UserError(f"units go from 0 to {total - 1}")
        units = list(dict.fromkeys(self.units)) or telling_units(
            [some.maxima for some in datasets], self.count, self.top
        )
        found = [excited(backbone, some, unit, self.top, device) for unit in units for some in datasets]
        return self._analysis(found, {some.name: len(some.maxima) for some in datasets}, total)

    def _sampled(self, address: str, backbone: Backbone) -> LabelledDataset:
        images = open_dataset(address, labelled=False, square=Square(backbone.eval_size), frames=1)
        if not images.exceeds(self.limit):
            return images
        return images.subset(
            sorted(numpy_rng(self.seed, "activations").permutation(len(images))[: self.limit].tolist())
        )

    def _look(
        self, backbone: Backbone, name: str, images: LabelledDataset, device: torch.device, console: Console
    ) -> Responses:
        def highest(pixels: Tensor) -> Tensor:
            return conv5(backbone, pixels).amax((2, 3)).cpu()

        chunks = list(extract_features(images, highest, device, console, name, workers=self.workers))
        note_skipped(console, images.skipped, name)
        maxima, items, _ = merge_chunks(chunks)
        return Responses(name, images, maxima, items)

    def _analysis(self, found: list[Excited], sizes: Mapping[str, int], total: int) -> Analysis:
        images = ", ".join(f"{size:,} of {name}" for name, size in sizes.items())
        how = "as asked" if self.units else "the most selective in all datasets"
        statement = (
            f"{len({one.unit for one in found})} of {total} units of conv5 of {self.weights}, {how}; "
            f"highest activation in an image, out of {images}"
        )
        metrics = {
            "images": dict(sizes),
            "units": [
                {
                    "unit": one.unit,
                    "dataset": one.dataset,
                    "selectivity": one.selectivity,
                    "highest": one.activations[0],
                }
                for one in found
            ],
        }
        return Analysis("activations", statement, metrics, rows(found), lambda: draw(found, list(sizes)))


def excited(backbone: Backbone, dataset: Responses, unit: int, top: int, device: torch.device) -> Excited:
    """The images that excite a unit most, read and seen again."""
    best = dataset.maxima[:, unit].topk(min(top, len(dataset.maxima)))
    chosen, images = dataset.items[best.indices].tolist(), dataset.images
    pixels = [images.load(index)[0] for index in chosen]
    maps = conv5(backbone, torch.from_numpy(np.stack(pixels)).to(device))[:, unit].cpu()
    return Excited(
        unit,
        dataset.name,
        [images.location(index) for index in chosen],
        best.values.tolist(),
        float(selectivities(dataset.maxima[:, [unit]], top)),
        [outlined(*pair) for pair in zip(pixels, maps, strict=True)],
    )


def rows(found: Sequence[Excited]) -> list[Row]:
    """A line for each picture."""
    return [
        {"unit": one.unit, "dataset": one.dataset, "rank": rank + 1, "file": file, "activation": activation}
        for one in found
        for rank, (file, activation) in enumerate(zip(one.files, one.activations, strict=True))
    ]


def draw(found: Sequence[Excited], datasets: Sequence[str]) -> "Figure":
    """A row for each unit, and in it the pictures of each dataset."""
    from unshuffle.analysis.sheet import Sheet, room_for, shortened

    units, most = list(dict.fromkeys(one.unit for one in found)), max(len(one.pictures) for one in found)
    side, gap, between, left, head = 92, 5, 26, 78, 92
    block = most * (side + gap) - gap
    title = "Images that excite units of conv5 most; outlined: half of that activation or more"
    sheet = Sheet(max(room_for(title), left + len(datasets) * (block + between)), head + len(units) * (side + 34) + 6)
    sheet.text(title, 18, 26, INK, fontsize=12)
    for column, name in enumerate(datasets):
        sheet.text(shortened(name, block // 9), left + column * (block + between), head - 34, INK, fontsize=10.5)
    for one in found:
        top = head + units.index(one.unit) * (side + 34)
        start = left + datasets.index(one.dataset) * (block + between)
        if one.dataset == datasets[0]:
            sheet.text("unit", 18, top + side / 2 - 9)
            sheet.text(str(one.unit), 18, top + side / 2 + 9, INK, fontsize=12)
        for place, (picture, activation) in enumerate(zip(one.pictures, one.activations, strict=True)):
            sheet.picture(picture, start + place * (side + gap), top, side=side)
            sheet.text(f"{activation:.2f}", start + place * (side + gap), top - 9, fontsize=8)
    return sheet.figure
