import signal
from pathlib import Path

import pytest

from unshuffle.drafts import draft_of
from unshuffle.stopping import Stopped, stopping_at_once


def test_a_file_appears_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with draft_of(file) as draft:
        draft.write_text("half")
        assert not file.exists()
    assert file.read_text() == "half" and [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_failure_leaves_nothing_but_what_was_there(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(OSError, match="disk full"), draft_of(file) as draft:
        draft.write_text("half")
        raise OSError("disk full")
    assert file.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_signal_waits_for_the_file(tmp_path: Path) -> None:
    with pytest.raises(Stopped), stopping_at_once(), draft_of(tmp_path / "a.txt") as draft:
        signal.raise_signal(signal.SIGTERM)
        draft.write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
