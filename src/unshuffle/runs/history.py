"""What happened in a run so far, finished or not: validations, the policy's groups, rollouts."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from unshuffle.config import Config
from unshuffle.errors import UserError
from unshuffle.files import check_zip
from unshuffle.permutations import load_permutations
from unshuffle.runs.run import Run

Floats = npt.NDArray[np.float64]
T = TypeVar("T")
ErrorKind = Literal["test", "validation"]
"""Where an error was measured: on the pretext test set, or on X_val, which the policy and its rollouts minimise."""


# ---- tasks


def open_run(folder: Path) -> Run:
    """Return the run in a folder; raise a UserError if it has not validated yet."""
    run = Run.open(folder.expanduser())
    _ = run.config  # a run of an older version is refused here
    if not tasks_of(run):
        raise UserError(f"{folder} has no validation yet: wait for the first one")
    return run


def tasks_of(run: Run) -> list[str]:
    """Return the tasks that the run validates."""
    return list(dict.fromkeys(entry["task"] for entry in run.metrics("validation")))


def is_finished(run: Run) -> bool:
    """Return whether the run has trained for all its iterations."""
    return run.last_iteration >= run.config.optim.iterations


def ordering_tasks(run: Run) -> list[str]:
    """Return the tasks that the run validates and that have a permutation set."""
    return [task for task in tasks_of(run) if (run.permutations / f"{task}.npy").is_file()]


def stored_permutations(run: Run) -> dict[str, npt.NDArray[np.int64]]:
    """Return the permutation sets that the run folder keeps, by task."""
    return {file.stem: load_permutations(file) for file in sorted(run.permutations.glob("*.npy"))}


def choose_tasks(run: Run, task: str | None) -> list[str]:
    """Return the requested ordering task, or all that the run has; raise a UserError if there is no such task."""
    tasks = ordering_tasks(run)
    if not tasks:
        raise UserError(
            f"{run.folder} has no ordering task (its tasks: {', '.join(tasks_of(run))}), so there are no permutations "
            "to analyse"
        )
    if task is None:
        return tasks
    if task not in tasks:
        raise UserError(f"{run.folder} has no permutation set for the {task} task; choose one of {', '.join(tasks)}")
    return [task]


# ---- errors


def error_kind(run: Run, task: str) -> ErrorKind:
    """Return which errors of a task to report: those on its pretext test set, or on X_val if it has none."""
    return "test" if any(run.metrics("test", task)) else "validation"


def reported_errors(run: Run, task: str) -> list[dict[str, Any]]:
    """Return the entries of the errors of a task to report, in chronological order."""
    return list(run.metrics(error_kind(run, task), task))


def error_label(kinds: Iterable[ErrorKind]) -> str:
    """Return the name of errors of these kinds; where they are mixed, each error must say its kind."""
    distinct = set(kinds)
    return f"{distinct.pop()} error" if len(distinct) == 1 else "error"


# ---- validations


@dataclass(frozen=True)
class History:
    """The validations of one ordering task, in chronological order."""

    iterations: npt.NDArray[np.int64]
    """(N,)"""
    errors: Floats
    """(N, |Ψ|) validation error of each permutation."""
    sampled: Floats
    """(N, |Ψ|) how often each was sampled since the previous validation."""

    @classmethod
    def of(cls, states: "Sequence[SamplingState]") -> "History":
        """Return the history that the states after all validations make up."""
        return cls(
            np.array([state.iteration for state in states]),
            np.stack([state.errors for state in states]),
            np.stack([state.sampled for state in states]),
        )


def state_files(run: Run, task: str) -> list[Path]:
    """Return the files that the validations of a task have left, in chronological order.

    A resumed run may have files of later validations that metrics.jsonl does not list: they are left out.
    """
    logged = sorted({entry["iteration"] for entry in run.metrics("validation", task)})
    folder = run.states
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()  # one look at thousands
    return [folder / name for iteration in logged if (name := f"{task}-{iteration:08d}.npz") in present]


def read_states(run: Run, task: str, names: Sequence[str]) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield the named arrays of each validation, as far as it has them; incomplete files are left out."""
    for file in state_files(run, task):
        if (state := _read_state(file, names)) is not None:
            yield state


