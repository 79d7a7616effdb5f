"""What the live page shows of runs without their networks, as plain values: the table, one run, several compared."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

import numpy as np

from unshuffle.analysis.analysis import flat_values
from unshuffle.analysis.passes import total_passes
from unshuffle.config import TASK_SYMBOLS, Config, OrderingConfig, addresses
from unshuffle.files import csv_cell
from unshuffle.options import to_dict
from unshuffle.report.charts import TEST, Chart, Series, chart_values, charts, run_colours, thin
from unshuffle.report.results import retrieval_scores
from unshuffle.report.verdict import judge_features
from unshuffle.runs.folders import NamedRun, differing
from unshuffle.runs.history import ErrorKind, is_finished, tasks_of
from unshuffle.runs.live import LiveRun
from unshuffle.runs.run import Run
from unshuffle.serve.library import WatchedRun
from unshuffle.wording import describe_concern, duration, skipped_sentence

Axis = Literal["iterations", "time", "passes"]
AXES: Sequence[Axis] = ("iterations", "time", "passes")
RECENT = 20
"""The speed is that of so many of the latest `train` lines."""
COLUMNS = ("name", "state", "preset", "tasks", "data", "progress", "left", "speed", "errors", "retrieval", "message")


# ---- the table


def describe(watched: WatchedRun) -> dict[str, Any]:
    """Return the row of a run: texts to show, and beside them the numbers to sort by."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    row |= {"name": watched.name, "state": watched.state.state, "message": watched.state.message, "sort": {}}
    if watched.state.state == "damaged":
        return row
    run = watched.run
    config, iteration, planned = run.config, run.last_iteration, run.config.optim.iterations
    speed, left = _speed(run), _seconds_left(run, planned) if watched.state.state == "training" else None
    errors = _newest_errors(run)
    retrieval = retrieval_scores(run).get("this network", {}).get("top 1")
    monitored = [entry["iteration"] for entry in run.metrics("monitor") if "top1" in entry]
    started = next((entry.get("time", 0.0) for entry in run.metrics("start")), 0.0)
    row |= {
        "preset": config.preset,
        "tasks": _task_symbols(config),
        "data": data_words(config),
        "progress": f"{iteration:,} of {planned:,}",
        "left": "" if left is None else duration(left),
        "speed": "" if speed is None else f"{speed:,.0f} samples/s",
        "errors": ", ".join(f"{task} {entry['error']:.3f}" for task, (_, entry) in errors.items()),
        "retrieval": "" if retrieval is None else f"{retrieval:.1f} %",
        "measured": {
            "errors": "; ".join(
                f"{task}: {kind} error at iteration {entry['iteration']:,}" for task, (kind, entry) in errors.items()
            ),
            "retrieval": f"at iteration {monitored[-1]:,}" if monitored else "",
        },
        "options": {name: str(value) for name, value in flat_config(config).items()},
        "fraction": min(1.0, iteration / planned) if planned else 1.0,
        "no_puzzles": why_no_puzzles(watched),
    }
    row["sort"] = {
        **{"progress": iteration, "left": left, "speed": speed, "retrieval": retrieval, "started": started},
        "errors": float(np.mean([entry["error"] for _, entry in errors.values()])) if errors else None,
    }
    return row


def _newest_errors(run: Run) -> dict[str, tuple[ErrorKind, Mapping[str, Any]]]:
    """Return the newest error of each task: on the test set if that is as new or the run is finished, else on X_val.

    The test set is measured much more rarely.
    """
    newest: dict[str, tuple[ErrorKind, Mapping[str, Any]]] = {}
    for task in tasks_of(run):
        *_, validation = run.metrics("validation", task)
        test = next(reversed(list(run.metrics("test", task))), None)
        if test is not None and (is_finished(run) or test["iteration"] >= validation["iteration"]):
            newest[task] = "test", test
        else:
            newest[task] = "validation", validation
    return newest


def orders(config: Config) -> bool:
    """Return whether a run has an ordering task: others have neither permutations nor puzzles."""
    return any(isinstance(config.section(task), OrderingConfig) for task in config.task_names)


def why_no_puzzles(watched: WatchedRun) -> str:
    """Return why a run has no puzzles that a network could solve; nothing if it has."""
    run = watched.run
    if not orders(run.config):
        return f"the run has no ordering task (its tasks: {', '.join(run.config.task_names)}), so it has no puzzles"
    if not kept_checkpoints(run):
        waits = watched.state.state == "training"
        return f"the run has no checkpoint{' yet: wait for the first one (log.checkpoint_every)' if waits else ''}"
    return "" if run.held_out.is_file() else "the run keeps no samples (log.pictures is off)"


def kept_checkpoints(run: Run) -> list[int]:
    """Return the iterations of the checkpoints of a run, without an import of torch."""
    return sorted(int(path.stem) for path in run.checkpoints.glob("*.pt") if path.stem.isdigit())


