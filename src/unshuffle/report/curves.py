"""Curves of one run or of several, as plain numbers for a chart."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unshuffle.analysis.difficulty import CLASSES, difficulty_rows
from unshuffle.analysis.history import History
from unshuffle.run import Run

POINTS = 400  # of a curve; more cannot be told apart on a screen

Point = tuple[int, float]


@dataclass(frozen=True)
class Series:
    """One curve."""

    name: str
    colour: str
    """The name of a colour of the page's style."""
    points: Sequence[Point]


@dataclass(frozen=True)
class Chart:
    """Curves over the iterations, and levels to hold them against."""

    title: str
    unit: str
    series: Sequence[Series]
    levels: Mapping[str, float]
    decimals: int


@dataclass(frozen=True)
class Curves:
    """The curves that a run is known by, and the colour it has among others."""

    run: Run
    name: str
    colour: str

    def errors(self, task: str) -> list[Point]:
        """Validation errors."""
        return [
            (entry["iteration"], entry["error"]) for entry in self.run.metrics("validation") if entry["task"] == task
        ]

    def losses(self, task: str) -> list[Point]:
        """Training losses."""
        return [
            (entry["iteration"], entry["loss"][task]) for entry in self.run.metrics("train") if task in entry["loss"]
        ]

    def monitor(self, key: str) -> list[Point]:
        """A figure of the monitor."""
        return [(entry["iteration"], entry[key]) for entry in self.run.metrics("monitor") if key in entry]


def charts(runs: Sequence[Curves]) -> list[Chart]:
    """Everything worth a curve: the tasks of one run in one chart, and several runs in a chart for each task."""
    tasks = list(dict.fromkeys(entry["task"] for one in runs for entry in one.run.metrics("validation")))
    drawn = [
        *_by_task("Validation error", "orders not recognised [share]", runs, tasks, Curves.errors, _guessing_error),
        _chart("Retrieval", "nearest neighbour of the same class [%]", _each(runs, "top1"), _baselines(runs), 1),
        *_by_task("Training loss", "cross-entropy [nats]", runs, tasks, Curves.losses, _guessing_loss),
        _chart("Effective rank", "of the features (RankMe)", _each(runs, "rankme"), {}, 1),
    ]
    return [chart for chart in drawn if chart.series]


def difficulty_chart(history: History, task: str) -> Chart:
    """How the draws divide into quarters of Ψ, from the hardest permutations to the easiest."""
    rows = difficulty_rows(history, task)
    series = [
        (name, f"q{number}", [(row["iteration"], row[f"quarter_{number}_percent"]) for row in rows])
        for number, name in enumerate(CLASSES, start=1)
    ]
    return _chart("How hard its draws were", "permutations drawn [%]", series, {"by chance": 25.0}, 1)


def _by_task(
    title: str, unit: str, runs: Sequence[Curves], tasks: Sequence[str], curve: Any, level: Any
) -> list[Chart]:
    if len(runs) == 1:
        series = [(task, task, curve(runs[0], task)) for task in tasks]
        return [_chart(title, unit, series, _levels(level(runs[0].run)), 3)]
    return [
        _chart(
            f"{title}, {task}",
            unit,
            [(one.name, one.colour, curve(one, task)) for one in runs],
            _same(runs, level, task),
            3,
        )
        for task in tasks
    ]


def _each(runs: Sequence[Curves], key: str) -> list[tuple[str, str, list[Point]]]:
    alone = len(runs) == 1
    return [("this network" if alone else one.name, "ink" if alone else one.colour, one.monitor(key)) for one in runs]


def _chart(
    title: str, unit: str, series: Iterable[tuple[str, str, list[Point]]], levels: Mapping[str, float], decimals: int
) -> Chart:
    drawn = [Series(name, colour, thin(points)) for name, colour, points in series if points]
    return Chart(title, unit, drawn, levels, decimals)


def thin(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most so many points: the means of neighbours, where there are more. First and last stay as they are."""
    if len(points) <= most:
        return [(iteration, round(value, 5)) for iteration, value in points]
    middle = [np.mean(bunch, axis=0) for bunch in np.array_split(np.array(points[1:-1]), most - 2)]
    kept = [points[0], *((round(float(x)), float(y)) for x, y in middle), points[-1]]
    return [(iteration, round(value, 5)) for iteration, value in kept]


def _guessing_error(run: Run) -> dict[str, float]:
    return {entry["task"]: entry["chance"] for entry in run.metrics("validation")}


def _guessing_loss(run: Run) -> dict[str, float]:
    return {task: -math.log(1 - chance) for task, chance in _guessing_error(run).items()}


def _levels(guessing: Mapping[str, float]) -> dict[str, float]:
    """One level if the tasks agree on it."""
    if len(set(guessing.values())) == 1:
        return {"guessing": next(iter(guessing.values()))}
    return {f"guessing, {task}": level for task, level in guessing.items()}


def _same(runs: Sequence[Curves], level: Any, task: str) -> dict[str, float]:
    """The level of guessing, if all runs have the same one."""
    found = {level(one.run).get(task) for one in runs} - {None}
    return {"guessing": found.pop()} if len(found) == 1 else {}


def _baselines(runs: Sequence[Curves]) -> dict[str, float]:
    """Features that nobody had to learn, if they score the same for all runs."""
    found = [{entry["name"]: entry["top1"] for entry in one.run.metrics("baseline")} for one in runs]
    return found[0] if all(one == found[0] for one in found) else {}
