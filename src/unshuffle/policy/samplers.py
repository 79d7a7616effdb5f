"""Who chooses the permutations: every sampler behind one interface, one sampler for each task.

A sampler proposes the permutations of every batch and observes every validation. Most of them draw a group of equally
hard permutations first, then one of its members; they differ only in how they choose among the groups.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.policy.groups import Groups, group_permutations
from unshuffle.policy.progress import draw_values
from unshuffle.policy.reinforce import Actions, ErrorHistory, MovingScale, Reinforce, entropy
from unshuffle.policy.state import Validation


@dataclass(frozen=True)
class Proposal:
    """The permutations of a batch."""

    permutations: Tensor
    """(B, M) indices into Ψ."""
    log_prior: Tensor | None = None
    """(|Ψ|,) to add to the logits in training, so that the network does not learn how often it is asked what."""


@dataclass(frozen=True)
class Observation:
    """What a sampler has to tell after a validation."""

    arrays: dict[str, npt.NDArray[Any]]
    """For `states/`: what it saw and what it drew since the validation before."""
    episode: dict[str, Any] | None = None
    """The log entry of the episode that ended here, if one did."""
    warnings: list[str] = field(default_factory=list)


class Sampler(Protocol):
    """Proposes permutations to train on and learns from each validation."""

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Permutations of a batch, on the generator's device."""

    def observe(self, validation: Validation, iteration: int, *, ends: bool, begins: bool) -> Observation:
        """See how the network stands; an episode may end or begin (or both) at this iteration."""

    def rate_dropped(self) -> None:
        """The learning rate has just dropped: errors before and after are not on one line."""

    def preference(self) -> str | None:
        """What the sampler prefers now, in a few characters for the console."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""


class UniformSampler:
    """Every permutation is equally likely, always: the paper's baseline."""

    def __init__(self, num_permutations: int) -> None:
        self.draws = torch.zeros(num_permutations)

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Independent uniform draws."""
        total = len(self.draws)
        drawn = torch.randint(total, (samples, per_sample), generator=generator, device=generator.device)
        self._count(drawn)
        return Proposal(drawn)

    def _count(self, drawn: Tensor) -> None:
        self.draws = self.draws.to(drawn.device)
        self.draws.index_add_(0, drawn.flatten(), torch.ones(drawn.numel(), device=drawn.device))

    def observe(self, validation: Validation, iteration: int, *, ends: bool, begins: bool) -> Observation:
        """Report the draws; there is nothing to learn."""
        draws = self.draws.cpu().numpy().copy()
        self.draws.zero_()
        return Observation({"draws": draws})

    def rate_dropped(self) -> None:
        """Nothing depends on it."""

    def preference(self) -> str | None:
        """None."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """The draws since the last validation."""
        return {"draws": self.draws.cpu().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the draws."""
        self.draws = state["draws"].clone()


class Chooser(Protocol):
    """How a sampler chooses among groups."""

    def probabilities(self, groups: Groups) -> Tensor:
        """(|C|,) for the groups as they are now; 0 for an empty one."""

    def learn(self, actions: Actions, reward: float | None) -> None:
        """Learn from an episode; there is no reward while there is no baseline."""

    def rate_dropped(self) -> None:
        """Rewards from here on are not to be added to those before."""

    def state_dict(self) -> dict[str, Any]:
        """What it has learned."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore it."""


