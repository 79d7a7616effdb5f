"""Appendix H counts in forward passes of a batch through the network: of training, of validations and of trials."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unshuffle.analysis.history import read_states, tasks_of
from unshuffle.analysis.trials import Trials, all_trials
from unshuffle.config import Config
from unshuffle.permutations import load_permutations
from unshuffle.run import Run


@dataclass(frozen=True)
class Validations:
    """The validations of one task: when they were, and what each costs."""

    iterations: Sequence[int]
    samples: int
    """|X_val|"""
    permutations: int
    """|Ψ|"""

    def passes(self, batch: int, iteration: int, *, shared_backbone: bool = False) -> float:
        """Batches that passed the network in validations up to an iteration, that one included.

        V of appendix H for each: every sample in every order. With the shared backbone every sample passes once.
        """
        done = bisect_right(self.iterations, iteration)
        return done * self.samples * (1 if shared_backbone else self.permutations) / batch


def validations_of(run: Run, task: str) -> Validations:
    """The validations of a run: those that it has logged, and one after each trial."""
    iterations = [entry["iteration"] for entry in run.metrics("validation") if entry["task"] == task]
    for some in all_trials(run):
        iterations += some.count * [some.iteration] if task in some.tasks else []
    permutations = len(load_permutations(run.permutations / f"{task}.npy"))
    return Validations(sorted(iterations), _validation_samples(run, task), permutations)


def _validation_samples(run: Run, task: str) -> int:
    """|X_val| as it was; siblings can make it differ from the config."""
    for state in read_states(run, task, ("state",)):
        return int(state["state"].shape[1])
    return run.config.data.val_size


def training_passes(config: Config, tasks: int, iteration: int) -> int:
    """Batches that passed the network in training up to an iteration: one for each task that it trains."""
    return iteration if config.tasks == "S&T" else tasks * iteration


def trial_passes(config: Config, tasks: int, trials: Iterable[Trials], iteration: int) -> int:
    """Batches that were trained on in trials up to an iteration, those at that one included."""
    done = (some for some in trials if some.iteration <= iteration)
    return sum(some.count * training_passes(config, tasks, some.length) for some in done)


def total_passes(run: Run, iterations: Sequence[int], *, shared_backbone: bool = False) -> list[float]:
    """All batches that passed the network up to each iteration.

    The validations of a uniform sampler only watch, so they do not count as its cost.
    """
    config, tasks = run.config, tasks_of(run)
    validations = [] if config.policy.sampler == "uniform" else [validations_of(run, task) for task in tasks]
    batch, trials = config.optim.batch_size, list(all_trials(run))
    return [
        training_passes(config, len(tasks), iteration)
        + trial_passes(config, len(tasks), trials, iteration)
        + sum(one.passes(batch, iteration, shared_backbone=shared_backbone) for one in validations)
        for iteration in iterations
    ]
