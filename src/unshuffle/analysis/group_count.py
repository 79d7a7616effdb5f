"""Appendix D: the number of groups |C|, as many as differ from one another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console

from unshuffle.analysis.analysis import Analysis, AnalysisResult, Row, metrics_table
from unshuffle.analysis.figures import COLOURS, QUIET, name_axes, styled
from unshuffle.config import TaskName
from unshuffle.errors import UserError
from unshuffle.policy.groups import group_permutations
from unshuffle.runs.history import choose_tasks, groups_pairs, open_run, read_states
from unshuffle.runs.run import Run

ALPHA = 0.01
PAIRS_NOTE = ". These are groups of permutations, while the run itself grouped (sample, permutation) pairs"
RANGE = (0.5, 2.0)
"""Range of softmax ratios."""

State: TypeAlias = npt.NDArray[np.float64]
"""s of Eq. 4, (|Ψ|, |X_val|)."""


@dataclass(frozen=True)
class GroupComparison:
    """Pairwise comparison of the groups of one division of Ψ."""

    count: int
    """|C|"""
    p_values: npt.NDArray[np.float64]
    """(|C|, |C|) p-values of the Kolmogorov-Smirnov test, the hardest group first; NaN where a group is empty."""

    @property
    def pairs(self) -> int:
        """Number of pairs of non-empty groups."""
        return int(np.isfinite(self._upper).sum())

    @property
    def equal_pairs(self) -> int:
        """Number of pairs whose difference is not significant at α."""
        return int((self._upper[np.isfinite(self._upper)] >= ALPHA).sum())

    @property
    def empty_groups(self) -> int:
        """Number of groups without a permutation."""
        return int(np.isnan(np.diag(self.p_values)).sum())

    @property
    def _upper(self) -> npt.NDArray[np.float64]:
        return self.p_values[np.triu_indices(self.count, 1)]


Comparisons: TypeAlias = Mapping[int, Sequence[GroupComparison]]
"""By iteration, the divisions into 2, 3, 4 ... groups."""


def compare_groups(state: State, count: int, seed: int = 0) -> GroupComparison:
    """Group Ψ by the rows of s as the policy does, and test each pair of groups for equal distributions of ratios."""
    from scipy.stats import ks_2samp  # slow to import, and the report needs other parts of this module

    members = group_permutations(torch.from_numpy(state), count, seed).members.numpy()
    ratios = [state[members == group].ravel() for group in range(count)]
    p_values = np.full((count, count), np.nan)
    np.fill_diagonal(p_values, [1.0 if len(group) else np.nan for group in ratios])
    for first, second in combinations(range(count), 2):
        if len(ratios[first]) and len(ratios[second]):
            # for groups of this size the exact distribution is slower and gives the same result
            p = ks_2samp(ratios[first], ratios[second], method="asymp").pvalue
            p_values[first, second] = p_values[second, first] = p
    return GroupComparison(count, p_values)


def recommend(comparisons: Comparisons) -> int | None:
    """Return the largest |C| up to which all groups differ, and none is empty, at every iteration; None if none."""
    best = None
    for divisions in zip(*comparisons.values(), strict=True):
        if any(division.equal_pairs or division.empty_groups for division in divisions):
            break  # a larger |C| that passes does so by chance: k-means has many solutions
        best = divisions[0].count
    return best


def ratio_histogram(state: State, bins: int = 60) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the fraction of the entries of s in each bin, and the edges of the bins."""
    counts, edges = np.histogram(state, bins, RANGE)
    return counts / state.size, edges


def variance_percent(state: State) -> dict[str, float]:
    """Return the percentages of the variance of all ratios between permutations, between samples, and in pairs."""
    permutations, samples = (100 * float(state.mean(axis=axis).var() / state.var()) for axis in (1, 0))
    return {"permutations": permutations, "samples": samples, "pairs": 100 - permutations - samples}


