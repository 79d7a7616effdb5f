"""What a run has recorded so far, finished or not: one view on metrics.jsonl and states/ for all analyses."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from unshuffle.analysis.names import short_names
from unshuffle.errors import UserError
from unshuffle.run import Run

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """The validations of one task, in their order."""

    iterations: npt.NDArray[np.int64]
    """(N,)"""
    errors: Floats
    """(N, |Ψ|) share of X_val on which each permutation was not recognised."""
    draws: Floats
    """(N, |Ψ|) how often each was drawn since the validation before."""


def open_run(folder: Path) -> Run:
    """A run that has validated at least once."""
    run = Run.open(folder.expanduser())
    if not tasks_of(run):
        raise UserError(f"{folder} has no validation yet: wait for the first one")
    return run


def tasks_of(run: Run) -> list[str]:
    """The tasks that the run validates."""
    return list(dict.fromkeys(entry["task"] for entry in run.metrics("validation")))


def choose_tasks(run: Run, task: str | None) -> list[str]:
    """The task that was asked for, or all that the run has."""
    tasks = tasks_of(run)
    if task is None:
        return tasks
    if task not in tasks:
        raise UserError(f"{run.folder} has no {task} task; it has {', '.join(tasks)}")
    return [task]


def state_files(run: Run, task: str) -> list[Path]:
    """What each validation left, in their order.

    Files of validations that metrics.jsonl does not know are from before a resumed run was broken off.
    """
    known = sorted({entry["iteration"] for entry in run.metrics("validation") if entry["task"] == task})
    files = [run.states / f"{task}-{iteration:08d}.npz" for iteration in known]
    return [file for file in files if file.is_file()]


def read_states(run: Run, task: str, names: Sequence[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """The named arrays of each validation, those that it has; a file that is not whole is left out."""
    for file in state_files(run, task):
        try:
            with np.load(file) as arrays:
                found = {name: arrays[name] for name in ("iteration", *names) if name in arrays}
        except (BadZipFile, EOFError, ValueError, OSError):
            continue
        yield found


def read_history(run: Run, task: str) -> History:
    """Errors and draws of every permutation at every validation."""
    states = list(read_states(run, task, ("permutation_errors", "sampled")))
    if not states:
        raise UserError(f"{run.states} has no validation of the {task} task: was it deleted?")
    return History(
        np.array([int(state["iteration"]) for state in states]),
        np.stack([state["permutation_errors"] for state in states]).astype(np.float64),
        np.stack([state["sampled"] for state in states]).astype(np.float64),
    )


def run_labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run: its folder's, with as many parents as it takes to tell them apart, and its sampler's."""
    names, samplers = short_names([run.folder for run in runs]), [run.config.policy.name for run in runs]
    return [name if sampler in name else f"{name} ({sampler})" for name, sampler in zip(names, samplers, strict=True)]