class Inverse(Reinforce):
    """Appendix F's control: learns as the policy does, and draws what the policy would avoid."""

    def probabilities(self, groups: Groups) -> Tensor:
        """Proportional to 1 / π, with a floor under π."""
        pi = super().probabilities(groups)
        inverse = torch.where(groups.sizes > 0, 1 / pi.clamp(min=self.config.inverse_floor), 0.0)
        return inverse / inverse.sum()


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

    def rate_dropped(self) -> None:
        """Nothing waits."""

    def state_dict(self) -> dict[str, Any]:
        """Weights and the scale of the rewards."""
        return {"log_weights": self.log_weights.clone(), "rewards": self.rewards.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore them."""
        self.log_weights = state["log_weights"].clone()
        self.rewards.load_state_dict(state["rewards"])


class GroupSampler(UniformSampler):
    """Draws a group, then one of its members; uniform until the network has left chance."""

    def __init__(self, config: PolicyConfig, chooser: Chooser, num_permutations: int, seed: int) -> None:
        super().__init__(num_permutations)
        self.config, self.chooser, self.seed = config, chooser, seed
        self.history = ErrorHistory()
        self.started = False
        self.in_episode = False
        self.episodes = 0
        self.groups: Groups | None = None
        self.errors: Tensor | None = None
        self.behaviour = torch.zeros(config.groups)
        self.batch_actions = torch.zeros(config.groups)
        self._share: Tensor | None = None
        self._batch_groups: tuple[Tensor, Tensor] | None = None

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """A group for each sample, or inside an episode with `action: batch` one for the whole batch."""
        if self.groups is None:
            return super().propose(samples, per_sample, generator)
        share = self._batch_share(generator) if self._acts_by_batch else self._share_on(generator.device)
        drawn = torch.multinomial(share, samples * per_sample, replacement=True, generator=generator)
        self._count(drawn)
        return Proposal(drawn.view(samples, per_sample), self._log_prior(share))

    @property
    def _acts_by_batch(self) -> bool:
        return self.in_episode and self.config.action == "batch"

    @property
    def permutation_share(self) -> Tensor:
        """q, (|Ψ|,): how likely each permutation is to be drawn for a sample now."""
        assert self.groups is not None
        each = self.behaviour / (self.groups.sizes * len(self.draws)).clamp(min=1)
        return each[self.groups.members]

    def _share_on(self, device: torch.device) -> Tensor:
        """q on a device, moved there once for each grouping."""
        if self._share is None or self._share.device != device:
            self._share = self.permutation_share.to(device)
        return self._share

    def _batch_share(self, generator: torch.Generator) -> Tensor:
        assert self.groups is not None
        device = generator.device
        if self._batch_groups is None or self._batch_groups[0].device != device:
            self._batch_groups = self.behaviour.to(device), self.groups.members.to(device)
        behaviour, members = self._batch_groups
        group = torch.multinomial(behaviour, 1, generator=generator)
        # counted where it was drawn: to ask a GPU which group it was would mean to wait for it
        self.batch_actions = self.batch_actions.to(device).index_add(0, group, torch.ones(1, device=device))
        mine = (members == group).float()
        return mine / mine.sum()

    def _log_prior(self, share: Tensor) -> Tensor | None:
        if not self.config.prior_correction:
            return None
        return share.clamp(min=self.config.prior_floor / len(share)).log()

    def observe(self, validation: Validation, iteration: int, *, ends: bool, begins: bool) -> Observation:
        """Learn from the episode that ends here, then group the permutations anew."""
        episode = self._end(validation, iteration) if ends else None
        self.history.add(iteration, validation.error)
        self.errors = validation.permutation_errors
        arrays = super().observe(validation, iteration, ends=ends, begins=begins).arrays
        acting = {f"acting_{name}": array for name, array in self._arrays().items()}
        self.started = self.started or validation.error < self.config.start_below * validation.chance
        if self.started:
            self._regroup(validation)
        if begins:
            self.in_episode = True
            self.batch_actions.zero_()
        return Observation({**arrays, **acting, **self._arrays()}, episode, self._warnings())

    def _end(self, validation: Validation, iteration: int) -> dict[str, Any] | None:
        """Reward and update; None for an episode that the policy did not act in."""
        began, self.in_episode = self.in_episode, False
        if self.groups is None or not began:
            return None
        baseline = self.history.baseline(iteration)
        actions = Actions(self.groups, self.behaviour, self._action_counts(), self._draw_values(validation))
        if actions.counts.sum() == 0:  # the task was not trained, as in one half of S&T
            return None
        reward = None if baseline is None else baseline - validation.error
        self.chooser.learn(actions, reward)
        self.episodes += 1
        return self._entry(actions, validation.error, baseline, reward)

    def _action_counts(self) -> Tensor:
        assert self.groups is not None
        if self.config.action == "batch":
            return self.batch_actions.cpu().clone()
        return torch.zeros_like(self.behaviour).index_add(0, self.groups.members, self.draws.cpu())

    def _draw_values(self, validation: Validation) -> Tensor:
        assert self.groups is not None and self.errors is not None
        after, draws = validation.permutation_errors, self.draws.cpu()
        return draw_values(self.errors, after, draws, self.groups.members, len(self.behaviour))

    def _entry(self, actions: Actions, error: float, baseline: float | None, reward: float | None) -> dict[str, Any]:
        return {
            "episode": self.episodes,
            "reward": reward,
            "baseline": baseline,
            "error": error,
            "entropy": float(entropy(actions.behaviour.log())),
            "group_size": actions.groups.sizes.tolist(),
            "group_median": actions.groups.medians.tolist(),
            "probability": actions.behaviour.tolist(),
            "drawn": actions.counts.tolist(),
            "draw_value": actions.values.tolist(),
        }

    def _regroup(self, validation: Validation) -> None:
        self.groups = group_permutations(validation.state, self.config.groups, self.seed)
        chosen = self.chooser.probabilities(self.groups)
        floor = self.config.exploration
        self.behaviour = (1 - floor) * chosen + floor * self.groups.sizes
        self._share = self._batch_groups = None

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        if self.groups is None:
            return {}
        return {
            "groups": self.groups.members.numpy().astype(np.int16),
            "group_medians": self.groups.medians.numpy(),
            "probabilities": self.behaviour.numpy().copy(),
        }

    def _warnings(self) -> list[str]:
        """Say when the draws have become narrow; the exploration keeps them from closing altogether."""
        if self.groups is None:
            return []
        found = []
        spread = float(entropy(self.permutation_share.log())) / math.log(len(self.draws))
        if spread < self.config.least_spread:
            found.append(f"the draws have narrowed to {100 * spread:.0f} % of the entropy of uniform ones")
        share, group = self.behaviour.max(dim=0)
        size = self.groups.sizes[group]
        if share > size + (1 - size) * self.config.largest_share:  # a group that holds most of Ψ may take most draws
            found.append(
                f"group {int(group) + 1} of {len(self.behaviour)} takes {100 * float(share):.0f} % of the draws"
            )
        return found

    def rate_dropped(self) -> None:
        """The errors follow another line from here on."""
        self.history.restart()
        self.chooser.rate_dropped()

    def preference(self) -> str | None:
        """A bar for each group, the hardest first: how often its permutations come, beside uniform draws."""
        if self.groups is None:
            return "uniform until chance is left"
        ratio = self.behaviour / self.groups.sizes.clamp(min=1e-9)
        bars = "".join(" " if size == 0 else _bar(float(r)) for r, size in zip(ratio, self.groups.sizes, strict=True))
        return f"hard {bars} easy"

    def state_dict(self) -> dict[str, Any]:
        """Everything but the config."""
        return {
            **super().state_dict(),
            "chooser": self.chooser.state_dict(),
            "history": self.history.points,
            "started": self.started,
            "in_episode": self.in_episode,
            "episodes": self.episodes,
            "groups": None if self.groups is None else vars(self.groups),
            "errors": self.errors,
            "behaviour": self.behaviour.clone(),
            "batch_actions": self.batch_actions.cpu().clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore all of it."""
        super().load_state_dict(state)
        self.chooser.load_state_dict(state["chooser"])
        self.history.points = [(int(iteration), float(error)) for iteration, error in state["history"]]
        self.started, self.in_episode, self.episodes = state["started"], state["in_episode"], state["episodes"]
        self.groups = None if state["groups"] is None else Groups(**state["groups"])
        self.errors = state["errors"]
        self.behaviour, self.batch_actions = state["behaviour"].clone(), state["batch_actions"].clone()
        self._share = self._batch_groups = None


def _bar(ratio: float) -> str:
    """A bar that is half full for uniform draws and grows by one step for each factor of √2."""
    step = round(4 + 2 * math.log2(max(ratio, 1e-3)))
    return "▁▂▃▄▅▆▇█"[min(max(step - 1, 0), 7)]


def build_sampler(config: PolicyConfig, num_permutations: int, seed: int) -> Sampler:
    """The sampler that the config names."""
    if config.sampler == "uniform":
        return UniformSampler(num_permutations)
    choosers: dict[str, Callable[[], Chooser]] = {
        "policy": lambda: Reinforce(config, config.groups, seed),
        "inverse": lambda: Inverse(config, config.groups, seed),
        "hard-first": lambda: Ranked(hardest_first=True),
        "easy-first": lambda: Ranked(hardest_first=False),
        "exp3": lambda: Exp3(config),
    }
    return GroupSampler(config, choosers[config.sampler](), num_permutations, seed)
