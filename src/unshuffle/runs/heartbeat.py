"""Signs of life of a run: a small file that training renews, and what it says about the run's state."""

import json
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal

from unshuffle.errors import UserError
from unshuffle.files import atomic_write
from unshuffle.runs.history import is_finished
from unshuffle.runs.run import Run

State = Literal["training", "finished", "stopped", "stale", "failed", "damaged"]
"""`stale`: the run should be training, but has had no heartbeat for a while; `damaged`: it cannot be read."""
SECONDS_BETWEEN_BEATS = 5.0
STALE_SECONDS = 30.0
"""Without a heartbeat for so long, a run that should be training is stale."""
_WRITTEN = ("training", "finished", "stopped", "failed")


@dataclass(frozen=True)
class Heartbeat:
    """The content of a run's heartbeat file."""

    state: State
    time: float
    """Wall-clock time, in seconds since 1970."""
    message: str = ""
    """Why it failed or where it stopped."""

    def write(self, run: Run) -> None:
        """Replace the heartbeat file of a run."""
        with atomic_write(run.heartbeat) as draft:
            draft.write_text(json.dumps(asdict(self)), encoding="utf-8")


def read_heartbeat(run: Run) -> Heartbeat | None:
    """Return the last heartbeat; None if there is none, as in runs of older versions, or if it is damaged."""
    try:
        values: Any = json.loads(run.heartbeat.read_bytes())
        state, moment, message = values["state"], float(values["time"]), str(values.get("message", ""))
    except (OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError, AttributeError):
        return None
    return Heartbeat(state, moment, message) if state in _WRITTEN else None


@dataclass(frozen=True)
class RunState:
    """Whether a run lives, and why not."""

    state: State
    message: str = ""


def run_state(run: Run, now: float | None = None) -> RunState:
    """Return the state of a run at a time, by default now."""
    try:
        finished = is_finished(run)
    except (UserError, OSError) as problem:
        return RunState("damaged", str(problem))
    beat = read_heartbeat(run)
    if beat is None:
        return RunState("finished") if finished else RunState("stale", "it has no heartbeat file")
    if beat.state == "finished" and not finished:
        return RunState("finished", _incomplete(run))
    if beat.state != "training":
        return RunState(beat.state, beat.message)
    silence = (time.time() if now is None else now) - beat.time
    return (
        RunState("training") if silence < STALE_SECONDS else RunState("stale", f"no heartbeat for {_coarse(silence)}")
    )


def _coarse(seconds: float) -> str:
    """Return a time in one unit: a state that changed every second would be news every second."""
    for unit, name, least in ((86400, "days", 2), (3600, "h", 1), (60, "min", 1)):
        if seconds >= least * unit:
            return f"{seconds // unit:.0f} {name}"
    return f"{STALE_SECONDS:.0f} s"


def _incomplete(run: Run) -> str:
    """Return what is wrong with the metrics of a finished run that do not reach its end."""
    if not run.metrics_file.is_file():
        return f"its {run.metrics_file.name} is missing"
    return f"its {run.metrics_file.name} is incomplete: it ends at iteration {run.last_iteration:,}"


class Pulse:
    """Renews the heartbeat of a run in the background: training may be in one long step or validation.

    A file that cannot be written stops nothing.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._ended = run, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def end(self, state: State, message: str = "") -> None:
        """Write the last heartbeat."""
        self._ended.set()
        self._thread.join()
        self._write(state, message)

    def _beat(self) -> None:
        self._write("training")
        while not self._ended.wait(SECONDS_BETWEEN_BEATS):
            self._write("training")

    def _write(self, state: State, message: str = "") -> None:
        try:
            Heartbeat(state, round(time.time(), 3), message).write(self._run)
        except (OSError, UserError):  # a full disk; what training writes itself explains it
            return
