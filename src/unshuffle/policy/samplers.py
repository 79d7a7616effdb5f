"""Who chooses the permutations: every sampler behind one interface, one sampler for each task.

A sampler proposes the permutations of every batch and observes every validation. Most of them draw a group first, then
one of its members; they differ in what the groups are made of, and in how they choose among them (policy/choosers).
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
from unshuffle.policy.choosers import Chooser, build_chooser
from unshuffle.policy.groups import Groups, group_permutations
from unshuffle.policy.pairs import Choice, group_pairs, gumbel
from unshuffle.policy.reinforce import Actions, ErrorHistory, entropy
from unshuffle.policy.state import Validation
from unshuffle.policy.trials import one_group_preferred, worths


@dataclass(frozen=True)
class Proposal:
    """The permutations of a batch."""

    permutations: Tensor
    """(B, M) indices into Ψ; with a choice (B, K), the candidates."""
    log_prior: Tensor | None = None
    """(|Ψ|,) to add to the logits in training, so that the network does not learn how often it is asked what."""
    choice: Choice | None = None
    """How to choose among the candidates."""


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

    def count(self, permutations: Tensor, groups: Tensor) -> None:
        """What this process has chosen of a proposal that left a choice, and the groups it was in, (B, M)."""

    def gather(self, total: Callable[[Tensor], Tensor]) -> None:
        """Add up what all processes have chosen; `total` sums over them."""

    def observe(self, validation: Validation, iteration: int, *, ends: bool, begins: bool) -> Observation:
        """See how the network stands; an episode may end or begin (or both) at this iteration."""

    @property
    def trials(self) -> int:
        """How many trials it wants to learn from; most want none."""

    def prefer(self, group: int) -> None:
        """In a trial: prefer one group."""

    def judge(self, errors: Tensor) -> dict[str, Any]:
        """Learn from the (trials, |X_val|) errors on each sample after the trials; the log entry."""

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
        return Observation({"sampled": draws})

    def count(self, permutations: Tensor, groups: Tensor) -> None:
        """Its proposals leave no choice, and are counted as they are made."""

    def gather(self, total: Callable[[Tensor], Tensor]) -> None:
        """Every process has counted all."""

    @property
    def trials(self) -> int:
        """None."""
        return 0

    def prefer(self, group: int) -> None:
        """It has no groups."""

    def judge(self, errors: Tensor) -> dict[str, Any]:
        """It wants no trials."""
        return {}

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


class ChoosingSampler(UniformSampler):
    """Draws a group, then one of its members; uniform until the network has left chance.

    Subclasses say what the groups are made of.
    """

    def __init__(self, config: PolicyConfig, chooser: Chooser, num_permutations: int, seed: int) -> None:
        super().__init__(num_permutations)
        self.config, self.chooser, self.seed = config, chooser, seed
        self.history = ErrorHistory()
        self.started = False
        self.in_episode = False
        self.episodes = 0
        self.groups: Groups | None = None
        self.behaviour = torch.zeros(config.groups)

    def observe(self, validation: Validation, iteration: int, *, ends: bool, begins: bool) -> Observation:
        """Learn from the episode that ends here, then group anew."""
        episode = self._end(validation, iteration) if ends else None
        self.history.add(iteration, validation.error)
        arrays = super().observe(validation, iteration, ends=ends, begins=begins).arrays
        acting = {f"acting_{name}": array for name, array in self._arrays().items()}
        self.started = self.started or validation.error < self.config.start_below * validation.chance
        if self.started:
            self.groups = self._group(validation)
            self._choose(self.chooser.probabilities(self.groups))
        if begins:
            self.in_episode = True
        return Observation({**arrays, **acting, **self._arrays()}, episode, self._warnings())

    def _group(self, validation: Validation) -> Groups:
        """The groups for the network as it is now."""
        raise NotImplementedError

    def _action_counts(self) -> Tensor:
        """(|C|,) how often each group was drawn since the last validation."""
        raise NotImplementedError

    def _choose(self, probabilities: Tensor) -> None:
        """Draw the groups with these probabilities from here on, but for the exploration."""
        assert self.groups is not None
        floor = self.config.exploration
        self.behaviour = (1 - floor) * probabilities + floor * self.groups.sizes

    def _end(self, validation: Validation, iteration: int) -> dict[str, Any] | None:
        """Reward and update; None for an episode that the policy did not act in."""
        began, self.in_episode = self.in_episode, False
        if self.groups is None or not began:
            return None
        baseline = self.history.baseline(iteration)
        actions = Actions(self.groups, self.behaviour, self._action_counts())
        if actions.counts.sum() == 0:  # the task was not trained, as in one half of S&T
            return None
        reward = None if baseline is None else baseline - validation.error
        self.chooser.learn(actions, reward)
        self.episodes += 1
        return self._entry(actions, validation.error, baseline, reward)

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
            "sampled": actions.counts.tolist(),
        }

    @property
    def trials(self) -> int:
        """One for each group that has members, when the policy learns from them and has started."""
        if self.groups is None or not self.config.learns_by_trial:
            return 0
        return int((self.groups.sizes > 0).sum())

    def prefer(self, group: int) -> None:
        """Draw half of the permutations from one group and the others from all."""
        assert self.groups is not None
        self._choose(one_group_preferred(self.groups.sizes, group))

    def judge(self, errors: Tensor) -> dict[str, Any]:
        """Learn from the errors after trials that preferred one group each."""
        assert self.groups is not None
        worth = worths(errors, len(self.groups.sizes))
        self.chooser.judge(worth)
        self._choose(self.chooser.probabilities(self.groups))
        return {"errors": errors.mean(dim=1).tolist(), "advantage": worth.tolist(), "probability": self.behaviour.tolist()}

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        if self.groups is None:
            return {}
        return {
            "group_medians": self.groups.medians.numpy(),
            "probabilities": self.behaviour.numpy().copy(),
        }

    def _warnings(self) -> list[str]:
        """Say when one group takes nearly all draws."""
        if self.groups is None:
            return []
        share, group = self.behaviour.max(dim=0)
        size = self.groups.sizes[group]
        if share > size + (1 - size) * self.config.largest_share:  # a group that holds most of Ψ may take most draws
            return [f"group {int(group) + 1} of {len(self.behaviour)} takes {100 * float(share):.0f} % of the draws"]
        return []

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
            "behaviour": self.behaviour.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore all of it."""
        super().load_state_dict(state)
        self.chooser.load_state_dict(state["chooser"])
        self.history.points = [(int(iteration), float(error)) for iteration, error in state["history"]]
        self.started, self.in_episode, self.episodes = state["started"], state["in_episode"], state["episodes"]
        self.groups = None if state["groups"] is None else Groups(**state["groups"])
        self.behaviour = state["behaviour"].clone()


