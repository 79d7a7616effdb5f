from pathlib import Path

import pytest
from rich.console import Console

from unshuffle.errors import UserError
from unshuffle.evaluation.coverage import check_covered, shared_files, tell_few, tell_shared


def test_a_class_without_a_file_is_refused() -> None:
    check_covered([0, 1, 1], [0, 1], ["a", "b", "c"], "image")
    with pytest.raises(UserError, match="the class b has no readable image"):
        check_covered([0, 2], [0, 1, 2], ["a", "b", "c"], "image")


def test_shared_files_are_found_through_links(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).touch()
    (tmp_path / "soft").symlink_to("a")
    (tmp_path / "hard").hardlink_to(tmp_path / "b")
    test = [tmp_path / name for name in ("soft", "hard", "c")]
    assert shared_files([tmp_path / "a", tmp_path / "b"], test) == test[:2]
    assert shared_files([Path("store/x")], [Path("store/x"), Path("store/y")]) == [Path("store/x")], "names in a store"


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0] * 10 + [1] * 10, ""),
        ([0] * 9 + [1] * 9, "note: only 18 images for 2 classes, 9 of each: little to learn from\n"),
        ([1] * 3, "note: only 3 images for 2 classes, 0 to 3 of each: little to learn from\n"),
    ],
)
def test_few_files_are_said(labels: list[int], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    tell_few(Console(), labels, ["a", "b"], "images")
    assert capsys.readouterr().out == said


def test_sharing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    tell_shared(Console(), 0)
    assert capsys.readouterr().out == ""
    tell_shared(Console(), 3)
    assert "3 of the test files are training files too" in capsys.readouterr().out
