import io
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from unshuffle.policy.sampler import Preference
from unshuffle.training import display as module
from unshuffle.training.display import Display, TaskStatus, _bars


def make(terminal: bool, width: int = 120) -> tuple[Display, io.StringIO]:
    text = io.StringIO()
    screen = Console(file=text, force_terminal=terminal, width=width, color_system=None)
    return Display({"spatial": TaskStatus(chance=0.01)}, total=20, console=screen), text


def test_plain_lines_come_now_and_then_and_once_at_the_end() -> None:
    display, text = make(terminal=False)
    with display:
        display._last_line -= module.SECONDS_BETWEEN_LINES
        for iteration in range(1, 21):
            display.tasks["spatial"].loss = 4.0
            display.tasks["spatial"].error = 0.5
            display.update(iteration)
    lines = text.getvalue().splitlines()
    assert [line.split(" ")[0] for line in lines] == ["1/20", "20/20"]
    assert "loss 4.000" in lines[-1]
    assert "chance 0.010" in lines[-1]
    assert "validation error 0.500" in lines[-1]


def test_every_line_is_printed_when_time_has_passed(monkeypatch: object) -> None:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LINES", -1.0)  # type: ignore[attr-defined]
    display, text = make(terminal=False)
    with display:
        for iteration in range(1, 4):
            display.update(iteration)
    assert len(text.getvalue().splitlines()) == 4


def test_the_time_left_is_in_hours_and_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    display, text = make(terminal=False)
    with display:
        display._begin -= 10 * 3600 + 20 * 60
        display._last_line = display._begin
        display.update(10)
    first, last = text.getvalue().splitlines()
    assert first.endswith("| 10 h 20 min left") and last.endswith("| 10 h 20 min left")
    assert make(terminal=False)[0]._line().endswith("| time left unknown")


def test_the_live_display_shows_figures_speed_and_chance() -> None:
    display, text = make(terminal=True)
    with display:
        display.tasks["spatial"].accuracy = 0.25
        display.samples_per_second, display.crops_per_second = 12, 108
        display.waiting, display.monitor = 0.07, {"top1": 33.3, "crops_top1": 21.5, "own_rankme": 9.0}
        display.update(10)
        display._live.refresh()
        shown = text.getvalue()
    for part in (
        "10/20",
        "0.250",
        "0.990",
        "12 samples/s (108 crops/s)",
        "data 7 %",
        "retrieval top-1 33.3 %",
        "own crops top-1 21.5 %",
    ):
        assert part in shown


def test_the_live_display_is_redrawn_while_a_step_takes_long() -> None:
    display, text = make(terminal=True)
    with display:
        display.update(7)
        assert _wait_for(lambda: "7/20" in text.getvalue())
        display.announce("stopping after the current step")
        assert _wait_for(lambda: "stopping after" in text.getvalue())


def _wait_for(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_an_announcement_is_printed_at_once_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    display, _ = make(terminal=False)
    display.announce("stopping after the current step")
    display.console.quiet = True
    display.announce("of another process")
    assert capfd.readouterr().err == "stopping after the current step\n"


def test_a_line_before_the_first_figures_states_no_speed() -> None:
    display, _ = make(terminal=False)
    assert "samples/s" not in display._line() and "| |" not in display._line()


@pytest.mark.parametrize(
    "preference", [Preference([], []), *(Preference([1 / count] * count, [0.6 / count] * count) for count in (20, 90))]
)
def test_every_number_is_whole_on_a_narrow_terminal(preference: Preference) -> None:
    display, text = make(terminal=True, width=80)
    display.tasks["temporal"] = TaskStatus(
        chance=0.042, loss=12.345, accuracy=0.123, error=0.912, preference=preference
    )
    display.samples_per_second, display.crops_per_second, display.waiting = 12345, 111105, 0.07
    display.monitor = {"top1": 33.3, "crops_top1": 21.5, "frames_top1": 9.5}
    with display:
        display.update(10)
        display._live.refresh()
        lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert "12345 samples/s (111105 crops/s) · waiting for data 7 %" in lines
    assert "retrieval top-1 33.3 %" in lines
    assert any(
        line.split() == ["task", "loss", "accuracy", "val.", "error", "at", "chance", "sampling"] for line in lines
    )
    row = next(line for line in lines if line.startswith("temporal"))
    assert row.split()[:5] == ["temporal", "12.345", "0.123", "0.912", "0.958"]
    assert "…" not in text.getvalue()


def test_a_bar_for_each_group() -> None:
    assert _bars(None) == "uniform"
    assert _bars(Preference([], [])) == "uniform until above chance"
    assert _bars(Preference([0.1, 0.2, 0.7], [0.1, 0.2, 0.7])) == "hard ▄▄▄ easy", "a new policy prefers none"
    assert _bars(Preference([0.4, 0.6, 0.0, 0.0], [0.4, 0.6, 0.0, 0.0])) == "hard ▄▄   easy", "none for an empty group"
    assert _bars(Preference([0.25] * 4, [0.9, 0.1, 0.0, 0.0])) == "hard █▁▁▁ easy"
