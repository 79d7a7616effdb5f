"""Trials that the policy learned from: for each group a short training that preferred it, and the error after it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from unshuffle.run import Run


@dataclass(frozen=True)
class Trials:
    """Those at the end of an episode. All tasks that are trained share them; not all need learn from them."""

    iteration: int
    count: int
    """One for each group."""
    length: int
    """Iterations of each."""
    tasks: tuple[str, ...]
    """Which were validated after each."""


def read_trials(run: Run, task: str) -> list[dict[str, Any]]:
    """What the trials said of the groups of a task, each time that there were some."""
    return [entry for entry in run.metrics("rollouts") if entry["task"] == task]


def all_trials(run: Run) -> Iterator[Trials]:
    """The trials as they were made, in their order."""
    for iteration, some in groupby(run.metrics("rollouts"), key=lambda entry: entry["iteration"]):
        entries = list(some)
        # a task with fewer groups sees its last one again while the others go on
        count = max(len(entry["errors"]) for entry in entries)
        yield Trials(iteration, count, entries[0]["iterations"], tuple(entry["task"] for entry in entries))