def nearest_iterations(available: Sequence[int], fractions: Sequence[float] = (3 / 7, 5 / 7, 1.0)) -> list[int]:
    """Return the iterations nearest to fractions of the last one; the paper's are 150k, 250k and 350k of 350k."""
    last = max(available)
    return sorted({min(available, key=lambda iteration: abs(iteration - fraction * last)) for fraction in fractions})


# ---- the analysis


@dataclass(frozen=True)
class GroupCount(Analysis):
    """Choose |C|: histogram of softmax ratios, pairwise tests of the groups, a recommendation (appendix D)."""

    run: Path
    """A run folder."""
    task: TaskName | None = None
    """Task to analyse; by default the first ordering task of the run."""
    counts: tuple[int, ...] = (10, 15, 20)
    """Values of |C| whose p-values are shown; the recommendation tries all up to the largest."""
    iterations: tuple[int, ...] = ()
    """Iterations of the validations to use; by default those nearest to 3/7, 5/7 and the end, as in the paper."""
    seed: int = 0
    """Seed of k-means."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Group the permutations and compare the groups."""
        run = open_run(self.run)
        task = choose_tasks(run, self.task)[0]
        counts, states = self.counts, read_ratios(run, task, self.iterations)
        permutations = len(next(iter(states.values())))
        if not counts or min(counts) < 2 or max(counts) > permutations:
            raise UserError(
                f"{permutations} permutations can be divided into 2 to {permutations} groups: choose other counts"
            )
        comparisons = {
            iteration: [compare_groups(state, count, self.seed) for count in range(2, max(counts) + 1)]
            for iteration, state in states.items()
        }
        best = recommend(comparisons)
        heights, edges = ratio_histogram(states[max(states)])
        metrics = {
            "task": task,
            "alpha": ALPHA,
            "recommended": best,
            "equal_pairs": {
                iteration: {
                    division.count: {
                        "equal": division.equal_pairs,
                        "pairs": division.pairs,
                        "empty_groups": division.empty_groups,
                    }
                    for division in divisions
                }
                for iteration, divisions in comparisons.items()
            },
            "variance_percent": {iteration: variance_percent(state) for iteration, state in states.items()},
            "histogram": {"iteration": max(states), "fraction": heights.tolist(), "edges": edges.tolist()},
        }
        statement = (
            f"{task} task of {run.folder}, {permutations} permutations: Kolmogorov-Smirnov tests of all pairs of "
            f"groups at iterations {', '.join(f'{iteration:,}' for iteration in comparisons)}, α = {ALPHA}; "
            f"{advice(best, max(counts))}{PAIRS_NOTE if groups_pairs(run.config) else ''}"
        )
        figure = partial(draw, comparisons, counts, best, states[max(states)], max(states))
        equal = {
            f"iteration\n{iteration:,}": {
                division.count: f"{division.equal_pairs} of {division.pairs}" for division in divisions
            }
            for iteration, divisions in comparisons.items()
        }
        table = metrics_table(
            "pairs of groups that do not differ", equal, {count: f"{count} groups" for count in counts}
        )
        return AnalysisResult("groups", statement, metrics, rows(comparisons, counts), figure, table)


def advice(best: int | None, largest: int) -> str:
    """Return the recommendation as a sentence."""
    if best is None:
        return "not even two groups differ at all of them"
    return f"up to |C| = {best} all groups differ{', and more were not tried' if best == largest else ''}"


def read_ratios(run: Run, task: str, iterations: Sequence[int] = ()) -> dict[int, State]:
    """Return s at the given iterations, or at some that are spread over the run."""
    states = {
        int(arrays["iteration"]): arrays["state"] for arrays in read_states(run, task, ("state",)) if "state" in arrays
    }
    if not states:
        raise UserError(f"{run.states} has no state of the {task} task: was it deleted?")
    missing = [iteration for iteration in iterations if iteration not in states]
    if missing:
        raise UserError(f"there is no validation at iteration {missing[0]}; there are {_listed(sorted(states))}")
    chosen = sorted(iterations) or nearest_iterations(list(states))
    return {iteration: states[iteration].astype(np.float64) for iteration in chosen}


