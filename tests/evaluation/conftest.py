"""Small folders of images and clips, made on the spot."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


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
