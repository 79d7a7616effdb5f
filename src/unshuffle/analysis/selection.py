"""Appendix F: how decisive the permutations are."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from unshuffle.analysis.branch import Sampler, Stem, checkpoints_of
from unshuffle.analysis.figures import INK, QUIET, TASK_COLOURS, name_axes, panels, styled
from unshuffle.analysis.history import open_run, tasks_of
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis
from unshuffle.analysis.table import plus_minus
from unshuffle.errors import UserError
from unshuffle.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS: dict[str, Sampler] = {"policy": "policy", "random": "uniform", "inverse": "inverse"}
COMPARED = ("policy", "inverse")
PUBLISHED = {"policy": (125.0, 14.0), "inverse": (78.0, 16.0)}
"""The paper's mean and standard deviation."""


@dataclass(frozen=True)
class Selection(Question):
    """Trains on from checkpoints with the policy, at random and with the inverse policy (appendix F)."""

    run: Path
    """A run folder with checkpoints (`log.keep_checkpoints`)."""
    checkpoints: tuple[int, ...] = ()
    """Iterations to begin at; by default all checkpoints of the run."""
    iterations: int = 2000
    """Training from each checkpoint with each of the three; the paper trains one epoch."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""

    def answer(self, console: Console) -> Analysis:
        """Train three branches from each checkpoint; those that are there already are not trained again."""
        run = open_run(self.run)
        checkpoints = self.checkpoints or tuple(checkpoints_of(run))
        if not checkpoints:
            raise UserError(f"{self.run} has no checkpoint to begin at yet")
        if self.iterations < 1:
            raise UserError(f"iterations is {self.iterations}, but must be at least 1")
        stem = Stem.open(run, self.device)
        rows = [row for checkpoint in checkpoints for row in self._from(stem, checkpoint, console)]
        return analyse_selection(run, self.iterations, rows)

    def _from(self, stem: Stem, checkpoint: int, console: Console) -> list[dict[str, Any]]:
        keep_policy = has_policy(stem.run)
        branches = {}
        for method, sampler in METHODS.items():
            console.print(f"checkpoint {checkpoint}, {method}: {self.iterations:,} iterations", highlight=False)
            folder = self.folder / "selection" / f"{checkpoint:08d}-{method}"
            kept = keep_policy and method != "random"
            branches[method] = stem.branch(checkpoint, sampler, self.iterations, folder, console, keep_policy=kept)
        return relative_rows(checkpoint, {method: _accuracies(branch) for method, branch in branches.items()})


def has_policy(run: Run) -> bool:
    """Is there a policy in the run's checkpoints that has learned?"""
    return run.config.policy.sampler in ("reinforce", "rollouts")


def _accuracies(branch: Run) -> dict[str, float]:
    """Validation accuracy of each task at the end [%]."""
    return {entry["task"]: 100 * (1 - entry["error"]) for entry in branch.metrics("validation")}


def relative_rows(checkpoint: int, accuracies: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """The accuracies [%] of each method and task, and in percent of those of random draws."""
    return [
        {
            "checkpoint": checkpoint,
            "task": task,
            "method": method,
            "accuracy_percent": accuracy,
            "relative_percent": 100 * accuracy / reference if (reference := accuracies["random"][task]) else None,
        }
        for method, tasks in accuracies.items()
        for task, accuracy in tasks.items()
    ]


def relative_accuracy(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """Mean and standard deviation (of a sample) of each method's relative accuracies."""
    rows = list(rows)
    return {method: _summary([row for row in rows if row["method"] == method]) for method in COMPARED}


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | int | None]:
    values = [row["relative_percent"] for row in rows if row["relative_percent"] is not None]
    return {
        "mean": float(np.mean(values)) if values else None,
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "repetitions": len(values),
    }


def analyse_selection(run: Run, iterations: int, rows: Sequence[Mapping[str, Any]]) -> Analysis:
    """Relative accuracies of each task, and of all together."""
    tasks = {task: relative_accuracy(row for row in rows if row["task"] == task) for task in tasks_of(run)}
    summary = {**tasks, "all": relative_accuracy(rows)}
    checkpoints = sorted({row["checkpoint"] for row in rows})
    learned = "the run's own" if has_policy(run) else "new ones, as the run had none"
    statement = (
        f"validation accuracy after {iterations:,} iterations from the checkpoints "
        f"{', '.join(map(str, checkpoints))} of {run.folder}, in percent of that of random permutations; "
        f"the policies are {learned}"
    )
    metrics = {"relative_accuracy_percent": summary, "iterations": iterations, "checkpoints": checkpoints}
    return Analysis("selection", statement, metrics, rows, lambda: draw(rows, summary), _table(summary))


def _table(summary: Mapping[str, Mapping[str, Mapping[str, float | int | None]]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("relative accuracy [%]", *summary, "paper"):
        table.add_column(column, justify="left" if column == "relative accuracy [%]" else "right", no_wrap=True)
    for method in COMPARED:
        mine = (plus_minus(tasks[method]["mean"], tasks[method]["std"]) for tasks in summary.values())
        table.add_row(method, *mine, plus_minus(*PUBLISHED[method]))
    return table


@styled
def draw(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> "Figure":
    """A dot for each checkpoint and task, mean and deviation beside them, and the paper's."""
    figure, ((axes,),) = panels(width=7.2, height=4.4)
    for place, method in enumerate(COMPARED):
        for task, shift in zip(TASK_COLOURS, (-0.22, -0.10), strict=True):
            values = [row["relative_percent"] for row in rows if (row["method"], row["task"]) == (method, task)]
            label = f"{task} task, one checkpoint" if not place and values else None
            axes.plot([place + shift] * len(values), values, "o", color=TASK_COLOURS[task], alpha=0.75, label=label)
        _bar(axes, place + 0.06, summary["all"][method], INK, "mean ± std" if not place else None)
        mean, std = PUBLISHED[method]
        _bar(axes, place + 0.22, {"mean": mean, "std": std}, QUIET, "paper, mean ± std" if not place else None)
    axes.axhline(100, color=QUIET, linewidth=1.2, linestyle="--", label="random permutations")
    axes.set_xticks(
        range(len(COMPARED)), [f"{method} policy" if method == "inverse" else method for method in COMPARED]
    )
    axes.set_xlim(-0.5, len(COMPARED) - 0.5)
    name_axes(axes, "How decisive the permutations are", "", "validation accuracy relative to random [%]")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def _bar(axes: Any, place: float, figures: Mapping[str, Any], colour: str, label: str | None) -> None:
    if figures["mean"] is not None:
        axes.errorbar(
            place, figures["mean"], figures["std"] or 0, fmt="D", color=colour, markersize=6, capsize=5, label=label
        )
