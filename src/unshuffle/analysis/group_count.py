"""How many groups of permutations to make: as many as differ from one another (appendix D)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from scipy.stats import ks_2samp

from unshuffle.analysis.figures import COLOURS, QUIET, name_axes, styled
from unshuffle.analysis.history import choose_tasks, open_run, read_states
from unshuffle.analysis.moments import chooses_pairs
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis, Row
from unshuffle.errors import UserError
from unshuffle.policy.groups import group_permutations
from unshuffle.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALPHA = 0.01
COUNTS = (10, 15, 20)
OF_PAIRS = (
    ". These are groups of permutations; the run itself chose among equal parts of each sample's own pairs "
    "(policy.grouping pairs)"
)
RANGE = (0.5, 2.0)
"""Softmax ratios lie between these."""

State: TypeAlias = npt.NDArray[np.float64]
"""s of Eq. 4, (|Ψ|, |X_val|)."""


@dataclass(frozen=True)
class Likeness:
    """Groups of one division of Ψ, compared in pairs."""

    count: int
    """|C|"""
    p_values: npt.NDArray[np.float64]
    """(|C|, |C|) p-values of the Kolmogorov-Smirnov test, hardest group first; NaN where a group is empty."""

    @property
    def pairs(self) -> int:
        """Pairs of groups that are not empty."""
        return int(np.isfinite(self._upper).sum())

    @property
    def alike(self) -> int:
        """Pairs that cannot be told apart at α."""
        return int((self._upper[np.isfinite(self._upper)] >= ALPHA).sum())

    @property
    def empty(self) -> int:
        """Groups without a permutation."""
        return int(np.isnan(np.diag(self.p_values)).sum())

    @property
    def _upper(self) -> npt.NDArray[np.float64]:
        return self.p_values[np.triu_indices(self.count, 1)]


Found: TypeAlias = Mapping[int, Sequence[Likeness]]
"""By iteration, the divisions into 2, 3, 4 ... groups."""


def compare_groups(state: State, count: int, seed: int = 0) -> Likeness:
    """Divide Ψ by the rows of s as the policy does, and test each pair of groups for equal distributions of ratios."""
    members = group_permutations(torch.from_numpy(state), count, seed).members.numpy()
    ratios = [state[members == group].ravel() for group in range(count)]
    p_values = np.full((count, count), np.nan)
    for group in range(count):
        if len(ratios[group]):
            p_values[group, group] = 1.0
    for one, other in combinations(range(count), 2):
        if len(ratios[one]) and len(ratios[other]):
            # for groups of this size the exact distribution is slower, and says the same
            p = ks_2samp(ratios[one], ratios[other], method="asymp").pvalue
            p_values[one, other] = p_values[other, one] = p
    return Likeness(count, p_values)


def recommend(found: Found) -> int | None:
    """The largest |C| up to which all groups differ, and none is empty, at every iteration; None if there is none."""
    best = None
    for divisions in zip(*found.values(), strict=True):
        if any(one.alike or one.empty for one in divisions):
            break  # a larger one that passes does so by luck: k-means has many answers
        best = divisions[0].count
    return best


def ratio_histogram(state: State, bins: int = 60) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Share of all entries of s in each bin, and the edges of the bins."""
    counts, edges = np.histogram(state, bins, RANGE)
    return counts / state.size, edges


def variance_percent(state: State) -> dict[str, float]:
    """How much of the variance of all ratios lies between permutations, between samples, and in the pairs of both."""
    permutations, samples = (100 * float(state.mean(axis=axis).var() / state.var()) for axis in (1, 0))
    return {"permutations": permutations, "samples": samples, "pairs": 100 - permutations - samples}


def spread_out(available: Sequence[int], shares: Sequence[float] = (3 / 7, 5 / 7, 1.0)) -> list[int]:
    """The iterations nearest to shares of the last one; the paper's are 150k, 250k and 350k of 350k."""
    last = max(available)
    return sorted({min(available, key=lambda iteration: abs(iteration - share * last)) for share in shares})


# ---- the analysis


@dataclass(frozen=True)
class GroupCount(Question):
    """Are groups of permutations different? Histogram of ratios, p-values in pairs, a recommended |C| (appendix D)."""

    run: Path
    """A run folder."""
    task: Literal["spatial", "temporal"] | None = None
    """Which task; by default the first that the run has."""
    counts: tuple[int, ...] = COUNTS
    """Each |C| whose p-values are drawn; for the recommendation all up to the largest are tried."""
    iterations: tuple[int, ...] = ()
    """Validations to look at, by default those nearest to 3/7, 5/7 and the end of the run, as in the paper."""
    seed: int = 0
    """Seed of k-means."""

    def answer(self, console: Console) -> Analysis:
        """Divide and compare."""
        run = open_run(self.run)
        task = choose_tasks(run, self.task)[0]
        return analyse_groups(run, task, self.counts, self.iterations, self.seed)


