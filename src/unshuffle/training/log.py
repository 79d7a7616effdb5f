"""What a run writes while it trains: metrics.jsonl, TensorBoard, and the state of every validation."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from unshuffle.errors import UserError
from unshuffle.files import atomic_write
from unshuffle.policy.sampler import Observation
from unshuffle.policy.state import PermutationValidation
from unshuffle.runs.heartbeat import Pulse, State
from unshuffle.runs.run import Run
from unshuffle.tasks.base import Validation


class RunLog:
    """Writes one JSON object per line, and its numbers as TensorBoard scalars.

    Each line has the seconds since the run began and the wall-clock time; a heartbeat tells whether the run lives.
    """

    def __init__(self, run: Run, iteration: int = 0) -> None:
        """Open the log of a run at an iteration; what was written after it is dropped."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        self.run = run
        run.states.mkdir(parents=True, exist_ok=True)
        kept = [entry for entry in run.metrics() if entry["iteration"] <= iteration] if iteration else []
        with atomic_write(run.metrics_file) as draft:
            draft.write_text("".join(f"{json.dumps(entry)}\n" for entry in kept))
        self._file = run.metrics_file.open("a")
        # the time between an interruption and the resumption does not count
        self._begin = time.perf_counter() - (kept[-1].get("seconds", 0.0) if kept else 0.0)
        purge = iteration + 1 if iteration else None
        self._board = SummaryWriter(str(run.tensorboard), purge_step=purge)  # type: ignore[no-untyped-call]

    def write(self, kind: str, iteration: int, **values: Any) -> None:
        """Log an object; its numbers, also nested ones, become scalars under their kind."""
        seconds = round(time.perf_counter() - self._begin, 3)
        now = round(time.time(), 3)
        entry = {"iteration": iteration, "kind": kind, "seconds": seconds, "time": now, **values}
        with _explained(self.run.metrics_file):
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
        prefix = "/".join([kind, *(values[key] for key in ("task", "name") if key in values)])
        for name, value in values.items():
            self._scalar(f"{prefix}/{name}", value, iteration)

    def _scalar(self, name: str, value: Any, iteration: int) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                self._scalar(f"{name}/{key}", inner, iteration)
        elif isinstance(value, list):
            self._scalar(name, dict(enumerate(value)), iteration)
        elif isinstance(value, int | float):
            self._board.add_scalar(name, value, iteration)  # type: ignore[no-untyped-call]

    def write_validation(self, iteration: int, task: str, validation: Validation) -> None:
        """Log the error of a task."""
        self.write("validation", iteration, task=task, error=validation.error, chance=validation.chance)

    def write_test(self, iteration: int, task: str, test: Validation) -> None:
        """Log the error of a task on its pretext test set."""
        self.write("test", iteration, task=task, error=test.error, chance=test.chance)

    def write_observation(
        self, iteration: int, task: str, validation: PermutationValidation, observation: Observation
    ) -> None:
        """Log the episode that ended, and store what the sampler saw and sampled under states/."""
        if observation.episode is not None:
            self.write("episode", iteration, task=task, **observation.episode)
        arrays: dict[str, Any] = {
            "iteration": iteration,
            "permutation_errors": validation.permutation_errors.numpy(),
            "state": validation.state.numpy().astype(np.float16),
            **observation.arrays,
        }
        # not compressed: ratios hardly shrink, and the training waits for this
        file = self.run.states / f"{task}-{iteration:08d}.npz"
        with _explained(file):
            np.savez(file, **arrays)

    def write_pictures(self, iteration: int, pictures: Iterable[Path]) -> None:
        """Show PNG files in TensorBoard."""
        for file in pictures:
            with Image.open(file) as picture:
                pixels = np.asarray(picture.convert("RGB"))
            self._board.add_image(file.stem, pixels, iteration, dataformats="HWC")  # type: ignore[no-untyped-call]

    def __enter__(self) -> "RunLog":
        self._pulse = Pulse(self.run)
        return self

    def __exit__(self, *error: object) -> None:
        self._pulse.end(*_ending(error[1]))
        # on a full disk closing fails as well, and its error would hide the first one
        with suppress(OSError) if error[0] is not None else nullcontext():
            self._file.close()
            self._board.close()  # type: ignore[no-untyped-call]


def _ending(error: object) -> tuple[State, str]:
    """Return the state in which a run ends with an exception, if any, and its message."""
    if error is None:
        return "finished", ""
    message = str(error) or type(error).__name__
    return ("stopped" if isinstance(error, KeyboardInterrupt) else "failed"), message


@contextmanager
def _explained(file: Path) -> Iterator[None]:
    """Raise a UserError that names the file and says what to do if it cannot be written."""
    try:
        yield
    except OSError as error:
        problem = error.strerror or error
        raise UserError(
            f"{file} cannot be written ({problem}): make room, then run the same command with --resume"
        ) from error


class NoLog(RunLog):
    """The log of a process other than the main one: writes nothing."""

    def __init__(self) -> None:
        """Open nothing."""

    def write(self, kind: str, iteration: int, **values: Any) -> None:
        """Leave it to the main process."""

    def write_observation(
        self, iteration: int, task: str, validation: PermutationValidation, observation: Observation
    ) -> None:
        """Leave it to the main process."""

    def __enter__(self) -> "NoLog":
        return self

    def __exit__(self, *error: object) -> None:
        pass
