import signal
import subprocess
import sys
from pathlib import Path

import pytest

from unshuffle.errors import UserError
from unshuffle.files import atomic_write, check_file, check_folder, check_new_file, csv_cell, csv_text, locked
from unshuffle.stopping import Stopped, stopping_at_once


def test_a_file_appears_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with atomic_write(file) as draft:
        draft.write_text("half")
        assert not file.exists()
    assert file.read_text() == "half" and [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_leaves_nothing_but_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(OSError, match="disk full"), atomic_write(file) as draft:
        draft.write_text("half")
        raise OSError("disk full")
    assert file.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_signal_waits_for_the_file(tmp_path: Path) -> None:
    with pytest.raises(Stopped), stopping_at_once(), atomic_write(tmp_path / "a.txt") as draft:
        signal.raise_signal(signal.SIGTERM)
        draft.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("shared", [False, True])
def test_a_synced_file_is_flushed_before_it_replaces_the_old_one(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    contents_at_sync: list[str] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: contents_at_sync.append(file.read_text()))
    with atomic_write(file, sync=True, shared=shared) as draft:
        draft.write_text("new")
    folders = 0 if sys.platform == "win32" else 1
    assert contents_at_sync == ["old"] + ["new"] * folders
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_processes_that_write_the_same_file_have_drafts_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    with atomic_write(file, shared=True) as first:
        first.write_text("first")
        monkeypatch.setattr("os.getpid", lambda: 1)
        with atomic_write(file, shared=True) as second:
            assert second != first
            second.write_text("second")
    assert file.read_text() == "first" and len(list(tmp_path.iterdir())) == 1


def test_what_another_holds_is_refused_until_it_lets_go(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    with locked(path, "first"), pytest.raises(UserError, match="second"), locked(path, "second"):
        pass
    with locked(path, "third"):
        assert path.read_text() == "kept"


@pytest.mark.skipif(sys.platform == "win32", reason="files are not locked there")
def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    hold = "import sys, time; from pathlib import Path; from unshuffle.files import locked\n"
    hold += "with locked(Path(sys.argv[1]), ''): print('held', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(UserError, match="busy"), locked(path, "busy"):
            pass
        process.kill()
    with locked(path, "busy"):
        pass


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
    with pytest.raises(UserError, match=r"is a folder, but --json must be a file"):
        check_file(tmp_path, "--json")
    with pytest.raises(UserError, match=r"there is no folder .*no to write --json into"):
        check_file(tmp_path / "no" / "such.json", "--json")
    with pytest.raises(UserError, match=r"old exists: choose another --out"):
        check_new_file(tmp_path / "old", "--out")
    with pytest.raises(UserError, match=r"is a file, but --out must be a folder"):
        check_folder(tmp_path / "old", "--out")
    with pytest.raises(UserError, match=r"cannot write into .*old: choose another --out"):
        check_folder(tmp_path / "old" / "run", "--out")


def test_places_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write anywhere
    with pytest.raises(UserError, match=r"cannot write .*new.json: choose another --json"):
        check_file(tmp_path / "new.json", "--json")
    with pytest.raises(UserError, match="cannot write into"):
        check_folder(tmp_path / "new", "--out")


@pytest.mark.parametrize("name", ["=1+1.jpg", "+a.jpg", "-a.jpg", "@a.jpg", "\ta.jpg", '=HYPERLINK("http://x")', "-"])
def test_text_that_a_spreadsheet_would_run_gets_an_apostrophe(name: str) -> None:
    assert csv_cell(name) == f"'{name}"
    assert csv_text(f"'{name}") == name


@pytest.mark.parametrize("value", [-1, -0.5, "-0.5", "+1e-3", "-inf", "a.jpg", "'quoted'.jpg", "", None])
def test_numbers_and_other_text_stay_as_they_are(value: object) -> None:
    assert csv_cell(value) is value
    assert not isinstance(value, str) or csv_text(value) == value
