import json
import shutil
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from unshuffle.runs import live
from unshuffle.runs.live import LiveRun, mean_of
from unshuffle.runs.run import Run


def train_line(iteration: int, loss: float, speed: float = 10.0) -> dict[str, object]:
    values = {"loss": {"spatial": loss}, "accuracy": {"spatial": 0.5}, "samples_per_second": speed}
    return {"iteration": iteration, "kind": "train", "seconds": 1.0, **values}


def test_it_has_the_lines_of_the_run(run: Run) -> None:
    read = LiveRun(run.folder)
    assert list(read.metrics()) == []
    assert read.refresh() and not read.refresh()
    for kind in ("start", "train", "validation", "episode", "cost"):
        assert list(read.metrics(kind)) == list(run.metrics(kind))
    assert list(read.metrics("validation", "temporal")) == list(run.metrics("validation", "temporal"))
    assert len(list(read.metrics())) == len(list(run.metrics()))
    assert read.tail == list(run.metrics())[-live.TAIL :] and read.metrics_warning is None


def test_it_reads_what_is_added(copied: Run) -> None:
    read = LiveRun(copied.folder)
    read.refresh()
    before = len(list(read.metrics()))
    with copied.metrics_file.open("a") as file:
        file.write(json.dumps(train_line(99, 1.0)) + '\n{"half')
        file.flush()
        assert read.refresh() and len(list(read.metrics())) == before + 1
        assert read.tail[-1]["iteration"] == read.last_iteration == 99
        file.write(" a line\n")
    assert read.refresh() and read.metrics_warning is not None
    assert len(list(read.metrics())) == before + 1


def test_a_resumed_run_replaces_its_file(copied: Run) -> None:
    read = LiveRun(copied.folder)
    read.refresh()
    lines = copied.metrics_file.read_text().splitlines(keepends=True)
    draft = copied.folder / "draft"
    draft.write_text("".join(lines[:3]))
    draft.replace(copied.metrics_file)
    assert read.refresh()
    assert list(read.metrics()) == list(copied.metrics())
    shutil.rmtree(copied.folder)
    assert read.refresh() and list(read.metrics()) == [] and not read.refresh()


def test_many_train_lines_become_means(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_TRAIN_LINES", 8)
    copied.metrics_file.write_text("".join(json.dumps(train_line(n, n)) + "\n" for n in range(1, 1002)))
    read = LiveRun(copied.folder)
    read.refresh()
    entries = list(read.metrics("train"))
    assert len(entries) <= 9 and entries[-1]["iteration"] == 1001
    assert [entry["iteration"] for entry in entries[:2]] == [128, 256]
    assert [entry["loss"]["spatial"] for entry in entries[:2]] == [64.5, 192.5]
    assert read.tail == [train_line(n, n) for n in range(1002 - live.TAIL, 1002)], "as they were written"


def test_a_mean_of_lines() -> None:
    mean = mean_of([train_line(1, 2.0, 10), train_line(2, 4.0, 30)])
    assert mean == train_line(2, 3.0, pytest.approx(15.0))


def test_a_long_file_is_read_in_pieces(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PIECE", 1000)
    lines = [json.dumps(train_line(n, n)) for n in range(1, 41)]
    copied.metrics_file.write_text("\n".join([*lines[:20], "x" * 5000, *lines[20:]]) + "\n")
    read, fractions = LiveRun(copied.folder), list[float]()
    while not fractions or fractions[-1] < 1:
        assert read.refresh()
        fractions.append(read.fraction_read)
    assert len(fractions) > 4 and fractions == sorted(fractions)
    assert [entry["iteration"] for entry in read.metrics("train")] == list(range(1, 41))
    assert not read.refresh()


def test_a_line_without_end_is_waited_for(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PIECE", 1000)
    copied.metrics_file.write_text("x" * 5000)
    read = LiveRun(copied.folder)
    read.refresh()
    assert read.fraction_read == 1 and not read.refresh() and list(read.metrics()) == []


def test_a_log_that_grows_while_it_is_read_is_read_on(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [json.dumps(train_line(n, n)) + "\n" for n in range(1, 41)]
    copied.metrics_file.write_text("".join(lines[:20]))
    monkeypatch.setattr(live, "PIECE", copied.metrics_file.stat().st_size + 10)

    class Growing:
        """A file to which lines are added after its size was looked up."""

        def __init__(self, file: BinaryIO) -> None:
            self.file = file

        def fileno(self) -> int:
            return self.file.fileno()

        def seek(self, offset: int, whence: int = 0) -> int:
            position = self.file.seek(offset, whence)
            if whence == 2:
                appended.write("".join(lines[20:]))
                appended.flush()
            return position

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def __enter__(self) -> "Growing":
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

    appended, plain_open = copied.metrics_file.open("a"), Path.open
    read = LiveRun(copied.folder)
    with monkeypatch.context() as growing:
        growing.setattr(Path, "open", lambda path, mode: Growing(plain_open(path, mode)))
        assert read.refresh()
    appended.close()
    assert 0 < read.fraction_read <= 1
    while read.refresh():
        pass
    assert [entry["iteration"] for entry in read.metrics("train")] == list(range(1, 41))


def test_a_damaged_line_of_any_length_is_passed_over(copied: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PIECE", 1000)
    monkeypatch.setattr(live, "LONGEST_LINE", 2000)
    lines = [json.dumps(train_line(n, n)) for n in range(1, 5)]
    copied.metrics_file.write_text("\n".join([*lines[:2], "\0" * 9000, *lines[2:]]) + "\n")
    read = LiveRun(copied.folder)
    for _ in range(20):
        read.refresh()
    assert read.fraction_read == 1
    assert [entry["iteration"] for entry in read.metrics("train")] == [1, 2, 3, 4]
    assert read.metrics_warning is not None and read.metrics_warning.startswith("1 ")
    with copied.metrics_file.open("a") as file:
        file.write("\0" * 4000)  # without an end yet
    for _ in range(20):
        read.refresh()
    assert read.fraction_read == 1
    with copied.metrics_file.open("a") as file:
        file.write("\n" + json.dumps(train_line(5, 5)) + "\n")
    for _ in range(20):
        read.refresh()
    assert [entry["iteration"] for entry in read.metrics("train")] == [1, 2, 3, 4, 5]
    assert [entry["iteration"] for entry in read.metrics("train")] == [
        entry["iteration"] for entry in copied.metrics("train")
    ]
