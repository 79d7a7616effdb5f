"""Appendix G: Hamming distance of the sampled permutations over time, and the most and least likely ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from unshuffle.analysis.analysis import AnalysisResult, TaskAnalysis, metrics_table
from unshuffle.analysis.figures import INK, MAP, name_axes, styled
from unshuffle.data.dataset import centre_square
from unshuffle.data.media import read_image
from unshuffle.data.source import Pixels
from unshuffle.data.synthetic import render_clip, render_image
from unshuffle.errors import UserError
from unshuffle.runs.history import (
    Floats,
    History,
    SamplingState,
    choose_tasks,
    evenly_spaced,
    groups_pairs,
    idle_note,
    open_run,
    read_history,
    read_sampling_states,
    stored_permutations,
)
from unshuffle.runs.run import Run
from unshuffle.tasks import TASKS
from unshuffle.tasks.base import TaskView

Ints = npt.NDArray[np.int64]
SHOWN_STATES = 3
"""Validations after which likely and unlikely permutations are shown."""
PAIRS_NOTE = "; it grouped (sample, permutation) pairs, so that there are no likely and unlikely permutations to show"
ROWS = {
    "mean_distance_of_all": "mean of all permutations",
    "mean_distance_of_samples": "mean of the samples",
    "mean_distance_first": "mean in the first period",
    "mean_distance_last": "mean in the last period",
    "correlation_with_iteration": "correlation with the iteration",
}
SIDE, GAP = 48, 2
"""Side of a part and width of the white border around it, in pixels."""


@dataclass(frozen=True)
class Hamming(TaskAnalysis):
    """Hamming distance of the sampled permutations over time, and the most and least likely ones (appendix G)."""

    image: Path | None = None
    """Image to show permutations of tiles on; by default one of the synthetic world."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Return the samples by distance, with the most and least likely permutations in the figure."""
        run = open_run(self.run)
        picture = None if self.image is None else read_picture(self.image.expanduser())
        tasks, sets = choose_tasks(run, self.task), stored_permutations(run)
        rows = {task: hamming_rows(read_history(run, task), sets[task], task) for task in tasks}
        if all(len(task_rows) == 1 for task_rows in rows.values()):
            raise UserError(f"{run.folder} has sampled nothing between two validations yet: wait for the second one")
        metrics = {task: _metrics(task_rows) for task, task_rows in rows.items() if len(task_rows) > 1}
        panels = [
            TaskPanel(task, rows[task], sets[task], evenly_spaced(active_states(run, task), SHOWN_STATES), picture)
            for task in metrics
        ]
        statement = (
            f"permutations sampled by {run.folder} (sampler {run.config.policy.name}) by their Hamming distance to the "
            f"identity, between two validations{PAIRS_NOTE if groups_pairs(run.config) else ''}{idle_note(run, tasks)}"
        )

        all_rows = [row for task_rows in rows.values() for row in task_rows]
        table = metrics_table("Hamming distance", metrics, ROWS)
        return AnalysisResult("hamming", statement, metrics, all_rows, lambda: draw(panels), table)


def distances(permutations: Ints) -> Ints:
    """Return the Hamming distance of each permutation to the identity: the number of misplaced parts."""
    moved: Ints = (permutations != np.arange(permutations.shape[1])).sum(axis=1)
    return moved


def fractions_by_distance(weights: Floats, by_permutation: Ints, parts: int) -> Floats:
    """Return the (P + 1,) fraction of the weights at each distance from 0 to P."""
    fractions: Floats = np.bincount(by_permutation, weights, parts + 1) / weights.sum()
    return fractions


def hamming_rows(history: History, permutations: Ints, task: str) -> list[dict[str, Any]]:
    """Return per period between validations the samples by distance [%], and their mean; the first row is Ψ itself."""
    by_permutation, parts = distances(permutations), permutations.shape[1]
    periods: list[tuple[int | None, Floats]] = [(None, np.ones(len(permutations)))]
    counts = zip(history.iterations, history.sampled, strict=True)
    periods += [(int(iteration), sampled) for iteration, sampled in counts if sampled.sum()]
    rows = []
    for iteration, weights in periods:
        fractions = fractions_by_distance(weights, by_permutation, parts)
        mean = float(fractions @ np.arange(parts + 1))
        percents = {f"distance_{distance}_percent": float(100 * value) for distance, value in enumerate(fractions)}
        rows.append({"task": task, "iteration": iteration, "mean_distance": mean, **percents})
    return rows


def active_states(run: Run, task: str) -> list[SamplingState]:
    """Return the states since the policy started; without those that have no preference, unless none has any.

    Empty for groups of pairs, where no permutation is likely or unlikely by itself.
    """
    states = [state for state in read_sampling_states(run, task) if state.groups is not None]
    return [state for state in states if np.ptp(state.likelihoods) > 0.01] or states


def extremes(likelihoods: Floats, count: int) -> tuple[Ints, Ints]:
    """Return the most and the least likely permutations, the most extreme first."""
    ranking = np.argsort(-likelihoods, kind="stable")
    return ranking[:count], ranking[::-1][:count]


def _metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    permutation_set, *periods = rows
    means = np.array([row["mean_distance"] for row in periods])
    iterations = np.array([row["iteration"] for row in periods])
    varies = len(means) > 1 and means.std() > 0
    return {
        "mean_distance_of_all": permutation_set["mean_distance"],
        "mean_distance_of_samples": float(means.mean()),
        "mean_distance_first": float(means[0]),
        "mean_distance_last": float(means[-1]),
        "correlation_with_iteration": float(np.corrcoef(iterations, means)[0, 1]) if varies else None,
    }


