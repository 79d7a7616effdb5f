"""Small folders of images and clips, written for each test."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def photo(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    """A smooth random image, which lossy codecs preserve well."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """Six good images and two bad ones, so that a bad one is neither first nor last."""
    folder = tmp_path / "pictures"
    (folder / "b").mkdir(parents=True)
    for number, name in enumerate(["a.png", "b/c.png", "b/d.png", "e.png", "f.png", "h.png"]):
        photo(40 + number, 30, seed=number).save(folder / name)
    (folder / "b" / "cc.jpg").write_text("not an image")
    (folder / "g.png").write_bytes(b"")
    return folder


@pytest.fixture
def video_folder(tmp_path: Path, write_video: Callable[..., Path]) -> Path:
    """Three good clips and a bad one."""
    folder = tmp_path / "clips"
    for number in range(3):
        write_video(folder / f"clip{number}.mp4", frames=4 + number)
    (folder / "clip1b.mp4").write_text("not a video")
    return folder
