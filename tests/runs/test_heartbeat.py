import shutil
import time
from pathlib import Path

import pytest

from unshuffle.runs import heartbeat
from unshuffle.runs.heartbeat import STALE_SECONDS, Heartbeat, Pulse, RunState, read_heartbeat, run_state
from unshuffle.runs.run import Run


def test_a_finished_run_says_so(run: Run) -> None:
    assert run_state(run) == RunState("finished")


def test_a_run_without_a_heartbeat_is_stale(copied: Run) -> None:
    Heartbeat("training", 1000.0).write(copied)
    assert run_state(copied, 1000 + STALE_SECONDS / 2) == RunState("training")
    for silence, words in (
        (40, "30 s"),
        (12 * 60, "12 min"),
        (12 * 60 + 1, "12 min"),
        (30 * 3600, "30 h"),
        (5e5, "5 days"),
    ):
        assert run_state(copied, 1000 + silence) == RunState("stale", f"no heartbeat for {words}")


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_how_a_run_ended_stays(copied: Run, state: heartbeat.State) -> None:
    Heartbeat(state, 1000.0, "why").write(copied)
    assert run_state(copied) == RunState(state, "why")


@pytest.mark.parametrize("content", ["", "[]", "{", '{"state": "odd", "time": 1}', '{"state": "failed", "time": "x"}'])
def test_a_damaged_heartbeat_is_none(copied: Run, content: str) -> None:
    copied.heartbeat.write_text(content)
    assert read_heartbeat(copied) is None
    assert run_state(copied) == RunState("finished"), "by its iterations, as a run of an older version"


def test_a_run_of_an_older_version_that_is_not_finished(copied: Run) -> None:
    copied.heartbeat.unlink()
    lines = copied.metrics_file.read_text().splitlines(keepends=True)
    copied.metrics_file.write_text("".join(lines[: len(lines) // 2]))
    assert run_state(copied).state == "stale"


def test_a_finished_run_whose_metrics_are_not_complete(copied: Run) -> None:
    Heartbeat("finished", 1000.0).write(copied)
    lines = copied.metrics_file.read_text().splitlines(keepends=True)
    copied.metrics_file.write_text("".join(lines[: len(lines) // 2]))
    last = copied.last_iteration
    assert last < 12
    assert run_state(copied) == RunState("finished", f"its metrics.jsonl is incomplete: it ends at iteration {last}")
    copied.metrics_file.unlink()
    assert run_state(copied) == RunState("finished", "its metrics.jsonl is missing")


def test_a_damaged_or_deleted_run_is_shown_as_such(copied: Run) -> None:
    copied.config_file.write_text("tasks: [")
    assert run_state(Run(copied.folder)).state == "damaged"
    shutil.rmtree(copied.folder)
    assert run_state(Run(copied.folder)).state == "damaged"


def test_the_pulse_renews_the_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "SECONDS_BETWEEN_BEATS", 0.01)
    run = Run(tmp_path)
    pulse = Pulse(run)
    moments: set[float] = set()
    deadline = time.monotonic() + 20
    while len(moments) < 3 and time.monotonic() < deadline:
        moments |= {beat.time for beat in [read_heartbeat(run)] if beat is not None}
    pulse.end("stopped", "at iteration 4")
    last = read_heartbeat(run)
    assert len(moments) >= 3 and last is not None
    assert (last.state, last.message) == ("stopped", "at iteration 4") and last.time >= max(moments)
