"""The main figures of a run, against its log."""

import io
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
        logged = [entry for entry in all_tasks_run.metrics("validation") if entry["task"] == row.task]
        assert row == TaskErrors(row.task, logged[0]["error"], logged[-1]["error"], logged[0]["chance"])
    assert [(row.task, row.chance) for row in task_errors(all_tasks_run)] == [
        ("spatial", 0.8),
        ("temporal", 0.8),
        ("rotation", 0.75),
    ]


def test_the_table_of_errors(all_tasks_run: Run) -> None:
    head, *rows = printed(error_table(all_tasks_run))
    assert head == ["validation", "error", "before", "trained", "chance"]
    assert rows == [
        [row.task, *(f"{value:.3f}" for value in (row.initial, row.trained, row.chance))]
        for row in task_errors(all_tasks_run)
    ]


def test_retrieval_beside_its_baselines(run: Run) -> None:
    scores, (first, *_, last) = retrieval_scores(run), list(run.metrics("monitor"))
    assert list(scores) == ["this network", "before training", "raw pixels", "colour histograms"]
    assert scores["this network"]["top 1"] == last["top1"] and scores["before training"]["top 5"] == first["top5"]
    assert printed(retrieval_table(run))[1][:3] == ["this", "network", f"{last['top1']:.1f}"]


def test_a_run_without_metrics_has_no_figures(tmp_path: Path) -> None:
    assert task_errors(Run(tmp_path)) == [] and retrieval_scores(Run(tmp_path)) == {}
