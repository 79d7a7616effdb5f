"""Fig. 4: difficulty of the permutations, or pairs, that the policy samples."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from unshuffle.analysis.analysis import AnalysisResult, Row, TaskAnalysis, metrics_table
from unshuffle.analysis.branch import BranchTrainer
from unshuffle.analysis.figures import MAP, name_axes, panels, styled
from unshuffle.errors import UserError
from unshuffle.runs.history import Floats, History, choose_tasks, groups_pairs, idle_note, open_run, read_history
from unshuffle.runs.run import Run

CLASSES = ("hardest quarter", "second quarter", "third quarter", "easiest quarter")
PERIODS = {"quarter": "between two validations", "group": "in the policy's episodes"}
DIVISIONS = {
    "quarter": "in quarters of Ψ by validation error at the earlier one",
    "group": "in equal groups of each sample's (sample, permutation) pairs by softmax ratio",
}


@dataclass(frozen=True)
class Division:
    """How the samples of a task divide into classes from hard to easy, in consecutive periods of the training."""

    kind: Literal["quarter", "group"]
    """Quarters of Ψ, or the policy's groups of pairs."""
    classes: Sequence[str]
    rows: Sequence[Row]
    """One per period, with KIND_NUMBER_percent for each class."""

    @property
    def noun(self) -> str:
        """What is sampled, in the plural."""
        return "permutations" if self.kind == "quarter" else "pairs"

    @property
    def percent(self) -> Floats:
        """(N, classes) percentages of each period; equal for uniform sampling."""
        names = [f"{self.kind}_{number + 1}_percent" for number in range(len(self.classes))]
        return np.array([[row[name] for name in names] for row in self.rows])

    def mean_percent(self, last: int) -> dict[str, float]:
        """Return the percentage of each class, averaged over the last so many periods."""
        return dict(zip(self.classes, self.percent[-last:].mean(axis=0).tolist(), strict=True))


def divide_samples(run: Run, history: History, task: str) -> Division:
    """Return the sampled pairs by difficulty for their sample, or the permutations by difficulty for all samples."""
    if not groups_pairs(run.config):
        return Division("quarter", CLASSES, difficulty_rows(history, task))
    return Division("group", group_names(run.config.policy.num_groups), pair_rows(run.metrics("episode"), task))


def group_names(count: int) -> list[str]:
    """Return the names of so many groups, the hardest first."""
    return ["hardest group", *(f"group {number}" for number in range(2, count)), "easiest group"]


def pair_rows(episodes: Iterable[Row], task: str) -> Sequence[Row]:
    """Return per episode the percentage of each group of pairs, and the median ratio of each group before it."""
    rows = []
    for entry in episodes:
        if entry["task"] != task:
            continue
        row = {"task": task, "iteration": entry["iteration"]}
        for number, (count, median) in enumerate(zip(entry["sampled"], entry["group_median"], strict=True), start=1):
            row[f"group_{number}_percent"] = 100 * count / sum(entry["sampled"])
            row[f"group_{number}_median"] = median
        rows.append(row)
    return rows


def difficulty_classes(errors: Floats) -> npt.NDArray[np.int64]:
    """Return the quarter of each permutation by its error, 0 the hardest; ties by position in Ψ."""
    ranks = np.empty(len(errors), dtype=np.int64)
    ranks[np.argsort(-errors, kind="stable")] = np.arange(len(errors))
    return ranks * len(CLASSES) // len(errors)


def sampled_fractions(sampled: Floats, classes: npt.NDArray[np.int64]) -> Floats:
    """Return the fraction of the samples in each quarter, by the count of each permutation."""
    fractions: Floats = np.bincount(classes, sampled, len(CLASSES)) / sampled.sum()
    return fractions


def difficulty_rows(history: History, task: str) -> Sequence[Row]:
    """Return per period between two validations the percentage of each quarter by the earlier validation."""
    rows = []
    for period in range(1, len(history.iterations)):
        sampled, errors = history.sampled[period], history.errors[period - 1]
        if not sampled.sum():  # the task was not trained, as in one half of S&T
            continue
        classes = difficulty_classes(errors)
        row = {"task": task, "iteration": int(history.iterations[period]), "error": float(errors.mean())}
        for number, fraction in enumerate(sampled_fractions(sampled, classes)):
            class_errors = errors[classes == number]
            row[f"quarter_{number + 1}_percent"] = float(100 * fraction)
            row[f"quarter_{number + 1}_error"] = float(class_errors.mean()) if len(class_errors) else None
        rows.append(row)
    return rows


