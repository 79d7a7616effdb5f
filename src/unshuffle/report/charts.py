"""Curves of one run or of several, as plain numbers for a chart."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from unshuffle.config import TASK_SYMBOLS
from unshuffle.runs.folders import NamedRun
from unshuffle.runs.history import ErrorKind, tasks_of
from unshuffle.runs.run import Run

if TYPE_CHECKING:  # it imports torch, and curves are drawn without
    from unshuffle.analysis.difficulty import Division

MAX_POINTS = 400  # of a curve; more cannot be distinguished on a screen
RUN_COLOURS, TASK_COLOURS = 8, 4  # in the style of the page
TEST = ", test"
"""What names and groups of curves on the pretext test set end with."""
LOSS_NOTE = "Lower is better. Training samples, so it also falls where the network memorises them."

Point = tuple[float, float]
"""Iteration, or where it is on another axis, and value."""


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
    band: Sequence[tuple[float, float, float]] = ()
    """Where a curve is a mean: (x, lower, upper) of the standard deviation around it."""


@dataclass(frozen=True)
class Chart:
    """Curves over the iterations, with reference levels."""

    title: str
    unit: str
    series: Sequence[Series]
    levels: Mapping[str, float]
    decimals: int = 3
    note: str = ""
    """One sentence: what to see."""
    from_zero: bool = True
    """Whether the axis begins at 0; otherwise it shows the range of the values alone."""
    axis: str = "iteration"
    """What the curves are drawn over."""


def chart_values(chart: Chart) -> dict[str, Any]:
    """Return a chart as plain values for the page's script, without a copy of each point as `asdict` makes it."""
    return {**vars(chart), "series": [dict(vars(series)) for series in chart.series]}


def charts(runs: Sequence[NamedRun]) -> list[Chart]:
    """Return all charts: the tasks of one run share a chart, and several runs have a chart per task."""
    folders = [named.run for named in runs]
    tasks = list(dict.fromkeys(task for run in folders for task in tasks_of(run)))
    retrieval = Chart(
        "Retrieval",
        "nearest neighbour of the same class [%]",
        _monitor_series(runs, {"top1": "this network"}),
        _common(levels for run in folders if (levels := _baselines(run))),  # runs without labels have none
        decimals=1,
        note="Higher is better. Labelled images, which the training does not use.",
    )
    candidates = [
        *_error_charts(runs, tasks),
        retrieval,
        *_own_charts(runs),
        *_task_charts("Training loss", "cross-entropy [nats]", runs, tasks, _losses, _chance_losses, LOSS_NOTE),
        _rank_chart(runs),
    ]
    return [chart for chart in candidates if chart.series]


def _own_charts(runs: Sequence[NamedRun]) -> list[Chart]:
    """Return how often two views of a held-out sample find each other: one chart for one run, else one per kind."""
    names = {"crops": "two crops of an image", "frames": "two frames of a clip"}
    shown = [{kind: name} for kind, name in names.items()] if len(runs) > 1 else [names]
    note = "Higher is better. Held-out samples of the run, without labels; each view looks for its partner."
    found = []
    for kinds in shown:
        chances = [levels for named in runs if (levels := _own_chances(named.run, kinds))]
        found.append(
            Chart(
                "Own data" if len(runs) == 1 else f"Own data, {' and '.join(kinds.values())}",
                "views that find each other [%]",
                _monitor_series(runs, {f"{kind}_top1": name for kind, name in kinds.items()}),
                _common(chances),
                1,
                f"{note}{_differing(chances)}",
            )
        )
    return found


def _own_chances(run: Run, names: Mapping[str, str]) -> dict[str, float]:
    first: Mapping[str, Any] = next(run.metrics("monitor"), {})
    chances = {name: first[f"{kind}_chance"] for kind, name in names.items() if f"{kind}_chance" in first}
    return _chance_levels(chances) if chances else {}


def _rank_chart(runs: Sequence[NamedRun]) -> Chart:
    """Return the effective rank of the run's own samples; of the labelled gallery for runs that have only that."""
    own = any("own_rankme" in entry for named in runs for entry in named.run.metrics("monitor"))
    source = "held-out samples of the run" if own else "images of the labelled gallery"
    series = _monitor_series(runs, {"own_rankme" if own else "rankme": "this network"})
    note = f"Of the {source}, whose number bounds it. A fall is a sign of collapse."
    return Chart("Effective rank", "dimensions of the features (RankMe)", series, {}, 1, note)


def run_colours(runs: Sequence[NamedRun]) -> list[str]:
    """Return the name of a colour of the page's style for each run, the same for all runs of an arm."""
    arms = list(dict.fromkeys(named.arm for named in runs))
    return [f"c{arms.index(named.arm) % RUN_COLOURS}" for named in runs]


def task_colour_name(task: str) -> str:
    """Return the name of a task's colour in the page's style."""
    return f"t{list(TASK_SYMBOLS.values()).index(task) % TASK_COLOURS}"


def difficulty_chart(division: "Division") -> Chart:
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
    note = "What was trained on between two validations. Curves that stay near the line are uniform sampling."
    return Chart("Difficulty of the samples", f"{division.noun} sampled [%]", series, levels, 1, note, from_zero=False)


