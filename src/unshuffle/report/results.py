"""The main figures of a run beside their baselines, as numbers and as tables for the terminal."""

from dataclasses import dataclass

from rich.table import Table

from unshuffle.console import plain_table
from unshuffle.runs.history import ErrorKind, error_kind, error_label, reported_errors, tasks_of
from unshuffle.runs.run import Run


@dataclass(frozen=True)
class TaskErrors:
    """Errors of a task; for an ordering task over all (permutation, sample) pairs."""

    task: str
    kind: ErrorKind
    initial: float
    """Error at iteration 0: of an untrained network, or of the weights in `init`."""
    trained: float
    chance: float
    iteration: int
    """Of the latest error, `trained`."""


def task_errors(run: Run) -> list[TaskErrors]:
    """Return the first and the latest error of each task: on its pretext test set, or on X_val if it has none."""
    rows = []
    for task in tasks_of(run):
        first, last = (reported_errors(run, task)[index] for index in (0, -1))
        kind = error_kind(run, task)
        rows.append(TaskErrors(task, kind, first["error"], last["error"], first["chance"], last["iteration"]))
    return rows


def retrieval_scores(run: Run) -> dict[str, dict[str, float]]:
    """Return the retrieval [%] of the trained network, of the initial one, and of features without training."""
    monitors = [entry for entry in run.metrics("monitor") if "top1" in entry]
    if not monitors:
        return {}
    rows = {"this network": monitors[-1], "before training": monitors[0]}
    rows |= {entry["name"]: entry for entry in run.metrics("baseline")}
    common = set.intersection(*(set(scores) for scores in rows.values()))
    columns = [key for key in monitors[0] if key.startswith("top") and key in common]
    return {name: {key.replace("top", "top "): scores[key] for key in columns} for name, scores in rows.items()}


def error_table(run: Run) -> Table:
    """Return the errors before and after training, beside the chance level."""
    rows = task_errors(run)
    label = error_label(row.kind for row in rows)
    table = plain_table(label, "before", "trained", "chance")
    for row in rows:
        name = row.task if label != "error" else f"{row.task} ({row.kind})"
        figures = (row.initial, row.trained, row.chance)
        table.add_row(name, *(f"{value:.3f}" if row.chance > 0 else "–" for value in figures))  # one sample: no choice
    return table


def retrieval_table(run: Run) -> Table:
    """Return the retrieval of the trained network, of the initial one, and of features without training."""
    rows = retrieval_scores(run)
    table = plain_table("retrieval [%]", *rows["this network"])
    for name, scores in rows.items():
        table.add_row(name, *(f"{score:.1f}" for score in scores.values()))
    return table
