from pathlib import Path

import pytest

from unshuffle.errors import UserError
from unshuffle.outputs import check_file, check_folder, check_new_file


def test_places_that_will_do(tmp_path: Path) -> None:
    (tmp_path / "old.json").touch()
    check_file(tmp_path / "old.json", "--json")
    check_file(Path("new.json"), "--json")
    check_new_file(tmp_path / "new.npy", "--out")
    check_new_file(Path("/dev/null"), "--out")
    check_folder(tmp_path, "--out")
    check_folder(tmp_path / "not" / "yet", "--out")
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"], "looking leaves nothing behind"


def test_places_that_will_not(tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    with pytest.raises(UserError, match=r"is a folder, and --json must be a file"):
        check_file(tmp_path, "--json")
    with pytest.raises(UserError, match=r"there is no folder .*no to write --json into"):
        check_file(tmp_path / "no" / "such.json", "--json")
    with pytest.raises(UserError, match=r"old exists: choose another --out"):
        check_new_file(tmp_path / "old", "--out")
    with pytest.raises(UserError, match=r"is a file, and --out must be a folder"):
        check_folder(tmp_path / "old", "--out")
    with pytest.raises(UserError, match=r"cannot write into .*old: choose another --out"):
        check_folder(tmp_path / "old" / "run", "--out")


def test_places_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(UserError, match=r"cannot write .*new.json: choose another --json"):
        check_file(tmp_path / "new.json", "--json")
    with pytest.raises(UserError, match="cannot write into"):
        check_folder(tmp_path / "new", "--out")
