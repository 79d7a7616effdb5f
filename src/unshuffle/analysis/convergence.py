"""Fig. 5 and the last figure of appendix H: how fast the features get better."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from unshuffle.analysis.figures import COLOURS, LEVELS, QUIET, name_axes, panels, styled, thousands
from unshuffle.analysis.forward_passes import total_passes
from unshuffle.analysis.history import open_run, run_labels
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis
from unshuffle.errors import UserError
from unshuffle.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Scores = Mapping[str, Any]
"""An iteration and the top-k accuracies there [%], as the monitor logs them."""
MARKERS = "osD^vPX"


@dataclass(frozen=True)
class Convergence(Question):
    """Retrieval over iterations (Fig. 5) and over all forward passes, the policy's included (appendix H)."""

    runs: tuple[Path, ...]
    """One run folder, or several to compare."""
    gallery: Path | None = None
    """Score the checkpoints on labelled images in folders by class, instead of what the monitor has logged."""
    queries: Path | None = None
    """Images to find neighbours for, in folders named as in the gallery."""
    limit: int = 2000
    """At most so many images of each."""
    device: str = "auto"
    """For the checkpoints: auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""

    def answer(self, console: Console) -> Analysis:
        """From the monitor's entries, or from checkpoints."""
        if not self.runs:
            raise UserError("name a run folder, or several to compare")
        if (self.gallery is None) != (self.queries is None):
            raise UserError("--gallery and --queries go together")
        runs = [open_run(folder) for folder in self.runs]
        scores = [monitored(run) if self.gallery is None else self._scored(run, console) for run in runs]
        source = "the monitor" if self.gallery is None else f"checkpoints, {self.queries} against {self.gallery}"
        return analyse_convergence(runs, scores, source)

    def _scored(self, run: Run, console: Console) -> list[Scores]:
        from unshuffle.analysis.checkpoints import score_checkpoints  # needs torch

        folders = replace(run.config.monitor, gallery=self.gallery, queries=self.queries, limit=self.limit)
        return score_checkpoints(run, replace(run.config, monitor=folders, device=self.device), console)


def monitored(run: Run) -> list[Scores]:
    """What the monitor has logged."""
    entries: list[Scores] = list(run.metrics("monitor"))
    if not entries:
        raise UserError(f"{run.folder} has no monitor: give labelled images with --gallery and --queries")
    return entries


def first_reached(xs: Sequence[float], ys: Sequence[float], level: float) -> float | None:
    """Where a curve through points first comes to a level; None if it does not."""
    for place, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y >= level:
            if place == 0:
                return x
            before, below = xs[place - 1], ys[place - 1]
            return before + (x - before) * (level - below) / (y - below)
    return None


def convergence_rows(run: Run, label: str, scores: Sequence[Scores]) -> list[dict[str, Any]]:
    """The scores of a run, and what it had cost up to each."""
    iterations = [entry["iteration"] for entry in scores]
    costs = zip(total_passes(run, iterations), total_passes(run, iterations, shared_backbone=True), strict=True)
    return [
        {
            "run": label,
            "iteration": entry["iteration"],
            "forward_passes": every,
            "forward_passes_shared_backbone": shared,
            **{name: value for name, value in entry.items() if name.startswith("top")},
        }
        for entry, (every, shared) in zip(scores, costs, strict=True)
    ]


def speed(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """When each run reaches what the least of them reaches at best: in iterations and in forward passes."""
    level = min(max(row["top1"] for row in some) for some in rows.values())
    found = {}
    for label, some in rows.items():
        top1 = [row["top1"] for row in some]
        found[label] = {
            "first_top1": top1[0],
            "last_top1": top1[-1],
            "best_top1": max(top1),
            "mean_top1": float(np.mean(top1)),
            "level": level,
            **{f"{name}_to_level": first_reached([row[name] for row in some], top1, level) for name in AXES},
        }
    return found


AXES = {
    "iteration": "iteration",
    "forward_passes": "forward passes, every validation sample in every order [batches]",
    "forward_passes_shared_backbone": "forward passes of the shared backbone [batches]",
}


def analyse_convergence(runs: Sequence[Run], scores: Sequence[Sequence[Scores]], source: str) -> Analysis:
    """Curves of several runs."""
    labels = run_labels(runs)
    rows = {label: convergence_rows(run, label, some) for label, run, some in zip(labels, runs, scores, strict=True)}
    levels = {entry["name"]: entry["top1"] for run in runs for entry in run.metrics("baseline")}
    statement = (
        f"retrieval by nearest neighbours of pool5 ({source}) over iterations and over forward passes, those of the "
        f"policy's validations and trials included: {', '.join(labels)}"
    )
    if source != "the monitor":
        levels = {}  # of other images
    every = [row for some in rows.values() for row in some]
    return Analysis("convergence", statement, speed(rows), every, lambda: draw(rows, levels))


@styled
def draw(rows: Mapping[str, Sequence[Mapping[str, Any]]], levels: Mapping[str, float]) -> "Figure":
    """Top-1 over each measure of time."""
    figure, grid = panels(1, len(AXES), width=4.8, height=4.2, sharey=True)
    for axes, (name, words) in zip(grid[0], AXES.items(), strict=True):
        _draw_curves(axes, rows, name)
        for (feature, level), style in zip(levels.items(), LEVELS, strict=False):
            axes.axhline(level, color=QUIET, linewidth=1.2, linestyle=style, label=feature)
        name_axes(axes, "", words.replace(", ", ",\n"), "")
        thousands(axes.xaxis)
        axes.set_xlim(left=0)
    grid[0][0].set_ylabel("nearest neighbour of the same class [%]")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _draw_curves(axes: "Axes", rows: Mapping[str, Sequence[Mapping[str, Any]]], name: str) -> None:
    for place, (label, some) in enumerate(rows.items()):
        axes.plot(
            [row[name] for row in some],
            [row["top1"] for row in some],
            marker=MARKERS[place % len(MARKERS)],
            color=COLOURS[place % len(COLOURS)],
            label=label,
            clip_on=False,  # the first point lies on the axis
        )
