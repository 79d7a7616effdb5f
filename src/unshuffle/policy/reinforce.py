"""The paper's policy (part A of its Figure 2): Algorithm 1 beside this code.

    Algorithm 1, episode t                        here
    ----------------------------------------------------------------------------------------------------------
     1  for k = 1 ... K                           the trainer, for `batches` iterations
     3    a ~ π_θ(ŝ)                              Reinforce.probabilities; groups.PermutationGrouping.propose,
     5    x ~ X                                     where `action: batch` samples one group per batch as here,
     6    ψ ~ c_a                                   and `action: sample` one group per sample (ours)
     9    Φ ← TrainCNN(Φ, b)                      the trainer
    11  ŝ, r, C ← Validation(X_val, Φ)            state.validate: s (Eq. 4) and E (Eq. 6);
                                                  groups.group_permutations: C, and ŝ (Eq. 10) as Groups.summary;
                                                  Episode.reward: r_t = E_BL − E_{t+1} (Eq. 7)
    12  θ ← Eq. 9                                 Reinforce.learn

E_BL extrapolates the last two errors linearly to the iteration of the third (appendix E, ErrorHistory): for equal
intervals it is 2 E_t − E_{t−1}. Eq. 9 is θ ← θ + α (Σ_{t' ≥ t} γ^{t'−t} r_t') ∇ log π(a_t | ŝ_t, θ). Later rewards are
not known yet at the end of episode t, so each new reward r_t' updates all episodes t ≤ t', weighted by γ^{t'−t}.
Section 4.1 adds: subtract a moving average from the reward, add the entropy of π to the objective, and use Adam.

What is ours and not the paper's comes last, under its own heading: the size prior (`size_prior`), the form of the
counts with importance weights (`_score`), and the scale of the rewards (`scale_reward`). Ours too: errors before and
after a drop of the learning rate are not compared, and only episodes with a reward of their own receive later ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups, GroupSampler, entropy
from unshuffle.policy.sampler import SampleCounts
from unshuffle.policy.state import PermutationValidation

MIN_DISCOUNT_WEIGHT = 1e-3
"""Episodes are dropped once γ^{t'−t} falls below this."""
MAX_IMPORTANCE = 5.0
"""Upper bound of the importance weights, so that no single rare action decides an update."""


@dataclass(frozen=True)
class Episode:
    """What was sampled in an episode and what came of it."""

    groups: Groups
    behaviour: Tensor
    """(|C|,) the probabilities with which the groups were sampled."""
    counts: Tensor
    """(|C|,) how often each group was sampled."""
    iteration: int
    """Iteration at its end."""
    error: float
    """E at its end."""
    baseline: float | None
    """E_BL, the extrapolated error; None until there are two comparable errors before it."""

    @property
    def reward(self) -> float | None:
        """r = E_BL − E (Eq. 7)."""
        return None if self.baseline is None else self.baseline - self.error


class ErrorHistory:
    """The errors so far, and E_BL, their extrapolation (appendix E)."""

    def __init__(self, milestones: Sequence[int] = ()) -> None:
        """`milestones`: iterations at which the learning rate changes; errors before and after are not comparable."""
        self.milestones = tuple(milestones)
        self.points: list[tuple[int, float]] = []

    def comparable(self, earlier: int, later: int) -> bool:
        """Whether two iterations have the same learning rate."""
        return not any(earlier <= milestone < later for milestone in self.milestones)

    def baseline(self, iteration: int) -> float | None:
        """Return E_BL: the line through the last two errors, at an iteration; None without two comparable errors."""
        points = [(u, f) for u, f in self.points if self.comparable(u, iteration)]
        if len(points) < 2:
            return None
        (u1, f1), (u2, f2) = points
        return f1 + (iteration - u1) / (u2 - u1) * (f2 - f1)

    def episode(self, groups: Groups, behaviour: Tensor, counts: Tensor, iteration: int, error: float) -> Episode:
        """Return the episode that ends at an iteration with an error."""
        return Episode(groups, behaviour, counts, iteration, error, self.baseline(iteration))

    def add(self, iteration: int, error: float) -> None:
        """Add an error; of two at one iteration the later counts."""
        others = [point for point in self.points if point[0] != iteration]
        self.points = [*others, (iteration, error)][-2:]


class PolicyNetwork(nn.Module):
    """π_θ: two fully connected layers with 16 hidden units, from ŝ to a logit for each group."""

    def __init__(self, num_groups: int, hidden: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * num_groups, hidden), nn.Tanh(), nn.Linear(hidden, num_groups))
        nn.init.zeros_(self.layers[-1].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.layers[-1].bias)  # type: ignore[arg-type]

    def forward(self, summary: Tensor) -> Tensor:
        """(|C|, 2) to (|C|,)."""
        logits: Tensor = self.layers(summary.flatten())
        return logits


