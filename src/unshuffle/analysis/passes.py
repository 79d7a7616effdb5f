"""Forward passes: how many batches passed the network in training, validations and rollouts."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from unshuffle.config import Config
from unshuffle.runs.history import Rollouts, all_rollouts, ordering_tasks, read_states, stored_permutations
from unshuffle.runs.run import Run


@dataclass(frozen=True)
class Validations:
    """The validations of one task: their iterations, and the cost of each."""

    iterations: Sequence[int]
    samples: int
    """|X_val|"""
    permutations: int
    """|Ψ|"""
    batch_size: int
    """B: samples of the task in a training step."""

    def passes(self, iteration: int, *, shared_backbone: bool = False) -> float:
        """Return the batches that passed the network in validations up to and including an iteration.

        Each validation costs V of appendix H: every sample in every permutation. With the shared backbone every
        sample passes once.
        """
        done = bisect_right(self.iterations, iteration)
        return done * self.samples * (1 if shared_backbone else self.permutations) / self.batch_size


def validations_of(run: Run, task: str) -> Validations:
    """Return the validations of an ordering task: those that the run has logged, and one after each rollout."""
    iterations = [entry["iteration"] for entry in run.metrics("validation", task)]
    for rollouts in all_rollouts(run):
        iterations += rollouts.count * [rollouts.iteration] if task in rollouts.tasks else []
    permutations = len(stored_permutations(run)[task])
    return Validations(sorted(iterations), _validation_samples(run, task), permutations, run.config.batch_size(task))


def _validation_samples(run: Run, task: str) -> int:
    """Return the actual |X_val|; few samples, or siblings, can make it differ from the config."""
    for arrays in read_states(run, task, ("state",)):
        if "state" in arrays:
            return int(arrays["state"].shape[1])
    return run.config.data.val_size


def task_steps(config: Config, begin: int, end: int) -> dict[str, int]:
    """Return how many of the steps between two iterations train each task: all of them, or those of its stage."""
    bounds = [0, *config.stage_ends[:-1], max(config.optim.iterations, end)]
    return {
        task: max(0, min(end, last) - max(begin, first))
        for stage, first, last in zip(config.stages, bounds, bounds[1:], strict=False)
        for task in stage
    }


def training_passes(config: Config, begin: int, end: int) -> int:
    """Return the batches that pass the network in training between two iterations: one per task and step."""
    return sum(task_steps(config, begin, end).values())


def rollout_passes(config: Config, rollouts: Iterable[Rollouts], iteration: int) -> int:
    """Return the batches that were trained on in rollouts up to and including an iteration."""
    return sum(
        ended.count * training_passes(config, ended.iteration, ended.iteration + ended.length)
        for ended in rollouts
        if ended.iteration <= iteration
    )


def total_passes(run: Run, iterations: Sequence[int], *, shared_backbone: bool = False) -> list[float]:
    """Return all batches that passed the network up to each iteration.

    The validations of a uniform sampler, and of tasks without a sampler, only monitor the training, so they do not
    count as its cost.
    """
    config, tasks = run.config, ordering_tasks(run)
    validations = [] if config.policy.sampler == "uniform" else [validations_of(run, task) for task in tasks]
    rollouts = list(all_rollouts(run))
    return [
        training_passes(config, 0, iteration)
        + rollout_passes(config, rollouts, iteration)
        + sum(task.passes(iteration, shared_backbone=shared_backbone) for task in validations)
        for iteration in iterations
    ]
