"""What the page shows of one run: facts, the command to repeat it, puzzles, the policy, nearest neighbours."""

import csv
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import yaml

from unshuffle.analysis.analysis import flat_values
from unshuffle.analysis.cost import training_seconds
from unshuffle.config import REGISTERED, Config, preset_config
from unshuffle.files import csv_text
from unshuffle.options import differences, to_dict
from unshuffle.randomness import torch_generator
from unshuffle.report.charts import task_colour_name
from unshuffle.report.neighbours import find_neighbours, load_neighbours
from unshuffle.report.policy_summary import policy_data, summarise_policy
from unshuffle.report.puzzles import picture_uri, right_and_wrong, solve_puzzles, strip
from unshuffle.report.results import retrieval_scores, task_errors
from unshuffle.report.snapshot import Snapshot
from unshuffle.report.verdict import feature_measures, judge_features
from unshuffle.runs.folders import NamedRun
from unshuffle.runs.history import ordering_tasks, read_sampling_states, tasks_of
from unshuffle.runs.run import Run
from unshuffle.tasks import TASKS
from unshuffle.wording import duration, skipped_sentence, source_sentence, split_sentence

MAX_SKIPPED = 20  # names that are listed
EXAMPLES = 6  # of a task that orders nothing
PUZZLES = 48  # that the network orders, so that some of them are wrong

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
        "init": None if config.init is None else str(config.init),
        "sampler": config.policy.name,
        "tasks": {task: _describe_task(run, task) for task in tasks_of(run)},
        "errors": task_errors(run),
        "retrieval": retrieval_scores(run),
        "measures": feature_measures(run),
        "verdict": judge_features(run),
        "time": _time(run),
        "has_rollouts": any(entry["kind"] == "rollouts" for entry in entries),
        "start": start,
        "sources": [source_sentence(source) for source in start.get("sources", [])],
        "splits": start.get("splits", {}),
        "remarks": [*_split_remarks(start.get("splits", {})), *_skipped_remarks(entries), *_extended_remarks(entries)],
        "config": flat_values(values),
        "yaml": yaml.safe_dump(values, sort_keys=False, allow_unicode=True),
        "command": repeat_command(config),
        "skipped": _read_skipped(run.skipped),
        "policies": {},
        "puzzles": {},
        "examples": {},
        "labelled": None,
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
    last, planned = run.last_iteration, run.config.optim.iterations
    file = run.metrics_file if entries else run.config_file
    written = datetime.fromtimestamp(file.stat().st_mtime).astimezone().strftime("%Y-%m-%d %H:%M")
    unwritten = last >= planned and not run.weights.exists()
    return {
        "iteration": last,
        "planned": planned,
        "finished": last >= planned,
        "unwritten": unwritten,
        "written": written,
    }


def _time(run: Run) -> str | None:
    """Return the time of training, validations and rollouts so far."""
    training = training_seconds(run.config, run.metrics("train"))
    return duration(training[-1][1] + sum(entry["duration"] for entry in run.metrics("cost"))) if training else None


def _split_remarks(splits: Mapping[str, Mapping[str, Any]]) -> list[str]:
    remarks = (split_sentence(task, split) for task, split in splits.items())
    return [remark for remark in remarks if remark is not None]


def _extended_remarks(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    lengths = [(entry["before"], entry["iterations"]) for entry in entries if entry["kind"] == "extended"]
    return [
        f"the run was started for {before:,} iterations and continued to {after:,}, so its learning rates are not "
        "those of one run of this length"
        for before, after in lengths
        if after > before
    ]


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
    registered = {name: REGISTERED[name] for name in config.registered}
    names = differences(replace(preset_config(config.preset), registered=registered), config)
    sections = vars(config) | dict(config.registered)
    values = {name: _value(sections, name) for name in names}
    return {name: value for name, value in values.items() if name not in ("preset", "out")}


def _value(sections: Mapping[str, Any], name: str) -> Any:
    top, dot, rest = name.partition(".")
    return attrgetter(rest)(sections[top]) if dot else sections[top]


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
        states = read_sampling_states(run, task)
        if states:
            view["policies"][task] = summarise_policy(run, task, states)
            view["data"]["tasks"][task] = policy_data(run, task, states, snapshot)
    view["labelled"] = load_neighbours(run.neighbours)
    if snapshot is None:
        return
    for task in snapshot.held_out:
        if task in snapshot.ordering_tasks:
            view["puzzles"][task] = puzzles_view(snapshot, task)
        elif examples := _examples(snapshot, task):
            view["examples"][task] = examples
    view["data"]["neighbours"] = find_neighbours(snapshot)


def _examples(snapshot: Snapshot, task: str) -> dict[str, Any] | None:
    """Return what the network answered about held-out samples in a task that orders nothing: right and wrong."""
    view, samples = TASKS[task].view, snapshot.held_out[task]
    generator = torch_generator(torch.device("cpu"), snapshot.config.seed, "pictures", task)
    answers = snapshot.network.tasks[task].examples(snapshot.network, samples.pixels, view.picture_side, generator)
    if not answers:
        return None
    chosen = right_and_wrong([answer.right for answer in answers], EXAMPLES)
    shown = [
        {
            "name": samples.names[index],
            "pictures": {name: picture_uri(picture) for name, picture in answers[index].pictures.items()},
            "right": answers[index].right,
            "answer": answers[index].answer,
        }
        for index in chosen
    ]
    right = sum(answer.right for answer in answers)
    facts = {"media_noun": view.media_noun, "hint": view.hint}
    return {**facts, "right": right, "total": len(answers), "samples": shown}


def puzzles_view(snapshot: Snapshot, task: str) -> dict[str, Any]:
    """Return held-out samples that the network has put back in order, and some that it has not."""
    view = TASKS[task].view
    kept = len(snapshot.held_out[task])
    everything = solve_puzzles(snapshot, task, kept, rounds=max(1, PUZZLES // kept))
    puzzles = everything.right_and_wrong(view.pictured_samples)
    parts = snapshot.network.tasks[task].pictures(puzzles.pixels, view.picture_side)
    samples = [
        {
            "name": puzzles.names[sample],
            "strip": strip(parts[sample]),
            "arrangements": {
                "true order": list(range(parts.shape[1])),
                "shuffled": puzzles.shown[sample].tolist(),
                "restored": puzzles.restored[sample].tolist(),
            },
            "columns": view.columns(parts.shape[1]),
            "solved": puzzles.is_solved(sample),
            "verdict": puzzles.verdict(sample, view.noun),
        }
        for sample in range(len(puzzles))
    ]
    return {
        "layout": "grid" if view.in_grid else "strip",
        "media_noun": view.media_noun,
        "permutations": len(snapshot.ordering_tasks[task].permutations),
        "solved": len(everything.solved),
        "total": len(everything),
        "kept": kept,
        "right": len(puzzles.solved),
        "wrong": len(puzzles) - len(puzzles.solved),
        "samples": samples,
    }
