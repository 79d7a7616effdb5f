"""Shared settings and fixtures: one thread, so that parallel tests do not slow each other and sums are reproducible.

Without a GPU the Triton kernels are interpreted, which is slow but the same arithmetic.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image
from rich.console import Console

from unshuffle.runs.run import Run

torch.set_num_threads(1)
settings.register_profile("ci", derandomize=True)  # a failing run then fails again
if os.environ.get("CI") == "true":
    settings.load_profile("ci")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Give the tests a home folder of their own, so that the user's cache is neither written nor read.

    Before anything is collected: huggingface_hub and trackio look up the home folder when they are imported.
    """
    home = tempfile.TemporaryDirectory(prefix="unshuffle-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(home.cleanup)
    os.environ["HOME"] = home.name


@pytest.fixture
def kernel_device(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """Where kernels are tested; an interpreted program should take many values at once."""
    if torch.cuda.is_available():
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        return torch.device("cuda")
    norm_pool = pytest.importorskip("unshuffle.kernels.norm_pool")
    for name, value in {"BLOCK": 1 << 17, "ROWS": 1 << 12, "SPLITS": 2}.items():
        monkeypatch.setattr(norm_pool, name, value)
    return torch.device("cpu")


@pytest.fixture(scope="session")
def reliable() -> Callable[[], AbstractContextManager[object]]:
    """Within it rollouts count as reliable: on the few samples of a test most are not, and nothing would follow."""
    from unshuffle.policy import rollouts

    return lambda: mock.patch.object(rollouts, "reliability", return_value=1.0)


def tiny_run(folder: Path, **changes: Any) -> Run:
    """Train twelve iterations on 6 spatial and 5 temporal permutations, with an episode every 2 iterations."""
    from unshuffle.config import demo
    from unshuffle.options import merge
    from unshuffle.pretraining import run_pretraining

    values: dict[str, Any] = {
        "out": str(folder),
        "device": "cpu",
        "data": {"val_size": 6, "workers": 1},
        "synthetic": {
            "gallery": 24,
            "queries": 12,
            "images": 30,
            "clips": 30,
            "clip_frames": 8,
            "image_size": 48,
            "frame_size": 16,
        },
        "spatial": {"permutations": 6, "crop_size": 16, "head": {"fc6": 8, "hidden": 12}},
        "temporal": {"permutations": 5, "crop_size": 16, "frames": 4, "head": {"fc6": 8, "hidden": 12}},
        "rotation": {"crop_size": 24, "hidden": 12},
        "instance": {"crop_size": 24, "hidden": 12, "output": 6},
        "permutations": {"per_sample": 2},
        "optim": {"iterations": 12, "batch_size": 4, "warmup": 2, "milestones": [9]},
        "policy": {"interval": 2, "batches": 2, "num_groups": 3, "start_below": 2.0},
        "log": {
            "train_every": 2,
            "monitor_every": 6,
            "checkpoint_every": 4,
            "keep_checkpoints": 9,
            "pictures": False,
        },
    }
    return run_pretraining(merge(merge(demo(), values), changes), console=Console(quiet=True))


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with the policy."""
    return tiny_run(tmp_path_factory.mktemp("runs") / "policy")


@pytest.fixture(scope="session")
def uniform_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with uniform sampling."""
    return tiny_run(tmp_path_factory.mktemp("runs") / "uniform", policy={"sampler": "uniform"})


PAIRS_AND_ROLLOUTS: dict[str, Any] = {
    "grouping": "pairs",
    "prior_correction": False,
    "candidates": 3,
    "sampler": "rollouts",
    "rollout_iterations": 2,
}


@pytest.fixture(scope="session")
def pair_run(tmp_path_factory: pytest.TempPathFactory, reliable: Any) -> Run:
    """A run with a policy that groups pairs and learns from rollouts."""
    with reliable():
        return tiny_run(tmp_path_factory.mktemp("runs") / "pairs", policy=PAIRS_AND_ROLLOUTS)


@pytest.fixture(name="tiny_run", scope="session")
def tiny_run_fixture() -> Callable[..., Run]:
    """A function that trains another tiny run."""
    return tiny_run


@pytest.fixture
def copied(run: Run, tmp_path: Path) -> Run:
    """A copy of the run with the policy, which a test may change."""
    return Run(shutil.copytree(run.folder, tmp_path / "copied"))


@pytest.fixture(scope="session")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders with six images in two classes, dark and light."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = np.random.default_rng(0)
    for number in range(6):
        path = folder / ("dark", "light")[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        low = 128 * (number % 2)
        Image.fromarray(rng.integers(low, low + 128, (48, 48, 3), dtype=np.uint8)).save(path)
    return folder


# ---- class folders: stripes that run across or down, or a chessboard, each with its own phase and noise


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
    """Class folders train and test; in each one file is broken, one is grayscale and one is CMYK."""
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


# ---- VOC devkits: coloured squares on grey noise


OBJECT_COLOURS = {"aeroplane": (230, 30, 30), "bicycle": (30, 200, 30), "bird": (40, 60, 240)}
VocObject = tuple[str, tuple[int, int, int, int], bool]
"""Class, box in the file's own convention (from 1, last pixel included), difficult."""


def write_annotation(file: Path, objects: Sequence[VocObject]) -> None:
    root = ElementTree.Element("annotation")
    for name, box, difficult in objects:
        annotated = ElementTree.SubElement(root, "object")
        ElementTree.SubElement(annotated, "name").text = name
        ElementTree.SubElement(annotated, "difficult").text = str(int(difficult))
        bounds = ElementTree.SubElement(annotated, "bndbox")
        for side, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True):
            ElementTree.SubElement(bounds, side).text = str(value)
    ElementTree.ElementTree(root).write(file)


def paint_objects(rng: np.random.Generator, height: int, width: int) -> tuple[np.ndarray, np.ndarray, list[VocObject]]:
    pixels = rng.integers(90, 160, (height, width, 1), np.uint8).repeat(3, axis=2)
    mask, objects = np.zeros((height, width), np.uint8), list[VocObject]()
    for name in rng.choice(list(OBJECT_COLOURS), 1 + int(rng.random() < 0.3), replace=False):
        side = int(rng.integers(24, 40))
        left, top = int(rng.integers(width - side)), int(rng.integers(height - side))
        inside = np.s_[top : top + side, left : left + side]
        pixels[inside] = np.clip(np.array(OBJECT_COLOURS[name]) + rng.integers(-20, 20, (side, side, 3)), 0, 255)
        mask[inside] = 1 + list(OBJECT_COLOURS).index(name)
        objects.append((str(name), (left + 1, top + 1, left + side, top + side), False))
    return pixels, mask, objects


def write_devkit(root: Path, sets: dict[str, int], year: int = 2007, seed: int = 0) -> Path:
    folder, rng = root / f"VOC{year}", np.random.default_rng(seed)
    for part in ("JPEGImages", "Annotations", "SegmentationClass", "ImageSets/Main", "ImageSets/Segmentation"):
        (folder / part).mkdir(parents=True)
    number = 0
    for name, count in sets.items():
        names = [f"{number + offset:06d}" for offset in range(count)]
        number += count
        for kind in ("Main", "Segmentation"):
            (folder / "ImageSets" / kind / f"{name}.txt").write_text("\n".join(names) + "\n")
        for image in names:
            pixels, mask, objects = paint_objects(rng, 88, 104)
            Image.fromarray(pixels).save(folder / "JPEGImages" / f"{image}.jpg", quality=95)
            Image.fromarray(mask).save(folder / "SegmentationClass" / f"{image}.png")
            write_annotation(folder / "Annotations" / f"{image}.xml", objects)
    return root


@pytest.fixture
def devkit(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a VOC devkit with so many images in each named set and returns its root."""
    return lambda **sets: write_devkit(tmp_path / "devkit", sets)


@pytest.fixture(scope="session")
def annotate() -> Callable[[Path, Sequence[VocObject]], None]:
    """A function that writes one annotation of a VOC devkit."""
    return write_annotation


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


def counter_frame(number: int, width: int = 64, height: int = 48) -> np.ndarray:
    """A frame whose gray level encodes its number."""
    return np.full((height, width, 3), 20 + 9 * number, np.uint8)


def make_video(
    path: Path, frames: int = 20, codec: str = "mpeg4", size: tuple[int, int] = (64, 48), **options: str
) -> Path:
    """Write a video of such frames."""
    av = pytest.importorskip("av")  # OpenCV alone suffices to read clips
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height = size
        stream.pix_fmt = {"gif": "rgb8", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(counter_frame(number, *size), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


@pytest.fixture
def write_video() -> Callable[..., Path]:
    """A function that writes a video whose frames are numbered by their gray level."""
    return make_video
