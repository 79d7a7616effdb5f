import json
from pathlib import Path
from typing import Any

import pytest

from unshuffle.errors import UserError
from unshuffle.runs.run import Run

TASKS = ("spatial", "temporal")
BRANCH = '{"iteration": 0, "kind": "branch"}'


def write_lines(folder: Path, *lines: str) -> Run:
    (folder / "metrics.jsonl").write_text("\n".join(lines))
    return Run(folder)


def test_a_folder_without_config_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a run folder: it has no config\.yaml"):
        Run.open(tmp_path)


def test_metrics_of_all_kinds_or_of_one(tmp_path: Path) -> None:
    entries: list[dict[str, Any]] = [{"iteration": 0, "kind": "branch"}]
    entries += [{"iteration": number, "kind": "cost", "duration": 0.5} for number in (1, 2)]
    run = write_lines(tmp_path, *map(json.dumps, entries))
    assert list(run.metrics()) == entries and list(run.metrics("cost")) == entries[1:]
    assert list(run.metrics("episode")) == []


def test_metrics_of_a_task(tmp_path: Path) -> None:
    entries = [{"iteration": 5, "kind": "validation", "task": task, "error": 0.5, "chance": 0.9} for task in TASKS]
    run = write_lines(tmp_path, *map(json.dumps, [*entries, {"iteration": 5, "kind": "branch"}]))
    assert list(run.metrics("validation", "temporal")) == entries[1:] == list(run.metrics(task="temporal"))


def test_a_half_written_line_is_left_out(tmp_path: Path) -> None:
    run = write_lines(tmp_path, BRANCH, '{"iteration": 5, "ki')
    assert [entry["iteration"] for entry in run.metrics()] == [0]


@pytest.mark.parametrize(
    "line",
    [
        b'{"iteration": 5, "ki',
        b"\xff\xfe\x00",
        b"",
        b"5",
        b"null",
        b"[]",
        b"[" * 100_000,
        b'{"kind": "train"}',
        b'{"iteration": 5}',
        b'{"iteration": "5", "kind": "branch"}',
        b'{"iteration": 5, "kind": ["branch"]}',
        b'{"iteration": 5, "kind": "start"}',
        b'{"iteration": 5, "kind": "train", "loss": 3, "accuracy": {}, "samples_per_second": 1.5}',
        b'{"iteration": 5, "kind": "monitor", "top1": 5.0, "top5": "x"}',
        b'{"iteration": 5, "kind": "rollouts", "task": "spatial", "iterations": 2, "errors": [], "advantage": [1]}',
        b'{"iteration": 5, "kind": "validation", "task": "spatial", "errpr": 0.5, "chance": 0.9}',
        b'{"iteration": 5, "kind": "validation", "task": "spatiam", "error": 0.5, "chance": 0.9}',
        b'{"iteration": 5, "kind": "branch", "seconds": "3"}',
    ],
)
def test_damaged_lines_are_left_out_and_counted(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"\n".join([BRANCH.encode(), line, BRANCH.encode(), b""]))
    run = Run(tmp_path)
    assert [entry["iteration"] for entry in run.metrics()] == [0, 0] == [e["iteration"] for e in run.metrics("branch")]
    assert run.metrics_warning == f"1 of 3 lines in {run.metrics_file} is damaged and left out"


def test_sound_metrics_are_no_warning(tmp_path: Path, run: Run) -> None:
    assert Run(tmp_path).metrics_warning is None is write_lines(tmp_path, BRANCH).metrics_warning
    assert run.metrics_warning is None


def test_a_run_that_has_logged_nothing_has_no_metrics(tmp_path: Path) -> None:
    assert list(Run(tmp_path).metrics()) == []


def test_the_start_entry_describes_sources_and_splits(run: Run) -> None:
    (start,) = run.metrics("start")
    assert [(source["medium"], source["items"], source["storage"]) for source in start["sources"]] == [
        ("images", 30, "synthetic"),
        ("videos", 30, "synthetic"),
    ]
    assert start["splits"] == {
        "spatial": {"training": 21, "validation": 6, "test": 3, "requested": 6, "source": "images", "medium": "images"},
        "temporal": {
            "training": 21,
            "validation": 6,
            "test": 3,
            "requested": 6,
            "source": "videos",
            "medium": "videos",
        },
    }
    assert not {"data", "remarks", "samples"} & set(start)


def test_the_files_of_a_finished_run_are_where_the_properties_say(run: Run) -> None:
    for file in (run.config_file, run.metrics_file, run.weights):
        assert file.is_file()
    for folder in (run.checkpoints, run.states, run.permutations, run.tensorboard):
        assert folder.is_dir() and any(folder.iterdir())
