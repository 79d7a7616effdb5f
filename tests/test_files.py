import signal
import subprocess
import sys
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unshuffle.errors import UserError
from unshuffle.files import (
    atomic_write,
    check_file,
    check_folder,
    check_new_file,
    check_zip,
    csv_cell,
    csv_text,
    locked,
    locked_folder,
)
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


def test_a_synced_file_is_flushed_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    contents_at_sync: list[str] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: contents_at_sync.append(file.read_text()))
    with atomic_write(file, sync=True) as draft:
        draft.write_text("new")
    folders = 0 if sys.platform == "win32" else 1
    assert contents_at_sync == ["old"] + ["new"] * folders
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_writers_of_the_same_file_have_drafts_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with atomic_write(file) as first:
        first.write_text("first")
        with atomic_write(file) as second:
            assert second != first
            second.write_text("second")
    assert file.read_text() == "first" and len(list(tmp_path.iterdir())) == 1


def test_the_name_of_a_draft_cannot_be_predicted_and_exists_before_it_is_written(tmp_path: Path) -> None:
    names = set()
    for _ in range(20):
        with atomic_write(tmp_path / "a.txt") as draft:
            assert draft.is_file() and draft.parent == tmp_path
            names.add(draft.name)
    assert len(names) == 20


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_links_are_never_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, file = tmp_path / "victim", tmp_path / "a.txt"
    victim.write_text("mine")
    for name in ("a.txt", "a.txt.tmp", f"a.txt.{'0' * 16}.tmp"):
        (tmp_path / name).symlink_to(victim)
    with atomic_write(file) as draft:
        draft.write_text("new")
    assert victim.read_text() == "mine" and file.read_text() == "new" and not file.is_symlink()
    monkeypatch.setattr("secrets.token_hex", lambda length: "0" * 16)  # even where the name was guessed
    with pytest.raises(FileExistsError), atomic_write(file) as draft:
        draft.write_text("newer")
    assert victim.read_text() == "mine" and file.read_text() == "new"
    assert (tmp_path / f"a.txt.{'0' * 16}.tmp").is_symlink()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions differ there")
def test_a_file_gets_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with atomic_write(tmp_path / "atomic") as draft:
        draft.write_text("")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


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


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not locked there")
def test_a_folder_is_locked_without_a_file(tmp_path: Path) -> None:
    with locked_folder(tmp_path, "first"), pytest.raises(UserError, match="second"), locked_folder(tmp_path, "second"):
        pass
    with locked_folder(tmp_path, "third"):
        assert not list(tmp_path.iterdir())


def test_the_checksums_of_a_zip_are_compared(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("content", b"x" * 100)
    check_zip(file)
    good = file.read_bytes()
    folder = good.index(b"PK\x01\x02") + 38  # the attributes in the directory: bit 4 marks a folder
    for position, bit in ((good.index(b"xxx") + 50, 0), (folder, 4), (good.index(b"PK\x01\x02") + 46, 7)):
        damaged = bytearray(good)
        damaged[position] ^= 1 << bit
        file.write_bytes(damaged)
        with pytest.raises(zipfile.BadZipFile):
            check_zip(file)


def test_every_wrong_bit_in_the_directory_of_a_zip_is_a_bad_zip_or_none(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("content", b"x" * 100)
    good = file.read_bytes()
    for position in range(good.index(b"PK\x01\x02"), len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[position] ^= 1 << bit
            file.write_bytes(damaged)
            with suppress(zipfile.BadZipFile):  # offsets beyond the file make zipfile raise OSError
                check_zip(file)


def test_a_directory_that_hides_members_is_a_bad_zip(tmp_path: Path) -> None:
    file = tmp_path / "a.zip"
    with zipfile.ZipFile(file, "w") as archive:
        for number in range(8):
            archive.writestr(f"{number}{'x' * 81}", b"content")  # entries of 128 bytes
    damaged = bytearray(file.read_bytes())
    damaged[damaged.index(b"PK\x01\x02") + 33] = 1  # the first has a comment of 256 bytes: further entries
    file.write_bytes(damaged)
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None and len(archive.namelist()) < 8
    with pytest.raises(zipfile.BadZipFile, match="of 8 members"):
        check_zip(file)


@given(st.text(alphabet="'=+-@a\t5"))
def test_a_cell_becomes_the_text_that_it_was(text: str) -> None:
    cell = csv_cell(text)
    assert csv_text(cell) == text
    assert not cell.startswith(("=", "+", "-", "@", "\t")) or float(cell) is not None


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
