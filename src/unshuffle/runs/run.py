"""A run folder: the paths of its files, its config and its metrics."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unshuffle.config import Config, read_config
from unshuffle.errors import UserError

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
        """Yield the logged objects, all or those of a kind and of a task; a half-written last line is left out."""
        if not self.metrics_file.exists():
            return
        for line in self.metrics_file.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if kind in (None, entry["kind"]) and task in (None, entry.get("task")):
                yield entry
