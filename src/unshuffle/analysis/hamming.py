"""Appendix G: how strongly the chosen permutations shuffle, over time, and what they look like."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from rich.console import Console

from unshuffle.analysis.figures import INK, MAP, name_axes, styled
from unshuffle.analysis.history import Floats, History, choose_tasks, open_run, read_history
from unshuffle.analysis.moments import Moment, chooses_pairs, read_moments, spread
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis
from unshuffle.data.dataset import centre_square
from unshuffle.data.images import read_image
from unshuffle.data.synthetic import draw_clip, draw_image
from unshuffle.errors import UserError
from unshuffle.permutations import load_permutations
from unshuffle.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Ints = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]
MOMENTS = 3
"""Moments at which likely and unlikely permutations are shown."""
OF_PAIRS = (
    "; it chose among pairs of a sample and a permutation (policy.grouped pairs), so that there are no likely and "
    "unlikely permutations to show"
)
SIDE, GAP = 48, 2
"""Pixels of a part, and of white around it."""


@dataclass(frozen=True)
class Hamming(Question):
    """How strongly the chosen permutations shuffle over time; pictures of likely and unlikely ones (appendix G)."""

    run: Path
    """A run folder."""
    task: Literal["spatial", "temporal"] | None = None
    """One task alone."""
    image: Path | None = None
    """A picture to show spatial permutations on; by default one of the synthetic world."""

    def answer(self, console: Console) -> Analysis:
        """From the draws that the run has kept."""
        run = open_run(self.run)
        picture = None if self.image is None else read_picture(self.image.expanduser())
        return analyse_hamming(run, choose_tasks(run, self.task), picture)


def distances(permutations: Ints) -> Ints:
    """Hamming distance of each permutation to the unshuffled order: parts that are not in their place."""
    moved: Ints = (permutations != np.arange(permutations.shape[1])).sum(axis=1)
    return moved


def shares_by_distance(weights: Floats, of: Ints, parts: int) -> Floats:
    """(P + 1,) share of the weights at each distance from 0 to P."""
    shares: Floats = np.bincount(of, weights, parts + 1) / weights.sum()
    return shares


def hamming_rows(history: History, permutations: Ints, task: str) -> list[dict[str, Any]]:
    """For each stretch between two validations its draws by distance [%], and their mean; the first row is Ψ itself."""
    of, parts = distances(permutations), permutations.shape[1]
    stretches: list[tuple[int | None, Floats]] = [(None, np.ones(len(permutations)))]
    stretches += [(int(at), draws) for at, draws in zip(history.iterations, history.draws, strict=True) if draws.sum()]
    rows = []
    for iteration, weights in stretches:
        shares = shares_by_distance(weights, of, parts)
        rows.append(
            {
                "task": task,
                "iteration": iteration,
                "mean_distance": float(shares @ np.arange(parts + 1)),
                **{f"distance_{distance}_percent": float(100 * share) for distance, share in enumerate(shares)},
            }
        )
    return rows


def acting(run: Run, task: str) -> list[Moment]:
    """The validations since the policy started; without those at which it had no preference, unless all are such.

    None if it chose among pairs: then no permutation is likely or unlikely by itself.
    """
    moments = [moment for moment in read_moments(run, task) if moment.groups is not None]
    return [moment for moment in moments if np.ptp(moment.likelihoods) > 0.01] or moments


def extremes(likelihoods: Floats, count: int) -> tuple[Ints, Ints]:
    """The likeliest permutations and the unlikeliest ones, the most extreme first."""
    order = np.argsort(-likelihoods, kind="stable")
    return order[:count], order[::-1][:count]


def analyse_hamming(run: Run, tasks: Sequence[str], picture: Pixels | None = None) -> Analysis:
    """Draws by distance, and the permutations to look at."""
    sets = {task: load_permutations(run.permutations / f"{task}.npy") for task in tasks}
    rows = {task: hamming_rows(read_history(run, task), sets[task], task) for task in tasks}
    if all(len(some) == 1 for some in rows.values()):
        raise UserError(f"{run.folder} has drawn nothing between two validations yet: wait for the second one")
    metrics = {task: _metrics(some) for task, some in rows.items() if len(some) > 1}
    statement = (
        f"permutations drawn by {run.folder} (sampler {run.config.policy.sampler}) by their Hamming distance to the "
        f"unshuffled order, between two validations{OF_PAIRS if chooses_pairs(run.config) else ''}"
    )

    def figure() -> "Figure":
        return draw(
            [Drawing(task, rows[task], sets[task], spread(acting(run, task), MOMENTS), picture) for task in metrics]
        )

    return Analysis("hamming", statement, metrics, [row for some in rows.values() for row in some], figure)


def _metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    psi, *stretches = rows
    means = np.array([row["mean_distance"] for row in stretches])
    iterations = np.array([row["iteration"] for row in stretches])
    varies = len(means) > 1 and means.std() > 0
    return {
        "mean_distance_of_all": psi["mean_distance"],
        "mean_distance_of_draws": float(means.mean()),
        "mean_distance_first": float(means[0]),
        "mean_distance_last": float(means[-1]),
        "correlation_with_iteration": float(np.corrcoef(iterations, means)[0, 1]) if varies else None,
    }


# ---- pictures


def read_picture(file: Path) -> Pixels:
    """The centre square of an image."""
    if not file.is_file():
        raise UserError(f"there is no image {file}")
    return centre_square(read_image(file), 3 * SIDE)


def cut_tiles(square: Pixels, grid: int) -> Pixels:
    """(grid², S, S, 3) tiles of a (side, side, 3) square, row by row."""
    side = len(square) // grid
    trimmed = square[: side * grid, : side * grid].reshape(grid, side, grid, side, 3)
    return trimmed.swapaxes(1, 2).reshape(grid * grid, side, side, 3)


def arrange(parts: Pixels, order: Ints, columns: int) -> Pixels:
    """(P, S, S, 3) parts in an order, row by row, with white between them."""
    framed = np.pad(parts[order], ((0, 0), (GAP, GAP), (GAP, GAP), (0, 0)), constant_values=255)
    side = framed.shape[1]
    lines = framed.reshape(-1, columns, side, side, 3).swapaxes(1, 2)
    return lines.reshape(-1, columns * side, 3)


@dataclass(frozen=True)
class Drawing:
    """What is drawn of one task."""

    task: str
    rows: Sequence[Mapping[str, Any]]
    permutations: Ints
    moments: Sequence[Moment]
    picture: Pixels | None

    @property
    def columns(self) -> int:
        """Parts beside each other: a square of tiles, a strip of frames."""
        parts = self.permutations.shape[1]
        return math.isqrt(parts) if self.task == "spatial" else parts

    @cached_property
    def parts(self) -> Pixels:
        """The parts of a sample in their true order."""
        rng, parts = np.random.default_rng(0), self.permutations.shape[1]
        if self.task == "temporal":
            return draw_clip(rng, "growing", SIDE, parts)
        picture = draw_image(rng, "house", self.columns * SIDE) if self.picture is None else self.picture
        return cut_tiles(picture, self.columns)


@styled
def draw(drawings: Sequence[Drawing]) -> "Figure":
    """For each task the draws by distance, and beside them pictures if there was a policy."""
    from matplotlib.figure import Figure

    halves = 2 if any(drawing.moments for drawing in drawings) else 1
    figure = Figure(figsize=(7 * halves, 4.6 * len(drawings)), facecolor="white", layout="constrained")
    for parts, drawing in zip(figure.subfigures(len(drawings), halves, squeeze=False), drawings, strict=True):
        _draw_shares(parts[0].subplots(), drawing)
        if drawing.moments:
            _draw_pictures(parts[1], drawing)
    return figure


def _draw_shares(axes: "Axes", drawing: Drawing) -> None:
    from matplotlib import colormaps

    parts = drawing.permutations.shape[1]
    present = [d for d in range(parts + 1) if any(row[f"distance_{d}_percent"] for row in drawing.rows)]
    places = np.arange(len(drawing.rows), dtype=np.float64)
    places[0] -= max(1.0, 0.05 * len(places))  # Ψ stands apart
    width = np.where(np.arange(len(places)) == 0, max(0.92, 0.04 * len(places)), 0.92)
    bottom = np.zeros(len(places))
    for distance in present:
        shares = np.array([row[f"distance_{distance}_percent"] for row in drawing.rows])
        colour = colormaps[MAP](distance / parts)
        axes.bar(places, shares, width, bottom, color=colour, label=str(distance))
        bottom += shares
    few = spread(range(1, len(drawing.rows)), 5)
    ticks = [places[0], *(places[place] for place in few)]
    axes.set_xticks(ticks, ["Ψ", *(f"{drawing.rows[place]['iteration']:,}" for place in few)])
    axes.set_ylim(0, 100)
    name_axes(axes, f"{drawing.task} task", "all of Ψ; draws up to iteration", "permutations drawn [%]", grid=False)
    handles, names = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], names[::-1], title="parts\nmoved", loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_pictures(figure: Any, drawing: Drawing) -> None:
    """Rows for each moment: likely permutations to the left, unlikely ones to the right."""
    across, down = (3, 1) if drawing.task == "spatial" else (1, 2)
    grid = figure.subplots(down * len(drawing.moments), 2 * across, squeeze=False)
    for number, moment in enumerate(drawing.moments):
        block = grid[number * down : (number + 1) * down]
        for half, chosen in zip(
            (block[:, :across], block[:, across:]), extremes(moment.likelihoods, across * down), strict=True
        ):
            for axes, permutation in zip(half.flat, chosen, strict=False):
                _draw_permutation(axes, drawing, moment, int(permutation))
        block[0, 0].set_ylabel(f"{moment.iteration:,}", color=INK)
    figure.supylabel("after iteration", fontsize=10)
    figure.suptitle("likely permutations to the left, unlikely ones to the right; 1 × is a uniform draw", fontsize=10)


def _draw_permutation(axes: "Axes", drawing: Drawing, moment: Moment, permutation: int) -> None:
    """A sample in this order, each part with its number in the true one."""
    order = drawing.permutations[permutation]
    axes.imshow(arrange(drawing.parts, order, drawing.columns), interpolation="none")  # an SVG keeps its pixels
    step = drawing.parts.shape[1] + 2 * GAP
    for place, part in enumerate(order):
        x, y = place % drawing.columns * step, place // drawing.columns * step
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.8}
        axes.text(x + 0.1 * step, y + 0.1 * step, str(part + 1), fontsize=6.5, va="top", color=INK, bbox=box)
    moved = int(distances(order[None])[0])
    axes.set_title(f"{moment.likelihoods[permutation]:.2f} ×, {moved} moved", fontsize=8, pad=4, loc="center")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
