"""`unshuffle report`: one HTML file about one run or several, which needs nothing beside it."""

import base64
import csv
import hashlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import numpy.typing as npt
import torch
import yaml
from markupsafe import Markup

import unshuffle
from unshuffle.analysis.cost import training_seconds
from unshuffle.analysis.history import tasks_of
from unshuffle.config_file import to_dict
from unshuffle.errors import UserError
from unshuffle.evaluation.features import extract, raw_pixels
from unshuffle.evaluation.search import nearest
from unshuffle.permutations import load_permutations
from unshuffle.report.attempts import attempt
from unshuffle.report.curves import Curves, charts
from unshuffle.report.images import most_vivid, strip, thumbnails
from unshuffle.report.repeat import changes, repeat_command
from unshuffle.report.results import errors, retrieval
from unshuffle.report.snapshot import Snapshot
from unshuffle.report.story import Moment, read_moments, tell
from unshuffle.run import Run

GENERATOR = f"unshuffle {unshuffle.__version__}"
WITH_PICTURES = 4  # more runs than that are told apart by their curves and tables
COLOURS = 8
PUZZLES, CLIPS, NEIGHBOURS = 6, 4, 6
TILE, FRAME, THUMBNAIL = 80, 64, 96  # pixels; multiples of 16, so that no JPEG block has two parts in it
NO_PICTURES = "This run has no checkpoint yet, or was told to keep no pictures (log.pictures)."
SKIPPED = 20  # names that are shown


@dataclass(frozen=True)
class Subject:
    """A run to be shown, and what it is called among the others."""

    run: Run
    name: str
    colour: str


def find_subjects(folders: Sequence[Path]) -> list[Subject]:
    """The runs that are meant by folders: runs themselves, or folders of runs such as an ablation."""
    found: list[tuple[str, str, Run]] = []
    for folder in folders:
        if (folder / "config.yaml").is_file() or not folder.is_dir():
            found.append((folder.name, folder.name, Run.open(folder)))
            continue
        inside = sorted(path.parent for path in folder.glob("*/config.yaml"))
        inside += sorted(path.parent for path in folder.glob("*/*/config.yaml"))
        if not inside:
            raise UserError(f"{folder} is not a run folder, nor does it hold any: there is no config.yaml")
        found += [(str(path.relative_to(folder)), path.relative_to(folder).parts[0], Run.open(path)) for path in inside]
    kinds = list(dict.fromkeys(kind for _, kind, _ in found))
    if len({name for name, _, _ in found}) < len(found):  # runs/a/demo and runs/b/demo
        found = [(str(run.folder), str(run.folder), run) for _, _, run in found]
        kinds = [kind for _, kind, _ in found]
    return [Subject(run, name, f"c{kinds.index(kind) % COLOURS}") for name, kind, run in found]


def default_file(folders: Sequence[Path]) -> Path:
    """Where a report is written unless told otherwise: into the folder it is about, or here if there are several."""
    return folders[0] / "report.html" if len(folders) == 1 else Path("report.html")


def check_file(path: Path) -> None:
    """Refuse to write over what is not a report."""
    if path.is_dir():
        raise UserError(f"{path} is a folder, and --out must be a file")
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {path.parent} to write the report into")
    if path.is_file() and b'name="generator" content="unshuffle' not in path.read_bytes()[:4000]:
        raise UserError(f"{path} is not a report of unshuffle: choose another --out")


def write_report(
    runs: Sequence[Run] | Sequence[Subject], path: Path, snapshots: Mapping[Path, Snapshot] | None = None
) -> None:
    """Write the report; a snapshot that is at hand need not be read from the run's checkpoint."""
    subjects = [one if isinstance(one, Subject) else Subject(one, one.folder.name, "c0") for one in runs]
    views = [_view(subject, len(subjects), (snapshots or {}).get(subject.run.folder)) for subject in subjects]
    drawn = charts([Curves(one.run, one.name, one.colour) for one in subjects])
    data = {"charts": [asdict(chart) for chart in drawn], "runs": [view.pop("data") for view in views]}
    table = _read_table(path.parent / "table.csv") if len(subjects) > 1 else None
    page = _render(views, drawn, data, table)
    draft = path.with_suffix(".tmp")
    draft.write_text(page, encoding="utf-8", errors="backslashreplace")  # file names need not be valid text
    draft.replace(path)


