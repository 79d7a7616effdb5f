"""A run that may be training: its metrics are read as they grow, and its `train` lines are thinned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from unshuffle.runs.run import Run, parse_line

MAX_TRAIN_LINES = 4096
"""So many `train` lines of a run are kept; of more, the means of two and two."""


@dataclass
class _Thinned:
    """Any number of `train` lines as at most so many means, each over equally many lines."""

    means: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)
    each: int = 1
    """Lines in a mean."""

    def add(self, entry: dict[str, Any]) -> None:
        self.pending.append(entry)
        if len(self.pending) == self.each:
            self.means.append(mean_of(self.pending))
            self.pending = []
        if len(self.means) == MAX_TRAIN_LINES:
            self.means = [mean_of(self.means[begin : begin + 2]) for begin in range(0, len(self.means), 2)]
            self.each *= 2

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield from self.means
        if self.pending:
            yield mean_of(self.pending)


def mean_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last of some `train` lines with the means of their losses, accuracies and speeds."""
    last = dict(entries[-1])
    if len(entries) == 1:
        return last
    for name in ("loss", "accuracy"):
        tasks = dict.fromkeys(task for entry in entries for task in entry[name])
        values = {task: [entry[name][task] for entry in entries if task in entry[name]] for task in tasks}
        last[name] = {task: sum(of_task) / len(of_task) for task, of_task in values.items()}
    # of equal numbers of samples, the mean speed is the harmonic one
    last["samples_per_second"] = len(entries) / sum(1 / entry["samples_per_second"] for entry in entries)
    return last


@dataclass
class _Read:
    """What has been read of metrics.jsonl."""

    identity: tuple[int, int] | None = None
    """Device and number of the file: a resumed run writes another one."""
    position: int = 0
    damaged: int = 0
    last: dict[str, Any] | None = None
    train: _Thinned = field(default_factory=_Thinned)
    others: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class LiveRun(Run):
    """A run whose metrics are read once; `refresh` reads what has been added since."""

    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)
    _state: list[_Read] = field(default_factory=lambda: [_Read()], repr=False, compare=False)

    def refresh(self) -> bool:
        """Read what has been added; return whether there was anything new. A deleted file has no lines."""
        with self._lock:
            read = self._state[0]
            try:
                with self.metrics_file.open("rb") as file:
                    status = _identity(self.metrics_file)
                    size = file.seek(0, 2)
                    if status != read.identity or size < read.position:
                        read = _Read(status)
                    file.seek(read.position)
                    lines = file.read()
            except OSError:
                self._state[0] = _Read()
                return read.identity is not None
            whole = lines[: lines.rfind(b"\n") + 1]
            for line in whole.splitlines():
                _take(read, line)
            read.position += len(whole)
            changed = bool(whole) or read is not self._state[0]
            self._state[0] = read
            return changed

    @property
    def last_line(self) -> dict[str, Any] | None:
        """The latest line."""
        return self._state[0].last

    def metrics(self, kind: str | None = None, task: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the logged objects that have been read, all or those of a kind and of a task; see `Run.metrics`."""
        with self._lock:
            read = self._state[0]
            if kind == "train":
                entries = list(read.train)
            elif kind is None:
                entries = sorted([*read.train, *read.others], key=lambda entry: int(entry["iteration"]))
            else:
                entries = [entry for entry in read.others if entry["kind"] == kind]
        return (entry for entry in entries if task in (None, entry.get("task")))

    @property
    def metrics_warning(self) -> str | None:
        """One sentence if metrics.jsonl has damaged lines."""
        damaged = self._state[0].damaged
        return f"{damaged} lines of {self.metrics_file} are damaged and left out" if damaged else None


def _identity(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_dev, status.st_ino


def _take(read: _Read, line: bytes) -> None:
    entry = parse_line(line)
    if entry is None:
        read.damaged += 1
        return
    read.last = entry
    if entry["kind"] == "train":
        read.train.add(entry)
    else:
        read.others.append(entry)
