"""Curves of one run or of several, as plain numbers for a chart."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from unshuffle.analysis.difficulty import Division
from unshuffle.runs.folders import NamedRun
from unshuffle.runs.history import ErrorKind, tasks_of
from unshuffle.runs.run import Run
from unshuffle.tasks import TASKS

MAX_POINTS = 400  # of a curve; more cannot be distinguished on a screen
RUN_COLOURS = 8  # in the style of the page

Point = tuple[int, float]
"""Iteration and value."""


@dataclass(frozen=True)
class Series:
    """One curve."""

    name: str
    group: str
    """Its name in the legend; series of one group share their colour."""
    colour: str
    """The name of a colour of the page's style."""
    points: Sequence[Point]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Curves over the iterations, with reference levels."""

    title: str
    unit: str
    series: Sequence[Series]
    levels: Mapping[str, float]
    decimals: int = 3


def charts(runs: Sequence[NamedRun]) -> list[Chart]:
    """Return all charts: the tasks of one run share a chart, and several runs have a chart per task."""
    folders = [named.run for named in runs]
    tasks = list(dict.fromkeys(task for run in folders for task in tasks_of(run)))
    top1, rankme = (_monitor_series(runs, key) for key in ("top1", "rankme"))
    candidates = [
        *_error_charts(runs, tasks),
        Chart("Retrieval", "nearest neighbour of the same class [%]", top1, _common(map(_baselines, folders)), 1),
        *_task_charts("Training loss", "cross-entropy [nats]", runs, tasks, _losses, _chance_losses),
        Chart("Effective rank", "dimensions of the features (RankMe)", rankme, {}, 1),
    ]
    return [chart for chart in candidates if chart.series]


def run_colours(runs: Sequence[NamedRun]) -> list[str]:
    """Return the name of a colour of the page's style for each run, the same for all runs of an arm."""
    arms = list(dict.fromkeys(named.arm for named in runs))
    return [f"c{arms.index(named.arm) % RUN_COLOURS}" for named in runs]


def task_colour_name(task: str) -> str:
    """Return the name of a task's colour in the page's style."""
    return f"t{list(TASKS).index(task)}"


def difficulty_chart(division: Division) -> Chart:
    """Return the percentage of each class of difficulty over time, from the hardest to the easiest."""
    names = division.classes
    steps = [round(3 * number / (len(names) - 1)) for number in range(len(names))]  # the page has four colours
    legends = [_range([name for name, other in zip(names, steps, strict=True) if other == step]) for step in steps]
    iterations = [row["iteration"] for row in division.rows]
    series = _thinned(
        Series(name, legends[number], f"q{steps[number] + 1}", points)
        for number, name in enumerate(names)
        if (points := [(at, float(row[number])) for at, row in zip(iterations, division.percent, strict=True)])
    )
    levels = {"uniform sampling": 100 / len(names)}
    return Chart("Difficulty of the samples", f"{division.noun} sampled [%]", series, levels, 1)


def _range(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _error_charts(runs: Sequence[NamedRun], tasks: Sequence[str]) -> list[Chart]:
    """Return the errors on X_val, and dashed in the same charts those on the pretext test sets."""
    has_test = any(any(named.run.metrics("test")) for named in runs)
    title = "Validation and test error" if has_test else "Validation error"
    validation, test = (
        _task_charts(title, "[fraction]", runs, tasks, partial(_errors, kind=kind), _chances)
        for kind in ("validation", "test")
    )
    return [
        replace(chart, series=[*chart.series, *map(_as_test, dashed.series)])
        for chart, dashed in zip(validation, test, strict=True)
    ]


def _as_test(series: Series) -> Series:
    return replace(series, name=f"{series.name}, test", group=f"{series.group}, test", dashed=True)


def _task_charts(
    title: str,
    unit: str,
    runs: Sequence[NamedRun],
    tasks: Sequence[str],
    curve: Callable[..., list[Point]],
    levels: Callable[[Run], dict[str, float]],
) -> list[Chart]:
    if len(runs) == 1:
        run = runs[0].run
        series = _thinned(Series(task, task, task_colour_name(task), curve(run, task)) for task in tasks)
        return [Chart(title, unit, series, _chance_levels(levels(run)))]
    task_charts = []
    for task in tasks:
        series = _run_series(runs, partial(curve, task=task))
        level = _common({"chance": levels(named.run)[task]} for named in runs if task in levels(named.run))
        task_charts.append(Chart(f"{title}, {task}", unit, series, level))
    return task_charts


def _monitor_series(runs: Sequence[NamedRun], key: str) -> list[Series]:
    def curve(run: Run) -> list[Point]:
        return [(entry["iteration"], entry[key]) for entry in run.metrics("monitor") if key in entry]

    if len(runs) == 1:
        return _thinned([Series("this network", "this network", "ink", curve(runs[0].run))])
    return _run_series(runs, curve)


def _run_series(runs: Sequence[NamedRun], curve: Callable[[Run], list[Point]]) -> list[Series]:
    named_colours = zip(runs, run_colours(runs), strict=True)
    return _thinned(Series(named.name, named.arm, colour, curve(named.run)) for named, colour in named_colours)


def _thinned(series: Iterable[Series]) -> list[Series]:
    """Return the series that have points, with at most MAX_POINTS of them."""
    return [replace(curve, points=thin(curve.points)) for curve in series if curve.points]


def thin(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return at most `limit` points: the means of neighbours if there are more; the first and the last are kept."""
    if len(points) > limit:
        middle = [np.mean(bunch, axis=0) for bunch in np.array_split(np.array(points[1:-1]), limit - 2)]
        points = [points[0], *((round(float(x)), float(y)) for x, y in middle), points[-1]]
    return [(iteration, round(value, 5)) for iteration, value in points]


def _errors(run: Run, task: str, kind: ErrorKind) -> list[Point]:
    return [(entry["iteration"], entry["error"]) for entry in run.metrics(kind, task)]


def _losses(run: Run, task: str) -> list[Point]:
    return [(entry["iteration"], entry["loss"][task]) for entry in run.metrics("train") if task in entry["loss"]]


def _chances(run: Run) -> dict[str, float]:
    return {entry["task"]: entry["chance"] for entry in run.metrics("validation")}


def _chance_losses(run: Run) -> dict[str, float]:
    """Return ln N of each task with N classes, whose chance level is 1 − 1 / N, where training has as many."""
    chances = {task: chance for task, chance in _chances(run).items() if TASKS[task].fixed_choices}
    return {task: -math.log(1 - chance) for task, chance in chances.items() if chance < 1}


def _baselines(run: Run) -> dict[str, float]:
    return {entry["name"]: entry["top1"] for entry in run.metrics("baseline")}


def _chance_levels(chances: Mapping[str, float]) -> dict[str, float]:
    """Return each distinct level; it names its tasks unless it is the same for all."""
    by_level: dict[float, list[str]] = {}
    for task, level in chances.items():
        by_level.setdefault(level, []).append(task)
    if len(by_level) == 1:
        return {"chance": next(iter(by_level))}
    return {f"chance, {' and '.join(tasks)}": level for level, tasks in by_level.items()}


def _common(levels: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the levels if they are the same for all runs."""
    by_run = list(levels)
    return by_run[0] if by_run and all(levels == by_run[0] for levels in by_run) else {}