@dataclass(frozen=True)
class Difficulty(TaskAnalysis):
    """Difficulty of the sampled permutations, in quarters of Ψ by validation error (Fig. 4).

    For a policy that groups (sample, permutation) pairs: the sampled pairs by group.
    """

    checkpoint: int | None = None
    """Continue the training from this checkpoint with a new policy, as the paper does."""
    episodes: int = 20
    """Episodes to train from the checkpoint."""
    device: str = "auto"
    """Device for the training. auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Return the classes of the run's samples, or of those of a new policy, overall and in the last third."""
        run = open_run(self.run)
        if self.checkpoint is not None:
            run = self._train_new_policy(run, console)
        tasks = choose_tasks(run, self.task)
        divisions = {task: divide_samples(run, read_history(run, task), task) for task in tasks}
        first = divisions[tasks[0]]
        divisions = {task: division for task, division in divisions.items() if division.rows}
        if not divisions:
            raise UserError(f"{run.folder} has sampled nothing {PERIODS[first.kind]} yet: wait for the next validation")
        metrics: dict[str, dict[str, Any]] = {
            task: {
                "periods": len(division.rows),
                "percent": division.mean_percent(len(division.rows)),
                "percent_in_last_third": division.mean_percent(max(1, len(division.rows) // 3)),
            }
            for task, division in divisions.items()
        }
        statement = (
            f"{first.noun} sampled by {run.folder} (sampler {run.config.policy.name}) {PERIODS[first.kind]}, "
            f"{DIVISIONS[first.kind]}; uniform sampling gives {100 / len(first.classes):.3g} % each"
            f"{idle_note(run, tasks)}"
        )
        rows = [row for division in divisions.values() for row in division.rows]
        columns = {
            f"{task}, {period}": metrics[task][key]
            for task in divisions
            for key, period in (("percent", "all"), ("percent_in_last_third", "last third"))
        }
        table = metrics_table(f"{first.noun} sampled [%]", columns, {name: name for name in first.classes})
        return AnalysisResult("difficulty", statement, metrics, rows, lambda: draw(divisions), table)

    def _train_new_policy(self, run: Run, console: Console) -> Run:
        if self.episodes < 1:
            raise UserError(f"episodes is {self.episodes}, but must be at least 1")
        assert self.checkpoint is not None
        trainer = BranchTrainer.open(run, self.device)
        folder = self.folder / f"difficulty-{self.checkpoint:08d}"
        iterations = self.episodes * run.config.policy.interval
        return trainer.train(self.checkpoint, "policy", iterations, folder, console, keep_policy=False)


@styled
def draw(divisions: Mapping[str, Division]) -> Figure:
    """Draw the stacked percentages of each period, the hard classes on top."""
    figure, grid = panels(1, len(divisions), width=6.4, height=4.4, sharey=True)
    for axes, (task, division) in zip(grid[0], divisions.items(), strict=True):
        _draw_task(axes, division)
        name_axes(axes, f"{task} task", "samples up to iteration", "", grid=False)
    grid[0][0].set_ylabel(f"{division.noun} sampled [%]")
    handles, names = grid[0][0].get_legend_handles_labels()
    figure.legend(handles[::-1], names[::-1], loc="outside lower center", ncols=min(5, len(names)))
    return figure


def _draw_task(axes: Axes, division: Division) -> None:
    count, rows = len(division.classes), division.rows
    positions, bottom = np.arange(len(rows)), np.zeros(len(rows))
    for number in reversed(range(count)):
        percent = division.percent[:, number]
        colour = colormaps[MAP](number / (count - 1))  # dark for hard
        axes.bar(positions, percent, 0.92, bottom, color=colour, label=division.classes[number])
        bottom += percent
    for number in range(1, count):
        axes.axhline(100 * number / count, color="white", linewidth=1, linestyle="--")
    ticks = positions[:: max(1, len(rows) // 6)]
    axes.set_xticks(ticks, [f"{rows[position]['iteration']:,}" for position in ticks])
    axes.set_ylim(0, 100)
    axes.set_xlim(-0.6, len(rows) - 0.4)
