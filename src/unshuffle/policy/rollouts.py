"""Rollouts: train a few iterations with one group preferred, from a copy of the state, and compare the groups.

All rollouts start from the same weights and see the same batches, which removes most of the noise. There is one rollout
for each group at the end of each episode; the training then continues as if there had been none.
"""

import copy
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups, GroupSampler, one_group_preferred
from unshuffle.policy.reinforce import ErrorHistory
from unshuffle.policy.sampler import Sampler
from unshuffle.policy.state import PermutationValidation

ROUNDING = 1e-20
"""Variance that equal errors may have; the smallest real one, of a single pair, is 1e-14 with 10⁷ pairs."""


class RolloutTrainer(Protocol):
    """What rollouts need of a trainer."""

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the training depends on, the samplers included."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""

    def train_iterations(self, count: int) -> None:
        """Train on the next batches."""

    def validate(self, task: str) -> PermutationValidation:
        """Validate a task."""


class Rollouts(GroupSampler):
    """Samples the groups by their advantage in rollouts.

    For advantages A and an entropy weight τ the policy π ∝ |c| exp(A / τ) maximises Σ π A + τ H. The advantages are
    measured for every group, so there is no network to learn them from one noisy reward.
    """

    def __init__(self, config: PolicyConfig, num_permutations: int, seed: int, history: ErrorHistory) -> None:
        super().__init__(config, num_permutations, seed, history)
        self.advantage = torch.zeros(config.num_groups)

    def probabilities(self, groups: Groups) -> Tensor:
        """Return the best probabilities for the advantages so far; without any, all permutations are equally likely."""
        return torch.softmax(self.advantage / self.config.entropy_weight + groups.sizes.log(), dim=0)

    @property
    def num_rollouts(self) -> int:
        """The number of groups to compare: none before the start, and no empty ones."""
        return 0 if self.groups is None else int((self.groups.sizes > 0).sum())

    def prefer(self, group: int) -> None:
        """Sample one group with `PREFERENCE`, for a rollout."""
        assert self.groups is not None
        self.behaviour = self.explored(one_group_preferred(self.groups.sizes, group))

    def compare(self, errors: Tensor) -> Tensor:
        """Return the advantages in rollouts with (rollouts, |X_val|) errors, after averaging them into those so far.

        The last rollouts count half: they are noisy too, and the network changes.
        """
        measured = advantages(errors, len(self.advantage))
        self.advantage = (self.advantage + measured) / 2
        return measured

    def state_dict(self) -> dict[str, Any]:
        """Return the advantages too."""
        return {**super().state_dict(), "advantage": self.advantage.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.advantage = state["advantage"].clone()


def run_rollouts(
    trainer: RolloutTrainer, samplers: Mapping[str, Sampler], iterations: int
) -> dict[str, dict[str, Any]]:
    """Run a rollout for each group of the samplers that learn from rollouts; return the log entry of each such task.

    `samplers` are those of the tasks that are trained now. The tasks share the rollouts: one with fewer groups prefers
    its last group again. The trainer is left as it was, but for what these samplers have learned.
    """
    learners = {
        task: sampler for task, sampler in samplers.items() if isinstance(sampler, Rollouts) and sampler.num_rollouts
    }
    if not learners:
        return {}
    before = copy.deepcopy(trainer.state_dict())
    errors: dict[str, list[Tensor]] = {task: [] for task in learners}
    counts = {task: learner.num_rollouts for task, learner in learners.items()}
    for rollout in range(max(counts.values())):
        for task, learner in learners.items():
            learner.prefer(min(rollout, counts[task] - 1))
        trainer.train_iterations(iterations)
        for task in learners:
            errors[task].append(trainer.validate(task).sample_errors)
        trainer.load_state_dict(copy.deepcopy(before))  # the optimisers keep the tensors that they are given
    entries = {}
    for task, learner in learners.items():
        task_errors = torch.stack(errors[task][: counts[task]])
        advantage = learner.compare(task_errors)
        learner.act()
        entries[task] = {
            "iterations": iterations,
            "errors": task_errors.mean(dim=1).tolist(),
            "advantage": advantage.tolist(),
            "probability": learner.behaviour.tolist(),
        }
    return entries


def advantages(errors: Tensor, count: int) -> Tensor:
    """Return the advantage of each group, (count,), by the (rollouts, samples) errors on each sample of X_val.

    It is how far the mean error after the group's rollout lies below the mean of all, in standard deviations between
    rollouts, times the reliability of the differences. Groups without a rollout come last and have 0, the average.
    """
    advantage, errors = torch.zeros(count), errors.double()
    better = errors.mean() - errors.mean(dim=1)
    variance = float(better.square().sum()) / max(len(better) - 1, 1)
    if variance > ROUNDING and (trusted := reliability(errors)) > 0:
        advantage[: len(better)] = trusted * better / variance**0.5
    return advantage


def reliability(errors: Tensor) -> float:
    """Return the fraction of the variance between rollouts that the choice of samples does not explain: 1 − 1/F.

    F is that of a two-way analysis of variance by rollouts and samples: on other samples the rollouts would differ by
    as much as their differences vary from one of these samples to the next. One sample is not enough to tell.
    """
    rollouts, samples = errors.shape
    if rollouts < 2 or samples < 2:
        return 0.0
    by_rollout = errors.mean(dim=1, keepdim=True) - errors.mean()
    residual = errors - errors.mean(dim=0) - by_rollout
    between = samples * float(by_rollout.square().sum()) / (rollouts - 1)
    within = float(residual.square().sum()) / ((rollouts - 1) * (samples - 1))
    return max(round(1 - within / between, 9), 0.0) if between > ROUNDING else 0.0
