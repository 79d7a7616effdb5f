"""Appendix E: extrapolated error, actual error and reward of each episode."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from unshuffle.analysis.analysis import AnalysisResult, TaskAnalysis, metrics_table
from unshuffle.analysis.figures import COLOURS, INK, QUIET, name_axes, panels, styled, thousands
from unshuffle.policy.reinforce import ErrorHistory
from unshuffle.runs.history import choose_tasks, idle_note, open_run
from unshuffle.runs.run import Run

GOOD, BAD = COLOURS[0], COLOURS[1]
ROWS = {
    "episodes": "episodes of the policy",
    "rewards": "rewards",
    "mean": "mean",
    "std": "std",
    "positive_percent": "positive rewards [%]",
}
LEARNS_FROM_ROLLOUTS = ", which learns from the advantages of rollouts and not from these rewards"


@dataclass(frozen=True)
class Baseline(TaskAnalysis):
    """Extrapolated error, actual error and reward of each episode (appendix E)."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Return the rewards of each task: of the policy's episodes, or of all validations if there was no policy."""
        run = open_run(self.run)
        rows = {task: baseline_rows(run, task) for task in choose_tasks(run, self.task)}
        metrics = {}
        for task, task_rows in rows.items():
            episodes = [row for row in task_rows if row["episode"] is not None]
            metrics[task] = {"episodes": len(episodes), **reward_statistics(episodes or task_rows)}
        policy = run.config.policy
        statement = (
            f"errors of {run.folder} beside those extrapolated from the two before, E_BL = 2 E_t − E_(t−1), "
            f"and the rewards r = E_BL − E; "
            f"sampler {policy.name}{LEARNS_FROM_ROLLOUTS if policy.sampler == 'rollouts' else ''}{idle_note(run, rows)}"
        )
        all_rows = [row for task_rows in rows.values() for row in task_rows]
        table = metrics_table("reward", metrics, ROWS)
        return AnalysisResult("baseline", statement, metrics, all_rows, lambda: draw(rows), table)


def extrapolate(errors: Iterable[tuple[int, float]], lr_changes: Sequence[int]) -> list[dict[str, Any]]:
    """Return E_BL and r = E_BL − E for each (iteration, error); None where there are no two errors to extrapolate.

    The extrapolation starts anew at each drop of the learning rate.
    """
    history, rows = ErrorHistory(lr_changes), []
    for iteration, error in errors:
        baseline = history.baseline(iteration)
        reward = None if baseline is None else baseline - error
        rows.append({"iteration": iteration, "error": error, "baseline": baseline, "reward": reward})
        history.add(iteration, error)
    return rows


def reward_statistics(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean and std of the rewards, and the percentage of positive ones."""
    rewards = np.array([row["reward"] for row in rows if row["reward"] is not None])
    if not len(rewards):
        return {"rewards": 0, "mean": None, "std": None, "positive_percent": None}
    return {
        "rewards": len(rewards),
        "mean": float(rewards.mean()),
        "std": float(rewards.std()),
        "positive_percent": float(100 * (rewards > 0).mean()),
    }


def baseline_rows(run: Run, task: str) -> list[dict[str, Any]]:
    """Return a row per validation of a task; `episode` is its number where it ended an episode of the policy."""
    errors = [(entry["iteration"], entry["error"]) for entry in run.metrics("validation", task)]
    episodes = {entry["iteration"]: entry["episode"] for entry in run.metrics("episode", task)}
    rows = extrapolate(errors, run.config.lr_changes)
    return [{"task": task, "episode": episodes.get(row["iteration"]), **row} for row in rows]


@styled
def draw(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw the errors of each task, and the rewards below them."""
    figure, grid = panels(2, len(rows), width=6.6, height=3, sharex="col", gridspec_kw={"height_ratios": [1.6, 1]})
    for (task, task_rows), above, below in zip(rows.items(), *grid, strict=True):
        _draw_errors(above, task, task_rows)
        _draw_rewards(below, task_rows)
    return figure


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


def _draw_errors(axes: Axes, task: str, rows: Sequence[Mapping[str, Any]]) -> None:
    axes.plot(_column(rows, "iteration"), _column(rows, "error"), "o-", color=INK, label="error E")
    extrapolated = [row for row in rows if row["baseline"] is not None]
    points = (_column(extrapolated, "iteration"), _column(extrapolated, "baseline"))
    axes.plot(*points, "_", color=QUIET, markersize=9, label="extrapolated error E_BL")
    for sign, colour, name in ((1, GOOD, "reward > 0"), (-1, BAD, "reward < 0")):
        signed = [row for row in extrapolated if sign * row["reward"] > 0]
        iterations, errors, baselines = (_column(signed, end) for end in ("iteration", "error", "baseline"))
        axes.vlines(iterations, errors, baselines, color=colour, linewidth=2, label=name)
    name_axes(axes, f"{task} task", "", "validation error [fraction]")
    axes.legend(ncols=2, fontsize=9)


def _draw_rewards(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    rewarded = [row for row in rows if row["reward"] is not None]
    iterations = _column(rows, "iteration")
    width = 0.7 * float(np.diff(iterations).min()) if len(iterations) > 1 else 1.0
    colours = [GOOD if row["reward"] > 0 else BAD for row in rewarded]
    axes.bar(_column(rewarded, "iteration"), _column(rewarded, "reward"), width, color=colours)
    axes.axhline(0, color=QUIET, linewidth=1)
    name_axes(axes, "", "iteration", "reward E_BL − E [fraction]")
    thousands(axes.xaxis)