def _read_state(file: Path, names: Sequence[str]) -> dict[str, npt.NDArray[Any]] | None:
    """Return the named arrays of a validation, as far as it has them; None if its file is incomplete."""
    try:
        check_zip(file)  # numpy compares no names, so that a damaged one would be missing without a word
        with np.load(file) as arrays:
            state = {name: arrays[name] for name in ("iteration", *names) if name in arrays}
    except Exception:  # a damaged archive makes numpy raise almost anything, such as TokenError
        return None
    return state if "iteration" in state else None


def read_history(run: Run, task: str) -> History:
    """Return the errors and sampling counts of every permutation at every validation."""
    states = read_sampling_states(run, task)
    if not states:
        raise UserError(f"{run.states} has no validation of the {task} task: was it deleted?")
    return History.of(states)


# ---- rollouts


@dataclass(frozen=True)
class Rollouts:
    """The rollouts at the end of one episode; all trained tasks share them, even those that do not learn from them."""

    iteration: int
    count: int
    """Number of rollouts, one per group."""
    length: int
    """Iterations of each."""
    tasks: tuple[str, ...]
    """Tasks that were validated after each."""


def all_rollouts(run: Run) -> Iterator[Rollouts]:
    """Yield the rollouts of all tasks together, in chronological order."""
    for iteration, group in groupby(run.metrics("rollouts"), key=lambda entry: entry["iteration"]):
        entries = list(group)
        # a task with fewer groups repeats its last one while the others continue
        count = max(len(entry["errors"]) for entry in entries)
        yield Rollouts(iteration, count, entries[0]["iterations"], tuple(entry["task"] for entry in entries))


# ---- what the sampler prefers


