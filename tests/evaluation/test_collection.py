from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unshuffle.data.media import BadMedia, read_frames, read_image
from unshuffle.data.pack import pack
from unshuffle.errors import UserError
from unshuffle.evaluation.collection import open_collection
from unshuffle.evaluation.labelled import centre_square

NAMES = ["a.png", "b.jpg", "broken.jpg", "f.png", "g.png", "in/c.png", "in/d, e.png", "in/empty.png", "z.png"]


def test_images(pictures: Path) -> None:
    data = open_collection(pictures, 32)
    assert data.kind == "images" and data.names == NAMES and len(data) == 9
    np.testing.assert_array_equal(data.read(5), centre_square(read_image(pictures / "in" / "c.png", 32), 32)[None])
    with pytest.raises(BadMedia):
        data.read(2)


def test_videos_give_evenly_spread_frames(clips: Path) -> None:
    data = open_collection(clips, 24, frames=3)
    assert data.kind == "videos" and data.names == ["04.mp4", "09.mp4", "14.mp4", "broken.mp4"]
    every = [centre_square(frame, 24) for frame in read_frames(clips / "09.mp4", 24)]
    np.testing.assert_array_equal(data.read(1), np.stack([every[place] for place in (0, 4, 8)]))
    every = [centre_square(frame, 24) for frame in read_frames(clips / "04.mp4", 24)]
    again = open_collection(clips, 24, frames=6).read(0)
    np.testing.assert_array_equal(again, np.stack([every[place] for place in (0, 1, 1, 2, 2, 3)]))
    with pytest.raises(BadMedia):
        data.read(3)


def test_stores(pictures: Path, clips: Path, tmp_path: Path) -> None:
    pack("images", pictures, tmp_path / "images", short_side=32, progress=False)
    stored, plain = open_collection(tmp_path / "images", 32), open_collection(pictures, 32)
    assert stored.names == [name for name in NAMES if name not in ("broken.jpg", "in/empty.png")]
    for item, name in enumerate(stored.names):
        np.testing.assert_array_equal(stored.read(item), plain.read(NAMES.index(name)))
    assert open_collection(tmp_path / "images", 40).read(0).shape == (1, 40, 40, 3)
    pack("videos", clips, tmp_path / "videos", short_side=24, progress=False)
    stored, plain = open_collection(tmp_path / "videos", 24, frames=3), open_collection(clips, 24, frames=3)
    assert stored.kind == "videos"
    for item in range(3):
        np.testing.assert_array_equal(stored.read(item), plain.read(item))


def test_which_kind(pictures: Path, clips: Path, tmp_path: Path) -> None:
    mixed = tmp_path
    with pytest.raises(UserError, match="holds images and videos: give --kind"):
        open_collection(mixed, 32)
    assert len(open_collection(mixed, 32, kind="images")) == 9
    assert len(open_collection(mixed, 32, kind="videos")) == 4
    with pytest.raises(UserError, match="there are no videos in"):
        open_collection(pictures, 32, kind="videos")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="there are no images or videos in"):
        open_collection(tmp_path / "empty", 32)
    with pytest.raises(UserError, match="0 frames"):
        open_collection(clips, 32, frames=0)


def test_a_gif_is_what_the_others_are(pictures: Path, clips: Path, tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((32, 32, 3), level, np.uint8)) for level in (10, 200)]
    for folder in (pictures, clips, tmp_path / "gifs"):
        folder.mkdir(exist_ok=True)
        frames[0].save(folder / "a.gif", save_all=True, append_images=frames[1:])
    kinds = [open_collection(folder, 32).kind for folder in (pictures, clips, tmp_path / "gifs")]
    assert kinds == ["images", "videos", "videos"]


def test_the_fingerprint_follows_files_and_options(pictures: Path) -> None:
    one = open_collection(pictures, 32).fingerprint
    assert open_collection(pictures, 32).fingerprint == one
    assert open_collection(pictures, 33).fingerprint != one
    Image.new("RGB", (40, 40)).save(pictures / "a.png")
    assert open_collection(pictures, 32).fingerprint != one
