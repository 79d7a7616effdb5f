"""The main figures of a run, against its log."""

import io
import json
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from unshuffle.report.results import TaskErrors, error_table, retrieval_scores, retrieval_table, task_errors
from unshuffle.runs.run import Run


def printed(table: Table) -> list[list[str]]:
    console = Console(width=120, file=io.StringIO())
    console.print(table)
    return [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_errors_are_the_first_and_the_last_of_each_task(all_tasks_run: Run) -> None:
    for row in task_errors(all_tasks_run):
        first, *_, last = all_tasks_run.metrics("test", row.task)
        assert row == TaskErrors(row.task, "test", first["error"], last["error"], first["chance"], last["iteration"])
    assert [(row.task, row.chance) for row in task_errors(all_tasks_run)] == [
        ("spatial", 0.8),
        ("temporal", 0.8),
        ("rotation", 0.75),
    ]


def test_the_table_of_errors(all_tasks_run: Run) -> None:
    head, *rows = printed(error_table(all_tasks_run))
    assert head == ["test", "error", "before", "trained", "chance"]
    assert rows == [
        [row.task, *(f"{value:.3f}" for value in (row.initial, row.trained, row.chance))]
        for row in task_errors(all_tasks_run)
    ]


def write_errors(run: Run, *kinds_and_tasks: tuple[str, str]) -> None:
    with run.metrics_file.open("w") as file:
        for iteration, (kind, task) in product((0, 8), kinds_and_tasks):
            error = 0.9 - 0.05 * iteration - (0.01 if kind == "test" else 0.0)
            entry = {"iteration": iteration, "kind": kind, "seconds": 0.5, "task": task, "error": error, "chance": 0.9}
            file.write(json.dumps(entry) + "\n")


def test_a_run_without_test_sets_reports_its_validation_errors(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_errors(run, ("validation", "spatial"), ("validation", "temporal"))
    assert task_errors(run)[0] == TaskErrors("spatial", "validation", 0.9, 0.5, 0.9, 8)
    assert printed(error_table(run)) == [
        ["validation", "error", "before", "trained", "chance"],
        ["spatial", "0.900", "0.500", "0.900"],
        ["temporal", "0.900", "0.500", "0.900"],
    ]


def test_where_one_task_has_no_test_set_each_error_says_its_kind(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_errors(run, ("test", "spatial"), ("validation", "spatial"), ("validation", "temporal"))
    assert printed(error_table(run)) == [
        ["error", "before", "trained", "chance"],
        ["spatial", "(test)", "0.890", "0.490", "0.900"],
        ["temporal", "(validation)", "0.900", "0.500", "0.900"],
    ]


def test_retrieval_beside_its_baselines(run: Run) -> None:
    scores, (first, *_, last) = retrieval_scores(run), list(run.metrics("monitor"))
    assert list(scores) == ["this network", "before training", "raw pixels", "colour histograms"]
    assert scores["this network"]["top 1"] == last["top1"] and scores["before training"]["top 5"] == first["top5"]
    assert printed(retrieval_table(run))[1][:3] == ["this", "network", f"{last['top1']:.1f}"]


def test_a_run_without_metrics_has_no_figures(tmp_path: Path) -> None:
    assert task_errors(Run(tmp_path)) == [] and retrieval_scores(Run(tmp_path)) == {}
