"""Fig. 4: how hard the permutations, or the pairs, are that the policy chooses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Console

from unshuffle.analysis.figures import MAP, name_axes, panels, styled
from unshuffle.analysis.history import Floats, History, choose_tasks, open_run, read_history
from unshuffle.analysis.moments import chooses_pairs
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis, Row
from unshuffle.errors import UserError
from unshuffle.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLASSES = ("hardest quarter", "second quarter", "third quarter", "easiest quarter")
DRAWN = {"quarter": "between two validations", "group": "in the policy's episodes"}
DIVIDED = {
    "quarter": "in quarters of Ψ by their error at the earlier one",
    "group": "in equal groups of each sample's own pairs with permutations by their softmax ratio",
}


@dataclass(frozen=True)
class Division:
    """How the draws of a task divide into classes from hard to easy, in one stretch of the training after another."""

    kind: Literal["quarter", "group"]
    """Quarters of Ψ, or the policy's groups of pairs."""
    classes: Sequence[str]
    rows: Sequence[Row]
    """One for each stretch, with KIND_NUMBER_percent for each class."""

    @property
    def what(self) -> str:
        """What was drawn."""
        return "permutations" if self.kind == "quarter" else "pairs"

    @property
    def percent(self) -> Floats:
        """(N, classes) of the draws of each stretch; equal for uniform draws."""
        names = [f"{self.kind}_{number + 1}_percent" for number in range(len(self.classes))]
        return np.array([[row[name] for name in names] for row in self.rows])

    def mean_percent(self, last: int) -> dict[str, float]:
        """Percent of the draws in each class, averaged over the last so many stretches."""
        return dict(zip(self.classes, self.percent[-last:].mean(axis=0).tolist(), strict=True))


def divide_draws(run: Run, history: History, task: str) -> Division:
    """Of pairs, how hard each was for its sample; otherwise, how hard each permutation was for all."""
    if not chooses_pairs(run.config):
        return Division("quarter", CLASSES, difficulty_rows(history, task))
    return Division("group", group_names(run.config.policy.num_groups), pair_rows(run.metrics("episode"), task))


def group_names(count: int) -> list[str]:
    """The hardest first."""
    return ["hardest group", *(f"group {number}" for number in range(2, count)), "easiest group"]


def pair_rows(episodes: Iterable[Row], task: str) -> Sequence[Row]:
    """For each episode how its draws divide into the groups of pairs, and the median ratio of each group before it."""
    rows = []
    for entry in episodes:
        if entry["task"] != task:
            continue
        row = {"task": task, "iteration": entry["iteration"]}
        for number, (drawn, median) in enumerate(zip(entry["sampled"], entry["group_median"], strict=True), start=1):
            row[f"group_{number}_percent"] = 100 * drawn / sum(entry["sampled"])
            row[f"group_{number}_median"] = median
        rows.append(row)
    return rows


def difficulty_classes(errors: Floats) -> npt.NDArray[np.int64]:
    """The quarter that each permutation belongs to by its error, 0 the hardest; ties by their number in Ψ."""
    ranks = np.empty(len(errors), dtype=np.int64)
    ranks[np.argsort(-errors, kind="stable")] = np.arange(len(errors))
    return ranks * len(CLASSES) // len(errors)


def chosen_shares(draws: Floats, classes: npt.NDArray[np.int64]) -> Floats:
    """Share of the draws that fell into each quarter."""
    shares: Floats = np.bincount(classes, draws, len(CLASSES)) / draws.sum()
    return shares


def difficulty_rows(history: History, task: str) -> Sequence[Row]:
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
    """How hard the permutations are that the policy chooses, in four classes of validation error (Fig. 4).

    Of a policy that chooses among pairs of a sample and a permutation: how hard the pairs are, in its groups.
    """

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
    """The classes of each task, over the whole run and in its last third."""
    found = {task: divide_draws(run, read_history(run, task), task) for task in tasks}
    shown, one = {task: some for task, some in found.items() if some.rows}, found[tasks[0]]
    if not shown:
        raise UserError(f"{run.folder} has drawn nothing {DRAWN[one.kind]} yet: wait for the next validation")
    metrics = {
        task: {
            "stretches": len(division.rows),
            "percent": division.mean_percent(len(division.rows)),
            "percent_in_last_third": division.mean_percent(max(1, len(division.rows) // 3)),
        }
        for task, division in shown.items()
    }
    statement = (
        f"{one.what} drawn by {run.folder} (sampler {run.config.policy.name}) {DRAWN[one.kind]}, "
        f"{DIVIDED[one.kind]}; uniform draws give {100 / len(one.classes):.3g} % each"
    )
    rows = [row for division in shown.values() for row in division.rows]
    return Analysis("difficulty", statement, metrics, rows, lambda: draw(shown))


@styled
def draw(divisions: Mapping[str, Division]) -> "Figure":
    """Stacked shares of each stretch, the hard ones on top."""
    figure, grid = panels(1, len(divisions), width=6.4, height=4.4, sharey=True)
    for axes, (task, division) in zip(grid[0], divisions.items(), strict=True):
        _draw_task(axes, division)
        name_axes(axes, f"{task} task", "draws up to iteration", "", grid=False)
    grid[0][0].set_ylabel(f"{division.what} drawn [%]")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside lower center", ncols=min(5, len(names)))
    return figure


def _draw_task(axes: "Axes", division: Division) -> None:
    from matplotlib import colormaps

    count, rows = len(division.classes), division.rows
    places, bottom = np.arange(len(rows)), np.zeros(len(rows))
    for number in reversed(range(count)):
        shares = division.percent[:, number]
        colour = colormaps[MAP](number / (count - 1))  # dark for hard
        axes.bar(places, shares, 0.92, bottom, color=colour, label=division.classes[number])
        bottom += shares
    for number in range(1, count):
        axes.axhline(100 * number / count, color="white", linewidth=1, linestyle="--")
    few = places[:: max(1, len(rows) // 6)]
    axes.set_xticks(few, [f"{rows[place]['iteration']:,}" for place in few])
    axes.set_ylim(0, 100)
    axes.set_xlim(-0.6, len(rows) - 0.4)
