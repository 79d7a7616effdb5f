"""A: the policy, the paper's Algorithm 1 in one file.

    for k = 1 ... K                              the trainer; GroupSampler.propose draws
        a ~ π_θ(ŝ)                               Reinforce.probabilities
        b = B samples, each permuted by some ψ ∈ c_a
        Φ ← TrainCNN(Φ, b)
    ŝ, r, C ← Validation(X_val, Φ)               policy/state, policy/groups, ErrorHistory
    θ ← Eq. 9                                    Reinforce.learn

The reward compares the error with what it would have been had it gone on falling as before:
r = E_BL − E, where E_BL is the line through the two errors before it, at the iteration of the third.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups

MAX_IMPORTANCE = 5.0  # no single rare action may decide an update


@dataclass(frozen=True)
class Actions:
    """What was done in an episode: the groups that were there, how they were drawn and how often."""

    groups: Groups
    behaviour: Tensor
    """(|C|,) the probabilities that the groups were really drawn with."""
    counts: Tensor
    """(|C|,) how often each was drawn."""


class ErrorHistory:
    """The errors so far, and the reward of the next one (appendix E)."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []

    def baseline(self, iteration: int) -> float | None:
        """E_BL: the line through the last two errors, at an iteration; None until there are two."""
        if len(self.points) < 2:
            return None
        (u1, f1), (u2, f2) = self.points[-2:]
        return f1 + (iteration - u1) / (u2 - u1) * (f2 - f1)

    def add(self, iteration: int, error: float) -> None:
        """Remember an error; of two at one iteration the later counts."""
        kept = [point for point in self.points if point[0] != iteration]
        self.points = [*kept, (iteration, error)][-2:]

    def restart(self) -> None:
        """Forget: after a drop of the learning rate the errors follow another line."""
        self.points = []


class MovingScale:
    """Moving average and moving mean deviation of a sequence; both begin with its first values."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.average: float | None = None
        self.deviation = 0.0

    def centred(self, value: float) -> float:
        """The value less the average of those before it, which it then joins."""
        if self.average is None:
            self.average = value
        rest = value - self.average
        self.average += (1 - self.decay) * rest
        self.deviation = self.decay * (self.deviation or abs(rest)) + (1 - self.decay) * abs(rest)
        return rest

    def state_dict(self) -> dict[str, Any]:
        """Average and deviation."""
        return {"average": self.average, "deviation": self.deviation}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.average, self.deviation = state["average"], state["deviation"]


class PolicyNetwork(nn.Module):
    """Two fully connected layers from ŝ to a logit for each group."""

    def __init__(self, num_groups: int, hidden: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * num_groups, hidden), nn.Tanh(), nn.Linear(hidden, num_groups))
        nn.init.zeros_(self.layers[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.layers[-1].bias)  # type: ignore[arg-type]

    def forward(self, summary: Tensor) -> Tensor:
        """(|C|, 2) to (|C|,)."""
        logits: Tensor = self.layers(summary.flatten())
        return logits


class Reinforce:
    """π_θ and its update, with a moving average of the reward subtracted and the entropy added."""

    def __init__(self, config: PolicyConfig, num_groups: int, seed: int) -> None:
        self.config = config
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.network = PolicyNetwork(num_groups)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=config.lr)
        self.returns = MovingScale(config.average_decay)
        self.waiting: list[tuple[Actions, list[float]]] = []
        """Episodes whose return still lacks later rewards, oldest first."""

    def log_probabilities(self, groups: Groups) -> Tensor:
        """log π_θ(c_j | ŝ); an empty group has probability 0.

        With `size_prior` a new policy draws every permutation equally often; without it, as in the paper, every group.
        """
        logits = self.network(groups.summary)
        prior = groups.sizes.log() if self.config.size_prior else torch.where(groups.sizes > 0, 0.0, -torch.inf)
        return torch.log_softmax(logits + prior, dim=0)

    @torch.no_grad()
    def probabilities(self, groups: Groups) -> Tensor:
        """π_θ(· | ŝ)."""
        return self.log_probabilities(groups).exp()

    def learn(self, actions: Actions, reward: float | None) -> None:
        """Eq. 9, for the episode whose discounted return this reward completes."""
        if reward is None:
            return
        self.waiting.append((actions, []))
        for _, rewards in self.waiting:
            rewards.append(reward)
        horizon = self.config.horizon if self.config.discount > 0 else 1
        if len(self.waiting[0][1]) >= horizon:
            past, rewards = self.waiting.pop(0)
            self._update(past, sum(self.config.discount**step * later for step, later in enumerate(rewards)))

    def _update(self, actions: Actions, total: float) -> None:
        self._ascend(self.objective(actions, self._advantage(total)))

    def _ascend(self, objective: Tensor) -> None:
        self.optimiser.zero_grad()
        (-objective).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()

    def objective(self, actions: Actions, advantage: float) -> Tensor:
        """advantage · Σ_j ρ_j (n_j − n b_j) log π(c_j | ŝ) / √n + entropy weight · H, over an episode's n actions.

        n_j counts the draws of group j and b_j is the probability that it was drawn with; subtracting what was to be
        expected changes no mean and takes out noise. ρ = π / b corrects for draws of another distribution
        (exploration, the inverse policy). With √n the two terms keep their proportion whatever n is.
        """
        log_pi = self.log_probabilities(actions.groups)
        possible = actions.behaviour > 0
        total = actions.counts.sum()
        surprise = (actions.counts - total * actions.behaviour)[possible]
        importance = (log_pi.detach().exp()[possible] / actions.behaviour[possible]).clamp(max=MAX_IMPORTANCE)
        score = (importance * surprise * log_pi[possible]).sum() / total.sqrt()
        return advantage * score + self.config.entropy_weight * self._bonus(log_pi, actions.groups)

    def judge(self, worth: Tensor) -> None:
        """It learns from its rewards alone."""

    def _bonus(self, log_pi: Tensor, groups: Groups) -> Tensor:
        """H(π); with `size_prior` the entropy of the permutations drawn, up to a constant, which small groups cannot
        raise."""
        if not self.config.size_prior:
            return entropy(log_pi)
        present = groups.sizes > 0
        return entropy(log_pi) + (log_pi[present].exp() * groups.sizes[present].log()).sum()

    def _advantage(self, total: float) -> float:
        """The return less its moving average, in units of its moving deviation if so configured."""
        advantage = self.returns.centred(total)
        if not self.config.scale_reward:
            return advantage
        return advantage / max(self.returns.deviation, self.config.least_deviation)

    def rate_dropped(self) -> None:
        """Give up the returns that are not complete: later rewards will be of another kind."""
        self.waiting = []

    def state_dict(self) -> dict[str, Any]:
        """θ, Adam's moments, the averages and the episodes that wait."""
        return {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "returns": self.returns.state_dict(),
            "waiting": [
                ([*vars(actions.groups).values(), actions.behaviour, actions.counts], rewards)
                for actions, rewards in self.waiting
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.returns.load_state_dict(state["returns"])
        self.waiting = [(_actions(tensors), list(rewards)) for tensors, rewards in state["waiting"]]


def _actions(tensors: Sequence[Tensor]) -> Actions:
    members, sizes, medians, behaviour, counts = tensors
    return Actions(Groups(members, sizes, medians), behaviour, counts)


def entropy(log_probabilities: Tensor) -> Tensor:
    """H in nats; what cannot happen adds nothing."""
    possible = log_probabilities[log_probabilities > -torch.inf]
    return -(possible.exp() * possible).sum()
