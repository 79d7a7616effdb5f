"""Fig. 4: how hard the permutations are that the policy chooses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Console

from unshuffle.analysis.figures import DIFFICULTIES, name_axes, panels, styled
from unshuffle.analysis.history import Floats, History, choose_tasks, open_run, read_history
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis
from unshuffle.errors import UserError
from unshuffle.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES = ("hardest quarter", "second quarter", "third quarter", "easiest quarter")


def difficulty_classes(errors: Floats) -> npt.NDArray[np.int64]:
    """The quarter that each permutation belongs to by its error, 0 the hardest; ties by their number in Ψ."""
    ranks = np.empty(len(errors), dtype=np.int64)
    ranks[np.argsort(-errors, kind="stable")] = np.arange(len(errors))
    return ranks * len(CLASSES) // len(errors)


def chosen_shares(draws: Floats, classes: npt.NDArray[np.int64]) -> Floats:
    """Share of the draws that fell into each quarter."""
    shares: Floats = np.bincount(classes, draws, len(CLASSES)) / draws.sum()
    return shares


def difficulty_rows(history: History, task: str) -> list[dict[str, Any]]:
    """For each stretch between two validations how its draws divide into the quarters of the validation before."""
    rows = []
    for place in range(1, len(history.iterations)):
        draws, errors = history.draws[place], history.errors[place - 1]
        if not draws.sum():  # the task was not trained, as in one half of S&T
            continue
        classes = difficulty_classes(errors)
        row = {"task": task, "iteration": int(history.iterations[place]), "error": float(errors.mean())}
        for number, share in enumerate(chosen_shares(draws, classes)):
            mine = errors[classes == number]
            row[f"quarter_{number + 1}_percent"] = float(100 * share)
            row[f"quarter_{number + 1}_error"] = float(mine.mean()) if len(mine) else None
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Difficulty(Question):
    """How hard the permutations are that the policy chooses, in four classes of validation error (Fig. 4)."""

    run: Path
    """A run folder."""
    task: Literal["spatial", "temporal"] | None = None
    """One task alone."""
    checkpoint: int | None = None
    """Begin with a new policy at this checkpoint of the run, as the paper does, and train on from there."""
    episodes: int = 20
    """Episodes to train on from the checkpoint."""
    device: str = "auto"
    """For the training: auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""

    def answer(self, console: Console) -> Analysis:
        """From the draws that the run has kept, or that a new policy makes."""
        run = open_run(self.run)
        if self.checkpoint is not None:
            run = self._new_policy(run, console)
        return analyse_difficulty(run, choose_tasks(run, self.task))

    def _new_policy(self, run: Run, console: Console) -> Run:
        from unshuffle.analysis.branch import Stem  # needs torch and the data

        if self.episodes < 1:
            raise UserError(f"episodes is {self.episodes}, but must be at least 1")
        assert self.checkpoint is not None
        stem = Stem.open(run, self.device)
        folder = self.folder / f"difficulty-{self.checkpoint:08d}"
        iterations = self.episodes * run.config.policy.interval
        return stem.branch(self.checkpoint, "policy", iterations, folder, console, keep_policy=False)


def analyse_difficulty(run: Run, tasks: Sequence[str]) -> Analysis:
    """The quarters of each task, over the whole run and in its last third."""
    rows = {task: difficulty_rows(read_history(run, task), task) for task in tasks}
    if not any(rows.values()):
        raise UserError(f"{run.folder} has drawn nothing between two validations yet: wait for the second one")
    metrics = {
        task: {
            "stretches": len(some),
            "percent": mean_percent(some),
            "percent_in_last_third": mean_percent(some[-max(1, len(some) // 3) :]),
        }
        for task, some in rows.items()
        if some
    }
    statement = (
        f"permutations drawn by {run.folder} (sampler {run.config.policy.sampler}) between two validations, in "
        "quarters of Ψ by their error at the earlier one; uniform draws give 25 % each"
    )
    shown = {task: some for task, some in rows.items() if some}
    return Analysis(
        "difficulty", statement, metrics, [row for some in rows.values() for row in some], lambda: draw(shown)
    )


def mean_percent(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Percent of the draws in each quarter, averaged over stretches."""
    return {
        name: float(np.mean([row[f"quarter_{number + 1}_percent"] for row in rows]))
        for number, name in enumerate(CLASSES)
    }


@styled
def draw(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> "Figure":
    """Stacked shares of each stretch, the hard permutations on top."""
    figure, grid = panels(1, len(rows), width=6.4, height=4.4, sharey=True)
    for axes, (task, some) in zip(grid[0], rows.items(), strict=True):
        _draw_task(axes, some)
        name_axes(axes, f"{task} task", "draws up to iteration", "", grid=False)
    grid[0][0].set_ylabel("permutations drawn [%]")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside lower center", ncols=len(CLASSES))
    return figure


def _draw_task(axes: "Axes", rows: Sequence[Mapping[str, Any]]) -> None:
    places, bottom = np.arange(len(rows)), np.zeros(len(rows))
    for number in reversed(range(len(CLASSES))):
        shares = np.array([row[f"quarter_{number + 1}_percent"] for row in rows])
        axes.bar(places, shares, 0.92, bottom, color=DIFFICULTIES[number], label=CLASSES[number])
        bottom += shares
    for level in (25, 50, 75):
        axes.axhline(level, color="white", linewidth=1, linestyle="--")
    few = places[:: max(1, len(rows) // 6)]
    axes.set_xticks(few, [f"{rows[place]['iteration']:,}" for place in few])
    axes.set_ylim(0, 100)
    axes.set_xlim(-0.6, len(rows) - 0.4)
