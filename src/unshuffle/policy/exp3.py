"""The bandit EXP3 over the ranks of the groups: a cheap baseline for the policy."""

from typing import Any

import torch
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups, GroupSampler
from unshuffle.policy.reinforce import Episode, ErrorHistory, MovingScale
from unshuffle.policy.sampler import SampleCounts
from unshuffle.policy.state import PermutationValidation

LEARNING_RATE = 0.1


class Exp3(GroupSampler):
    """Exponential weights, updated by the rewards of the episodes."""

    def __init__(self, config: PolicyConfig, num_permutations: int, seed: int, history: ErrorHistory) -> None:
        super().__init__(config, num_permutations, seed, history)
        self.log_weights = torch.zeros(config.num_groups)
        self.rewards = MovingScale(config.reward_average_decay)

    def probabilities(self, groups: Groups) -> Tensor:
        """Return weights times sizes: a new bandit samples every permutation equally often."""
        return torch.softmax(self.log_weights + groups.sizes.log(), dim=0)

    def end_episode(self, validation: PermutationValidation, sampled: SampleCounts, iteration: int) -> Episode | None:
        """End the episode and learn from its reward, if there is one."""
        episode = super().end_episode(validation, sampled, iteration)
        if episode is not None and episode.reward is not None:
            self.learn(episode)
        return episode

    def learn(self, episode: Episode) -> None:
        """Raise the weight of each group that was sampled more often than expected before a high reward."""
        assert episode.reward is not None
        present, total = episode.behaviour > 0, episode.counts.sum()
        surprise = (episode.counts / total - episode.behaviour)[present] / episode.behaviour[present]
        advantage = self.rewards.centred(episode.reward) / max(self.rewards.spread, self.config.min_reward_std)
        self.log_weights[present] += LEARNING_RATE * advantage * total.sqrt() * surprise
        self.log_weights[present] -= self.log_weights[present].mean()

    def state_dict(self) -> dict[str, Any]:
        """Return the weights and the scale of the rewards too."""
        own = {"log_weights": self.log_weights.clone(), "rewards": self.rewards.state_dict()}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.log_weights = state["log_weights"].clone()
        self.rewards.load_state_dict(state["rewards"])