def _listed(iterations: Sequence[int]) -> str:
    shown = [str(iteration) for iteration in iterations]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:5], "...", *shown[-5:]])


def rows(comparisons: Comparisons, counts: Sequence[int]) -> list[Row]:
    """Return a row per pair of groups of the shown divisions; group 0 is the hardest."""
    return [
        {
            "iteration": iteration,
            "groups": division.count,
            "first": first,
            "second": second,
            "p_value": float(division.p_values[first, second]),
        }
        for iteration, divisions in comparisons.items()
        for division in divisions
        if division.count in counts
        for first, second in combinations(range(division.count), 2)
    ]


@styled
def draw(comparisons: Comparisons, counts: Sequence[int], best: int | None, state: State, iteration: int) -> Figure:
    """Draw the histogram of a state and the fraction of equal pairs, and below them a matrix per iteration and |C|."""
    height = 3.6 + 3.2 * len(comparisons)
    figure = Figure(figsize=(3.4 * max(3, len(counts)), height), facecolor="white", layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[3.6, height - 3.6])
    top, bottom = halves
    left, right = top.subplots(1, 2)
    _draw_histogram(left, state, iteration)
    _draw_fractions(right, comparisons, best)
    axes = bottom.subplots(len(comparisons), len(counts), squeeze=False)
    for row, (matrix_iteration, divisions) in enumerate(comparisons.items()):
        for column, count in enumerate(counts):
            division = next(division for division in divisions if division.count == count)
            image = _draw_matrix(axes[row][column], division, matrix_iteration)
    bar = bottom.colorbar(image, ax=axes, shrink=0.8, aspect=30)
    bar.set_label(f"p-value; above α = {ALPHA} the groups may be equal")
    return figure


def _draw_histogram(axes: Axes, state: State, iteration: int) -> None:
    heights, edges = ratio_histogram(state)
    axes.bar(edges[:-1], 100 * heights, np.diff(edges), align="edge", color=COLOURS[0])
    axes.axvline(1, color=QUIET, linestyle="--", linewidth=1.2)
    axes.annotate(
        "recognised →",
        (1, 1),
        (5, -4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        color=QUIET,
    )
    name_axes(axes, f"Softmax ratios at iteration {iteration:,}", "ratio y", "(ψ, x) pairs [%]")


def _draw_fractions(axes: Axes, comparisons: Comparisons, best: int | None) -> None:
    for number, (iteration, divisions) in enumerate(comparisons.items()):
        percent = [100 * division.equal_pairs / max(1, division.pairs) for division in divisions]
        name, colour = f"iteration {iteration:,}", COLOURS[number % len(COLOURS)]
        axes.plot([division.count for division in divisions], percent, "o-", color=colour, label=name)
    if best is not None:
        axes.axvline(best, color=QUIET, linestyle="--", linewidth=1.2, label=f"recommended: {best}")
    name_axes(axes, "Pairs of groups that may be equal", "|C| [groups]", "pairs with p ≥ α [%]")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(-2, 104)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _draw_matrix(axes: Axes, division: GroupComparison, iteration: int) -> Any:
    bounds = [0, ALPHA, 0.05, 0.2, 0.5, 1]
    colours = colormaps["Blues"].with_extremes(bad="#dddddd").resampled(len(bounds) - 1)
    shown = np.where(np.eye(division.count, dtype=bool), np.nan, division.p_values)
    image = axes.imshow(shown, cmap=colours, norm=BoundaryNorm(bounds, len(bounds) - 1))
    name_axes(axes, f"|C| = {division.count}, iteration {iteration:,}", "group", "group, 0 is the hardest", grid=False)
    ticks = range(0, division.count, max(1, division.count // 5))
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    return image
