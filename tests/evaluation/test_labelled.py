from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from unshuffle.data.synthetic import synthetic_images
from unshuffle.errors import UserError
from unshuffle.evaluation.labelled import centre_square, from_folder, from_synthetic, one_of_each


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four cats, two dogs, three emus; the first cat is broken; the red channel tells the number."""
    for name, count in {"cat": 4, "dog": 2, "emu": 3}.items():
        (tmp_path / "classes" / name).mkdir(parents=True)
        for number in range(count):
            colour = (10 * number + 5, {"cat": 40, "dog": 80, "emu": 120}[name], 0)
            Image.new("RGB", (30 + number, 24), colour).save(tmp_path / "classes" / name / f"{number}.png")
    (tmp_path / "classes" / "cat" / "0.png").write_text("no cat")
    (tmp_path / "classes" / "readme.txt").write_text("not a class")
    return tmp_path / "classes"


def numbers(pixels: np.ndarray) -> list[int]:
    return (pixels[:, 0, 0, 0] // 10).tolist()


def test_folder(folder: Path) -> None:
    labelled = from_folder(folder, side=16, limit=100)
    assert labelled.classes == ["cat", "dog", "emu"]
    assert labelled.pixels.shape == (8, 16, 16, 3) and len(labelled) == 8
    assert labelled.labels.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert numbers(labelled.pixels) == [1, 2, 3, 0, 1, 0, 1, 2]
    assert labelled.pixels[:, 0, 0, 1].tolist() == [40, 40, 40, 80, 80, 120, 120, 120]


@pytest.mark.parametrize(("limit", "each"), [(6, 2), (8, 2), (3, 1), (1, 1)])
def test_limit_is_even_over_the_classes(folder: Path, limit: int, each: int) -> None:
    labelled = from_folder(folder, side=16, limit=limit)
    assert torch.bincount(labelled.labels).tolist() == [each] * 3
    assert numbers(labelled.pixels)[0] == 1, "a broken file does not count"


def test_classes_of_the_other_folder_give_the_numbers(folder: Path) -> None:
    labelled = from_folder(folder, side=16, limit=100, classes=["emu", "dog"])
    assert labelled.classes == ["emu", "dog"]
    assert labelled.labels.tolist() == [0, 0, 0, 1, 1]
    assert set(labelled.pixels[:3, 0, 0, 1].tolist()) == {120}


def test_folders_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the same in both folders"):
        from_folder(folder, 16, 10, classes=["cat", "yak"])
    with pytest.raises(UserError, match="two or more classes"):
        from_folder(folder / "cat", 16, 10)
    with pytest.raises(UserError, match="not a folder"):
        from_folder(tmp_path / "absent", 16, 10)
    for name in ("a", "b"):
        (tmp_path / "empty" / name).mkdir(parents=True)
    with pytest.raises(UserError, match="no readable image"):
        from_folder(tmp_path / "empty", 16, 10)


def test_synthetic() -> None:
    source = synthetic_images(14, 24, seed=0)
    labelled = from_synthetic(source)
    np.testing.assert_array_equal(labelled.pixels, source.pixels[:, 0])
    assert labelled.labels.tolist() == source.labels.tolist() and labelled.classes == source.classes


@pytest.mark.parametrize(("height", "width", "side"), [(5, 9, 5), (9, 5, 5), (7, 8, 4), (6, 6, 6)])
def test_centre_square(height: int, width: int, side: int) -> None:
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([rows, columns, rows], axis=-1).astype(np.uint8)
    square = centre_square(pixels, side)
    assert square.shape == (side, side, 3)
    before, after = square[0, 0, :2].astype(int), np.array([height, width]) - 1 - square[-1, -1, :2]
    assert (after - before >= 0).all() and (after - before <= 1).all()


def test_one_of_each_takes_different_classes() -> None:
    labels = torch.tensor([4, 4, 0, 2, 0, 7, 2])
    assert one_of_each(labels, 8) == [2, 3, 0, 5]
    assert one_of_each(labels, 2) == [2, 5]
