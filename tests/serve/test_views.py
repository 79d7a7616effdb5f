import csv
import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from unshuffle.runs.heartbeat import Heartbeat
from unshuffle.runs.run import Run
from unshuffle.serve import views
from unshuffle.serve.library import Library, WatchedRun


@pytest.fixture
def watched(library_folder: Path) -> dict[str, WatchedRun]:
    return Library([library_folder]).runs()


def test_a_row_of_the_table(watched: dict[str, WatchedRun]) -> None:
    row, run = views.describe(watched["first"]), Run(watched["first"].run.folder)
    assert (row["state"], row["preset"], row["tasks"], row["data"]) == ("finished", "demo", "S+T", "synthetic world")
    assert row["progress"] == "12 of 12" and row["left"] == ""
    last = {entry["task"]: entry["error"] for entry in run.metrics("test")}
    assert row["errors"] == ", ".join(f"{task} {error:.3f}" for task, error in last.items())
    top1 = [entry["top1"] for entry in run.metrics("monitor")][-1]
    assert row["retrieval"] == f"{top1:.1f} %" and row["sort"]["retrieval"] == top1


def test_errors_are_the_newest_and_say_when_they_were_measured(copied: Run) -> None:
    def row() -> dict[str, Any]:
        return views.describe(Library([copied.folder]).runs()["copied"])

    lines = copied.metrics_file.read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    early = [line for line, entry in zip(lines, entries, strict=True) if entry["iteration"] <= 8]
    copied.metrics_file.write_text("\n".join(early) + "\n")
    newest = {entry["task"]: entry for entry in entries if entry["kind"] == "validation" and entry["iteration"] <= 8}
    assert newest["spatial"]["iteration"] == 8
    shown = row()
    assert shown["errors"] == ", ".join(f"{task} {entry['error']:.3f}" for task, entry in newest.items())
    assert shown["measured"]["errors"].startswith("spatial: validation error at iteration 8; temporal: ")
    assert shown["measured"]["retrieval"] == "at iteration 6"
    copied.metrics_file.write_text("\n".join(lines) + "\n")
    assert row()["measured"]["errors"].startswith("spatial: test error at iteration 12; ")


def test_why_a_run_has_no_puzzles(watched: dict[str, WatchedRun], copied: Run) -> None:
    assert views.why_no_puzzles(watched["first"]) == ""
    assert "no ordering task (its tasks: instance)" in views.why_no_puzzles(watched["instance"])
    shutil.rmtree(copied.checkpoints)
    assert views.why_no_puzzles(Library([copied.folder]).runs()["copied"]) == "the run has no checkpoint"
    Heartbeat("training", time.time()).write(copied)
    assert "wait for the first one" in views.why_no_puzzles(Library([copied.folder]).runs()["copied"])


def test_the_version_of_the_policy_is_that_of_its_validations(copied: Run) -> None:
    library = Library([copied.folder])
    before = views.policy_version(library.runs()["copied"])
    values = {"loss": {"spatial": 1.0}, "accuracy": {"spatial": 0.1}, "samples_per_second": 5.0}
    for entry, same in (
        ({"iteration": 13, "kind": "train", **values}, True),
        ({"iteration": 13, "kind": "validation", "task": "spatial", "error": 0.5, "chance": 0.8}, False),
    ):
        with copied.metrics_file.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        library.runs()["copied"].run.refresh()
        assert (views.policy_version(library.runs()["copied"]) == before) is same


def test_a_damaged_run_has_a_row(watched: dict[str, WatchedRun]) -> None:
    row = views.describe(watched["damaged"])
    assert row["state"] == "damaged" and "config.yaml" in row["message"]
    assert views.run_view(watched["damaged"])["charts"] == []


def test_the_table_as_csv(watched: dict[str, WatchedRun]) -> None:
    rows = [views.describe(watched[name]) for name in ("second", "first")]
    table = list(csv.reader(io.StringIO(views.table_csv(rows))))
    assert table[0] == list(views.COLUMNS) and [row[0] for row in table[1:]] == ["second", "first"]
    assert views.table_csv([dict.fromkeys(views.COLUMNS, "=1+1")]).splitlines()[1].startswith("'=1+1")


def test_the_view_of_a_run_shares_the_charts_of_the_report(watched: dict[str, WatchedRun]) -> None:
    view = views.run_view(watched["first"])
    titles = [chart["title"] for chart in view["charts"]]
    assert titles == ["Validation and test error", "Retrieval", "Own data", "Training loss", "Effective rank", "Speed"]
    assert view["charts"][0]["levels"] == {"chance, spatial": pytest.approx(1 - 1 / 6), "chance, temporal": 0.8}
    assert "12" in view["log"][-1] and view["verdict"]["sentences"]
    json.dumps(view)


def test_comparison_over_other_axes(watched: dict[str, WatchedRun]) -> None:
    runs = [watched["first"], watched["second"]]
    view = views.compare_view(runs, "iterations", seeds=False)
    assert view["differing"] == ["seed"]
    assert [run["options"] for run in view["runs"]] == [{"seed": "0"}, {"seed": "1"}]
    loss = next(chart for chart in view["charts"] if chart["title"] == "Training loss, spatial")
    assert [series["name"] for series in loss["series"]] == ["first", "second"]
    seconds = {entry["iteration"]: entry["seconds"] for entry in watched["first"].run.metrics()}
    times = views.compare_view(runs, "time", seeds=False)["charts"]
    timed = next(chart for chart in times if chart["title"] == "Training loss, spatial")
    assert timed["axis"] == "time of training [s]"
    for (iteration, _), (x, _) in zip(loss["series"][0]["points"], timed["series"][0]["points"], strict=True):
        assert x == pytest.approx(seconds[iteration], abs=0.01)
    passes = views.compare_view(runs, "passes", seeds=False)["charts"][0]["series"][0]["points"]
    assert passes[0][0] > 0 and passes[-1][0] > 2 * 12, "two tasks in each step, and validations"


def test_the_mean_over_seeds_has_a_band(watched: dict[str, WatchedRun], tmp_path: Path) -> None:
    runs = [watched["first"], watched["second"]]
    chart = next(c for c in views.compare_view(runs, "iterations", seeds=True)["charts"] if "loss" in c["title"])
    (series,) = chart["series"]
    assert series["name"] == "first, mean of 2 seeds"
    errors = views.compare_view(runs, "iterations", seeds=True)["charts"][0]["series"]
    assert [one["group"] for one in errors] == ["first, mean of 2 seeds", "first, mean of 2 seeds, test"]
    assert [low for _, low, _ in series["band"]] == [mean for _, mean in series["points"]], "equal runs have no width"
    group = [
        views.Series("a", "arm", "c0", [(0, 1.0), (10, 3.0)]),
        views.Series("b", "arm", "c0", [(0, 3.0), (5, 2.0), (20, 5.0)]),
    ]
    mean = views._mean(group)
    assert mean.points == [(0, 2.0), (10, 3.0)]
    assert mean.band[0] == (0, pytest.approx(2 - 2**0.5, abs=1e-4), pytest.approx(2 + 2**0.5, abs=1e-4))


def test_one_run_and_none(watched: dict[str, WatchedRun]) -> None:
    charts = views.compare_view([watched["first"]], "iterations", seeds=False)["charts"]
    assert charts and all(
        len({series["name"] for series in chart["series"]}) == len(chart["series"]) for chart in charts
    )
    assert views.compare_view([watched["damaged"]], "iterations", seeds=False)["charts"] == []