def analyse_groups(
    run: Run, task: str, counts: Sequence[int] = COUNTS, iterations: Sequence[int] = (), seed: int = 0
) -> Analysis:
    """Groups of a task at some iterations."""
    states = read_ratios(run, task, iterations)
    permutations = len(next(iter(states.values())))
    if not counts or min(counts) < 2 or max(counts) > permutations:
        raise UserError(
            f"{permutations} permutations can be divided into 2 to {permutations} groups: choose other counts"
        )
    found = {
        iteration: [compare_groups(state, count, seed) for count in range(2, max(counts) + 1)]
        for iteration, state in states.items()
    }
    best = recommend(found)
    heights, edges = ratio_histogram(states[max(states)])
    metrics = {
        "task": task,
        "alpha": ALPHA,
        "recommended": best,
        "pairs_alike": {
            iteration: {one.count: {"alike": one.alike, "pairs": one.pairs, "empty": one.empty} for one in some}
            for iteration, some in found.items()
        },
        "variance_percent": {iteration: variance_percent(state) for iteration, state in states.items()},
        "histogram": {"iteration": max(states), "share": heights.tolist(), "edges": edges.tolist()},
    }
    statement = (
        f"{task} task of {run.folder}, {permutations} permutations: Kolmogorov-Smirnov tests of all pairs of groups at "
        f"iterations {', '.join(f'{iteration:,}' for iteration in found)}, α = {ALPHA}; {advice(best, max(counts))}"
        f"{OF_PAIRS if chooses_pairs(run.config) else ''}"
    )
    return Analysis(
        "groups",
        statement,
        metrics,
        rows(found, counts),
        lambda: draw(found, counts, best, heights, edges, max(states)),
    )


def advice(best: int | None, most: int) -> str:
    """The recommendation in words."""
    if best is None:
        return "not even two groups differ at all of them"
    return f"up to |C| = {best} all groups differ{', and more were not tried' if best == most else ''}"


def read_ratios(run: Run, task: str, iterations: Sequence[int] = ()) -> dict[int, State]:
    """s at the given iterations, or at some that are spread over the run."""
    states = {int(one["iteration"]): one["state"] for one in read_states(run, task, ("state",)) if "state" in one}
    if not states:
        raise UserError(f"{run.states} has no state of the {task} task: was it deleted?")
    missing = [iteration for iteration in iterations if iteration not in states]
    if missing:
        raise UserError(f"there is no validation at iteration {missing[0]}; there are {_listed(sorted(states))}")
    return {one: states[one].astype(np.float64) for one in sorted(iterations) or spread_out(list(states))}


def _listed(iterations: Sequence[int]) -> str:
    shown = [str(iteration) for iteration in iterations]
    return ", ".join(shown if len(shown) <= 12 else [*shown[:5], "...", *shown[-5:]])


def rows(found: Found, counts: Sequence[int]) -> list[Row]:
    """A line for each pair of groups of the divisions that are drawn; group 0 is the hardest."""
    return [
        {"iteration": iteration, "groups": one.count, "one": a, "other": b, "p_value": float(one.p_values[a, b])}
        for iteration, some in found.items()
        for one in some
        if one.count in counts
        for a, b in combinations(range(one.count), 2)
    ]


@styled
def draw(
    found: Found,
    counts: Sequence[int],
    best: int | None,
    heights: npt.NDArray[np.float64],
    edges: npt.NDArray[np.float64],
    iteration: int,
) -> "Figure":
    """The histogram and the share of equal pairs, and below them a matrix for each iteration and each |C|."""
    from matplotlib.figure import Figure

    height = 3.6 + 3.2 * len(found)
    figure = Figure(figsize=(3.4 * max(3, len(counts)), height), facecolor="white", layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[3.6, height - 3.6])
    top, bottom = halves
    left, right = top.subplots(1, 2)
    _draw_histogram(left, heights, edges, iteration)
    _draw_shares(right, found, best)
    axes = bottom.subplots(len(found), len(counts), squeeze=False)
    for line, (when, some) in enumerate(found.items()):
        for column, count in enumerate(counts):
            image = _draw_matrix(axes[line][column], next(one for one in some if one.count == count), when)
    bar = bottom.colorbar(image, ax=axes, shrink=0.8, aspect=30)
    bar.set_label(f"p-value; above α = {ALPHA} the groups may be equal")
    return figure


def _draw_histogram(
    axes: "Axes", heights: npt.NDArray[np.float64], edges: npt.NDArray[np.float64], iteration: int
) -> None:
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


def _draw_shares(axes: "Axes", found: Found, best: int | None) -> None:
    from matplotlib.ticker import MaxNLocator

    for place, (iteration, some) in enumerate(found.items()):
        shares = [100 * one.alike / max(1, one.pairs) for one in some]
        name, colour = f"iteration {iteration:,}", COLOURS[place % len(COLOURS)]
        axes.plot([one.count for one in some], shares, "o-", color=colour, label=name)
    if best is not None:
        axes.axvline(best, color=QUIET, linestyle="--", linewidth=1.2, label=f"recommended: {best}")
    name_axes(axes, "Pairs of groups that may be equal", "|C| [groups]", "pairs with p ≥ α [%]")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(-2, 104)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _draw_matrix(axes: "Axes", one: Likeness, iteration: int) -> Any:
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm

    bounds = [0, ALPHA, 0.05, 0.2, 0.5, 1]
    colours = colormaps["Blues"].with_extremes(bad="#dddddd").resampled(len(bounds) - 1)
    shown = np.where(np.eye(one.count, dtype=bool), np.nan, one.p_values)
    image = axes.imshow(shown, cmap=colours, norm=BoundaryNorm(bounds, len(bounds) - 1))
    name_axes(axes, f"|C| = {one.count}, iteration {iteration:,}", "group", "group, 0 is the hardest", grid=False)
    ticks = range(0, one.count, max(1, one.count // 5))
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    return image
