"""The runs below some folders, as they are now: found, read and watched, never written to."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from unshuffle.errors import UserError
from unshuffle.runs.folders import NamedRun, runs_below, short_names
from unshuffle.runs.heartbeat import RunState, run_state
from unshuffle.runs.live import LiveRun

T = TypeVar("T")
SECONDS_BETWEEN_LOOKS = 0.5
MAX_REMEMBERED = 256
"""Answers that are kept until their run changes."""


@dataclass(frozen=True)
class WatchedRun:
    """A run, its state, and a number that changes whenever there is something new."""

    name: str
    arm: str
    run: LiveRun
    config_time: float
    """When the config was written: a resumed run may have another one."""
    state: RunState
    progress: tuple[int | None, int]
    """How far its metrics had been read."""
    version: int

    @property
    def named(self) -> NamedRun:
        """The run with its name."""
        return NamedRun(self.run, self.name, self.arm)


@dataclass
class _Answer:
    """A value with the version that it was made for; only the holder of the lock makes it."""

    version: Any = None
    value: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Library:
    """All runs of some folders; safe to use from any thread."""

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise UserError(f"{folder} is not a folder: give a folder of runs, or a run folder")
        self._folders = list(folders)
        self._prefixes = short_names(folders) if len(folders) > 1 else [""]
        self._lock = threading.Lock()
        self._looked = 0.0
        self._versions = round(1e3 * time.time())  # a page that knew another server asks again
        self._runs: dict[str, WatchedRun] = {}
        self._answers: dict[Any, _Answer] = {}
        self._reader: threading.Thread | None = None

    def runs(self) -> dict[str, WatchedRun]:
        """Return all runs by name, in their order, after a look at the folders unless the last one was just now."""
        with self._lock:
            if time.monotonic() - self._looked >= SECONDS_BETWEEN_LOOKS:
                self._look()
                self._looked = time.monotonic()
            return dict(self._runs)

    def remember(self, key: Any, version: Any, make: Callable[[], T]) -> T:
        """Return an answer that was made before for the same version, or make it while others that ask wait for it."""
        with self._lock:
            answer = self._answers.pop(key, None) or _Answer()
            while len(self._answers) >= MAX_REMEMBERED:
                self._answers.pop(next(iter(self._answers)))
            self._answers[key] = answer
        with answer.lock:
            if answer.version != version:
                answer.value, answer.version = make(), version
            value: T = answer.value
            return value

    def _look(self) -> None:
        found = {name: watched.run.folder for name, watched in self._runs.items()}  # a deleted run is shown as such
        for folder, prefix in zip(self._folders, self._prefixes, strict=True):
            if (folder / "config.yaml").is_file():
                found[prefix or folder.resolve().name] = folder
                continue
            try:
                below = runs_below(folder)
            except (UserError, OSError):  # an ablation's list of arms is damaged: its runs keep their folders' names
                paths = sorted([*folder.glob("*/config.yaml"), *folder.glob("*/*/config.yaml")])
                below = {str(path.parent.relative_to(folder)): path.parent for path in paths}
            found |= {f"{prefix}/{name}" if prefix else name: path for name, path in below.items()}
        printable = {name.encode(errors="backslashreplace").decode(): path for name, path in found.items()}
        self._runs = {name: self._watch(name, path) for name, path in printable.items()}
        unread = [watched.run for watched in self._runs.values() if watched.run.fraction_read < 1]
        if unread and (self._reader is None or not self._reader.is_alive()):
            self._reader = threading.Thread(target=_read, args=(unread,), name="metrics", daemon=True)
            self._reader.start()

    def _watch(self, name: str, folder: Path) -> WatchedRun:
        before = self._runs.get(name)
        try:
            config_time = (folder / "config.yaml").stat().st_mtime
        except OSError:
            config_time = 0.0
        if before is None or before.run.folder != folder or before.config_time != config_time:
            arm = name.rpartition("/")[0] if "/" in name else name
            before = WatchedRun(name, arm, LiveRun(folder), config_time, RunState("stale"), (None, 0), 0)
        if before.run.fraction_read == 1:
            before.run.refresh()
        state = run_state(before.run) if config_time else RunState("damaged", "its folder was deleted")
        if before.run.fraction_read < 1:
            state = replace(state, message=f"reading its metrics, {before.run.fraction_read:.0%}")
        progress = before.run.progress
        if before.version and progress == before.progress and state == before.state:
            return before
        self._versions += 1
        return replace(before, state=state, progress=progress, version=self._versions)


def _read(runs: Sequence[LiveRun]) -> None:
    """Read metrics that are too long to be read while a page waits."""
    for run in runs:
        while run.refresh() and run.fraction_read < 1:
            pass
