"""What every command prints: plain lines, and progress as a bar on a terminal or a line now and then elsewhere."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.table import Column, Table
from rich.text import Text

from unshuffle.wording import duration, printable, time_left

SECONDS_BETWEEN_LINES = 10.0
Advance = Callable[..., None]
"""Shows how much of a known amount of work is done, with a short note beside it if one is given."""


class ResilientConsole(Console):
    """A console that survives a closed pipe: the command continues without output."""

    def on_broken_pipe(self) -> None:
        """Discard all output from now on instead of ending the program."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(console: Console, text: str) -> None:
    """Print lines as they are: no markup, no colours, no line breaks inserted, control characters escaped."""
    text = "\n".join(map(printable, text.split("\n")))
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def plain_table(*columns: str) -> Table:
    """Return a table without lines: names in the first column, figures in the others."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


class _ThroughputColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.1f}/s")


class ElapsedColumn(ProgressColumn):
    """The time since the work began."""

    def render(self, task: Task) -> Text:
        """Return the time, empty before the beginning."""
        elapsed = task.finished_time if task.finished else task.elapsed
        return Text("" if elapsed is None else duration(round(elapsed)))


class LeftColumn(ProgressColumn):
    """The time that the rest of the work takes."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Return the time, empty as long as it is not known."""
        return Text("" if task.time_remaining is None else f"{duration(task.time_remaining)} left")


@contextmanager
def progress(console: Console, title: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show the progress of work with a known length, `done` of which was completed earlier."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _ThroughputColumn(Column(no_wrap=True)),
        ElapsedColumn(table_column=Column(no_wrap=True)),
        LeftColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}"),
    )
    begin = last = time.monotonic()
    start = done
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total, completed=done, note="")

        def advance(done: int, note: str = "") -> None:
            nonlocal last
            bar.update(task, completed=done, note=note)
            if not console.is_terminal and time.monotonic() - last > SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                left = time_left(last - begin, done - start, total - done)
                say(console, f"{title} {done}/{total}{f' {note}' if note else ''}, {left}")

        yield advance
