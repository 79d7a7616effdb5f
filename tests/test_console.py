import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress

from unshuffle.console import ElapsedColumn, LeftColumn, progress, say


def test_a_line_is_printed_unchanged() -> None:
    console = Console(file=io.StringIO(), width=20)
    say(console, "[bold] 1 of 2 images in /a/long/path/to/a/folder")
    assert console.file.getvalue() == "[bold] 1 of 2 images in /a/long/path/to/a/folder\n"


def test_a_terminal_shows_a_bar_with_throughput_that_starts_where_the_work_continues() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with progress(console, "packing images", 8, done=3) as advance:
        advance(4, "1 skipped")
    shown = console.file.getvalue()
    assert "packing images" in shown and "4/8" in shown and "/s" in shown and "1 skipped" in shown


def test_elsewhere_progress_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO())
    with progress(console, "packing images", 8) as advance:
        advance(1)
        assert not console.file.getvalue(), "too early for a line"
        monkeypatch.setattr("unshuffle.console.SECONDS_BETWEEN_LINES", -1.0)
        advance(2, "1 skipped")
    assert console.file.getvalue() == "packing images 2/8 1 skipped, 0 s left\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_a_quiet_console_shows_no_progress(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unshuffle.console.SECONDS_BETWEEN_LINES", -1.0)
    console = Console(file=io.StringIO(), quiet=True, force_terminal=terminal)
    with progress(console, "packing images", 8) as advance:
        advance(8)
    assert not console.file.getvalue()


def test_escapes_in_a_line_do_not_reach_the_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True)
    say(console, "skipped \x1b]0;title\x07a.jpg\nsecond line")
    assert console.file.getvalue() == "skipped \\x1b]0;title\\x07a.jpg\nsecond line\n"


def test_times_on_a_terminal_are_in_hours_and_minutes() -> None:
    clock = iter(range(0, 10**9, 4000))
    bar = Progress(ElapsedColumn(), LeftColumn(), get_time=lambda: float(next(clock)), speed_estimate_period=1e9)
    task = bar.add_task("work", total=100)
    for done in (1, 2, 3):
        bar.update(task, completed=done)
    shown = [str(column.render(bar.tasks[0])) for column in (ElapsedColumn(), LeftColumn())]
    assert re.fullmatch(r"\d+ h( \d+ min)?", shown[0]) and re.fullmatch(r"\d+ days( \d+ h)? left", shown[1]), shown
