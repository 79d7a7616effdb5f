"""A run folder: where everything lies and how to read it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unshuffle.config import Config, read_config
from unshuffle.errors import UserError
from unshuffle.models import Backbone
from unshuffle.models.weights import WEIGHTS_NAME, load_backbone


@dataclass(frozen=True)
class Run:
    """What `pretrain` leaves behind, finished or not."""

    folder: Path

    @classmethod
    def open(cls, folder: Path) -> "Run":
        """An existing run."""
        run = cls(folder)
        if not run.config_file.is_file():
            raise UserError(f"{folder} is not a run folder: it has no config.yaml")
        return run

    @property
    def config_file(self) -> Path:
        """The complete config."""
        return self.folder / "config.yaml"

    @property
    def metrics_file(self) -> Path:
        """One JSON object a line."""
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.folder / "checkpoints"

    @property
    def states(self) -> Path:
        """Folder of what each validation found."""
        return self.folder / "states"

    @property
    def permutations(self) -> Path:
        """Folder of the permutation sets, one .npy a task."""
        return self.folder / "permutations"

    @property
    def pictures(self) -> Path:
        """Folder of pictures to look at."""
        return self.folder / "pictures"

    @property
    def held_out(self) -> Path:
        """Some validation samples, for the report."""
        return self.folder / "held_out.npz"

    @property
    def report(self) -> Path:
        """A page to look at."""
        return self.folder / "report.html"

    @property
    def skipped(self) -> Path:
        """List of the files that could not be read."""
        return self.folder / "skipped.csv"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.folder / "tensorboard"

    @property
    def weights(self) -> Path:
        """The trained backbone."""
        return self.folder / WEIGHTS_NAME

    @cached_property
    def config(self) -> Config:
        """The run's config."""
        return read_config(self.config_file)

    def metrics(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """The logged objects, all or of one kind; a half-written last line is left out."""
        if not self.metrics_file.exists():
            return
        for line in self.metrics_file.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if kind is None or entry["kind"] == kind:
                yield entry

    def backbone(self) -> Backbone:
        """The trained backbone, ready to compute features."""
        return load_backbone(self.weights)
