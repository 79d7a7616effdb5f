"""Appendix E: the error that is extrapolated, the error that came, and the reward between them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from rich.console import Console

from unshuffle.analysis.figures import COLOURS, QUIET, name_axes, panels, styled, thousands
from unshuffle.analysis.history import choose_tasks, open_run
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis
from unshuffle.policy.state import ErrorHistory
from unshuffle.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GOOD, BAD = COLOURS[0], COLOURS[1]
LEARNS_OTHERWISE = ", which learns from the advantage of each group in rollouts and not from these rewards"


@dataclass(frozen=True)
class Baseline(Question):
    """The extrapolated error, the error that came and the reward between them, over episodes (appendix E)."""

    run: Path
    """A run folder."""
    task: Literal["spatial", "temporal"] | None = None
    """One task alone."""

    def answer(self, console: Console) -> Analysis:
        """From the errors that the run has logged."""
        run = open_run(self.run)
        return analyse_baseline(run, choose_tasks(run, self.task))


def extrapolate(errors: Iterable[tuple[int, float]], milestones: Sequence[int]) -> list[dict[str, Any]]:
    """E_BL and r = E_BL − E for each (iteration, error); none where two errors before it are not on one line.

    A drop of the learning rate begins another line.
    """
    history, rows = ErrorHistory(milestones), []
    for iteration, error in errors:
        baseline = history.baseline(iteration)
        reward = None if baseline is None else baseline - error
        rows.append({"iteration": iteration, "error": error, "baseline": baseline, "reward": reward})
        history.add(iteration, error)
    return rows


def reward_statistics(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and spread of the rewards, and how many percent of them are positive."""
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
    """Each validation of a task; `episode` where the policy acted and could learn from it."""
    errors = [(entry["iteration"], entry["error"]) for entry in run.metrics("validation") if entry["task"] == task]
    acted = {entry["iteration"]: entry["episode"] for entry in run.metrics("episode") if entry["task"] == task}
    rows = extrapolate(errors, run.config.optim.milestones)
    return [{"task": task, "episode": acted.get(row["iteration"]), **row} for row in rows]


def analyse_baseline(run: Run, tasks: Sequence[str]) -> Analysis:
    """The rewards of each task; of the policy's episodes, or of all validations if there was no policy."""
    rows = {task: baseline_rows(run, task) for task in tasks}
    counted = {task: [row for row in some if row["episode"] is not None] or some for task, some in rows.items()}
    metrics = {
        task: {"episodes": sum(row["episode"] is not None for row in rows[task]), **reward_statistics(some)}
        for task, some in counted.items()
    }
    statement = (
        f"errors of {run.folder} beside the line through the two before (E_BL), and the rewards r = E_BL − E; "
        f"sampler {run.config.policy.name}{LEARNS_OTHERWISE if run.config.policy.sampler == 'rollouts' else ''}"
    )
    return Analysis("baseline", statement, metrics, [row for some in rows.values() for row in some], lambda: draw(rows))


@styled
def draw(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """For each task the errors above, and below them the rewards."""
    figure, grid = panels(2, len(rows), width=6.6, height=3, sharex="col", gridspec_kw={"height_ratios": [1.6, 1]})
    for (task, some), above, below in zip(rows.items(), *grid, strict=True):
        _draw_errors(above, task, some)
        _draw_rewards(below, some)
    return figure


def _draw_errors(axes: "Axes", task: str, rows: Sequence[Mapping[str, Any]]) -> None:
    iterations = [row["iteration"] for row in rows]
    axes.plot(iterations, [row["error"] for row in rows], "o-", color="#222222", label="error E")
    known = [row for row in rows if row["baseline"] is not None]
    where = [row["iteration"] for row in known]
    axes.plot(
        where, [row["baseline"] for row in known], "_", color=QUIET, markersize=9, label="extrapolated error E_BL"
    )
    for sign, colour, name in ((1, GOOD, "reward > 0"), (-1, BAD, "reward < 0")):
        some = [row for row in known if sign * row["reward"] > 0]
        axes.vlines(
            [row["iteration"] for row in some],
            [row["error"] for row in some],
            [row["baseline"] for row in some],
            color=colour,
            linewidth=2,
            label=name,
        )
    name_axes(axes, f"{task} task", "", "validation error [share]")
    axes.legend(ncols=2, fontsize=9)


def _draw_rewards(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    known = [row for row in rows if row["reward"] is not None]
    iterations = np.array([row["iteration"] for row in rows])
    width = 0.7 * float(np.diff(iterations).min()) if len(iterations) > 1 else 1.0
    colours = [GOOD if row["reward"] > 0 else BAD for row in known]
    axes.bar([row["iteration"] for row in known], [row["reward"] for row in known], width, color=colours)
    axes.axhline(0, color=QUIET, linewidth=1)
    name_axes(axes, "", "iteration", "reward E_BL − E [share]")
    thousands(axes.xaxis)
