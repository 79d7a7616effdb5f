import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy.io import savemat

from unshuffle.errors import UserError
from unshuffle.evaluation.proposals import cleaned, read_proposals, search_proposals, selective_search
from unshuffle.evaluation.voc import VocImage

QUIET = Console(quiet=True)


def test_npz_and_mat_say_the_same(tmp_path: Path) -> None:
    boxes = {"000001": np.array([[0, 0, 10, 20], [3, 4, 50, 60]]), "000002": np.array([[5, 6, 7, 8]])}
    np.savez(tmp_path / "ours.npz", **boxes)
    images, cells = np.empty((2, 1), object), np.empty((1, 2), object)
    for row, (name, some) in enumerate(boxes.items()):
        images[row, 0] = name
        cells[0, row] = np.array([[top + 1, left + 1, bottom, right] for left, top, right, bottom in some], float)
    savemat(tmp_path / "theirs.mat", {"images": images, "boxes": cells})
    ours, theirs = (read_proposals([tmp_path / file]) for file in ("ours.npz", "theirs.mat"))
    assert list(ours) == list(theirs) == list(boxes)
    for name in boxes:
        np.testing.assert_array_equal(ours[name], boxes[name])
        np.testing.assert_array_equal(theirs[name], boxes[name])


def test_files_that_are_no_proposals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no proposals at"):
        read_proposals([tmp_path / "nothing.npz"])
    for name, what in (("broken.npz", "not a whole .npz file"), ("broken.mat", "not a whole .mat file")):
        (tmp_path / name).write_text("no such thing")
        with pytest.raises(UserError, match=f"cannot be read: it is {what}"):
            read_proposals([tmp_path / name])
    np.savez(tmp_path / "objects.npz", one=np.array([{}], object))
    with pytest.raises(UserError, match="no array of numbers"):
        read_proposals([tmp_path / "objects.npz"])
    savemat(tmp_path / "other.mat", {"images": np.zeros(3)})
    with pytest.raises(UserError, match="does not hold the cells images and boxes"):
        read_proposals([tmp_path / "other.mat"])
    np.savez(tmp_path / "shape.npz", one=np.zeros((3, 5)))
    with pytest.raises(UserError, match=r"the shape \(3, 5\), not \(N, 4\)"):
        read_proposals([tmp_path / "shape.npz"])


def test_cleaned_are_inside_and_few() -> None:
    boxes = np.array([[-5, -5, 30, 30], [9, 9, 9, 40], [50, 70, 90, 90], [10, 10, 40, 40]], np.float32)
    assert cleaned(boxes, (60, 80), 10).tolist() == [[0, 0, 30, 30], [10, 10, 40, 40]]
    assert len(cleaned(boxes, (60, 80), 1)) == 1


class FakeSearch:
    calls = 0

    def setBaseImage(self, image: np.ndarray) -> None:
        assert image[0, 0, 0] > image[0, 0, 2], "OpenCV takes blue first"

    def switchToSelectiveSearchFast(self) -> None:
        pass

    def process(self) -> np.ndarray:
        FakeSearch.calls += 1
        return np.array([[1, 2, 30, 40], [5, 5, 15, 40]], np.int32)


def test_selective_search_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("cv2")
    fake.ximgproc = SimpleNamespace(segmentation=SimpleNamespace(createSelectiveSearchSegmentation=FakeSearch))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", fake)
    Image.new("RGB", (64, 48), (10, 20, 250)).save(tmp_path / "a.png")
    image = VocImage("a", tmp_path / "a.png", (48, 64))
    FakeSearch.calls = 0
    for _ in range(2):
        found = search_proposals([image], tmp_path / "kept", QUIET)
        assert found["a"].tolist() == [[1, 2, 31, 42]]
    assert FakeSearch.calls == 1
    (tmp_path / "kept" / "a.npy").write_text("no such thing")
    with pytest.raises(UserError, match=r"a\.npy is damaged: delete it"):
        search_proposals([image], tmp_path / "kept", QUIET)
    search_proposals([image], None, QUIET)
    assert FakeSearch.calls == 2


def test_without_contrib_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", ModuleType("cv2"))
    with pytest.raises(UserError, match="opencv-contrib-python-headless"):
        selective_search()


def test_the_real_search_finds_a_square() -> None:
    cv2 = pytest.importorskip("cv2")
    if not hasattr(cv2, "ximgproc"):
        pytest.skip("this OpenCV has no contrib modules")
    pixels = np.random.default_rng(0).integers(100, 130, (80, 100, 3), np.uint8)
    pixels[20:60, 30:70] = (220, 30, 40)
    boxes = selective_search()(pixels)
    assert (np.abs(boxes - [30, 20, 70, 60]).max(axis=1) <= 3).any()
