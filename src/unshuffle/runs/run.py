"""A run folder: the paths of its files, its config and its metrics."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from unshuffle.config import TASK_SYMBOLS, Config, read_config
from unshuffle.errors import UserError
from unshuffle.wording import counted

WEIGHTS_NAME = "backbone.safetensors"
"""File name of the trained backbone in a run folder."""


@dataclass(frozen=True)
class Run:
    """The folder that `pretrain` writes, finished or not; `unshuffle.load_backbone(run.folder)` loads its backbone."""

    folder: Path
    """The folder itself."""

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
        """Folder of the arrays written at each validation."""
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
    def heartbeat(self) -> Path:
        """File renewed every few seconds during training, which shows that the run is alive."""
        return self.folder / "heartbeat.json"

    @property
    def held_out(self) -> Path:
        """File of some validation samples, for the report."""
        return self.folder / "held_out.npz"

    @property
    def neighbours(self) -> Path:
        """File of some labelled images and their nearest neighbours, for the report."""
        return self.folder / "neighbours.json"

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
            entry = parse_line(line)
            if entry is not None and kind in (None, entry["kind"]) and task in (None, entry.get("task")):
                yield entry

    @property
    def last_iteration(self) -> int:
        """The iteration of the latest line of the metrics."""
        return max((entry["iteration"] for entry in self.metrics()), default=0)

    @property
    def metrics_warning(self) -> str | None:
        """One sentence if metrics.jsonl has damaged lines."""
        lines = self._lines()
        damaged = sum(parse_line(line) is None for line in lines)
        if not damaged:
            return None
        verb = "is" if damaged == 1 else "are"
        return f"{damaged} of {counted(len(lines), 'lines')} in {self.metrics_file} {verb} damaged and left out"

    def _lines(self) -> list[bytes]:
        return self.metrics_file.read_bytes().splitlines() if self.metrics_file.exists() else []


# ---- lines of metrics.jsonl


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_text_or_null(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_number_or_null(value: Any) -> bool:
    return value is None or _is_number(value)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(map(_is_number, value))


def _are_numbers_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_number, value.values()))


def _are_counts_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _is_task(value: Any) -> bool:
    return value in TASK_SYMBOLS.values()


_Checks = dict[str, Callable[[Any], bool]]
_ERROR: _Checks = {"task": _is_task, "error": _is_number, "chance": _is_number}
_SPLIT: _Checks = {
    **dict.fromkeys(("training", "validation", "test", "requested"), _is_count),
    "source": _is_text,
}
_SOURCE: _Checks = {
    **dict.fromkeys(("items", "skipped", "short_side", "shards"), _is_count),
    **dict.fromkeys(("medium", "storage"), _is_text),
    **dict.fromkeys(("address", "path"), _is_text_or_null),
}


def _is_complete(value: Any, checks: _Checks) -> bool:
    return isinstance(value, dict) and all(key in value and is_valid(value[key]) for key, is_valid in checks.items())


def _are_splits(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_complete(split, _SPLIT) for split in value.values())


def _are_sources(value: Any) -> bool:
    return isinstance(value, list) and all(
        _is_complete(source, _SOURCE)
        and _is_count(source.get("files", 0))
        and _are_counts_by_name(source.get("ignored", {}))
        for source in value
    )


_REQUIRED: dict[str, _Checks] = {
    "start": {"versions": _is_dict, "processes": _is_count, "sources": _are_sources, "splits": _are_splits},
    "train": {"loss": _are_numbers_by_name, "accuracy": _are_numbers_by_name, "samples_per_second": _is_positive},
    "validation": _ERROR,
    "test": _ERROR,
    "skipped": {"step": _is_count, "files": _is_dict},
    "cost": {"duration": _is_number},
    "baseline": {"name": _is_text, "top1": _is_number},
    "episode": {
        "task": _is_task,
        "episode": _is_count,
        "error": _is_number,
        "reward": _is_number_or_null,
        "group_median": _are_numbers,
        "probability": _are_numbers,
        "sampled": _are_numbers,
    },
    "rollouts": {
        "task": _is_task,
        "iterations": _is_count,
        "errors": _are_numbers,
        "advantage": _are_numbers,
        "probability": _are_numbers,
    },
}
"""What an entry of a kind must have beside `iteration` and `kind`; docs/reference/metrics.md explains the names."""


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line of metrics.jsonl; None if it is damaged or half-written."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):  # no JSON, or not UTF-8
        return None
    return check_entry(value)


def check_entry(entry: Any) -> dict[str, Any] | None:
    """Return the value of a line of metrics.jsonl if it has all that its kind must have."""
    if not isinstance(entry, dict) or not isinstance(entry.get("kind"), str):
        return None
    required = {"iteration": _is_count, **_REQUIRED.get(entry["kind"], {})}
    if entry["kind"] in ("monitor", "baseline"):  # their metrics have many names
        required |= {key: _is_number for key in entry if key not in ("iteration", "kind", "name")}
    times = all(_is_number(entry.get(name, 0)) for name in ("seconds", "time"))
    return entry if _is_complete(entry, required) and times else None