class GroupSampler(ChoosingSampler):
    """The paper's groups: permutations that are equally hard for all samples together."""

    def __init__(self, config: PolicyConfig, chooser: Chooser, num_permutations: int, seed: int) -> None:
        super().__init__(config, chooser, num_permutations, seed)
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
        """As all do; the actions of batches are counted from the beginning of an episode."""
        seen = super().observe(validation, iteration, ends=ends, begins=begins)
        if begins:
            self.batch_actions.zero_()
        return seen

    def _group(self, validation: Validation) -> Groups:
        return group_permutations(validation.state, self.config.groups, self.seed)

    def _choose(self, probabilities: Tensor) -> None:
        super()._choose(probabilities)
        self._share = self._batch_groups = None

    def _action_counts(self) -> Tensor:
        assert self.groups is not None
        if self.config.action == "batch":
            return self.batch_actions.cpu().clone()
        return torch.zeros_like(self.behaviour).index_add(0, self.groups.members, self.draws.cpu())

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays = super()._arrays()
        if self.groups is not None:
            arrays["groups"] = self.groups.members.numpy().astype(np.int16)
        return arrays

    def _warnings(self) -> list[str]:
        """Say when the draws have become narrow; the exploration keeps them from closing altogether."""
        if self.groups is None:
            return []
        found = []
        spread = float(entropy(self.permutation_share.log())) / math.log(len(self.draws))
        if spread < self.config.least_spread:
            found.append(f"the draws have narrowed to {100 * spread:.0f} % of the entropy of uniform ones")
        return [*found, *super()._warnings()]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the config."""
        return {**super().state_dict(), "batch_actions": self.batch_actions.cpu().clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore all of it."""
        super().load_state_dict(state)
        self.batch_actions = state["batch_actions"].clone()
        self._share = self._batch_groups = None


