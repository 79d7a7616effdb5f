"""What the page shows of one run: facts, the command to repeat it, puzzles, the policy, nearest neighbours."""

import csv
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from unshuffle.analysis.analysis import flat_values
from unshuffle.analysis.cost import training_seconds
from unshuffle.config import Config, preset_config
from unshuffle.evaluation.features import extract, raw_pixels
from unshuffle.evaluation.index import nearest
from unshuffle.files import csv_text
from unshuffle.options import differences, to_dict
from unshuffle.report.charts import task_colour_name
from unshuffle.report.policy_summary import policy_data, summarise_policy
from unshuffle.report.puzzles import solve_puzzles, strip, thumbnails
from unshuffle.report.results import retrieval_scores, task_errors
from unshuffle.report.snapshot import Snapshot
from unshuffle.runs.folders import NamedRun
from unshuffle.runs.history import evenly_spaced, ordering_tasks, read_sampling_states, tasks_of
from unshuffle.runs.run import Run
from unshuffle.tasks import TASKS
from unshuffle.wording import duration, skipped_sentence, source_sentence, split_sentence

THUMBNAIL_SIDE = 96
MAX_SKIPPED = 20  # names that are listed
MAX_VALIDATIONS = 120  # of a slider; finer steps cannot be selected by hand
NEIGHBOURS = 6

View = dict[str, Any]


# ---- facts


def describe_run(named: NamedRun, colour: str) -> View:
    """Return everything that the page shows without pictures."""
    run, config = named.run, named.run.config
    entries = list(run.metrics())
    start: Mapping[str, Any] = next((entry for entry in entries if entry["kind"] == "start"), {})
    values = to_dict(config)
    return {
        "name": named.name,
        "colour": colour,
        "folder": str(run.folder),
        "status": _status(run, entries),
        "backbone": config.model.backbone,
        "sampler": config.policy.name,
        "tasks": {task: _describe_task(run, task) for task in tasks_of(run)},
        "errors": task_errors(run),
        "retrieval": retrieval_scores(run),
        "time": _time(run),
        "has_rollouts": any(entry["kind"] == "rollouts" for entry in entries),
        "start": start,
        "sources": [source_sentence(source) for source in start.get("sources", [])],
        "splits": start.get("splits", {}),
        "remarks": [*_split_remarks(start.get("splits", {})), *_skipped_remarks(entries)],
        "config": flat_values(values),
        "yaml": yaml.safe_dump(values, sort_keys=False, allow_unicode=True),
        "command": repeat_command(config),
        "skipped": _read_skipped(run.skipped),
        "policies": {},
        "puzzles": {},
        "data": {"tasks": {}, "neighbours": None},
    }


def _describe_task(run: Run, task: str) -> dict[str, Any]:
    view = TASKS[task].view
    return {
        "noun": view.noun,
        "media_noun": view.media_noun,
        "layout": "grid" if view.in_grid else "strip",
        "colour": task_colour_name(task),
        "orders": task in ordering_tasks(run),
    }


