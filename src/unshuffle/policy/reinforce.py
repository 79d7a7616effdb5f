"""The paper's policy (part A of its Figure 2): Algorithm 1 beside this code.

    Algorithm 1, episode t                        here
    ----------------------------------------------------------------------------------------------------------
     1  for k = 1 ... K                           the trainer, for `batches` iterations
     3    a ~ π_θ(ŝ)                              Reinforce.probabilities; groups.PermutationGrouping.propose samples
     5    x ~ X                                     a group for each batch with `action: batch`, as here; with
     6    ψ ~ c_a                                   `action: mixture` (ours) see below
     9    Φ ← TrainCNN(Φ, b)                      the trainer
    11  ŝ, r, C ← Validation(X_val, Φ)            state.validate: s (Eq. 4) and E (Eq. 6);
                                                  groups.group_permutations: C, and ŝ (Eq. 10) as Groups.summary;
                                                  Episode.reward: r_t = E_BL − E_{t+1} (Eq. 7)
    12  θ ← Eq. 9                                 Reinforce.learn

E_BL = 2 E_t − E_{t−1} extrapolates the last two errors (text before Eq. 7, appendix E). Eq. 9 is
θ ← θ + α (Σ_{t' ≥ t} γ^{t'−t} r_t') ∇ log π(a_t | ŝ_t, θ); an episode has K actions, whose log-probabilities add up.
Later rewards are not known yet at the end of episode t, so each new reward r_t' updates all episodes t ≤ t', weighted
by γ^{t'−t}. Section 4.1 adds: subtract a moving average from the reward, add the entropy of π to the objective, and use
Adam.

What is ours comes last, under its own heading: an episode's mixture as the action (`action: mixture`), the size prior
(`size_prior`), importance weights of batches that exploration or the inverse has chosen, sorted groups
(`sorted_groups`) and the scale of the rewards (`scale_reward`). Ours too: errors before and after a change of the
learning rate are not compared, and only episodes with a reward of their own receive later ones.

With `action: mixture` an episode samples all its permutations from one mixture over the groups, softmax(log π + ε) with
Gaussian noise ε of std σ (`mixture_noise`) on the logits. The mixture is the action: log π(a) is the log-density of ε,
and its score is Σ_j ε_j / σ² ∇ log π_j. A single reward then tells about a single choice, while every batch stays
mixed. With `inverse` the gradient is measured around the inverse's mixture instead of π's; with γ > 0 earlier episodes
keep the ε that they had.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups, GroupSampler, entropy
from unshuffle.policy.sampler import SampleCounts
from unshuffle.randomness import torch_generator

MIN_DISCOUNT_WEIGHT = 1e-3
"""Episodes are dropped once γ^{t'−t} falls below this."""
MAX_IMPORTANCE = 5.0
"""Upper bound of the importance weights, so that no single rare action decides an update."""


@dataclass(frozen=True)
class Episode:
    """What was sampled in an episode and what came of it."""

    groups: Groups
    preferred: Tensor
    """(|C|,) the probabilities of the groups that the sampler preferred."""
    behaviour: Tensor
    """(|C|,) the probabilities with which they were sampled."""
    counts: Tensor
    """(|C|,) how often each group was sampled."""
    action: Tensor
    """(|C|,) weights w: the score of the action is Σ_j w_j ∇ log π_j."""
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
    """The last two errors, and E_BL, their extrapolation (text before Eq. 7, appendix E)."""

    def __init__(self, lr_changes: Sequence[int] = ()) -> None:
        """`lr_changes`: iterations at which the learning rate changes; errors before and after are not comparable."""
        self.lr_changes = tuple(lr_changes)
        self.points: list[tuple[int, float]] = []

    def comparable(self, earlier: int, later: int) -> bool:
        """Whether two iterations have the same learning rate."""
        return not any(earlier <= change < later for change in self.lr_changes)

    def baseline(self, iteration: int) -> float | None:
        """Return E_BL = 2 E_t − E_{t−1} at an iteration; None without two comparable errors before it."""
        errors = [error for earlier, error in self.points if self.comparable(earlier, iteration)]
        return 2 * errors[1] - errors[0] if len(errors) == 2 else None

    def episode(
        self,
        groups: Groups,
        preferred: Tensor,
        behaviour: Tensor,
        counts: Tensor,
        action: Tensor,
        iteration: int,
        error: float,
    ) -> Episode:
        """Return the episode that ends at an iteration with an error, with its E_BL."""
        return Episode(groups, preferred, behaviour, counts, action, iteration, error, self.baseline(iteration))

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
        self.noise = torch.zeros(config.num_groups)
        """(|C|,) ε of the current episode, with `action: mixture`."""
        self.past: list[Episode] = []
        """Earlier episodes that later rewards still update, oldest first; none with γ = 0."""

    @torch.no_grad()
    def probabilities(self, groups: Groups) -> Tensor:
        """Line 3: return π_θ(· | ŝ)."""
        return self.log_probabilities(groups).exp()

    def log_probabilities(self, groups: Groups) -> Tensor:
        """Return log π_θ(c_j | ŝ); an empty group has probability 0."""
        return torch.log_softmax(self._logits(groups) + self.untrained(groups).log(), dim=0)

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
        """Return advantage · log π(a | ŝ) + entropy weight · H(π): the gradient of the first term is that of Eq. 9."""
        log_pi = self.log_probabilities(episode.groups)
        present = episode.groups.sizes > 0
        score = (episode.action[present] * log_pi[present]).sum()
        return advantage * score + self.config.entropy_weight * self._entropy(episode, log_pi)

    def state_dict(self) -> dict[str, Any]:
        """Return θ, Adam's moments, the moving average of the reward, the current noise and the past episodes."""
        return {
            **super().state_dict(),
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "rewards": self.rewards.state_dict(),
            "noise": self.noise.clone(),
            "past": [{**vars(episode), "groups": vars(episode.groups)} for episode in self.past],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        super().load_state_dict(state)
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.rewards.load_state_dict(state["rewards"])
        self.noise = state["noise"].clone()
        self.past = [Episode(**{**episode, "groups": Groups(**episode["groups"])}) for episode in state["past"]]

    def action(self, groups: Groups, sampled: SampleCounts) -> Tensor:
        """Return the weights of the score: how many batches each group had, or ε / σ²."""
        if not self.one_group_per_batch:
            return self.noise / self.config.mixture_noise**2
        counts = self.grouping.counts(groups, sampled)
        return counts * (sampled.batches / counts.sum()) * self._importance(groups)

    # ours

    def untrained(self, groups: Groups) -> Tensor:
        """Return what a new policy samples: with `size_prior` every permutation equally often.

        Without it, as in the paper, every group equally often.
        """
        if self.config.size_prior:
            return groups.sizes
        present = (groups.sizes > 0).float()
        return present / present.sum()

    def vary(self, groups: Groups, iteration: int) -> None:
        """Sample the mixture of the episode that begins, around the preferred probabilities."""
        if self.one_group_per_batch:
            return
        present = groups.sizes > 0
        generator = torch_generator(torch.device("cpu"), self.seed, "mixture", iteration)
        noise = self.config.mixture_noise * torch.randn(len(present), generator=generator)
        # what is common to all logits does not change the mixture, so it would only add noise to the gradient
        self.noise = torch.where(present, noise - noise[present].mean(), 0.0)
        self.behaviour = self.explored(torch.softmax(self.target(groups).log() + self.noise, dim=0))

    def _importance(self, groups: Groups) -> Tensor:
        """Return π over the probabilities of the actions, which exploration and inverse change."""
        ratio = torch.where(self.behaviour > 0, self.probabilities(groups) / self.behaviour, 0.0)
        return ratio.clamp(max=MAX_IMPORTANCE)

    def _logits(self, groups: Groups) -> Tensor:
        """Return the network's logits of the groups.

        The network sees the groups hardest first and their sizes as fractions of |Ψ|; without `sorted_groups` it sees
        them in the order of k-means, and sizes as numbers of permutations, as Eq. 10 is written.
        """
        if self.config.sorted_groups:
            logits: Tensor = self.network(groups.summary)
            return logits
        summary = torch.empty_like(groups.summary)
        summary[groups.labels] = groups.summary * torch.tensor([self.num_permutations, 1.0])
        logits = self.network(summary)
        return logits[groups.labels]

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