class Reinforce(GroupSampler):
    """The policy π_θ and its update by REINFORCE."""

    def __init__(self, config: PolicyConfig, num_permutations: int, seed: int, history: ErrorHistory) -> None:
        super().__init__(config, num_permutations, seed, history)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.network = PolicyNetwork(config.num_groups)
        self.optimiser = torch.optim.Adam(self.network.parameters(), lr=config.lr)
        self.rewards = MovingScale(config.reward_average_decay)
        self.past: list[Episode] = []
        """Earlier episodes that later rewards still update, oldest first; none with γ = 0."""

    @torch.no_grad()
    def probabilities(self, groups: Groups) -> Tensor:
        """Line 3: return π_θ(· | ŝ)."""
        return self.log_probabilities(groups).exp()

    def log_probabilities(self, groups: Groups) -> Tensor:
        """Return log π_θ(c_j | ŝ); an empty group has probability 0."""
        return torch.log_softmax(self.network(groups.summary) + self._log_prior(groups), dim=0)

    def end_episode(self, validation: PermutationValidation, sampled: SampleCounts, iteration: int) -> Episode | None:
        """Lines 11 and 12: compute r, then update θ; without two earlier errors there is no reward yet."""
        episode = super().end_episode(validation, sampled, iteration)
        if episode is not None and episode.reward is not None:
            self.learn(episode)
        return episode

    def learn(self, episode: Episode) -> None:
        """Line 12, Eq. 9: one gradient step for the newest reward, on all episodes that it belongs to."""
        assert episode.reward is not None
        advantage = self._scaled(self.rewards.centred(episode.reward))
        episodes = [past for past in self.past if self.history.comparable(past.iteration, episode.iteration)]
        episodes.append(replace(episode, groups=replace(episode.groups, members=episode.groups.members[:0])))
        weights = [self.config.discount**age for age in reversed(range(len(episodes)))]  # γ^{t'−t}
        objectives = [weight * self.objective(past, advantage) for weight, past in zip(weights, episodes, strict=True)]
        self.optimiser.zero_grad()
        (-torch.stack(objectives).sum()).backward()  # type: ignore[no-untyped-call]
        self.optimiser.step()
        self.past = [
            past
            for weight, past in zip(weights, episodes, strict=True)
            if weight * self.config.discount >= MIN_DISCOUNT_WEIGHT
        ]

    def objective(self, episode: Episode, advantage: float) -> Tensor:
        """Return advantage · Σ_j n_j log π(c_j | ŝ) + entropy weight · H(π) for an episode with n_j actions of group j.

        The gradient of the first term is that of Eq. 9. `_score` has the counts in the form that we use.
        """
        log_pi = self.log_probabilities(episode.groups)
        return advantage * self._score(episode, log_pi) + self.config.entropy_weight * self._entropy(episode, log_pi)

    def state_dict(self) -> dict[str, Any]:
        """Return θ, Adam's moments, the moving average of the reward and the past episodes."""
        return {
            **super().state_dict(),
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "rewards": self.rewards.state_dict(),
            "past": [{**vars(episode), "groups": vars(episode.groups)} for episode in self.past],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.rewards.load_state_dict(state["rewards"])
        self.past = [Episode(**{**episode, "groups": Groups(**episode["groups"])}) for episode in state["past"]]

    # ours

    def _log_prior(self, groups: Groups) -> Tensor:
        """Return what is added to the logits: with `size_prior` a new policy samples every permutation equally often.

        Without it, as in the paper, a new policy samples every group equally often.
        """
        return groups.sizes.log() if self.config.size_prior else torch.where(groups.sizes > 0, 0.0, -torch.inf)

    def _score(self, episode: Episode, log_pi: Tensor) -> Tensor:
        """Return Σ_j ρ_j (n_j − n b_j) log π(c_j | ŝ) / √n, over n actions sampled with probabilities b.

        Subtracting the expected counts n b_j leaves the expected gradient as it is and reduces its variance. The
        importance weights ρ = π / b correct for actions of another distribution (exploration, inverse). Dividing by √n
        keeps the proportion to the entropy whatever n is.
        """
        possible = episode.behaviour > 0
        total = episode.counts.sum()
        surprise = (episode.counts - total * episode.behaviour)[possible]
        importance = (log_pi.detach().exp()[possible] / episode.behaviour[possible]).clamp(max=MAX_IMPORTANCE)
        return (importance * surprise * log_pi[possible]).sum() / total.sqrt()

    def _entropy(self, episode: Episode, log_pi: Tensor) -> Tensor:
        """Return H(π); with `size_prior` that of the permutations up to a constant, which small groups cannot raise."""
        if not self.config.size_prior:
            return entropy(log_pi)
        sizes = episode.groups.sizes
        present = sizes > 0
        return entropy(log_pi) + (log_pi[present].exp() * sizes[present].log()).sum()

    def _scaled(self, advantage: float) -> float:
        """Return the advantage in units of the rewards' spread, with `scale_reward`."""
        if not self.config.scale_reward:
            return advantage
        return advantage / max(self.rewards.spread, self.config.min_reward_std)


class MovingScale:
    """Moving average (the paper's) and moving mean absolute deviation (ours) of a sequence of rewards."""

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.average: float | None = None
        self.spread = 0.0

    def centred(self, value: float) -> float:
        """Return the value minus the average of those before it, then update the average and the spread with it."""
        if self.average is None:
            self.average = value
        difference = value - self.average
        self.average += (1 - self.decay) * difference
        self.spread = self.decay * (self.spread or abs(difference)) + (1 - self.decay) * abs(difference)
        return difference

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the spread."""
        return {"average": self.average, "spread": self.spread}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the average and the spread."""
        self.average, self.spread = state["average"], state["spread"]
