"""What a person sees while an evaluation trains and tests."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Bar:
    """How far an evaluation is: a bar on a terminal, now and then a line elsewhere."""

    def __init__(self, console: Console, title: str, total: int, done: int = 0) -> None:
        self._console, self._title = console, title
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=total, completed=done)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def advance(self) -> None:
        """One step is done."""
        self._progress.advance(self._task)

    def say(self, news: str) -> None:
        """Show the latest figures."""
        line = f"{self._title}, {news}"
        if self._console.is_terminal:
            self._progress.update(self._task, description=line)
        else:
            self._console.print(line, highlight=False, soft_wrap=True)
