from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unshuffle.data.media import BadMedia, read_frames, read_image
from unshuffle.errors import UserError
from unshuffle.evaluation.items import Item, Items, class_folders, video_frames, voc_objects
from unshuffle.evaluation.voc.devkit import CLASSES


def test_folders_by_class(classes: tuple[Path, Path]) -> None:
    items = class_folders(classes[0])
    assert items.classes == ["across", "chess", "down"] and items.kind == "images"
    assert [items.labels.count(label) for label in range(3)] == [8, 8, 9]
    assert all(item.path.parent.name == items.classes[item.label] for item in items.items)


def test_grey_and_inks_are_read_and_a_broken_file_is_refused(classes: tuple[Path, Path]) -> None:
    items = class_folders(classes[0])
    broken = [position for position, item in enumerate(items.items) if item.path.name == "broken.jpg"]
    assert all(items.read(at).shape == (1, 227, 227, 3) for at in range(len(items)) if at not in broken)
    with pytest.raises(BadMedia):
        items.read(broken[0])


def test_a_limit_is_shared_evenly_by_the_classes(classes: tuple[Path, Path]) -> None:
    items = class_folders(classes[0])
    assert [items.first(7).labels.count(label) for label in range(3)] == [3, 2, 2]
    assert items.first(0) is items and items.first(25) is items


def test_crop_and_squash(tmp_path: Path) -> None:
    pixels = np.zeros((40, 120, 3), np.uint8)
    pixels[:, :40], pixels[:, 80:] = 100, 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    item = Item(tmp_path / "wide.png", 0)
    cropped = Items([item], ["a"], "images", side=40).read(0)
    assert cropped.shape == (1, 40, 40, 3) and (cropped == 0).all()
    with_margin = Items([item], ["a"], "images", side=20, margin=2).read(0)
    assert with_margin.shape == (1, 20, 20, 3) and (with_margin == 0).all()
    squashed = Items([item], ["a"], "images", side=60, fit="squash").read(0)[0]
    assert (squashed[:, :15] == 100).all() and (squashed[:, 25:35] == 0).all() and (squashed[:, 45:] == 200).all()


def test_video_frames_are_evenly_spaced(class_clips: tuple[Path, Path]) -> None:
    path = class_folders(class_clips[0]).items[0].path
    everything = list(read_frames(path))
    assert len(everything) == 12
    chosen = video_frames(path, 4)
    assert all((one == everything[place]).all() for one, place in zip(chosen, (0, 4, 7, 11), strict=True))
    assert len(video_frames(path, 20)) == 20


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda root: None, "two or more classes"),
        (lambda root: [(root / name).mkdir() for name in "ab"], "no image and no video"),
        (
            lambda root: [(root / name).mkdir() for name in "abc"] + [(root / "b" / "1.png").touch()],
            r"2 of the 3 classes of .* have no images \(a, c\)",
        ),
        (
            lambda root: [
                (root / "a").mkdir(),
                (root / "b").mkdir(),
                (root / "a" / "1.png").touch(),
                (root / "b" / "1.mp4").touch(),
            ],
            "images and videos",
        ),
    ],
)
def test_bad_folders(make: Callable[[Path], object], sentence: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(UserError, match=sentence):
        class_folders(tmp_path)


def test_unknown_classes_are_refused(classes: tuple[Path, Path]) -> None:
    with pytest.raises(UserError, match="the training folder has not: down"):
        class_folders(classes[0], ["across", "chess"])
    with pytest.raises(UserError, match="is not a folder"):
        class_folders(Path("nowhere"))


def test_objects_are_cut_out(devkit: Callable[..., Path], annotate: Callable) -> None:
    root = devkit(test=2)
    boxes = [("cat", (11, 21, 50, 60), True), ("dog", (1, 1, 30, 30), False), ("cow", (1, 1, 4, 4), False)]
    annotate(root / "VOC2007/Annotations/000000.xml", boxes)
    (root / "VOC2007/Annotations/000001.xml").write_text("<annotation>")
    items = voc_objects(root, 2007, "test", min_pixels=900)
    assert [CLASSES[label] for label in items.labels] == ["cat", "dog"]
    assert items.skipped == [("000001", "the annotation cannot be read")]
    whole = read_image(items.items[0].path)
    same_size = Items(items.items, CLASSES, "objects", side=40, fit="squash")
    assert (same_size.read(0)[0] == whole[20:60, 10:50]).all()
    assert voc_objects(root, 2007, "test", min_pixels=900, difficult=False).labels == [CLASSES.index("dog")]
    with pytest.raises(UserError, match="no object of VOC2007 test has 10000 pixels"):
        voc_objects(root, 2007, "test")


def test_objects_too_small_to_be_read_are_left_out_before(devkit: Callable[..., Path], annotate: Callable) -> None:
    root = devkit(test=1)
    annotate(root / "VOC2007/Annotations/000000.xml", [("cat", (1, 1, 15, 40), False), ("dog", (1, 1, 16, 40), False)])
    assert voc_objects(root, 2007, "test", min_pixels=1).labels == [CLASSES.index("dog")]


def test_the_fingerprint_follows_files_and_how_they_are_read(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.new("RGB", (20, 20)).save(tmp_path / name / "1.png")
    items = class_folders(tmp_path)
    one = items.fingerprint()
    assert class_folders(tmp_path).fingerprint() == one
    assert replace(items, side=100).fingerprint() != one and items.first(1).fingerprint() != one
    Image.new("RGB", (30, 20)).save(tmp_path / "a" / "1.png")
    assert class_folders(tmp_path).fingerprint() != one


def test_a_box_outside_is_no_object(tmp_path: Path) -> None:
    Image.new("RGB", (50, 50)).save(tmp_path / "a.png")
    with pytest.raises(BadMedia):
        Items([Item(tmp_path / "a.png", 0, (60, 60, 90, 90))], ["a"], "objects").read(0)