class PairSampler(ChoosingSampler):
    """Groups of pairs: for each sample the permutations that are as hard, for this sample, as the group says."""

    def __init__(self, config: PolicyConfig, chooser: Chooser, num_permutations: int, seed: int) -> None:
        super().__init__(config, chooser, num_permutations, seed)
        self.group_draws = torch.zeros(config.groups)
        self._fresh = torch.zeros(num_permutations, config.groups)
        """What this process has chosen and nobody else knows of."""
        self._log_shares: Tensor | None = None

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Candidates for each sample, and how to choose among them when the network has looked at them."""
        shape = (samples, per_sample * self.config.candidates)
        drawn = torch.randint(len(self.draws), shape, generator=generator, device=generator.device)
        if self._log_shares is None or self._log_shares.device != generator.device:
            self._log_shares = self._share_of_a_member.log().to(generator.device)
        return Proposal(drawn, choice=Choice(self._log_shares, gumbel(shape, generator), per_sample))

    @property
    def _share_of_a_member(self) -> Tensor:
        """(|C|,) beside uniform draws; the groups are not all of one size when they do not divide |Ψ|."""
        return torch.ones_like(self.behaviour) if self.groups is None else self.behaviour / self.groups.sizes

    def count(self, permutations: Tensor, groups: Tensor) -> None:
        """Add what was chosen."""
        self._fresh = self._fresh.to(groups.device)
        cells = (permutations * len(self.behaviour) + groups).flatten()
        self._fresh.view(-1).index_add_(0, cells, torch.ones(len(cells), device=groups.device))

    def gather(self, total: Callable[[Tensor], Tensor]) -> None:
        """Draws of permutations and of groups, from those of the pairs."""
        fresh = total(self._fresh.cpu().clone())
        self._fresh.zero_()
        self.draws = self.draws.cpu() + fresh.sum(dim=1)
        self.group_draws += fresh.sum(dim=0)

    def observe(self, validation: Validation, iteration: int, *, ends: bool, begins: bool) -> Observation:
        """As all do; the draws of groups are counted from one validation to the next."""
        seen = super().observe(validation, iteration, ends=ends, begins=begins)
        self.group_draws.zero_()
        return seen

    def _group(self, validation: Validation) -> Groups:
        return group_pairs(validation.state, self.config.groups)

    def _choose(self, probabilities: Tensor) -> None:
        super()._choose(probabilities)
        self._log_shares = None

    def _action_counts(self) -> Tensor:
        return self.group_draws.clone()

    def state_dict(self) -> dict[str, Any]:
        """Everything but the config; what was not gathered is lost."""
        return {**super().state_dict(), "group_draws": self.group_draws.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore all of it."""
        super().load_state_dict(state)
        self.group_draws = state["group_draws"].clone()
        self._fresh.zero_()
        self._log_shares = None


def _bar(ratio: float) -> str:
    """A bar that is half full for uniform draws and grows by one step for each factor of √2."""
    step = round(4 + 2 * math.log2(max(ratio, 1e-3)))
    return "▁▂▃▄▅▆▇█"[min(max(step - 1, 0), 7)]


def build_sampler(config: PolicyConfig, num_permutations: int, seed: int) -> Sampler:
    """The sampler that the config names."""
    if config.sampler == "uniform":
        return UniformSampler(num_permutations)
    kind = PairSampler if config.grouped == "pairs" else GroupSampler
    return kind(config, build_chooser(config, seed), num_permutations, seed)
