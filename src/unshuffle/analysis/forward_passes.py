"""Appendix H counts in forward passes of a batch through the network: those of training and those of validation."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from unshuffle.analysis.history import read_states, tasks_of
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

    def passes(self, batch: int, iteration: int, *, shared_trunk: bool = False) -> float:
        """Batches that passed the network in validations up to an iteration, that one included.

        V of appendix H for each: every sample in every order. With the shared trunk every sample passes once.
        """
        done = bisect_right(self.iterations, iteration)
        return done * self.samples * (1 if shared_trunk else self.permutations) / batch


def validations_of(run: Run, task: str) -> Validations:
    """The validations that a run has logged."""
    iterations = [entry["iteration"] for entry in run.metrics("validation") if entry["task"] == task]
    permutations = len(load_permutations(run.permutations / f"{task}.npy"))
    return Validations(iterations, _validation_samples(run, task), permutations)


def _validation_samples(run: Run, task: str) -> int:
    """|X_val| as it was; siblings can make it differ from the config."""
    for state in read_states(run, task, ("state",)):
        return int(state["state"].shape[1])
    return run.config.data.val_size


def training_passes(config: Config, tasks: int, iteration: int) -> int:
    """Batches that passed the network in training up to an iteration: one for each task that it trains."""
    return iteration if config.tasks == "S&T" else tasks * iteration


def total_passes(run: Run, iterations: Sequence[int], *, shared_trunk: bool = False) -> list[float]:
    """All batches that passed the network up to each iteration.

    The validations of a uniform sampler only watch, so they do not count as its cost.
    """
    config, tasks = run.config, tasks_of(run)
    validations = [] if config.policy.sampler == "uniform" else [validations_of(run, task) for task in tasks]
    batch = config.optim.batch_size
    return [
        training_passes(config, len(tasks), iteration)
        + sum(one.passes(batch, iteration, shared_trunk=shared_trunk) for one in validations)
        for iteration in iterations
    ]
