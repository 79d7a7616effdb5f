"""How far an evaluation has come: a bar on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SECONDS_BETWEEN_LINES = 10.0


class Advance(Protocol):
    """Tells that so much is done, and anything else worth a look."""

    def __call__(self, done: int, note: str = "") -> None:
        """Show it."""


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Advance]:
    """Show progress while something of a known length goes on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    last = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(title, total=total, note="")

        def advance(done: int, note: str = "") -> None:
            nonlocal last
            bar.update(task, completed=done, note=note)
            if not console.is_terminal and time.monotonic() - last > SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                console.print(f"{title} {done}/{total} {note}".rstrip(), highlight=False, soft_wrap=True)

        yield advance
