"""What the page says about one run."""

import base64
import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from unshuffle.analysis.cost import training_seconds
from unshuffle.analysis.difficulty import divide_draws
from unshuffle.analysis.error_map import by_mean_error
from unshuffle.analysis.history import read_history, tasks_of
from unshuffle.analysis.moments import Moment, read_moments, spread
from unshuffle.analysis.trials import read_trials
from unshuffle.options import to_dict
from unshuffle.permutations import load_permutations
from unshuffle.report.attempts import attempt
from unshuffle.report.curves import difficulty_chart
from unshuffle.report.images import most_vivid, strip, thumbnails
from unshuffle.report.likeness import find_alike
from unshuffle.report.repeat import repeat_command
from unshuffle.report.results import errors, retrieval
from unshuffle.report.snapshot import Snapshot
from unshuffle.report.story import tell
from unshuffle.report.subjects import Subject
from unshuffle.run import Run

SAMPLES = {"spatial": 6, "temporal": 4}  # to be put together
SIDES = {"spatial": 80, "temporal": 64}  # pixels of a part; multiples of 16, so that no JPEG block has two parts in it
THUMBNAIL = 96
SKIPPED = 20  # names that are listed
MOMENTS = 120  # of a slider; a finer one cannot be held by a finger

View = dict[str, Any]


def describe(subject: Subject) -> View:
    """Everything that can be said without pictures."""
    run, config = subject.run, subject.run.config
    entries = list(run.metrics())
    start: Mapping[str, Any] = next((entry for entry in entries if entry["kind"] == "start"), {})
    values = to_dict(config)
    return {
        "name": subject.name,
        "colour": subject.colour,
        "folder": str(run.folder),
        "status": _status(run, entries),
        "backbone": config.model.backbone,
        "sampler": config.policy.name,
        "tasks": tasks_of(run),
        "errors": errors(run),
        "retrieval": retrieval(run),
        "seconds": _seconds(run),
        "has_trials": any(entry["kind"] == "rollouts" for entry in entries),
        "start": start,
        "config": _flat(values),
        "yaml": yaml.safe_dump(values, sort_keys=False, allow_unicode=True),
        "command": repeat_command(config),
        "skipped": _read_skipped(run.skipped),
        "stories": {},
        "puzzles": {},
        "data": {"tasks": {}, "neighbours": None},
    }


def illustrate(view: View, run: Run, snapshot: Snapshot | None) -> None:
    """Add what is to be looked at; under "data" what the page's scripts need for it."""
    for task in view["tasks"]:
        moments = spread(read_moments(run, task), MOMENTS)
        if moments:
            view["stories"][task] = tell(run, task, moments)
            view["data"]["tasks"][task] = _policy_data(run, task, moments, snapshot)
    if snapshot is None:
        return
    view["puzzles"] = {task: _puzzles(snapshot, task) for task in snapshot.held_out}
    alike = find_alike(snapshot)
    if alike is not None:
        pictures = thumbnails(alike.frames, THUMBNAIL)
        view["data"]["neighbours"] = {"names": alike.names, "pictures": pictures, "nearest": alike.nearest}


def _status(run: Run, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last, planned = max((entry["iteration"] for entry in entries), default=0), run.config.optim.iterations
    file = run.metrics_file if entries else run.config_file
    written = datetime.fromtimestamp(file.stat().st_mtime).astimezone().strftime("%Y-%m-%d %H:%M")
    return {"iteration": last, "planned": planned, "finished": last >= planned, "written": written}


def _seconds(run: Run) -> float | None:
    """What training, validations and trials took so far."""
    training = training_seconds(run.config, run.metrics("train"))
    return training[-1][1] + sum(entry["seconds"] for entry in run.metrics("cost")) if training else None


def _flat(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested values under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{where}{key}.") if isinstance(value, dict) else {f"{where}{key}": value}
    return flat


def _read_skipped(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {"count": 0, "rows": []}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [row for row in csv.reader(file) if len(row) == 2][1:]
    return {"count": len(rows), "rows": rows[:SKIPPED]}


def _puzzles(snapshot: Snapshot, task: str) -> list[dict[str, Any]]:
    """Samples that the network has put together."""
    attempts = attempt(snapshot, task, SAMPLES[task])
    parts = snapshot.parts(task, attempts.pixels, SIDES[task])
    return [
        {
            "name": attempts.names[sample],
            "strip": strip(parts[sample]),
            "orders": [
                list(range(parts.shape[1])),
                attempts.shown[sample].tolist(),
                attempts.restored[sample].tolist(),
            ],
            "columns": _columns(snapshot.config.shuffle.grid, task, parts.shape[1]),
            "recognised": attempts.recognised(sample),
            "verdict": attempts.verdict(sample, "tiles " if task == "spatial" else "frames "),
        }
        for sample in range(len(attempts))
    ]


def _columns(grid: int, task: str, parts: int) -> int:
    return grid if task == "spatial" else parts


def _policy_data(run: Run, task: str, moments: Sequence[Moment], snapshot: Snapshot | None) -> dict[str, Any]:
    """Numbers behind the map of preferences and the map of errors, and a sample to apply permutations to."""
    permutations, history = load_permutations(run.permutations / f"{task}.npy"), read_history(run, task)
    rewards = {entry["iteration"]: entry["reward"] for entry in run.metrics("episode") if entry["task"] == task}
    acting = [moment if moment.acts else None for moment in moments]
    percent = np.stack([moment.errors for moment in moments]) * 100
    return {
        "permutations": permutations.tolist(),
        "columns": _columns(run.config.shuffle.grid, task, permutations.shape[1]),
        "iterations": [moment.iteration for moment in moments],
        # a byte for each error: there may be 1000 permutations at 120 moments
        "errors": base64.b64encode(percent.round().astype(np.uint8).tobytes()).decode(),
        "order": by_mean_error(history).tolist(),
        # none if the groups are of pairs
        "groups": [None if moment.groups is None else moment.groups.tolist() for moment in moments],
        "preferences": [moment and _rounded(moment.preferences.tolist()) for moment in acting],
        "sizes": [moment and _rounded(moment.sizes.tolist()) for moment in acting],
        "rewards": [rewards.get(moment.iteration) for moment in moments],
        "trials": _trials(run, task, moments),
        "difficulty": asdict(difficulty_chart(divide_draws(run, history, task))),
        "sample": _sample(snapshot, task),
    }


def _trials(run: Run, task: str, moments: Sequence[Moment]) -> dict[str, list[list[float] | None]] | None:
    """What a draw of each group was worth at some moments, and the errors that say so, if there were trials."""
    entries = {entry["iteration"]: entry for entry in read_trials(run, task)}
    if not entries:
        return None
    tried = [entries.get(moment.iteration) for moment in moments]
    return {
        # groups without members are not tried
        "worths": [None if entry is None else _rounded(entry["advantage"][: len(entry["errors"])]) for entry in tried],
        "errors": [None if entry is None else _rounded(entry["errors"]) for entry in tried],
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]


def _sample(snapshot: Snapshot | None, task: str) -> dict[str, str] | None:
    if snapshot is None or task not in snapshot.held_out:
        return None
    samples = snapshot.held_out[task]
    chosen = most_vivid(samples)
    parts = snapshot.parts(task, samples.pixels[[chosen]], SIDES[task])
    return {"strip": strip(parts[0]), "name": samples.names[chosen]}
