"""A run folder: the paths of its files, its config and its metrics."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unshuffle.config import TASK_SYMBOLS, Config, read_config
from unshuffle.errors import UserError
from unshuffle.wording import counted

TASK_NAMES = list(TASK_SYMBOLS.values())
WEIGHTS_NAME = "backbone.safetensors"
"""File name of the trained backbone in a run folder."""


class InFolder:
    """An attribute of a run: the path of a file or folder with a fixed name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: "Run", kind: type["Run"]) -> Path:
        return run.folder / self.name


@dataclass(frozen=True)
class Run:
    """The folder that `pretrain` writes, finished or not; `unshuffle.load_backbone(run.folder)` loads its backbone."""

    folder: Path

    config_file = InFolder("config.yaml")
    """File of the complete config."""
    metrics_file = InFolder("metrics.jsonl")
    """File with one JSON object per line."""
    checkpoints = InFolder("checkpoints")
    """Folder of checkpoints."""
    states = InFolder("states")
    """Folder of the arrays that each validation leaves."""
    permutations = InFolder("permutations")
    """Folder of the permutation sets, one .npy per ordering task."""
    pictures = InFolder("pictures")
    """Folder of PNG pictures."""
    held_out = InFolder("held_out.npz")
    """File of some validation samples, for the report."""
    report = InFolder("report.html")
    """File of the HTML report."""
    skipped = InFolder("skipped.csv")
    """File that lists the input files that could not be read."""
    tensorboard = InFolder("tensorboard")
    """Folder of TensorBoard's event files."""
    weights = InFolder(WEIGHTS_NAME)
    """File of the trained backbone."""

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Return the run in a folder; raise a UserError if there is none."""
        run = cls(folder)
        if not run.config_file.is_file():
            raise UserError(f"{folder} is not a run folder: it has no config.yaml")
        return run

    @cached_property
    def config(self) -> Config:
        """The config of the run."""
        return read_config(self.config_file)

    def metrics(self, kind: str | None = None, task: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the logged objects, all or those of a kind and of a task; damaged lines are left out."""
        for line in self._lines():
            entry = _parse(line)
            if entry is not None and kind in (None, entry["kind"]) and task in (None, entry.get("task")):
                yield entry

    @property
    def metrics_warning(self) -> str | None:
        """One sentence if metrics.jsonl has damaged lines."""
        lines = self._lines()
        damaged = sum(_parse(line) is None for line in lines)
        if not damaged:
            return None
        verb = "is" if damaged == 1 else "are"
        return f"{damaged} of {counted(len(lines), 'lines')} in {self.metrics_file} {verb} damaged and left out"

    def _lines(self) -> list[bytes]:
        return self.metrics_file.read_bytes().splitlines() if self.metrics_file.exists() else []


NUMBER = (int, float)
REQUIRED: dict[str, dict[str, type | tuple[type, ...]]] = {
    "train": {"loss": dict, "accuracy": dict},
    "validation": {"task": str, "error": NUMBER},
    "test": {"task": str, "error": NUMBER},
    "cost": {"duration": NUMBER},
    "baseline": {"name": str, "top1": NUMBER},
    "episode": {"task": str, "episode": int},
    "rollouts": {"task": str, "iterations": int, "errors": list, "probability": list},
}
"""Keys that an entry of a kind must have beside `iteration` and `kind`; docs/metrics.md explains them."""


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line of metrics.jsonl; None if it is damaged or half-written."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or not UTF-8
        return None
    if not isinstance(entry, dict):
        return None
    required = {"iteration": int, "kind": str, **REQUIRED.get(str(entry.get("kind")), {})}
    complete = all(isinstance(entry.get(key), kind) for key, kind in required.items())
    valid = isinstance(entry.get("seconds", 0), NUMBER) and entry.get("task", TASK_NAMES[0]) in TASK_NAMES
    return entry if complete and valid else None
