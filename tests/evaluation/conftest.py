"""Small folders, clips and devkits, made on the spot."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
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


# ---- folders by class: stripes that run across or down, or a chessboard, each with its own phase and noise


def texture(name: str, rng: np.random.Generator, side: int = 96) -> np.ndarray:
    row, column = np.mgrid[:side, :side] + rng.integers(0, 12, 2)[:, None, None]
    waves = {"across": row // 6, "chess": row // 6 + column // 6, "down": column // 6}
    pixels = 60 + 130 * (waves[name] % 2)[:, :, None] + rng.integers(-30, 30, (side, side, 3))
    return pixels.astype(np.uint8)


def write_classes(root: Path, count: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    for name in ("across", "chess", "down"):
        (root / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(texture(name, rng)).save(root / name / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders train and test by class; one file of each is broken, one is grey and one in inks."""
    root = tmp_path_factory.mktemp("classes")
    train, test = write_classes(root / "train", 8, 0), write_classes(root / "test", 5, 1)
    for folder in (train, test):
        (folder / "down" / "broken.jpg").write_bytes(b"\xff\xd8\xff no image")
        Image.open(folder / "across" / "1.png").convert("L").save(folder / "across" / "1.png")
        Image.open(folder / "chess" / "1.png").convert("CMYK").save(folder / "chess" / "1.jpg")
        (folder / "chess" / "1.png").unlink()
    return train, test


@pytest.fixture(scope="session")
def class_clips(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same classes as videos."""
    av = pytest.importorskip("av")
    root = tmp_path_factory.mktemp("clips")
    for side, count, seed in (("train", 3, 2), ("test", 2, 3)):
        rng = np.random.default_rng(seed)
        for name in ("across", "chess", "down"):
            (root / side / name).mkdir(parents=True)
            for number in range(count):
                with av.open(str(root / side / name / f"{number}.mp4"), "w") as container:
                    stream = container.add_stream("mpeg4", rate=25, width=96, height=96, pix_fmt="yuv420p")
                    for _ in range(12):
                        frame = av.VideoFrame.from_ndarray(texture(name, rng), format="rgb24")
                        container.mux(stream.encode(frame))
                    container.mux(stream.encode())
        (root / side / "down" / "broken.mp4").write_text("no video")
    return root / "train", root / "test"


def make_clip(path: Path, frames: int) -> Path:
    """A clip whose frames get brighter from left to right, the later the more."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        for number in range(frames):
            ramp = np.linspace(0, 20 + 9 * number, 48, dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(np.tile(ramp[None, :, None], (32, 1, 3)), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Seven images, flat and nested, and two files that only look like images."""
    folder = tmp_path / "pictures"
    (folder / "in").mkdir(parents=True)
    for number, name in enumerate(["a.png", "b.jpg", "in/c.png", "in/d, e.png", "f.png", "g.png", "z.png"]):
        coarse = np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((40 + number, 50), Image.Resampling.BICUBIC).save(folder / name)
    (folder / "broken.jpg").write_text("not an image")
    (folder / "in" / "empty.png").write_bytes(b"")
    return folder


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Three clips of 4, 9 and 14 frames, and a file that only looks like a clip."""
    folder = tmp_path / "clips"
    folder.mkdir()
    for frames in (4, 9, 14):
        make_clip(folder / f"{frames:02}.mp4", frames)
    (folder / "broken.mp4").write_text("not a clip")
    return folder


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
