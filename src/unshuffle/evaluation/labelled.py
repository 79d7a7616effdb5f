"""Labelled images for retrieval: from folders by class, or from the synthetic world."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.media import BadMedia, find_images, read_image
from unshuffle.data.source import Pixels
from unshuffle.data.synthetic import SyntheticSource
from unshuffle.errors import UserError


@dataclass(frozen=True)
class LabelledImages:
    """Square images with a class each."""

    pixels: Pixels
    """(N, side, side, 3)"""
    labels: Tensor
    classes: Sequence[str]
    files: Sequence[str] = ()
    """Where they are from, if from files."""

    def __len__(self) -> int:
        return len(self.pixels)

    def some(self, positions: Sequence[int]) -> "LabelledImages":
        """Those at the given positions, in that order."""
        files = [self.files[position] for position in positions] if self.files else ()
        return LabelledImages(self.pixels[list(positions)], self.labels[list(positions)], self.classes, files)


@dataclass(frozen=True)
class Neighbours:
    """Some queries and what was found for them, to be looked at."""

    queries: LabelledImages
    found: LabelledImages
    """Equally many for each query, one query after another, the nearest first."""


def one_of_each(labels: Tensor, count: int) -> list[int]:
    """Positions of the first sample of each class, of at most `count` classes evenly over all."""
    rows = labels.tolist()
    classes = sorted(set(rows))
    return [
        rows.index(classes[i]) for i in np.linspace(0, len(classes) - 1, min(count, len(classes))).round().astype(int)
    ]


def from_synthetic(source: SyntheticSource) -> LabelledImages:
    """The first frame of every item."""
    return LabelledImages(source.pixels[:, 0], torch.from_numpy(source.labels), source.classes)


def from_folder(folder: Path, side: int, limit: int, classes: Sequence[str] | None = None) -> LabelledImages:
    """One subfolder for each class; at most `limit` readable images, evenly over the classes."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder of classes")
    found = sorted(path.name for path in folder.iterdir() if path.is_dir())
    if classes is None:
        classes = found
    if len(classes) < 2 or not set(found) >= set(classes):
        raise UserError(
            f"{folder} needs a subfolder of images for each of two or more classes, the same in both folders"
        )
    each = max(1, limit // len(classes))
    pixels, labels = [], []
    for label, name in enumerate(classes):
        squares = _readable(find_images(folder / name), side, each)
        pixels += squares
        labels += [label] * len(squares)
    if not pixels:
        raise UserError(f"no readable image in the class folders of {folder}")
    return LabelledImages(np.stack(pixels), torch.tensor(labels), classes)


def _readable(paths: Sequence[Path], side: int, count: int) -> list[Pixels]:
    squares: list[Pixels] = []
    for path in paths:
        if len(squares) == count:
            break
        try:
            squares.append(centre_square(read_image(path, side), side))
        except BadMedia:
            continue
    return squares


def centre_square(pixels: Pixels, side: int) -> Pixels:
    """The middle (side, side) of an image."""
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return pixels[top : top + side, left : left + side]
