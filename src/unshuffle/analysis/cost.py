"""Appendix H: what the policy costs, as the paper derives it and as it was measured."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from unshuffle.analysis.figures import COLOURS, INK, panels, styled
from unshuffle.analysis.forward_passes import Validations, training_passes, trial_passes, validations_of
from unshuffle.analysis.history import open_run, tasks_of
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis
from unshuffle.analysis.trials import all_trials
from unshuffle.config import Config
from unshuffle.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "paper": "the paper: 1,000 orders, 90 episodes",
    "every_order": "this run, every sample in every order",
    "shared_backbone": "this run, every sample once (shared backbone)",
    "measured": "this run, by the clock",
}


@dataclass(frozen=True)
class Cost(Question):
    """What the policy costs beside the training: derived as in the paper, and by the clock (appendix H)."""

    run: Path
    """A run folder."""

    def answer(self, console: Console) -> Analysis:
        """Percent of the training."""
        return analyse_cost(open_run(self.run))


def paper_cost(
    episodes: int = 90, samples: int = 100, permutations: int = 1000, batch: int = 128, iterations: int = 350_000
) -> float:
    """CC / I = T · 2V / I, V = |X_val| · |Ψ| / B: two validations an episode, in percent of the training."""
    return 100 * episodes * 2 * (samples * permutations / batch) / iterations


def derived_cost(
    validations: Iterable[Validations],
    batch: int,
    training: float,
    trials: float,
    iteration: int,
    *,
    shared_backbone: bool,
) -> float:
    """Forward passes of the validations and the trials in percent of those of the training, up to an iteration."""
    passes = sum(one.passes(batch, iteration, shared_backbone=shared_backbone) for one in validations)
    return 100 * (passes + trials) / training


def training_seconds(config: Config, entries: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
    """(iteration, seconds that training took up to it) for each `train` line; validations, trials, monitor left out."""
    seconds, before, curve = 0.0, 0, []
    for entry in entries:
        samples = config.optim.batch_size * training_passes(config, len(entry["loss"]), entry["iteration"] - before)
        seconds += samples / entry["samples_per_second"]
        before = entry["iteration"]
        curve.append((before, seconds))
    return curve


def measured_cost(training: Sequence[tuple[int, float]], costs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each `train` line the seconds of training so far, those of validations and trials, and these in percent."""
    rows, costs = [], list(costs)
    whens, totals = [entry["iteration"] for entry in costs], [0.0, *accumulate(entry["seconds"] for entry in costs)]
    for iteration, seconds in training:
        beside = totals[bisect_right(whens, iteration)]
        rows.append(
            {
                "iteration": iteration,
                "training_seconds": seconds,
                "cost_seconds": beside,
                "cost_percent": 100 * beside / seconds,
            }
        )
    return rows


def analyse_cost(run: Run) -> Analysis:
    """All four figures of a run."""
    rows = measured_cost(training_seconds(run.config, run.metrics("train")), run.metrics("cost"))
    tasks = {task: validations_of(run, task) for task in tasks_of(run)}
    costs = {"paper": paper_cost(), **_derived(run, tasks, rows)}
    if rows:
        costs["measured"] = rows[-1]["cost_percent"]
    trials = list(all_trials(run))
    what = "validations and trials" if trials else "validations"
    statement = (
        f"cost of the {what}, in percent of the training, of {run.folder} with the sampler "
        f"{run.config.policy.name}, up to iteration {rows[-1]['iteration'] if rows else 0:,}"
    )
    metrics = {
        "cost_percent": costs,
        "tasks": {
            task: {"validations": len(one.iterations), "samples": one.samples, "permutations": one.permutations}
            for task, one in tasks.items()
        },
        "trials": {
            "count": sum(some.count for some in trials),
            "iterations": sum(some.count * some.length for some in trials),
        },
        "measured": rows[-1] if rows else None,
    }
    return Analysis("cost", statement, metrics, rows, lambda: draw_cost(costs, what))


def _derived(run: Run, tasks: Mapping[str, Validations], rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    if not rows:
        return {}
    batch, last = run.config.optim.batch_size, rows[-1]["iteration"]
    training = training_passes(run.config, len(tasks), last)
    trials = trial_passes(run.config, len(tasks), all_trials(run), last)
    return {
        name: derived_cost(tasks.values(), batch, training, trials, last, shared_backbone=shared)
        for name, shared in (("every_order", False), ("shared_backbone", True))
    }


@styled
def draw_cost(costs: Mapping[str, float], what: str = "validations") -> "Figure":
    """A dot for each cost on a logarithmic axis: they differ by orders of magnitude."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    figure, ((axes,),) = panels(height=0.75 + 0.55 * len(costs), width=8)
    names = list(costs)[::-1]
    values = [costs[name] for name in names]
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 3, max(values) * 6)
    axes.plot(values, range(len(names)), "o", color=COLOURS[0], markersize=8)
    for place, value in enumerate(values):
        axes.annotate(
            f"{value:,.0f} %" if value >= 100 else f"{value:.2g} %",
            (value, place),
            (9, 0),
            textcoords="offset points",
            va="center",
            color=INK,
        )
    axes.set_yticks(range(len(names)), [NAMES[name] for name in names])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_title(f"What the policy's {what} cost")
    axes.set_xlabel("cost beside the training [%]")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid()
    return figure
