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


@dataclass(frozen=True)
class Run:
    """The folder that `pretrain` writes, finished or not; `unshuffle.load_backbone(run.folder)` loads its backbone."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """Return the run in a folder; raise a UserError if there is none."""
        run = cls(folder)
        if not run.config_file.is_file():
            raise UserError(f"{folder} is not a run folder: it has no config.yaml")
        return run

    @property
    def config_file(self) -> Path:
        """File of the complete config."""
        return self.folder / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        """File with one JSON object per line."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.folder / "checkpoints"

    @property
    def states(self) -> Path:
        """Folder of the arrays that each validation leaves."""
        return self.folder / "states"

    @property
    def permutations(self) -> Path:
        """Folder of the permutation sets, one .npy per ordering task."""
        return self.folder / "permutations"

    @property
    def pictures(self) -> Path:
        """Folder of PNG pictures."""
        return self.folder / "pictures"

    @property
    def held_out(self) -> Path:
        """File of some validation samples, for the report."""
        return self.folder / "held_out.npz"

    @property
    def report(self) -> Path:
        """File of the HTML report."""
        return self.folder / "report.html"

    @property
    def skipped(self) -> Path:
        """File that lists the input files that could not be read."""
        return self.folder / "skipped.csv"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.folder / "tensorboard"

    @property
    def weights(self) -> Path:
        """File of the trained backbone."""
        return self.folder / WEIGHTS_NAME

    @cached_property
    def config(self) -> Config:
        """The config of the run."""
        return read_config(self.config_file)

    def metrics(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the logged objects, all or of one kind; a half-written last line is left out."""
        if not self.metrics_file.exists():
            return
        for line in self.metrics_file.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if kind is None or entry["kind"] == kind:
                yield entry
