"""Small folders of images and clips, written for each test."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def photo(width: int = 48, height: int = 32, seed: int = 0) -> Image.Image:
    """A smooth random image, which lossy codecs preserve well."""
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def counter_frame(number: int, width: int = 64, height: int = 48) -> np.ndarray:
    """A frame whose grey level encodes its number."""
    return np.full((height, width, 3), 20 + 9 * number, np.uint8)


def make_video(
    path: Path, frames: int = 20, codec: str = "mpeg4", size: tuple[int, int] = (64, 48), **options: str
) -> Path:
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
def video_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "clips"
    for number in range(3):
        make_video(folder / f"clip{number}.mp4", frames=4 + number)
    (folder / "clip1b.mp4").write_text("not a video")
    return folder


@pytest.fixture
def write_video() -> Callable[..., Path]:
    return make_video
