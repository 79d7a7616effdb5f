"""The main figures of a run beside their baselines, as numbers and as tables for the terminal."""

from dataclasses import dataclass

from rich.table import Table

from unshuffle.console import plain_table
from unshuffle.runs.history import tasks_of
from unshuffle.runs.run import Run


@dataclass(frozen=True)
class TaskErrors:
    """Validation errors of a task; for an ordering task over all (permutation, sample) pairs of Ψ × X_val."""

    task: str
    initial: float
    """Error at iteration 0: of an untrained network, or of the weights in `init`."""
    trained: float
    chance: float


def task_errors(run: Run) -> list[TaskErrors]:
    """Return the first and the latest validation error of each task."""
    rows = []
    for task in tasks_of(run):
        own = list(run.metrics("validation", task))
        rows.append(TaskErrors(task, own[0]["error"], own[-1]["error"], own[0]["chance"]))
    return rows


def retrieval_scores(run: Run) -> dict[str, dict[str, float]]:
    """Return the retrieval [%] of the trained network, of the initial one, and of features without training."""
    monitors = list(run.metrics("monitor"))
    if not monitors:
        return {}
    rows = {"this network": monitors[-1], "before training": monitors[0]}
    rows |= {entry["name"]: entry for entry in run.metrics("baseline")}
    columns = [key for key in monitors[0] if key.startswith("top")]
    return {name: {key.replace("top", "top "): scores[key] for key in columns} for name, scores in rows.items()}


def error_table(run: Run) -> Table:
    """Return the validation errors before and after training, beside the chance level."""
    table = plain_table("validation error", "before", "trained", "chance")
    for row in task_errors(run):
        table.add_row(row.task, *(f"{value:.3f}" for value in (row.initial, row.trained, row.chance)))
    return table


def retrieval_table(run: Run) -> Table:
    """Return the retrieval of the trained network, of the initial one, and of features without training."""
    rows = retrieval_scores(run)
    table = plain_table("retrieval [%]", *rows["this network"])
    for name, scores in rows.items():
        table.add_row(name, *(f"{score:.1f}" for score in scores.values()))
    return table
