"""Fig. 6: validation error of every permutation over time."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from unshuffle.analysis.analysis import Analysis, AnalysisResult, metrics_table
from unshuffle.analysis.figures import MAP, name_axes, panels, styled, thousands
from unshuffle.config import TaskName
from unshuffle.errors import UserError
from unshuffle.runs.folders import run_labels
from unshuffle.runs.history import Floats, History, choose_tasks, open_run, read_history

ENDS = ("first", "last")
ROWS = {
    "iteration": "iteration",
    "mean": "mean",
    "std": "std",
    "percentile_5": "5th percentile",
    "percentile_95": "95th percentile",
}


@dataclass(frozen=True)
class ErrorMap(Analysis):
    """Validation error of every permutation over time, with and without policy (Fig. 6)."""

    runs: tuple[Path, ...]
    """One run folder, or several to compare."""
    task: TaskName | None = None
    """Task to show; by default the first ordering task of the first run."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Return the errors that the runs have stored in states/."""
        if not self.runs:
            raise UserError("give a run folder, or several to compare")
        runs = [open_run(folder) for folder in self.runs]
        task = choose_tasks(runs[0], self.task)[0]
        for run in runs:
            choose_tasks(run, task)
        return analyse_errors(
            {label: read_history(run, task) for label, run in zip(run_labels(runs), runs, strict=True)}, task
        )


def by_mean_error(history: History) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return the permutations sorted by their mean error over time, the hardest first."""
    return np.argsort(-history.errors.mean(axis=0), kind="stable")


def error_statistics(history: History) -> list[dict[str, float]]:
    """Return the mean, std and percentiles over the permutations at each validation."""
    return [
        {
            "iteration": int(iteration),
            "mean": float(errors.mean()),
            "std": float(errors.std()),
            "percentile_5": float(np.percentile(errors, 5)),
            "percentile_95": float(np.percentile(errors, 95)),
        }
        for iteration, errors in zip(history.iterations, history.errors, strict=True)
    ]


def analyse_errors(histories: Mapping[str, History], task: str) -> AnalysisResult:
    """Return a row per permutation and run, with the errors in columns named by iteration."""
    rows = []
    for label, history in histories.items():
        iterations = [str(iteration) for iteration in history.iterations]
        for rank, permutation in enumerate(by_mean_error(history).tolist()):
            errors = history.errors[:, permutation]
            row = {"run": label, "task": task, "rank": rank, "permutation": permutation}
            row |= {"mean_error": float(errors.mean()), **dict(zip(iterations, errors.tolist(), strict=True))}
            rows.append(row)
    metrics = {label: error_statistics(history) for label, history in histories.items()}
    statement = (
        f"{task} validation error of every permutation at every validation, sorted by mean error: "
        f"{', '.join(histories)}"
    )
    ends = {
        label: {
            f"{when}_{name}": value
            for when, entry in zip(ENDS, (figures[0], figures[-1]), strict=True)
            for name, value in entry.items()
        }
        for label, figures in metrics.items()
    }
    names = {f"{when}_{name}": f"{title}, {when} validation" for when in ENDS for name, title in ROWS.items()}
    table = metrics_table("error of the permutations", ends, names)
    return AnalysisResult("error-map", statement, metrics, rows, lambda: draw(histories, task), table)


def column_edges(values: Floats) -> Floats:
    """Return the edges of columns around values: half way between them."""
    middles = (values[1:] + values[:-1]) / 2
    first = values[0] - (middles[0] - values[0] if len(middles) else 0.5)
    last = values[-1] + (values[-1] - middles[-1] if len(middles) else 0.5)
    return np.concatenate([[first], middles, [last]])


@styled
def draw(histories: Mapping[str, History], task: str) -> Figure:
    """Draw a map per run, all on the same colour scale."""
    figure, grid = panels(1, len(histories), width=5.2, height=4.6, sharey=True)
    for axes, (label, history) in zip(grid[0], histories.items(), strict=True):
        errors = history.errors[:, by_mean_error(history)].T
        rows = np.arange(len(errors) + 1)
        image = axes.pcolormesh(
            column_edges(history.iterations.astype(np.float64)), rows, errors, cmap=MAP, vmin=0, vmax=1, rasterized=True
        )
        axes.set_ylim(len(errors), 0)
        name_axes(axes, label, "iteration", "", grid=False)
        thousands(axes.xaxis)
    grid[0][0].set_ylabel(f"{task} permutations, sorted by mean error")
    figure.colorbar(image, ax=list(grid[0]), label="validation error [fraction]", pad=0.02)
    return figure
