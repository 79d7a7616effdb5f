import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from scipy.io import savemat

from unshuffle.data.voc import VocImage
from unshuffle.errors import UserError
from unshuffle.evaluation.voc.proposals import clip_proposals, read_proposals, search_proposals, selective_search

QUIET = Console(quiet=True)


def test_npz_and_mat_files_hold_the_same_boxes(tmp_path: Path) -> None:
    boxes = {"000001": np.array([[0, 0, 10, 20], [3, 4, 50, 60]]), "000002": np.array([[5, 6, 7, 8]])}
    np.savez(tmp_path / "boxes.npz", **boxes)
    images, cells = np.empty((2, 1), object), np.empty((1, 2), object)
    for row, (name, image_boxes) in enumerate(boxes.items()):
        images[row, 0] = name
        cells[0, row] = np.array(
            [[top + 1, left + 1, bottom, right] for left, top, right, bottom in image_boxes], float
        )
    savemat(tmp_path / "boxes.mat", {"images": images, "boxes": cells})
    from_npz, from_mat = (read_proposals([tmp_path / file]) for file in ("boxes.npz", "boxes.mat"))
    assert list(from_npz) == list(from_mat) == list(boxes)
    for name in boxes:
        np.testing.assert_array_equal(from_npz[name], boxes[name])
        np.testing.assert_array_equal(from_mat[name], boxes[name])


def test_unreadable_files_of_proposals_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no file of proposals at"):
        read_proposals([tmp_path / "nothing.npz"])
    for name, problem in (("broken.npz", "not a complete .npz file"), ("broken.mat", "not a complete .mat file")):
        (tmp_path / name).write_text("no boxes")
        with pytest.raises(UserError, match=f"cannot be read: it is {problem}"):
            read_proposals([tmp_path / name])
    np.savez(tmp_path / "objects.npz", one=np.array([{}], object))
    with pytest.raises(UserError, match="damaged or not numeric"):
        read_proposals([tmp_path / "objects.npz"])
    savemat(tmp_path / "other.mat", {"images": np.zeros(3)})
    with pytest.raises(UserError, match="does not hold the cells images and boxes"):
        read_proposals([tmp_path / "other.mat"])
    np.savez(tmp_path / "shape.npz", one=np.zeros((3, 5)))
    with pytest.raises(UserError, match=r"the shape \(3, 5\), not \(N, 4\)"):
        read_proposals([tmp_path / "shape.npz"])


def test_proposals_are_clipped_and_limited() -> None:
    boxes = np.array([[-5, -5, 30, 30], [9, 9, 9, 40], [50, 70, 90, 90], [10, 10, 40, 40]], np.float32)
    assert clip_proposals(boxes, (60, 80), 10).tolist() == [[0, 0, 30, 30], [10, 10, 40, 40]]
    assert len(clip_proposals(boxes, (60, 80), 1)) == 1


class FakeSearch:
    calls = 0

    def setBaseImage(self, image: np.ndarray) -> None:
        assert image[0, 0, 0] > image[0, 0, 2], "OpenCV expects BGR"

    def switchToSelectiveSearchFast(self) -> None:
        pass

    def process(self) -> np.ndarray:
        FakeSearch.calls += 1
        return np.array([[1, 2, 30, 40], [5, 5, 15, 40]], np.int32)


def test_selective_search_is_cached_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("cv2")
    fake.ximgproc = SimpleNamespace(segmentation=SimpleNamespace(createSelectiveSearchSegmentation=FakeSearch))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cv2", fake)
    Image.new("RGB", (64, 48), (10, 20, 250)).save(tmp_path / "a.png")
    image = VocImage("a", tmp_path / "a.png", (48, 64))
    FakeSearch.calls = 0
    for _ in range(2):
        proposals = search_proposals([image], tmp_path / "cache", QUIET)
        assert proposals["a"].tolist() == [[1, 2, 31, 42]]
    assert FakeSearch.calls == 1
    (tmp_path / "cache" / "a.npy").write_text("no boxes")
    with pytest.raises(UserError, match=r"a\.npy is damaged: delete it"):
        search_proposals([image], tmp_path / "cache", QUIET)
    search_proposals([image], None, QUIET)
    assert FakeSearch.calls == 2


def test_selective_search_needs_the_contrib_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", ModuleType("cv2"))
    with pytest.raises(UserError, match="opencv-contrib-python-headless"):
        selective_search()


def test_selective_search_of_opencv_proposes_a_square() -> None:
    cv2 = pytest.importorskip("cv2")
    if not hasattr(cv2, "ximgproc"):
        pytest.skip("this OpenCV has no contrib modules")
    pixels = np.random.default_rng(0).integers(100, 130, (80, 100, 3), np.uint8)
    pixels[20:60, 30:70] = (220, 30, 40)
    boxes = selective_search()(pixels)
    assert (np.abs(boxes - [30, 20, 70, 60]).max(axis=1) <= 3).any()
