"""Curves of one run or of several, as plain numbers for a chart."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from unshuffle.analysis.difficulty import Division
from unshuffle.analysis.history import tasks_of
from unshuffle.report.subjects import Subject
from unshuffle.run import Run

POINTS = 400  # of a curve; more cannot be told apart on a screen

Point = tuple[int, float]
"""Iteration and value."""


@dataclass(frozen=True)
class Series:
    """One curve."""

    name: str
    group: str
    """What the legend calls it; series of one group share their colour."""
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
    decimals: int = 3


def charts(subjects: Sequence[Subject]) -> list[Chart]:
    """Everything worth a curve: the tasks of one run in one chart, and several runs in a chart for each task."""
    runs = [subject.run for subject in subjects]
    tasks = list(dict.fromkeys(task for run in runs for task in tasks_of(run)))
    percent, rank = (_of_monitor(subjects, key) for key in ("top1", "rankme"))
    drawn = [
        *_by_task(
            Chart("Validation error", "orders not recognised [share]", (), {}), subjects, tasks, _errors, _chances
        ),
        Chart("Retrieval", "nearest neighbour of the same class [%]", percent, _shared(map(_baselines, runs)), 1),
        *_by_task(Chart("Training loss", "cross-entropy [nats]", (), {}), subjects, tasks, _losses, _chance_losses),
        Chart("Effective rank", "dimensions of the features (RankMe)", rank, {}, 1),
    ]
    return [chart for chart in drawn if chart.series]


def difficulty_chart(division: Division) -> Chart:
    """How the draws divide into classes, from the hardest to the easiest."""
    names = division.classes
    steps = [round(3 * number / (len(names) - 1)) for number in range(len(names))]  # the page has four colours
    legends = [_together([name for name, other in zip(names, steps, strict=True) if other == step]) for step in steps]
    iterations = [row["iteration"] for row in division.rows]
    series = _drawn(
        Series(name, legends[number], f"q{steps[number] + 1}", points)
        for number, name in enumerate(names)
        if (points := [(at, float(row[number])) for at, row in zip(iterations, division.percent, strict=True)])
    )
    return Chart("How hard its draws were", f"{division.what} drawn [%]", series, {"by chance": 100 / len(names)}, 1)


def _together(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _by_task(
    empty: Chart,
    subjects: Sequence[Subject],
    tasks: Sequence[str],
    curve: Callable[[Run, str], list[Point]],
    levels: Callable[[Run], dict[str, float]],
) -> list[Chart]:
    if len(subjects) == 1:
        (run,) = (subject.run for subject in subjects)
        series = _drawn(Series(task, task, task, curve(run, task)) for task in tasks)
        return [Chart(empty.title, empty.unit, series, _named(levels(run)))]
    found = []
    for task in tasks:
        series = _drawn(Series(one.name, one.arm, one.colour, curve(one.run, task)) for one in subjects)
        level = _shared({"guessing": levels(one.run)[task]} for one in subjects if task in levels(one.run))
        found.append(Chart(f"{empty.title}, {task}", empty.unit, series, level))
    return found


def _of_monitor(subjects: Sequence[Subject], key: str) -> list[Series]:
    points = [
        [(entry["iteration"], entry[key]) for entry in subject.run.metrics("monitor") if key in entry]
        for subject in subjects
    ]
    if len(subjects) == 1:
        return _drawn([Series("this network", "this network", "ink", points[0])])
    return _drawn(Series(one.name, one.arm, one.colour, some) for one, some in zip(subjects, points, strict=True))


def _drawn(series: Iterable[Series]) -> list[Series]:
    """Those that have points, not too many of them."""
    return [Series(one.name, one.group, one.colour, thin(one.points)) for one in series if one.points]


def thin(points: Sequence[Point], most: int = POINTS) -> list[Point]:
    """At most so many points: the means of neighbours, where there are more. First and last stay as they are."""
    if len(points) > most:
        middle = [np.mean(bunch, axis=0) for bunch in np.array_split(np.array(points[1:-1]), most - 2)]
        points = [points[0], *((round(float(x)), float(y)) for x, y in middle), points[-1]]
    return [(iteration, round(value, 5)) for iteration, value in points]


def _errors(run: Run, task: str) -> list[Point]:
    return [(entry["iteration"], entry["error"]) for entry in run.metrics("validation") if entry["task"] == task]


def _losses(run: Run, task: str) -> list[Point]:
    return [(entry["iteration"], entry["loss"][task]) for entry in run.metrics("train") if task in entry["loss"]]


def _chances(run: Run) -> dict[str, float]:
    return {entry["task"]: entry["chance"] for entry in run.metrics("validation")}


def _chance_losses(run: Run) -> dict[str, float]:
    """ln |Ψ|, of which the chance is 1 − 1 / |Ψ|."""
    return {task: -math.log(1 - chance) for task, chance in _chances(run).items()}


def _baselines(run: Run) -> dict[str, float]:
    return {entry["name"]: entry["top1"] for entry in run.metrics("baseline")}


def _named(guessing: Mapping[str, float]) -> dict[str, float]:
    """One level if the tasks agree on it."""
    if len(set(guessing.values())) == 1:
        return {"guessing": next(iter(guessing.values()))}
    return {f"guessing, {task}": level for task, level in guessing.items()}


def _shared(levels: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """The levels, if they are the same for all runs."""
    found = list(levels)
    return found[0] if found and all(one == found[0] for one in found) else {}