def _range(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _error_charts(runs: Sequence[NamedRun], tasks: Sequence[str]) -> list[Chart]:
    """Return the errors on X_val, and dashed in the same charts those on the pretext test sets."""
    has_test = any(any(named.run.metrics("test")) for named in runs)
    title = "Validation and test error" if has_test else "Validation error"
    dashes = "; dashed: the pretext test set, on which nothing in the training depends" if has_test else ""
    note = f"Lower is better. Held-out samples{dashes}. At chance nothing has been learned."
    validation, test = (
        _task_charts(title, "[fraction]", runs, tasks, partial(_errors, kind=kind), _error_chances, note)
        for kind in ("validation", "test")
    )
    return [
        replace(chart, series=[*chart.series, *map(_as_test, dashed.series)])
        for chart, dashed in zip(validation, test, strict=True)
    ]


def _as_test(series: Series) -> Series:
    return replace(series, name=f"{series.name}{TEST}", group=f"{series.group}{TEST}", dashed=True)


def _task_charts(
    title: str,
    unit: str,
    runs: Sequence[NamedRun],
    tasks: Sequence[str],
    curve: Callable[..., list[Point]],
    levels: Callable[[Run], dict[str, float]],
    note: str,
) -> list[Chart]:
    if len(runs) == 1:
        run = runs[0].run
        series = _thinned(Series(task, task, task_colour_name(task), curve(run, task)) for task in tasks)
        return [Chart(title, unit, series, _chance_levels(levels(run)), note=note)]
    task_charts, run_levels = [], [levels(named.run) for named in runs]
    for task in tasks:
        series = _run_series(runs, partial(curve, task=task))
        by_run = [
            {
                f"chance{name.removeprefix(task)}": level
                for name, level in by_name.items()
                if name in (task, f"{task}{TEST}")
            }
            for by_name in run_levels
        ]
        chance = [levels for levels in by_run if levels]
        chart = Chart(f"{title}, {task}", unit, series, _common(chance), note=f"{note}{_differing(chance)}")
        task_charts.append(chart)
    return task_charts


def _monitor_series(runs: Sequence[NamedRun], keys: Mapping[str, str]) -> list[Series]:
    """Return a curve for each figure of the monitor, by its key and name; of several runs, of the only figure."""

    def curve(run: Run, key: str) -> list[Point]:
        return [(entry["iteration"], entry[key]) for entry in run.metrics("monitor") if key in entry]

    if len(runs) > 1:
        (key,) = keys
        return _run_series(runs, partial(curve, key=key))
    colours = ["ink"] if len(keys) == 1 else ["t0", "t1"]  # those of the tasks on images and on clips
    return _thinned(
        Series(name, name, colour, curve(runs[0].run, key))
        for (key, name), colour in zip(keys.items(), colours, strict=False)
    )


def _run_series(runs: Sequence[NamedRun], curve: Callable[[Run], list[Point]]) -> list[Series]:
    named_colours = zip(runs, run_colours(runs), strict=True)
    return _thinned(Series(named.name, named.arm, colour, curve(named.run)) for named, colour in named_colours)


def _thinned(series: Iterable[Series]) -> list[Series]:
    """Return the series that have points, with at most MAX_POINTS of them."""
    return [replace(curve, points=points) for curve in series if (points := thin(curve.points))]


def thin(points: Sequence[Point], limit: int = MAX_POINTS) -> list[Point]:
    """Return at most `limit` finite points: the means of neighbours if there are more; both ends are kept."""
    points = [point for point in points if math.isfinite(point[1])]
    if len(points) > limit:
        bounds = np.arange(limit - 1) * (len(points) - 2) // (limit - 2)
        means = np.add.reduceat(np.array(points[1:-1], float), bounds[:-1]) / np.diff(bounds)[:, None]
        points = [points[0], *((round(x), y) for x, y in means.tolist()), points[-1]]
    return [(iteration, round(value, 5)) for iteration, value in points]


def _errors(run: Run, task: str, kind: ErrorKind) -> list[Point]:
    return [(entry["iteration"], entry["error"]) for entry in run.metrics(kind, task)]


def _losses(run: Run, task: str) -> list[Point]:
    return [(entry["iteration"], entry["loss"][task]) for entry in run.metrics("train") if task in entry["loss"]]


def _chances(run: Run) -> dict[str, float]:
    return {entry["task"]: entry["chance"] for entry in run.metrics("validation")}


def _error_chances(run: Run) -> dict[str, float]:
    """Return the chance levels on X_val, and on the test sets where they differ, as the number of samples does."""
    chances = _chances(run)
    tests = {entry["task"]: entry["chance"] for entry in run.metrics("test")}
    return chances | {f"{task}{TEST}": level for task, level in tests.items() if level != chances.get(task)}


def _chance_losses(run: Run) -> dict[str, float]:
    """Return ln N of each task with N classes, whose chance level is 1 − 1 / N, where training has as many."""
    chances = {task: chance for task, chance in _chances(run).items() if run.config.section(task).fixed_choices}
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


def _differing(levels: Sequence[Mapping[str, float]]) -> str:
    """Return a sentence if runs have different chance levels, so that none can be drawn for all of them."""
    if not levels or _common(levels):
        return ""
    values = sorted({value for by_run in levels for value in by_run.values()})
    return f" The runs have different chance levels ({values[0]:.3g} to {values[-1]:.3g}): compare each with its own."


def _common(levels: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the levels if they are the same for all runs."""
    by_run = list(levels)
    return by_run[0] if by_run and all(levels == by_run[0] for levels in by_run) else {}
