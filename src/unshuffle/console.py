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
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column, Table
from rich.text import Text

from unshuffle.wording import printable

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


@contextmanager
def progress(console: Console, title: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Show the progress of work with a known length, `done` of which was completed earlier."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _ThroughputColumn(Column(no_wrap=True)),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[note]}"),
    )
    last = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total, completed=done, note="")

        def advance(done: int, note: str = "") -> None:
            nonlocal last
            bar.update(task, completed=done, note=note)
            if not console.is_terminal and time.monotonic() - last > SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                say(console, f"{title} {done}/{total} {note}".rstrip())

        yield advance
