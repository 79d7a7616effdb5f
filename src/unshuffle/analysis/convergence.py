"""Fig. 5 and the last figure of appendix H: retrieval over iterations and over forward passes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from unshuffle.analysis.analysis import Analysis, AnalysisResult, metrics_table
from unshuffle.analysis.figures import COLOURS, LEVELS, QUIET, name_axes, panels, styled, thousands
from unshuffle.analysis.passes import total_passes
from unshuffle.config import Config
from unshuffle.console import say
from unshuffle.errors import UserError
from unshuffle.evaluation.monitor import build_retrieval_monitor
from unshuffle.models import Backbone
from unshuffle.runs.checkpoints import fitting, load_checkpoint, usable_checkpoints
from unshuffle.runs.folders import run_labels
from unshuffle.runs.history import open_run
from unshuffle.runs.run import Run
from unshuffle.training.trainer import initial_backbone

Scores = Mapping[str, Any]
"""An iteration and its top-k accuracies [%], as the monitor logs them."""
MARKERS = "osD^vPX"


@dataclass(frozen=True)
class Convergence(Analysis):
    """Retrieval over iterations (Fig. 5) and over forward passes, including the policy's (appendix H)."""

    runs: tuple[Path, ...]
    """One run folder, or several to compare."""
    gallery: str | None = None
    """Class folders to retrieve from: evaluate the checkpoints on them instead of using the monitor's log."""
    queries: str | None = None
    """Class folders of the queries, with the same class names as the gallery."""
    limit: int = 2000
    """Maximum number of images in each of the two."""
    device: str = "auto"
    """Device for the checkpoints. auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Return the curves of the monitor's log, or of the checkpoints."""
        if not self.runs:
            raise UserError("give a run folder, or several to compare")
        if (self.gallery is None) != (self.queries is None):
            raise UserError("--gallery and --queries must be given together")
        runs = [open_run(folder) for folder in self.runs]
        scores = [
            monitor_scores(run) if self.gallery is None else self._checkpoint_scores(run, console) for run in runs
        ]
        source = "the monitor"
        levels = {entry["name"]: entry["top1"] for run in runs for entry in run.metrics("baseline")}
        if self.gallery is not None:
            source, levels = f"checkpoints, {self.queries} against {self.gallery}", {}  # measured on other images
        labels = run_labels(runs)
        rows = {
            label: convergence_rows(run, label, curve) for label, run, curve in zip(labels, runs, scores, strict=True)
        }
        statement = (
            f"retrieval by nearest neighbours of pool5 ({source}) over iterations and over forward passes, including "
            f"those of the policy's validations and rollouts: {', '.join(labels)}"
        )
        all_rows = [row for curve in rows.values() for row in curve]
        speeds = speed(rows)
        level = next(iter(speeds.values()))["level"]
        names = {**ROWS, **{f"{name}_to_level": title.format(level=level) for name, title in REACHED.items()}}
        table = metrics_table("retrieval, top 1 [%]", speeds, names)
        return AnalysisResult("convergence", statement, speeds, all_rows, lambda: draw(rows, levels), table)

    def _checkpoint_scores(self, run: Run, console: Console) -> list[Scores]:
        """Return the retrieval of every checkpoint on the given folders, as the monitor would have logged it."""
        files = usable_checkpoints(run.checkpoints, console)
        if not files:
            raise UserError(f"{run.folder} has no checkpoint to evaluate yet")
        folders = replace(run.config.monitor, gallery=self.gallery, queries=self.queries, limit=self.limit)
        config = replace(run.config, monitor=folders, device=self.device)
        monitor = build_retrieval_monitor(config)
        assert monitor is not None
        scores: list[Scores] = []
        for file in files:
            say(console, f"{run.folder}: checkpoint {int(file.stem)}")
            with fitting(file):
                backbone = checkpoint_backbone(config, load_checkpoint(file))
            scores.append({"iteration": int(file.stem), **monitor(backbone.to(monitor.device))})
        return scores


