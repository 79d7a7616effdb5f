"""Progress of a run: live display on a terminal, plain lines elsewhere."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from unshuffle.console import SECONDS_BETWEEN_LINES, ElapsedColumn, LeftColumn, ResilientConsole, say
from unshuffle.policy.sampler import Preference
from unshuffle.wording import counted, time_left

REFRESHES = 2
"""Redraws of the live display in a second, whatever the training is doing."""


@dataclass
class TaskStatus:
    """The latest figures of one task."""

    chance: float
    """Accuracy at chance level."""
    has_sampler: bool = True
    loss: float | None = None
    accuracy: float | None = None
    error: float | None = None
    """E at the last validation."""
    preference: Preference | None = None
    """The sampler's distribution over its groups; None for uniform sampling."""


@dataclass
class Display:
    """The state of a run on the screen."""

    tasks: dict[str, TaskStatus]
    total: int
    start: int = 0
    console: Console = field(default_factory=ResilientConsole)
    samples_per_second: float = 0.0
    crops_per_second: float = 0.0
    waiting: float = 0.0
    monitor: Mapping[str, float] = field(default_factory=dict)
    """The latest figures of the monitor."""
    skipped_steps: int = 0
    """Steps that were skipped because their loss or gradients were not finite."""
    notice: str = ""
    """What the live display says below everything else."""

    def __post_init__(self) -> None:
        self.iteration = self.start
        self._progress = Progress(
            TextColumn("pretraining"),
            BarColumn(),
            MofNCompleteColumn(),
            ElapsedColumn(),
            LeftColumn(),
            console=self.console,
        )
        self._bar = self._progress.add_task("pretraining", total=self.total, completed=self.start)
        self._live = Live(
            get_renderable=self._render, console=self.console, refresh_per_second=REFRESHES, transient=True
        )
        self._begin = self._last_line = time.monotonic()

    def __enter__(self) -> "Display":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        if not self.console.is_terminal:
            self._print_line()

    def update(self, iteration: int) -> None:
        """Tell which iteration is done: called after every step, so drawing is left to the thread of `Live`."""
        if iteration == self.start:  # the first validation is no measure of the speed
            self._begin = self._last_line = time.monotonic()
        self.iteration = iteration
        self._progress.update(self._bar, completed=iteration)
        if self.console.is_terminal:
            return
        if self.start < iteration < self.total and time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._print_line()

    def announce(self, notice: str) -> None:
        """Show a sentence at once; safe to call from a signal handler."""
        self.notice = notice
        if not (self.console.is_terminal or self.console.quiet):
            os.write(2, f"{notice}\n".encode())  # the handler may have interrupted a write to sys.stderr

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        say(self.console, self._line())

    def _state(self) -> list[str]:
        """Speed and retrieval, each short enough for a line of a narrow terminal."""
        speed = f"{self.samples_per_second:.0f} samples/s ({self.crops_per_second:.0f} crops/s)"
        names = {"top1": "retrieval", "crops_top1": "own crops", "frames_top1": "own frames"}
        monitor = [f"{name} top-1 {self.monitor[key]:.1f} %" for key, name in names.items() if key in self.monitor]
        skipped = [] if not self.skipped_steps else [f"{counted(self.skipped_steps, 'steps')} skipped (not finite)"]
        known = [f"{speed} · waiting for data {100 * self.waiting:.0f} %"] if self.samples_per_second else []
        return [*known, *monitor, *skipped]

    def _line(self) -> str:
        left = time_left(time.monotonic() - self._begin, self.iteration - self.start, self.total - self.iteration)
        tasks = [
            f"{name}: loss {_number(task.loss)}, accuracy {_number(task.accuracy)} (chance {task.chance:.3f}), "
            f"validation error {_number(task.error)}"
            + (f", sampling {_bars(task.preference)}" if task.preference else "")
            for name, task in self.tasks.items()
        ]
        state = [" · ".join(self._state())] if self._state() else []
        return " | ".join([f"{self.iteration}/{self.total}", *tasks, *state, left])

    def _render(self) -> Group:
        table = Table(box=None, padding=(0, 1), pad_edge=False)
        table.add_column("task", no_wrap=True)
        for title in ("loss", "accuracy", "val. error", "at chance"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("sampling", overflow="fold")  # where all is too wide, the numbers stay whole
        for name, task in self.tasks.items():
            table.add_row(
                name,
                _number(task.loss),
                _number(task.accuracy),
                _number(task.error),
                f"{1 - task.chance:.3f}",
                _bars(task.preference) if task.has_sampler else "-",
            )
        return Group(self._progress, table, *self._state(), *([self.notice] if self.notice else []))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _bars(preference: Preference | None) -> str:
    """Return a bar for each group, hardest first: how often its members are sampled beside uniform sampling."""
    if preference is None:
        return "uniform"
    if not preference.sizes:
        return "uniform until above chance"
    groups = zip(preference.sizes, preference.probabilities, strict=True)
    bars = "".join(_bar(probability / size) if size > 0 else " " for size, probability in groups)
    return f"hard {bars} easy"


def _bar(ratio: float) -> str:
    """Return a bar that is half full for uniform sampling and grows by one step for each factor of √2."""
    step = round(4 + 2 * math.log2(max(ratio, 1e-3)))
    return "▁▂▃▄▅▆▇█"[min(max(step - 1, 0), 7)]