def _render(views: Sequence[dict[str, Any]], drawn: Sequence[Any], data: dict[str, Any], table: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("unshuffle.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    scripts = [Markup(_d3()), Markup(environment.loader.get_source(environment, "report.js")[0])]  # type: ignore[union-attr]
    # with these hashes no other script runs, whatever a file may be called
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    return environment.get_template("report.html").render(
        generator=GENERATOR,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        runs=views,
        charts=drawn,
        data=data,
        table=table,
        tasks=list(dict.fromkeys(task for view in views for task in view["tasks"])),
        any_retrieval=any(view["retrieval"] for view in views),
        no_pictures=NO_PICTURES,
        differing=_differing([view["config"] for view in views]),
        scripts=scripts,
        hashes=hashes,
    )


def _d3() -> str:
    """D3, which the package mpld3 carries; to import that would import matplotlib."""
    place = importlib.metadata.distribution("mpld3").locate_file("mpld3/js/d3.v5.min.js")
    return Path(str(place)).read_text(encoding="utf-8")


# ---- one run


def _view(subject: Subject, count: int, snapshot: Snapshot | None) -> dict[str, Any]:
    """All that the page says about a run; under "data" what its scripts need."""
    run, config = subject.run, subject.run.config
    entries = list(run.metrics())
    tasks = tasks_of(run)
    if count > WITH_PICTURES:
        snapshot = None
    elif snapshot is None:
        snapshot = Snapshot.newest(run)
    moments = {task: read_moments(run, task) for task in tasks} if count <= WITH_PICTURES else {}
    start = next((entry for entry in entries if entry["kind"] == "start"), {})
    return {
        "name": subject.name,
        "colour": subject.colour,
        "folder": str(run.folder),
        "status": _status(run, entries),
        "found": start.get("data", []),
        "samples": start.get("samples", {}),
        "backbone": config.model.backbone,
        "sampler": config.policy.sampler,
        "tasks": tasks,
        "errors": errors(run),
        "retrieval": retrieval(run),
        "seconds": _seconds(run),
        "stories": {task: tell(run, task, some) for task, some in moments.items()},
        "puzzles": _attempts(snapshot, "spatial", PUZZLES, TILE),
        "clips": _attempts(snapshot, "temporal", CLIPS, FRAME),
        "iteration": None if snapshot is None else snapshot.iteration,
        "changes": changes(config),
        "config": _flat(to_dict(config)),
        "yaml": yaml.safe_dump(to_dict(config), sort_keys=False),
        "start": start,
        "command": repeat_command(config),
        "skipped": _read_skipped(run.skipped),
        "warnings": [entry for entry in entries if entry["kind"] == "warning"],
        "data": {
            "name": subject.name,
            "tasks": {task: _policy_data(run, task, some, snapshot) for task, some in moments.items() if some},
            "neighbours": _neighbours(snapshot),
        },
    }


def _status(run: Run, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last, planned = max((entry["iteration"] for entry in entries), default=0), run.config.optim.iterations
    written = run.metrics_file.stat().st_mtime if entries else run.config_file.stat().st_mtime
    moment = datetime.fromtimestamp(written).astimezone().strftime("%Y-%m-%d %H:%M")
    return {"iteration": last, "planned": planned, "finished": last >= planned, "written": moment}


def _seconds(run: Run) -> float | None:
    """What training and validations took so far."""
    training = training_seconds(run.config, run.metrics("train"))
    return training[-1][1] + sum(entry["seconds"] for entry in run.metrics("cost")) if training else None


def _attempts(snapshot: Snapshot | None, task: str, count: int, side: int) -> list[dict[str, Any]]:
    """Samples that the network has put together."""
    if snapshot is None or task not in snapshot.held_out:
        return []
    attempts = attempt(snapshot, task, count)
    parts = snapshot.parts(task, attempts.pixels, side)
    return [
        {
            "name": attempts.names[sample],
            "strip": strip(parts[sample]),
            "shown": attempts.shown[sample].tolist(),
            "restored": attempts.restored[sample].tolist(),
            "recognised": attempts.recognised(sample),
            "verdict": attempts.verdict(sample, "tiles " if task == "spatial" else "frames "),
            "columns": snapshot.config.shuffle.grid if task == "spatial" else len(parts[sample]),
        }
        for sample in range(len(attempts))
    ]


def _policy_data(run: Run, task: str, moments: Sequence[Moment], snapshot: Snapshot | None) -> dict[str, Any]:
    """Numbers behind the map of errors and the map of preferences, and a sample to apply permutations to."""
    permutations = load_permutations(run.permutations / f"{task}.npy")
    shape = np.stack([moment.errors for moment in moments])
    rewards = {
        entry["iteration"]: entry["reward"] for entry in run.metrics("episode") if entry["task"] == task
    }
    return {
        "permutations": permutations.tolist(),
        "columns": run.config.shuffle.grid if task == "spatial" else permutations.shape[1],
        "iterations": [moment.iteration for moment in moments],
        "errors": _packed(np.round(shape * 255)),
        "order": np.argsort(-shape.mean(axis=0), kind="stable").tolist(),
        "groups": [None if moment.groups is None else moment.groups.tolist() for moment in moments],
        "preferences": [
            None if moment.groups is None else moment.preferences.round(4).tolist() for moment in moments
        ],
        "sizes": [None if moment.groups is None else moment.sizes.round(4).tolist() for moment in moments],
        "rewards": [rewards.get(moment.iteration) for moment in moments],
        "sample": _sample(snapshot, task),
    }


def _packed(values: npt.NDArray[Any]) -> str:
    """Whole numbers up to 255 as text."""
    return base64.b64encode(values.astype(np.uint8).tobytes()).decode()


def _sample(snapshot: Snapshot | None, task: str) -> dict[str, str] | None:
    if snapshot is None or task not in snapshot.held_out:
        return None
    samples = snapshot.held_out[task]
    chosen = most_vivid(samples)
    parts = snapshot.parts(task, samples.pixels[[chosen]], TILE if task == "spatial" else FRAME)
    return {"strip": strip(parts[0]), "name": samples.names[chosen]}


def _neighbours(snapshot: Snapshot | None) -> dict[str, Any] | None:
    """Pictures of held-out images, and the others in the order of their likeness."""
    if snapshot is None or not snapshot.held_out:
        return None
    task = "spatial" if "spatial" in snapshot.held_out else "temporal"
    samples = snapshot.held_out[task]
    frames = samples.pixels[:, samples.pixels.shape[1] // 2]
    count = min(NEIGHBOURS, len(samples) - 1)
    if count < 1:
        return None
    features = {
        "this network": extract(snapshot.network.trunk, frames.numpy(), snapshot.device),
        "raw pixels": raw_pixels(frames.numpy()),
    }
    return {
        "names": list(samples.names),
        "pictures": thumbnails(frames, THUMBNAIL),
        "nearest": {name: _others(vectors, count) for name, vectors in features.items()},
    }


def _others(vectors: torch.Tensor, count: int) -> list[list[int]]:
    """The nearest vectors of each, itself left out."""
    found = nearest(vectors, vectors, count + 1).tolist()
    return [[place for place in row if place != own][:count] for own, row in enumerate(found)]


# ---- tables


def _flat(values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested values under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{where}{key}.") if isinstance(value, dict) else {f"{where}{key}": value}
    return flat


def _differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names under which not all runs have the same value; each has its own folder anyway."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    return [
        name for name in names if name != "out" and len({str(config.get(name)) for config in configs}) > 1
    ]


def _read_skipped(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {"count": 0, "rows": []}
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = list(csv.reader(file))[1:]
    return {"count": len(rows), "rows": rows[:SKIPPED]}


def _read_table(path: Path) -> list[list[str]] | None:
    """The table of an ablation: a row of names, and the rows below it."""
    if not path.is_file():
        return None
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = [row for row in csv.reader(file) if row]
    return rows or None
