"""Appendix H: the cost of the policy, derived in forward passes as in the paper, and measured."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter
from rich.console import Console

from unshuffle.analysis.analysis import Analysis, AnalysisResult, metrics_table
from unshuffle.analysis.figures import COLOURS, INK, panels, styled
from unshuffle.analysis.passes import Validations, rollout_passes, task_steps, training_passes, validations_of
from unshuffle.config import Config
from unshuffle.runs.history import all_rollouts, choose_tasks, open_run

PAPER_COST = 100 * 90 * 2 * (100 * 1000 / 128) / 350_000
"""CC / I = T · 2V / I, V = |X_val| · |Ψ| / B: two validations per episode, in percent of the training."""
NAMES = {
    "paper": "derived: the paper, 1,000 permutations, 90 episodes",
    "all_permutations": "derived, not done: every sample in every permutation",
    "shared_backbone": "derived: every sample once (shared backbone)",
    "measured": "measured: this run, in seconds",
}
"""Derived costs count forward passes on paper; only the last one was measured."""


@dataclass(frozen=True)
class Cost(Analysis):
    """Cost of the policy relative to training: derived as in the paper, and measured (appendix H)."""

    run: Path
    """A run folder."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Return the derived and the measured costs, in percent of the training."""
        run = open_run(self.run)
        rows = measured_cost(training_seconds(run.config, run.metrics("train")), run.metrics("cost"))
        tasks = {task: validations_of(run, task) for task in choose_tasks(run, None)}
        rollouts, costs = list(all_rollouts(run)), {"paper": PAPER_COST}
        if rows:
            last = rows[-1]["iteration"]
            passes = (training_passes(run.config, 0, last), rollout_passes(run.config, rollouts, last), last)
            costs["all_permutations"] = derived_cost(tasks.values(), *passes, shared_backbone=False)
            costs["shared_backbone"] = derived_cost(tasks.values(), *passes, shared_backbone=True)
            costs["measured"] = rows[-1]["cost_percent"]
        activities = "validations and rollouts" if rollouts else "validations"
        statement = (
            f"cost of the {activities}, in percent of the training, of {run.folder} with the sampler "
            f"{run.config.policy.name}, up to iteration {rows[-1]['iteration'] if rows else 0:,}"
        )
        metrics = {
            "cost_percent": costs,
            "tasks": {
                task: {
                    "validations": len(validations.iterations),
                    "samples": validations.samples,
                    "permutations": validations.permutations,
                }
                for task, validations in tasks.items()
            },
            "rollouts": {
                "count": sum(group.count for group in rollouts),
                "iterations": sum(group.count * group.length for group in rollouts),
            },
            "measured": rows[-1] if rows else None,
        }
        table = metrics_table("cost of the policy", {"% of training": costs}, {name: NAMES[name] for name in costs})
        return AnalysisResult("cost", statement, metrics, rows, lambda: draw(costs, activities), table)


# ---- costs


def derived_cost(
    validations: Iterable[Validations], training: float, rollouts: float, iteration: int, *, shared_backbone: bool
) -> float:
    """Return the forward passes of validations and rollouts up to an iteration, in percent of the training's."""
    passes = sum(task.passes(iteration, shared_backbone=shared_backbone) for task in validations)
    return 100 * (passes + rollouts) / training


def training_seconds(config: Config, entries: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """Return (iteration, seconds of training so far) per `train` entry, without validations, rollouts and monitor."""
    seconds, previous, curve = 0.0, 0, []
    for entry in entries:
        steps = task_steps(config, previous, entry["iteration"])
        samples = sum(count * config.batch_size(task) for task, count in steps.items())
        seconds += samples / entry["samples_per_second"]
        previous = entry["iteration"]
        curve.append((previous, seconds))
    return curve


def measured_cost(training: Sequence[tuple[int, float]], costs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return per `train` entry the seconds of training, those of validations and rollouts, and these in percent."""
    rows, costs = [], list(costs)
    iterations = [entry["iteration"] for entry in costs]
    totals = [0.0, *accumulate(entry["duration"] for entry in costs)]
    for iteration, seconds in training:
        cost = totals[bisect_right(iterations, iteration)]
        row = {"iteration": iteration, "training_seconds": seconds, "cost_seconds": cost}
        rows.append({**row, "cost_percent": 100 * cost / seconds})
    return rows


@styled
def draw(costs: Mapping[str, float], activities: str = "validations") -> Figure:
    """Draw a dot per cost on a logarithmic axis, as they differ by orders of magnitude; hollow if it is derived."""
    figure, ((axes,),) = panels(height=0.75 + 0.55 * len(costs), width=9.6)
    names = list(costs)[::-1]
    values = [costs[name] for name in names]
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 3, max(values) * 6)
    for row, (name, value) in enumerate(zip(names, values, strict=True)):
        filling = COLOURS[0] if name == "measured" else "white"
        axes.plot(value, row, "o", color=COLOURS[0], markerfacecolor=filling, markersize=8)
    for row, value in enumerate(values):
        axes.annotate(
            f"{value:,.0f} %" if value >= 100 else f"{value:.2g} %",
            (value, row),
            (9, 0),
            textcoords="offset points",
            va="center",
            color=INK,
        )
    axes.set_yticks(range(len(names)), [NAMES[name] for name in names])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_title(f"Cost of the policy's {activities}")
    axes.set_xlabel("cost relative to training [%]; filled: measured, hollow: derived")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid()
    return figure