def _status(run: Run, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last, planned = max((entry["iteration"] for entry in entries), default=0), run.config.optim.iterations
    file = run.metrics_file if entries else run.config_file
    written = datetime.fromtimestamp(file.stat().st_mtime).astimezone().strftime("%Y-%m-%d %H:%M")
    return {"iteration": last, "planned": planned, "finished": last >= planned, "written": written}


def _time(run: Run) -> str | None:
    """Return the time of training, validations and rollouts so far."""
    training = training_seconds(run.config, run.metrics("train"))
    return duration(training[-1][1] + sum(entry["duration"] for entry in run.metrics("cost"))) if training else None


def _split_remarks(splits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    remarks = (split_sentence(task, split) for task, split in splits.items())
    return [remark for remark in remarks if remark is not None]


def _skipped_remarks(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    skipped = sum(entry["kind"] == "skipped" for entry in entries)
    return [skipped_sentence(skipped, max(entry["iteration"] for entry in entries))] if skipped else []


def _read_skipped(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {"count": 0, "rows": []}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [list(map(csv_text, row)) for row in csv.reader(file) if len(row) == 2][1:]
    return {"count": len(rows), "rows": rows[:MAX_SKIPPED]}


# ---- the command to repeat a run


def repeat_command(config: Config) -> str:
    """Return `unshuffle pretrain` with the preset and every option that differs from it."""
    words = ["unshuffle", "pretrain", "--preset", config.preset]
    for name, value in preset_changes(config).items():
        if name != "optim.epochs":  # the iterations, warm-up and milestones are what they became
            words += _option(name, value)
    return shlex.join(words)


def preset_changes(config: Config) -> dict[str, Any]:
    """Return the values that differ from the config's preset, by dotted name, except for the run folder."""
    names = differences(preset_config(config.preset), config)
    return {name: attrgetter(name)(config) for name in names if name not in ("preset", "out")}


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        section, dot, field = name.rpartition(".")
        return [f"--{name}" if value else f"--{section}{dot}no_{field}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{name}", *map(str, values)]


# ---- pictures


def add_pictures(view: View, run: Run, snapshot: Snapshot | None) -> None:
    """Add the policy, the puzzles and the neighbours to a view; "data" holds what the page's scripts need."""
    for task in ordering_tasks(run):
        states = evenly_spaced(read_sampling_states(run, task), MAX_VALIDATIONS)
        if states:
            view["policies"][task] = summarise_policy(run, task, states)
            view["data"]["tasks"][task] = policy_data(run, task, states, snapshot)
    if snapshot is None:
        return
    view["puzzles"] = {task: _puzzles(snapshot, task) for task in snapshot.held_out if task in snapshot.ordering_tasks}
    view["data"]["neighbours"] = find_neighbours(snapshot)


def _puzzles(snapshot: Snapshot, task: str) -> dict[str, Any]:
    """Return held-out samples that the network has put back in order."""
    view = TASKS[task].view
    puzzles = solve_puzzles(snapshot, task, view.pictured_samples)
    parts = snapshot.network.tasks[task].pictures(puzzles.pixels, view.picture_side)
    samples = [
        {
            "name": puzzles.names[sample],
            "strip": strip(parts[sample]),
            "arrangements": [
                list(range(parts.shape[1])),
                puzzles.shown[sample].tolist(),
                puzzles.restored[sample].tolist(),
            ],
            "columns": view.columns(parts.shape[1]),
            "solved": puzzles.is_solved(sample),
            "verdict": puzzles.verdict(sample, view.noun),
        }
        for sample in range(len(puzzles))
    ]
    return {"layout": "grid" if view.in_grid else "strip", "samples": samples}


def find_neighbours(snapshot: Snapshot, count: int = NEIGHBOURS) -> dict[str, Any] | None:
    """Return held-out images, or middle frames of clips, and the nearest of the others to each, the nearest first.

    There are neighbours by the features of the network and by raw pixels; None if there are fewer than two images.
    """
    task = next((task for task, samples in snapshot.held_out.items() if len(samples) > 1), None)
    if task is None:
        return None
    samples = snapshot.held_out[task]
    frames = samples.pixels[:, samples.pixels.shape[1] // 2]
    features = {
        "this network": extract(snapshot.network.backbone, frames.numpy(), snapshot.device),
        "raw pixels": raw_pixels(frames.numpy()),
    }
    by_feature = {name: nearest_others(vectors, min(count, len(frames) - 1)) for name, vectors in features.items()}
    pictures = thumbnails(frames, THUMBNAIL_SIDE)
    return {"names": list(samples.names), "pictures": pictures, "nearest": by_feature}


def nearest_others(vectors: Tensor, count: int) -> list[list[int]]:
    """Return the nearest neighbours of each vector except itself, which need not come first if it has a copy."""
    indices = nearest(vectors, vectors, count + 1).tolist()
    return [[index for index in row if index != own][:count] for own, row in enumerate(indices)]