def monitor_scores(run: Run) -> list[Scores]:
    """Return what the monitor has logged."""
    entries: list[Scores] = [entry for entry in run.metrics("monitor") if "top1" in entry]
    if not entries:
        raise UserError(f"{run.folder} has no labelled monitor: give class folders with --gallery and --queries")
    return entries


def checkpoint_backbone(config: Config, state: Mapping[str, Any]) -> Backbone:
    """Return the backbone of a checkpoint."""
    backbone = initial_backbone(replace(config, init=None))
    prefix = "backbone."
    weights = {name.removeprefix(prefix): value for name, value in state["network"].items() if name.startswith(prefix)}
    backbone.load_state_dict(weights)
    return backbone.eval()


def first_reached(xs: Sequence[float], ys: Sequence[float], level: float) -> float | None:
    """Return where a piecewise linear curve first reaches a level; None if it does not."""
    for index, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y >= level:
            if index == 0:
                return x
            previous_x, previous_y = xs[index - 1], ys[index - 1]
            return previous_x + (x - previous_x) * (level - previous_y) / (y - previous_y)
    return None


def convergence_rows(run: Run, label: str, scores: Sequence[Scores]) -> list[dict[str, Any]]:
    """Return the scores of a run, with the forward passes up to each."""
    iterations = [entry["iteration"] for entry in scores]
    costs = zip(total_passes(run, iterations), total_passes(run, iterations, shared_backbone=True), strict=True)
    return [
        {
            "run": label,
            "iteration": entry["iteration"],
            "forward_passes": unshared,
            "forward_passes_shared_backbone": shared,
            **{name: value for name, value in entry.items() if name.startswith("top")},
        }
        for entry, (unshared, shared) in zip(scores, costs, strict=True)
    ]


def speed(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return when each run reaches the best top-1 of the worst run, in iterations and in forward passes."""
    level = min(max(row["top1"] for row in curve) for curve in rows.values())
    speeds = {}
    for label, curve in rows.items():
        top1 = [row["top1"] for row in curve]
        speeds[label] = {
            "first_top1": top1[0],
            "last_top1": top1[-1],
            "best_top1": max(top1),
            "mean_top1": float(np.mean(top1)),
            "level": level,
            **{f"{name}_to_level": first_reached([row[name] for row in curve], top1, level) for name in AXES},
        }
    return speeds


ROWS = {"first_top1": "first", "last_top1": "last", "best_top1": "best", "mean_top1": "mean over the training"}
REACHED = {
    "iteration": "iterations up to {level:.1f} %",
    "forward_passes": "forward passes until then, one per permutation [batches]",
    "forward_passes_shared_backbone": "forward passes until then, shared backbone [batches]",
}
AXES = {
    "iteration": "iteration",
    "forward_passes": "forward passes, every validation sample in every permutation [batches]",
    "forward_passes_shared_backbone": "forward passes of the shared backbone [batches]",
}


@styled
def draw(rows: Mapping[str, Sequence[Mapping[str, Any]]], levels: Mapping[str, float]) -> Figure:
    """Draw top-1 over iterations and over both counts of forward passes."""
    figure, grid = panels(1, len(AXES), width=4.8, height=4.2, sharey=True)
    for axes, (name, label) in zip(grid[0], AXES.items(), strict=True):
        for number, (run_label, curve) in enumerate(rows.items()):
            axes.plot(
                [row[name] for row in curve],
                [row["top1"] for row in curve],
                marker=MARKERS[number % len(MARKERS)],
                color=COLOURS[number % len(COLOURS)],
                label=run_label,
                clip_on=False,  # the first point lies on the axis
            )
        for (feature, level), style in zip(levels.items(), LEVELS, strict=False):
            axes.axhline(level, color=QUIET, linewidth=1.2, linestyle=style, label=feature)
        name_axes(axes, "", label.replace(", ", ",\n"), "")
        thousands(axes.xaxis)
        axes.set_xlim(left=0)
    grid[0][0].set_ylabel("nearest neighbour of the same class [%]")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