@dataclass(frozen=True)
class SamplingState:
    """The groups of a task after one validation, and how often each is sampled from then on."""

    iteration: int
    errors: Floats
    """(|Ψ|,) validation error of each permutation."""
    sampled: Floats
    """(|Ψ|,) how often each was sampled since the previous validation."""
    groups: npt.NDArray[np.int64] | None
    """(|Ψ|,) the group of each permutation, the hardest first; None if pairs are grouped."""
    probabilities: Floats | None
    """(|C|,) sampling probability of each group; None as long as sampling is uniform."""

    @property
    def is_active(self) -> bool:
        """Whether the sampler chooses among groups from here on."""
        return self.probabilities is not None

    @property
    def sizes(self) -> Floats:
        """(|C|,) |c_j| / |Ψ|; groups of pairs are equally large."""
        assert self.probabilities is not None
        count = len(self.probabilities)
        if self.groups is None:
            return np.full(count, 1 / count)
        return np.bincount(self.groups, minlength=count) / len(self.groups)

    @property
    def preferences(self) -> Floats:
        """(|C|,) sampling probability of a member of each group, relative to uniform sampling."""
        assert self.probabilities is not None
        return np.divide(self.probabilities, self.sizes, out=np.zeros_like(self.probabilities), where=self.sizes > 0)

    @property
    def moved(self) -> float:
        """Fraction of the samples that fall into another group than with uniform sampling."""
        assert self.probabilities is not None
        return float(np.abs(self.probabilities - self.sizes).sum() / 2)

    @property
    def likelihoods(self) -> Floats:
        """(|Ψ|,) q(ψ) · |Ψ|: the preference for each permutation."""
        assert self.groups is not None
        return self.preferences[self.groups]

    @property
    def extremes(self) -> tuple[float, float]:
        """Preferences for the hardest and the easiest third of Ψ; for pairs, for the hardest and the easiest group."""
        if self.groups is None:
            return float(self.preferences[0]), float(self.preferences[-1])
        weights = self.likelihoods[np.argsort(-self.errors, kind="stable")]
        third = max(1, len(weights) // 3)
        return float(weights[:third].mean()), float(weights[-third:].mean())


def groups_pairs(config: Config) -> bool:
    """Return whether the sampler groups (sample, permutation) pairs, so that no permutation belongs to a group."""
    return config.policy.grouping == "pairs" and config.policy.sampler != "uniform"


def read_sampling_states(run: Run, task: str) -> list[SamplingState]:
    """Return the groups and their probabilities after each validation of a task, in chronological order."""
    by_rollout = {entry["iteration"]: np.array(entry["probability"]) for entry in run.metrics("rollouts", task)}
    states = []
    for file in state_files(run, task):
        arrays = _remembered_state(file, file.stat().st_mtime_ns)
        if arrays is None:
            continue
        iteration, errors = int(arrays["iteration"]), arrays["permutation_errors"].astype(np.float64)
        # rollouts change the probabilities after the arrays were written
        probabilities = by_rollout.get(iteration, arrays.get("probabilities"))
        if probabilities is not None:
            probabilities = probabilities.astype(np.float64)
            if groups_pairs(run.config):
                probabilities = pair_fractions(probabilities, run.config.policy.candidates)
        sampled = arrays["sampled"].astype(np.float64)
        states.append(SamplingState(iteration, errors, sampled, arrays.get("groups"), probabilities))
    return states


@lru_cache(maxsize=4096)  # some 20 kB each with 1000 permutations
def _remembered_state(file: Path, written: int) -> dict[str, npt.NDArray[Any]] | None:
    """Return what a validation left of the sampling; the live page asks for all of a run whenever one is added."""
    return _read_state(file, ("permutation_errors", "sampled", "groups", "probabilities"))


def has_acted(run: Run, task: str) -> bool:
    """Return whether the sampler of a task ever chose among groups; until it starts, sampling is uniform."""
    return any("acting_probabilities" in arrays for arrays in read_states(run, task, ("acting_probabilities",)))


def idle_note(run: Run, tasks: Iterable[str]) -> str:
    """Return a remark on the tasks whose sampler has not started, so that they were sampled uniformly; or nothing."""
    idle = [] if run.config.policy.sampler == "uniform" else [task for task in tasks if not has_acted(run, task)]
    if not idle:
        return ""
    started, sampled = ("never started", "was") if is_finished(run) else ("has not started yet", "is")
    tasks_named = f"{' and '.join(idle)} task{'s' if len(idle) > 1 else ''}"
    return f"; the policy {started} for the {tasks_named}, so sampling {sampled} uniform"


def pair_fractions(probabilities: Floats, candidates: int) -> Floats:
    """Return the (|C|,) fraction of the sampled pairs that falls into each group, one in `candidates` being sampled.

    The permutations of a sample are sampled without replacement, and each group holds an equal part of its
    candidates, so that preferred ones run out. A candidate of weight w has been sampled by the time t with the
    probability 1 − exp(−w t), and t is when one in `candidates` of all has been. This is an approximation where
    there are few candidates.
    """
    if candidates == 1:  # all are sampled
        return np.full(len(probabilities), 1 / len(probabilities))
    weights = np.maximum(probabilities, 1e-9)  # the least preferred are sampled when nothing else is left

    def sampled_by(time: float) -> Floats:
        return np.asarray(-np.expm1(-weights * time))

    low, high = 0.0, 1.0
    while sampled_by(high).mean() < 1 / candidates:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sampled_by(middle).mean() < 1 / candidates else (low, middle)
    fractions: Floats = sampled_by(high) / sampled_by(high).sum()
    return fractions


def evenly_spaced(items: Sequence[T], count: int) -> list[T]:
    """Return at most `count` of the items, evenly spaced, including the first and the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(position)] for position in np.linspace(0, len(items) - 1, count)]
