"""Appendix F: how much the choice of permutations matters."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from unshuffle.analysis.analysis import Analysis, AnalysisResult
from unshuffle.analysis.branch import FIXED_SAMPLERS, BranchTrainer, Sampler
from unshuffle.analysis.figures import INK, QUIET, name_axes, panels, styled, task_colour
from unshuffle.console import plain_table, say
from unshuffle.errors import UserError
from unshuffle.runs.checkpoints import usable_checkpoints
from unshuffle.runs.history import choose_tasks, error_kind, open_run, ordering_tasks, reported_errors
from unshuffle.runs.run import Run
from unshuffle.wording import plus_minus

SAMPLERS: tuple[Sampler, ...] = ("policy", "uniform", "inverse")
COMPARED = ("policy", "inverse")
PUBLISHED = {"policy": {"mean": 125.0, "std": 14.0}, "inverse": {"mean": 78.0, "std": 16.0}}
"""Mean and std in the paper."""


@dataclass(frozen=True)
class Selection(Analysis):
    """Continue from checkpoints with the policy, uniform sampling and the inverse policy (appendix F)."""

    run: Path
    """A run folder with checkpoints (`log.keep_checkpoints`)."""
    checkpoints: tuple[int, ...] = ()
    """Iterations of the checkpoints to start from; by default all checkpoints of the run."""
    iterations: int | None = None
    """Length of the training from each checkpoint with each of the three samplers; by default 2000, and no more than
    the run had. The paper trains one epoch."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Train three branches from each checkpoint; finished ones that exist already are not trained again."""
        run = open_run(self.run)
        choose_tasks(run, None)  # raises if the run has no ordering task
        files = () if self.checkpoints else usable_checkpoints(run.checkpoints, console)
        checkpoints = self.checkpoints or tuple(int(file.stem) for file in files)
        if not checkpoints:
            raise UserError(f"{self.run} has no checkpoint to start from yet")
        iterations = min(2000, run.config.optim.iterations) if self.iterations is None else self.iterations
        if iterations < 1:
            raise UserError(f"iterations is {iterations}, but must be at least 1")
        branches = len(checkpoints) * len(SAMPLERS)
        say(console, f"{branches} branches of {iterations:,} iterations each, {branches * iterations:,} in all")
        trainer = BranchTrainer.open(run, self.device)
        rows = [
            row for checkpoint in checkpoints for row in self._train_branches(trainer, checkpoint, iterations, console)
        ]
        tasks = {task: relative_accuracy(row for row in rows if row["task"] == task) for task in ordering_tasks(run)}
        summary = {**tasks, "all": relative_accuracy(rows)}
        used = sorted({row["checkpoint"] for row in rows})
        policies = "the run's own" if has_policy(run) else "new ones, as the run had none"
        kinds = " or ".join(sorted({row["measured"] for row in rows}))
        statement = (
            f"{kinds} accuracy after {iterations:,} iterations from the checkpoints "
            f"{', '.join(map(str, used))} of {run.folder}, in percent of that of uniform sampling; "
            f"the policies are {policies}"
        )
        metrics = {"relative_accuracy_percent": summary, "iterations": iterations, "checkpoints": used}
        return AnalysisResult("selection", statement, metrics, rows, lambda: draw(rows, summary), _table(summary))

    def _train_branches(
        self, trainer: BranchTrainer, checkpoint: int, iterations: int, console: Console
    ) -> list[dict[str, Any]]:
        accuracies: dict[str, dict[str, float]] = {}
        for method in SAMPLERS:
            say(console, f"checkpoint {checkpoint}, {method}: {iterations:,} iterations")
            folder = self.folder / "selection" / f"{checkpoint:08d}-{method}"
            keep = has_policy(trainer.run) and method != "uniform"
            branch = trainer.train(checkpoint, method, iterations, folder, console, keep_policy=keep)
            accuracies[method] = _accuracies(branch)
        kinds = {task: error_kind(branch, task) for task in ordering_tasks(branch)}
        return [{**row, "measured": kinds[row["task"]]} for row in relative_rows(checkpoint, accuracies)]


def has_policy(run: Run) -> bool:
    """Return whether the run's checkpoints contain a trained policy."""
    return run.config.policy.sampler not in FIXED_SAMPLERS


def _accuracies(branch: Run) -> dict[str, float]:
    """Return the final accuracy of each ordering task [%], on its pretext test set or else on X_val."""
    return {task: 100 * (1 - reported_errors(branch, task)[-1]["error"]) for task in ordering_tasks(branch)}


def relative_rows(checkpoint: int, accuracies: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the accuracies [%] of each method and task, and in percent of those of uniform sampling."""
    return [
        {
            "checkpoint": checkpoint,
            "task": task,
            "method": method,
            "accuracy_percent": accuracy,
            "relative_percent": 100 * accuracy / reference if (reference := accuracies["uniform"][task]) else None,
        }
        for method, tasks in accuracies.items()
        for task, accuracy in tasks.items()
    ]


def relative_accuracy(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float | int | None]]:
    """Return the mean and std (ddof 1) of each method's relative accuracies."""
    rows = list(rows)
    return {method: _summary([row for row in rows if row["method"] == method]) for method in COMPARED}


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | int | None]:
    values = [row["relative_percent"] for row in rows if row["relative_percent"] is not None]
    return {
        "mean": float(np.mean(values)) if values else None,
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "repetitions": len(values),
    }


def _table(summary: Mapping[str, Mapping[str, Mapping[str, float | int | None]]]) -> Table:
    table = plain_table("relative accuracy [%]", *summary, "paper")
    for method in COMPARED:
        methods = [by_method[method] for by_method in (*summary.values(), PUBLISHED)]
        table.add_row(method, *(plus_minus(figures["mean"], figures["std"]) for figures in methods))
    return table


@styled
def draw(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Figure:
    """Draw a dot per checkpoint and task, and mean ± std beside them, ours and the paper's."""
    figure, ((axes,),) = panels(width=7.2, height=4.4)
    tasks = [name for name in summary if name != "all"]
    for position, method in enumerate(COMPARED):
        for task, shift in zip(tasks, np.linspace(-0.22, -0.10, len(tasks)), strict=True):
            values = [row["relative_percent"] for row in rows if (row["method"], row["task"]) == (method, task)]
            label = f"{task} task, one checkpoint" if not position and values else None
            axes.plot([position + shift] * len(values), values, "o", color=task_colour(task), alpha=0.75, label=label)
        _bar(axes, position + 0.06, summary["all"][method], INK, "mean ± std" if not position else None)
        _bar(axes, position + 0.22, PUBLISHED[method], QUIET, "paper, mean ± std" if not position else None)
    axes.axhline(100, color=QUIET, linewidth=1.2, linestyle="--", label="uniform sampling")
    axes.set_xticks(
        range(len(COMPARED)), [f"{method} policy" if method == "inverse" else method for method in COMPARED]
    )
    axes.set_xlim(-0.5, len(COMPARED) - 0.5)
    name_axes(axes, "Effect of the choice of permutations", "", "accuracy relative to uniform sampling [%]")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return figure


def _bar(axes: Any, position: float, figures: Mapping[str, Any], colour: str, label: str | None) -> None:
    if figures["mean"] is not None:
        axes.errorbar(
            position, figures["mean"], figures["std"] or 0, fmt="D", color=colour, markersize=6, capsize=5, label=label
        )
