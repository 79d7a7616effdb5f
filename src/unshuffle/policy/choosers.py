"""How to choose among groups: the policy's controls and rivals, beside the policy itself (policy/reinforce)."""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups
from unshuffle.policy.reinforce import Actions, MovingScale, Reinforce


class Chooser(Protocol):
    """How a sampler chooses among groups."""

    def probabilities(self, groups: Groups) -> Tensor:
        """(|C|,) for the groups as they are now; 0 for an empty one."""

    def learn(self, actions: Actions, reward: float | None) -> None:
        """Learn from an episode; there is no reward while there is no baseline."""

    def judge(self, worth: Tensor) -> None:
        """Learn from what trials say that a draw of each group is worth."""

    def rate_dropped(self) -> None:
        """Rewards from here on are not to be added to those before."""

    def state_dict(self) -> dict[str, Any]:
        """What it has learned."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""


class ByTrial:
    """Draws what trials say is worth most; for a worth v and an entropy weight τ the best policy is π ∝ |c| exp(v / τ).

    Nothing has to be guessed from noisy rewards here, so there is no network to guess it.
    """

    def __init__(self, config: PolicyConfig) -> None:
        self.config = config
        self.worth = torch.zeros(config.groups)

    def probabilities(self, groups: Groups) -> Tensor:
        """The best ones for the worth so far; with none, every permutation is equally likely."""
        return torch.softmax(self.worth / self.config.entropy_weight + groups.sizes.log(), dim=0)

    def learn(self, actions: Actions, reward: float | None) -> None:
        """One reward for all groups says little of each."""

    def judge(self, worth: Tensor) -> None:
        """Half of what is known comes from the last trials: they are noisy too, and the network changes."""
        self.worth = (self.worth + worth) / 2

    def rate_dropped(self) -> None:
        """What was hard is still hard."""

    def state_dict(self) -> dict[str, Any]:
        """The worth of a draw of each group."""
        return {"worth": self.worth.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""
        self.worth = state["worth"].clone()


class Inverse:
    """Appendix F's control: learns as the policy does, and draws what the policy would avoid."""

    def __init__(self, policy: Chooser, floor: float) -> None:
        self.policy, self.floor = policy, floor

    def probabilities(self, groups: Groups) -> Tensor:
        """Proportional to 1 / π, with a floor under π."""
        pi = self.policy.probabilities(groups)
        inverse = torch.where(groups.sizes > 0, 1 / pi.clamp(min=self.floor), 0.0)
        return inverse / inverse.sum()

    def learn(self, actions: Actions, reward: float | None) -> None:
        """As the policy."""
        self.policy.learn(actions, reward)

    def judge(self, worth: Tensor) -> None:
        """As the policy."""
        self.policy.judge(worth)

    def rate_dropped(self) -> None:
        """As the policy."""
        self.policy.rate_dropped()

    def state_dict(self) -> dict[str, Any]:
        """The policy's."""
        return self.policy.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The policy's."""
        self.policy.load_state_dict(state)


class Ranked:
    """The hardest group half of the time, the next a quarter, and so on; or the easiest first."""

    def __init__(self, hardest_first: bool) -> None:
        self.hardest_first = hardest_first

    def probabilities(self, groups: Groups) -> Tensor:
        """A fixed preference by rank among the groups that have members."""
        present = int((groups.sizes > 0).sum())
        shares = 0.5 ** torch.arange(present)
        ranked = torch.zeros_like(groups.sizes)
        ranked[:present] = shares if self.hardest_first else shares.flip(0)
        return ranked / ranked.sum()

    def learn(self, actions: Actions, reward: float | None) -> None:
        """It never learns."""

    def judge(self, worth: Tensor) -> None:
        """Nor from trials."""

    def rate_dropped(self) -> None:
        """Nothing depends on it."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class Exp3:
    """The bandit EXP3 over the ranks of the groups: the cheap rival that the policy has to beat."""

    def __init__(self, config: PolicyConfig, rate: float = 0.1) -> None:
        self.config, self.rate = config, rate
        self.log_weights = torch.zeros(config.groups)
        self.rewards = MovingScale(config.average_decay)

    def probabilities(self, groups: Groups) -> Tensor:
        """Weights times sizes, so that a new bandit draws every permutation equally often."""
        return torch.softmax(self.log_weights + groups.sizes.log(), dim=0)

    def learn(self, actions: Actions, reward: float | None) -> None:
        """Raise the weight of each group that was drawn more often than expected before a good reward."""
        if reward is None:
            return
        present, total = actions.behaviour > 0, actions.counts.sum()
        surprise = (actions.counts / total - actions.behaviour)[present] / actions.behaviour[present]
        advantage = self.rewards.centred(reward) / max(self.rewards.deviation, self.config.least_deviation)
        self.log_weights[present] += self.rate * advantage * total.sqrt() * surprise
        self.log_weights[present] -= self.log_weights[present].mean()

    def judge(self, worth: Tensor) -> None:
        """A bandit learns from its own draws alone."""

    def rate_dropped(self) -> None:
        """Nothing waits."""

    def state_dict(self) -> dict[str, Any]:
        """Weights and the scale of the rewards."""
        return {"log_weights": self.log_weights.clone(), "rewards": self.rewards.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.log_weights = state["log_weights"].clone()
        self.rewards.load_state_dict(state["rewards"])


def build_chooser(config: PolicyConfig, seed: int) -> Chooser:
    """The one that the config names."""
    choosers: dict[str, Callable[[], Chooser]] = {
        "policy": lambda: _policy(config, seed),
        "inverse": lambda: Inverse(_policy(config, seed), config.inverse_floor),
        "hard-first": lambda: Ranked(hardest_first=True),
        "easy-first": lambda: Ranked(hardest_first=False),
        "exp3": lambda: Exp3(config),
    }
    return choosers[config.sampler]()


def _policy(config: PolicyConfig, seed: int) -> Chooser:
    return ByTrial(config) if config.reward == "trials" else Reinforce(config, config.groups, seed)
