"""What a run writes while it trains: metrics.jsonl, TensorBoard and other loggers, the state of every validation."""

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from unshuffle.config import Config, Logger
from unshuffle.errors import UserError
from unshuffle.files import atomic_write
from unshuffle.options import to_dict
from unshuffle.policy.sampler import Observation
from unshuffle.policy.state import PermutationValidation
from unshuffle.runs.heartbeat import Pulse, State
from unshuffle.runs.run import Run
from unshuffle.tasks.base import Validation
from unshuffle.wording import resume_advice


class Board(Protocol):
    """Shows the curves and pictures of a run in another program."""

    def scalars(self, values: Mapping[str, float], iteration: int) -> None:
        """Add a point to each of these curves."""

    def picture(self, file: Path, iteration: int) -> None:
        """Show a PNG file under its name."""

    def close(self) -> None:
        """Write what is left."""


class TensorBoard:
    """The folder `tensorboard` of a run."""

    def __init__(self, run: Run, iteration: int) -> None:
        """Open it at an iteration; TensorBoard leaves out what was logged after it."""
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        purge = iteration + 1 if iteration else None
        self._writer = SummaryWriter(str(run.tensorboard), purge_step=purge)  # type: ignore[no-untyped-call]

    def scalars(self, values: Mapping[str, float], iteration: int) -> None:
        """Add a point to each of these curves."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, iteration)  # type: ignore[no-untyped-call]

    def picture(self, file: Path, iteration: int) -> None:
        """Show a PNG file under its name."""
        with Image.open(file) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        self._writer.add_image(file.stem, pixels, iteration, dataformats="HWC")  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()  # type: ignore[no-untyped-call]


class Tracker:
    """A run in wandb or trackio, which share their interface; both stay on this machine unless the environment says
    otherwise (WANDB_MODE; TRACKIO_SPACE_ID or TRACKIO_SERVER_URL)."""

    def __init__(self, package: Logger, run: Run, config: Config, *, resumed: bool) -> None:
        """Start the tracker's run with the name and the config of ours, or continue it."""
        check_loggers([package])
        options: dict[str, Any] = {"resume": "allow" if resumed else "never"}
        if package == "wandb":
            mode = os.environ.get("WANDB_MODE", "offline")
            if mode != "online":
                os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # which is sent in every mode
            options |= {"mode": mode, "dir": str(run.folder)}
            # wandb's own file has the id in its name: wandb/offline-run-20260131_120000-3k5v0x1a/run-3k5v0x1a.wandb
            earlier = [file.stem.removeprefix("run-") for file in run.folder.glob("wandb/*run-*/run-*.wandb")]
            options |= {"id": earlier[0]} if resumed and earlier else {}
        try:
            with redirect_stdout(sys.stderr):  # its greeting is no result of ours
                self._library = import_module(package)
                self._run = self._library.init(
                    project=config.log.project, name=run.folder.name, config=to_dict(config), **options
                )
        except Exception as error:  # of many kinds: their own, ValueError, errors of the network
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise UserError(f"{package} cannot log this run ({problem}): correct that, or omit --log.to") from error

    def scalars(self, values: Mapping[str, float], iteration: int) -> None:
        """Add a point to each of these curves."""
        if values:
            self._run.log(dict(values), step=iteration)

    def picture(self, file: Path, iteration: int) -> None:
        """Show a PNG file under its name."""
        self._run.log({file.stem: self._library.Image(str(file))}, step=iteration)

    def close(self) -> None:
        """Write what is left."""
        with redirect_stdout(sys.stderr):
            self._library.finish()


def check_loggers(packages: Iterable[Logger]) -> None:
    """Raise a UserError for the first logger that is not installed."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"--log.to {package} needs {package}: pip install 'unshuffle[{package}]'")


class RunLog:
    """Writes one JSON object per line, and its numbers as curves of boards.

    Each line has the seconds since the run began and the wall-clock time; a heartbeat tells whether the run lives.
    """

    def __init__(self, run: Run, iteration: int = 0, config: Config | None = None) -> None:
        """Open the log of a run at an iteration; what was written after it is dropped.

        TensorBoard is always written; `config.log.to` names further loggers.
        """
        self.run = run
        run.states.mkdir(parents=True, exist_ok=True)
        kept = [entry for entry in run.metrics() if entry["iteration"] <= iteration] if iteration else []
        with atomic_write(run.metrics_file) as draft:
            draft.write_text("".join(f"{json.dumps(entry)}\n" for entry in kept))
        self._file = run.metrics_file.open("a")
        # the time between an interruption and the resumption does not count
        self._begin = time.perf_counter() - (kept[-1].get("seconds", 0.0) if kept else 0.0)
        self._boards: Sequence[Board] = [TensorBoard(run, iteration)]
        if config is not None:
            trackers = [Tracker(package, run, config, resumed=iteration > 0) for package in config.log.to]
            self._boards = [*self._boards, *trackers]

    def write(self, kind: str, iteration: int, **values: Any) -> None:
        """Log an object; its numbers, also nested ones, become scalars under their kind."""
        seconds = round(time.perf_counter() - self._begin, 3)
        now = round(time.time(), 3)
        entry = {"iteration": iteration, "kind": kind, "seconds": seconds, "time": now, **values}
        with _explained(self.run.metrics_file):
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
        prefix = "/".join([kind, *(values[key] for key in ("task", "name") if key in values)])
        scalars = dict(_scalars(prefix, values))
        for board in self._boards:
            board.scalars(scalars, iteration)

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
        """Show PNG files in TensorBoard and the other loggers."""
        for file in pictures:
            for board in self._boards:
                board.picture(file, iteration)

    def __enter__(self) -> "RunLog":
        self._pulse = Pulse(self.run)
        return self

    def __exit__(self, *error: object) -> None:
        self._pulse.end(*_ending(error[1]))
        # on a full disk closing fails as well, and its error would hide the first one
        with suppress(OSError) if error[0] is not None else nullcontext():
            self._file.close()
            for board in self._boards:
                board.close()


def _scalars(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers in a value, also nested ones, with their names."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _scalars(f"{name}/{key}", inner)
    elif isinstance(value, int | float):
        yield name, value


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
        raise UserError(f"{file} cannot be written ({problem}): {resume_advice(error)}") from error


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