def policy_version(watched: WatchedRun) -> list[Any]:
    """Return what changes when there is something new about the policy of a run, which `train` lines do not change."""
    run, identity = watched.run, watched.progress[0]
    counts = [sum(1 for _ in run.metrics(kind)) for kind in ("validation", "episode", "rollouts", "warning")]
    return [watched.config_time, identity, is_finished(run), bool(kept_checkpoints(run)), *counts]


def _task_symbols(config: Config) -> str:
    """Return the tasks by their letters: as they were given, or as they were chosen to fit the data."""
    symbols = {name: symbol for symbol, name in TASK_SYMBOLS.items()}
    return "&".join("+".join(symbols[name] for name in stage) for stage in config.stages)


def data_words(config: Config) -> str:
    """Return the data of a run as it was given."""
    given = [address for medium in (config.images, config.videos) for address in addresses(medium)]
    return ", ".join(map(str, given)) or "synthetic world"


def flat_config(config: Config) -> dict[str, Any]:
    """Return all options under dotted names."""
    return flat_values(to_dict(config))


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the table as CSV, in which no name is a formula."""
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(COLUMNS)
    writer.writerows([csv_cell(str(row[column])) for column in COLUMNS] for row in rows)
    return stream.getvalue()


def _recent(run: Run) -> list[dict[str, Any]]:
    return list(run.metrics("train"))[-RECENT:]


def _speed(run: Run) -> float | None:
    recent = _recent(run)
    return len(recent) / sum(1 / entry["samples_per_second"] for entry in recent) if recent else None


def _seconds_left(run: Run, planned: int) -> float | None:
    """Return the time that the remaining iterations take at the recent speed, validations included."""
    recent = [entry for entry in _recent(run) if "seconds" in entry]
    if not recent:
        return None
    first = recent[0] if len(recent) > 1 else {"iteration": 0, "seconds": 0.0}
    steps, seconds = recent[-1]["iteration"] - first["iteration"], recent[-1]["seconds"] - first["seconds"]
    return float(seconds / steps * max(0, planned - recent[-1]["iteration"])) if steps > 0 else None


# ---- one run


def run_view(watched: WatchedRun) -> dict[str, Any]:
    """Return what the page of a run shows and renews while it trains."""
    run = watched.run
    row = describe(watched)
    if watched.state.state == "damaged":
        return {"row": row, "charts": [], "warnings": [], "log": [], "verdict": None}
    verdict = judge_features(run)
    return {
        "row": row,
        "charts": [chart_values(chart) for chart in [*charts([watched.named]), *_speed_charts(run)]],
        "warnings": _warnings(run),
        "log": _log_tail(run),
        "verdict": None if verdict is None else {"change": verdict.change, "sentences": list(verdict.sentences)},
        "orders": orders(run.config),
        "policy": policy_version(watched),
        "checkpoints": kept_checkpoints(run),
    }


def _speed_charts(run: Run) -> list[Chart]:
    points = thin([(entry["iteration"], entry["samples_per_second"]) for entry in run.metrics("train")])
    series = [Series("training", "training", "ink", points)]
    note = "Without validations, rollouts and monitor."
    return [Chart("Speed", "samples per second", series, {}, 0, note)] if points else []


def _warnings(run: LiveRun) -> list[str]:
    sentences = [sentence for sentence in [run.metrics_warning] if sentence]
    for entry in run.metrics("warning"):
        text = entry.get("sentence")
        if text is None and "concern" in entry:
            text = describe_concern(entry)
        task = f"{entry['task']} task: " if "task" in entry else ""
        sentences.append(f"iteration {entry['iteration']:,}: {task}{text}")
    skipped = sum(1 for _ in run.metrics("skipped"))
    return [*sentences, skipped_sentence(skipped, run.last_iteration)] if skipped else sentences


def _log_tail(run: LiveRun) -> list[str]:
    lines = []
    for entry in run.tail:
        moment = entry.get("time")
        clock = "" if moment is None else f"{datetime.fromtimestamp(moment).astimezone():%H:%M:%S}  "
        lines.append(f"{clock}{entry['iteration']:>7,}  {entry['kind']:<10}  {_entry_words(entry)}".rstrip())
    return lines


def _entry_words(entry: Mapping[str, Any]) -> str:
    """Return the numbers of a line that a person follows."""
    words = [str(entry[key]) for key in ("task", "name") if key in entry]
    for key, value in entry.items():
        if key in ("iteration", "kind", "seconds", "time", "task", "name", "lr"):
            continue
        if isinstance(value, dict) and value and all(isinstance(number, int | float) for number in value.values()):
            words.append(f"{key} " + " ".join(f"{name} {number:.3g}" for name, number in value.items()))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            words.append(f"{key} {value:.4g}")
    return ", ".join(words)


# ---- several runs


def compare_view(runs: Sequence[WatchedRun], axis: Axis, *, seeds: bool) -> dict[str, Any]:
    """Return the charts of several runs over an axis, and the options in which they differ.

    With `seeds`, runs that differ only in their seed are one curve, their mean, with a band of one standard deviation.
    """
    sound = [watched for watched in runs if watched.state.state != "damaged"]
    configs = {watched.name: flat_config(watched.run.config) for watched in sound}
    named = _by_seed(sound, configs) if seeds else [watched.named for watched in sound]
    positions = {} if axis == "iterations" else {run.name: _positions(run.run, axis) for run in named}
    drawn = [_over(chart, positions, axis) for chart in several_charts(named)] if named else []
    if seeds:
        drawn = [_with_means(chart, named) for chart in drawn]
    names = differing(list(configs.values()))
    return {
        "charts": list(map(chart_values, drawn)),
        "runs": [
            {
                "name": watched.name,
                "colour": colour,
                "options": {name: str(configs[watched.name][name]) for name in names},
            }
            for watched, colour in zip(sound, run_colours(named), strict=True)
        ],
        "differing": names,
    }


def several_charts(runs: Sequence[NamedRun]) -> list[Chart]:
    """Return charts with a curve per run, also if there is only one run."""
    if len(runs) > 1:
        return charts(runs)
    # a chart of several runs is per task: asked for the same run twice, it has every curve twice
    twice = charts([*runs, *runs])
    return [replace(chart, series=list({series.name: series for series in chart.series}.values())) for chart in twice]


def _by_seed(runs: Sequence[WatchedRun], configs: Mapping[str, Mapping[str, Any]]) -> list[NamedRun]:
    """Return the runs with one arm for all that differ only in their seed, named by the first of them."""
    first: dict[str, str] = {}
    named = []
    for watched in runs:
        same = str({name: value for name, value in configs[watched.name].items() if name not in ("seed", "out")})
        arm = first.setdefault(same, watched.arm)
        named.append(NamedRun(watched.run, watched.name, arm))
    return named


AXIS_NAMES = {"iterations": "iteration", "passes": "forward passes [batches]"}


Positions = tuple[list[int], list[float]]
"""Some iterations of a run, and where each is on an axis."""


def _over(chart: Chart, positions: Mapping[str, Positions], axis: Axis) -> Chart:
    """Return a chart over the time or the forward passes instead of the iterations."""
    if axis == "iterations":
        return chart
    longest = max((float(values[-1]) for _, values in positions.values() if len(values)), default=0.0)
    unit, seconds = ("h", 3600) if longest > 2 * 3600 else ("min", 60) if longest > 120 else ("s", 1)
    scale = seconds if axis == "time" else 1
    series = []
    for curve in chart.series:
        iterations, values = positions[curve.name.removesuffix(TEST)]
        moved = np.interp([point[0] for point in curve.points], iterations, values) / scale
        points = [(round(float(x), 4), point[1]) for x, point in zip(moved, curve.points, strict=True)]
        series.append(replace(curve, points=points))
    return replace(chart, series=series, axis=AXIS_NAMES.get(axis, f"time of training [{unit}]"))


def _positions(run: Run, axis: Axis) -> Positions:
    if axis == "time":
        moments = {entry["iteration"]: entry["seconds"] for entry in run.metrics() if "seconds" in entry}
        moments = {0: 0.0} | dict(sorted(moments.items()))
        return list(moments), list(moments.values())
    iterations = sorted({0, *(entry["iteration"] for entry in run.metrics())})
    some = [iterations[round(position)] for position in np.linspace(0, len(iterations) - 1, min(200, len(iterations)))]
    return some, total_passes(run, some, shared_backbone=True)


def _with_means(chart: Chart, runs: Sequence[NamedRun]) -> Chart:
    """Return a chart with the mean of each group of curves, and a band of one standard deviation around it."""
    groups: dict[tuple[str, bool], list[Series]] = {}
    for series in chart.series:
        groups.setdefault((series.group, series.dashed), []).append(series)
    return replace(chart, series=[_mean(group) if len(group) > 1 else group[0] for group in groups.values()])


def _mean(group: Sequence[Series]) -> Series:
    """Return the mean of curves where all of them are, at the points of the one that ends first."""
    first = min(group, key=lambda series: series.points[-1][0])
    begin = max(series.points[0][0] for series in group)
    xs = [x for x, _ in first.points if x >= begin] or [first.points[-1][0]]
    values = np.array([np.interp(xs, *np.array(series.points, float).T) for series in group])
    means, stds = values.mean(axis=0), values.std(axis=0, ddof=1)
    name = f"{first.group.removesuffix(TEST)}, mean of {len(group)} seeds"
    rows = list(zip(xs, means.tolist(), stds.tolist(), strict=True))
    return replace(
        first,
        name=name,
        group=name + (TEST if first.dashed else ""),
        points=[(x, round(mean, 5)) for x, mean, _ in rows],
        band=[(x, round(mean - std, 5), round(mean + std, 5)) for x, mean, std in rows],
    )
