"""VOC devkits and slow references, made on the spot."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from unshuffle.ablation.ablation import HEADLINES
from unshuffle.analysis.analysis import flat_numbers
from unshuffle.evaluation.protocol import EVALUATIONS, Evaluation, Result

COLOURS = {"aeroplane": (230, 30, 30), "bicycle": (30, 200, 30), "bird": (40, 60, 240)}
Object = tuple[str, tuple[int, int, int, int], bool]
"""Class, box in the file's own convention (from 1, last pixel included), difficult."""


def write_annotation(file: Path, objects: Sequence[Object]) -> None:
    root = ElementTree.Element("annotation")
    for name, box, difficult in objects:
        thing = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(thing, "name").text = name
        ElementTree.SubElement(thing, "difficult").text = str(int(difficult))
        bounds = ElementTree.SubElement(thing, "bndbox")
        for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True):
            ElementTree.SubElement(bounds, side).text = str(value)
    ElementTree.ElementTree(root).write(file)


def draw(rng: np.random.Generator, height: int, width: int) -> tuple[np.ndarray, np.ndarray, list[Object]]:
    pixels = rng.integers(90, 160, (height, width, 1), np.uint8).repeat(3, axis=2)
    mask, objects = np.zeros((height, width), np.uint8), list[Object]()
    for name in rng.choice(list(COLOURS), 1 + int(rng.random() < 0.3), replace=False):
        side = int(rng.integers(24, 40))
        left, top = int(rng.integers(width - side)), int(rng.integers(height - side))
        inside = np.s_[top : top + side, left : left + side]
        pixels[inside] = np.clip(np.array(COLOURS[name]) + rng.integers(-20, 20, (side, side, 3)), 0, 255)
        mask[inside] = 1 + list(COLOURS).index(name)
        objects.append((str(name), (left + 1, top + 1, left + side, top + side), False))
    return pixels, mask, objects


def write_devkit(root: Path, sets: dict[str, int], year: int = 2007, seed: int = 0) -> Path:
    folder, rng = root / f"VOC{year}", np.random.default_rng(seed)
    for part in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
        (folder / part).mkdir(parents=True)
    number = 0
    for name, count in sets.items():
        names = [f"{number + one:06d}" for one in range(count)]
        number += count
        for kind in ("Main", "Segmentation"):
            (folder / "ImageSets" / kind / f"{name}.txt").write_text("\n".join(names) + "\n")
        for image in names:
            pixels, mask, objects = draw(rng, 88, 104)
            Image.fromarray(pixels).save(folder / "JPEGImages" / f"{image}.jpg", quality=95)
            Image.fromarray(mask).save(folder / "SegmentationClass" / f"{image}.png")
            write_annotation(folder / "Annotations" / f"{image}.xml", objects)
    return root


@pytest.fixture
def devkit(tmp_path: Path) -> Callable[..., Path]:
    """Writes a devkit with so many images in each named set, and gives its root."""
    return lambda **sets: write_devkit(tmp_path / "devkit", sets)


@pytest.fixture
def annotate() -> Callable[[Path, Sequence[Object]], None]:
    """Writes one annotation."""
    return write_annotation


@pytest.fixture
def cosine() -> Callable[[list[float], list[float]], float]:
    """Similarity by its definition."""

    def similarity(one: list[float], other: list[float]) -> float:
        dot = sum(a * b for a, b in zip(one, other, strict=True))
        return dot / math.sqrt(sum(a * a for a in one) * sum(b * b for b in other))

    return similarity


@pytest.fixture
def slow_nearest(
    cosine: Callable[[list[float], list[float]], float],
) -> Callable[[torch.Tensor, torch.Tensor, int], list[list[int]]]:
    """The k most similar gallery vectors of each query, by sorting them all."""

    def nearest(queries: torch.Tensor, gallery: torch.Tensor, k: int) -> list[list[int]]:
        return [
            sorted(range(len(gallery)), key=lambda item: -cosine(query, gallery[item].tolist()))[:k]
            for query in queries.tolist()
        ]

    return nearest


@pytest.fixture(autouse=True)
def headlines_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is evaluated here has a metric that the ablation makes a column of."""
    names = {entry.name: name for name, entry in EVALUATIONS.items()}
    evaluate = Evaluation.run

    def run(self: Evaluation, console: Console) -> Result:
        result = evaluate(self, console)
        found = flat_numbers(result.metrics)
        assert any(name in found for name in HEADLINES[names[type(self).__name__]]), list(found)
        return result

    monkeypatch.setattr(Evaluation, "run", run)
