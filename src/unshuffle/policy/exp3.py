"""The bandit EXP3 over the ranks of the groups: a cheap baseline for the policy."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups, GroupSampler, one_group_preferred
from unshuffle.policy.reinforce import MAX_IMPORTANCE, Episode, ErrorHistory, MovingScale
from unshuffle.policy.sampler import SampleCounts
from unshuffle.randomness import torch_generator

LEARNING_RATE = 0.1


class Exp3(GroupSampler):
    """Exponential weights. An episode pulls one arm: one group gets half of the samples that are not exploration."""

    def __init__(self, config: PolicyConfig, num_permutations: int, seed: int, history: ErrorHistory) -> None:
        super().__init__(config, num_permutations, seed, history)
        self.log_weights = torch.zeros(config.num_groups)
        self.arm = 0
        self.rewards = MovingScale(config.reward_average_decay)

    def probabilities(self, groups: Groups) -> Tensor:
        """Return weights times sizes: a new bandit samples every permutation equally often."""
        return torch.softmax(self.log_weights + groups.sizes.log(), dim=0)

    def vary(self, groups: Groups, iteration: int) -> None:
        """Choose the arm of the episode by the preferred probabilities."""
        generator = torch_generator(torch.device("cpu"), self.seed, "arm", iteration)
        self.arm = int(torch.multinomial(self.preferred, 1, generator=generator))
        self.behaviour = self.explored(one_group_preferred(groups.sizes, self.arm))

    def action(self, groups: Groups, sampled: SampleCounts) -> Tensor:
        """Return the arm, weighted by one over its probability, within bounds for small groups."""
        weights = F.one_hot(torch.tensor(self.arm), len(groups.sizes)) / self.preferred[self.arm]
        return weights.clamp(max=MAX_IMPORTANCE * len(weights))

    def learn(self, episode: Episode) -> None:
        """Raise the weight of an arm that was pulled before a high reward."""
        assert episode.reward is not None
        advantage = self.rewards.centred(episode.reward) / max(self.rewards.spread, self.config.min_reward_std)
        self.log_weights += LEARNING_RATE * advantage * episode.action / len(self.log_weights)
        self.log_weights -= self.log_weights.mean()

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, the arm and the scale of the rewards too."""
        own = {"log_weights": self.log_weights.clone(), "arm": self.arm, "rewards": self.rewards.state_dict()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.log_weights, self.arm = state["log_weights"].clone(), state["arm"]
        self.rewards.load_state_dict(state["rewards"])