# ---- pictures


def read_picture(file: Path) -> Pixels:
    """Return the centre square of an image file."""
    if not file.is_file():
        raise UserError(f"there is no image {file}")
    return centre_square(read_image(file), 3 * SIDE)


def cut_tiles(square: Pixels, grid: int) -> Pixels:
    """Return the (grid², S, S, 3) tiles of a (side, side, 3) square, row by row."""
    side = len(square) // grid
    trimmed = square[: side * grid, : side * grid].reshape(grid, side, grid, side, 3)
    return trimmed.swapaxes(1, 2).reshape(grid * grid, side, side, 3)


def arrange(parts: Pixels, permutation: Ints, columns: int) -> Pixels:
    """Return (P, S, S, 3) parts permuted, row by row, with white between them."""
    framed = np.pad(parts[permutation], ((0, 0), (GAP, GAP), (GAP, GAP), (0, 0)), constant_values=255)
    side = framed.shape[1]
    lines = framed.reshape(-1, columns, side, side, 3).swapaxes(1, 2)
    return lines.reshape(-1, columns * side, 3)


@dataclass(frozen=True)
class TaskPanel:
    """What the figure shows of one task."""

    task: str
    rows: Sequence[Mapping[str, Any]]
    permutations: Ints
    states: Sequence[SamplingState]
    picture: Pixels | None

    @property
    def view(self) -> TaskView:
        """How the task is shown."""
        return TASKS[self.task].view

    @property
    def columns(self) -> int:
        """Parts side by side."""
        return self.view.columns(self.permutations.shape[1])

    @cached_property
    def parts(self) -> Pixels:
        """The parts of a sample, not shuffled."""
        rng, parts = np.random.default_rng(0), self.permutations.shape[1]
        if not self.view.in_grid:
            return render_clip(rng, "growing", SIDE, parts)
        picture = render_image(rng, "house", self.columns * SIDE) if self.picture is None else self.picture
        return cut_tiles(picture, self.columns)


@styled
def draw(tasks: Sequence[TaskPanel]) -> Figure:
    """Draw the samples of each task by distance, and beside them pictures if there was a policy."""
    halves = 2 if any(panel.states for panel in tasks) else 1
    figure = Figure(figsize=(7 * halves, 4.6 * len(tasks)), facecolor="white", layout="constrained")
    for subfigures, panel in zip(figure.subfigures(len(tasks), halves, squeeze=False), tasks, strict=True):
        _draw_distances(subfigures[0].subplots(), panel)
        if panel.states:
            _draw_pictures(subfigures[1], panel)
    return figure


def _draw_distances(axes: Axes, panel: TaskPanel) -> None:
    parts = panel.permutations.shape[1]
    present = [d for d in range(parts + 1) if any(row[f"distance_{d}_percent"] for row in panel.rows)]
    positions = np.arange(len(panel.rows), dtype=np.float64)
    positions[0] -= max(1.0, 0.05 * len(positions))  # Ψ stands apart
    width = np.where(np.arange(len(positions)) == 0, max(0.92, 0.04 * len(positions)), 0.92)
    bottom = np.zeros(len(positions))
    for distance in present:
        percent = np.array([row[f"distance_{distance}_percent"] for row in panel.rows])
        colour = colormaps[MAP](distance / parts)
        axes.bar(positions, percent, width, bottom, color=colour, label=str(distance))
        bottom += percent
    labelled = evenly_spaced(range(1, len(panel.rows)), 5)
    ticks = [positions[0], *(positions[row] for row in labelled)]
    axes.set_xticks(ticks, ["Ψ", *(f"{panel.rows[row]['iteration']:,}" for row in labelled)])
    axes.set_ylim(0, 100)
    name_axes(axes, f"{panel.task} task", "all of Ψ; samples up to iteration", "permutations sampled [%]", grid=False)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], title="Hamming\ndistance", loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_pictures(figure: Any, panel: TaskPanel) -> None:
    """Draw rows per state: the most likely permutations on the left, the least likely ones on the right."""
    across, down = (3, 1) if panel.view.in_grid else (1, 2)
    grid = figure.subplots(down * len(panel.states), 2 * across, squeeze=False)
    for number, state in enumerate(panel.states):
        block = grid[number * down : (number + 1) * down]
        for half, chosen in zip(
            (block[:, :across], block[:, across:]), extremes(state.likelihoods, across * down), strict=True
        ):
            for axes, permutation in zip(half.flat, chosen, strict=False):
                _draw_permutation(axes, panel, state, int(permutation))
        block[0, 0].set_ylabel(f"{state.iteration:,}", color=INK)
    figure.supylabel("after iteration", fontsize=10)
    figure.suptitle(
        "most likely permutations on the left, least likely ones on the right; 1 × is uniform sampling", fontsize=10
    )


def _draw_permutation(axes: Axes, panel: TaskPanel, state: SamplingState, index: int) -> None:
    """Draw a permuted sample, each part with its true position."""
    permutation = panel.permutations[index]
    axes.imshow(arrange(panel.parts, permutation, panel.columns), interpolation="none")  # an SVG keeps its pixels
    step = panel.parts.shape[1] + 2 * GAP
    for position, part in enumerate(permutation):
        x, y = position % panel.columns * step, position // panel.columns * step
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
        axes.text(x + 0.1 * step, y + 0.1 * step, str(part + 1), fontsize=6.5, va="top", color=INK, bbox=box)
    distance = int(distances(permutation[None])[0])
    axes.set_title(f"{state.likelihoods[index]:.2f} ×, {distance} moved", fontsize=8, pad=4, loc="center")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
