"""Groups of what is equally hard for the network as it is now, and the base of the samplers that choose among groups.

The paper groups permutations by k-means on the rows of the state s. How hard a permutation is also depends on the
sample, so the second kind of group (ours) is of (sample, permutation) pairs: the permutations are ranked for each
sample by its own softmax ratios, and each group is an equal part of that ranking. The backbone has embedded the sample
anyway, so classifying a few more permutations of it costs only the head.
"""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.policy.sampler import Observation, Preference, Proposal, SampleCounts, Selection
from unshuffle.policy.state import PermutationValidation, softmax_ratios
from unshuffle.policy.uniform import propose_uniformly

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

    from unshuffle.policy.reinforce import Episode, ErrorHistory  # Algorithm 1 is in one file

PREFERENCE = 0.5
"""Fraction of the samples that come from a preferred group in a rollout or an episode of a bandit; others come from
all groups."""


@dataclass(frozen=True)
class Groups:
    """A division into |C| groups, the hardest (lowest median ratio) first, empty ones last."""

    members: Tensor
    """(|Ψ|,) the group of each permutation; empty for groups of pairs."""
    sizes: Tensor
    """(|C|,) |c_j| / |Ψ|."""
    medians: Tensor
    """(|C|,) median of the softmax ratios of a group's (ψ, x) pairs; 1, undecided, for an empty group."""
    labels: Tensor
    """(|C|,) the number that k-means gave each group: the paper does not sort them."""

    @property
    def summary(self) -> Tensor:
        """ŝ of Eq. 10, (|C|, 2): sizes as fractions of |Ψ|, and medians."""
        return torch.stack([self.sizes, self.medians], dim=1)

    @property
    def are_of_permutations(self) -> bool:
        """Whether each permutation belongs to a group; it does not if the groups are of pairs."""
        return len(self.members) > 0

    def permutation_probabilities(self, probabilities: Tensor) -> Tensor:
        """Return q, (|Ψ|,), given the (|C|,) probabilities of the groups: their members are equally likely."""
        each = probabilities / (self.sizes * len(self.members)).clamp(min=1)
        return each[self.members]


class PermutationGrouping:
    """The paper's groups: permutations that are equally hard over all samples of X_val."""

    def __init__(self, config: PolicyConfig, num_permutations: int, seed: int) -> None:
        self.config, self.num_permutations, self.seed = config, num_permutations, seed
        self._on_device = DeviceCache()

    def form(self, validation: PermutationValidation) -> Groups:
        """Return the clusters of the rows of s."""
        return group_permutations(validation.state, self.config.num_groups, self.seed)

    def propose(self, sampler: "GroupSampler", samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Choose a group for each permutation, or one for the whole batch."""
        groups, behaviour = sampler.groups, sampler.behaviour
        if groups is None:
            return propose_uniformly(self.num_permutations, samples, per_sample, generator)
        probabilities, members, permutation_probabilities = self._on_device.get(
            behaviour,
            generator.device,
            lambda: (behaviour, groups.members, groups.permutation_probabilities(behaviour)),
        )
        if sampler.one_group_per_batch:
            group = torch.multinomial(probabilities, 1, generator=generator)
            in_group = (members == group).float()
            permutation_probabilities = in_group / in_group.sum()
        chosen = torch.multinomial(
            permutation_probabilities, samples * per_sample, replacement=True, generator=generator
        )
        return Proposal(chosen.view(samples, per_sample), self._log_prior(permutation_probabilities))

    def _log_prior(self, permutation_probabilities: Tensor) -> Tensor | None:
        if not self.config.prior_correction:
            return None
        return permutation_probabilities.clamp(min=self.config.prior_floor / self.num_permutations).log()

    def counts(self, groups: Groups, sampled: SampleCounts) -> Tensor:
        """Return how often each group was sampled, (|C|,)."""
        return torch.zeros_like(groups.sizes).index_add(0, groups.members, sampled.permutations)


class PairGrouping:
    """Groups of (sample, permutation) pairs: for each sample, the permutations that are equally hard for it."""

    def __init__(self, config: PolicyConfig, num_permutations: int, seed: int) -> None:
        self.config, self.num_permutations, self.seed = config, num_permutations, seed
        self._on_device = DeviceCache()

    def form(self, validation: PermutationValidation) -> Groups:
        """Return groups of equal size."""
        return group_pairs(validation.state, self.config.num_groups)

    def propose(self, sampler: "GroupSampler", samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Return uniform candidates for each sample, to be selected from once the network has classified them."""
        groups, behaviour = sampler.groups, sampler.behaviour
        candidates = propose_uniformly(
            self.num_permutations, samples, per_sample * self.config.candidates, generator
        ).permutations
        (log_weights,) = self._on_device.get(
            behaviour,
            generator.device,
            # groups differ in size where their number does not divide |Ψ|
            lambda: ((torch.ones_like(behaviour) if groups is None else behaviour / groups.sizes).log(),),
        )
        return Proposal(candidates, selection=Selection(log_weights, gumbel(candidates.shape, generator)))

    def counts(self, groups: Groups, sampled: SampleCounts) -> Tensor:
        """Return how often each group was sampled, (|C|,): the steps have counted it."""
        return sampled.groups.clone()


class DeviceCache:
    """Tensors derived from the groups' probabilities, moved to the device of the batches once."""

    def __init__(self) -> None:
        self._key: tuple[Tensor, torch.device] | None = None
        self._tensors: tuple[Tensor, ...] = ()

    def get(
        self, probabilities: Tensor, device: torch.device, derive: Callable[[], tuple[Tensor, ...]]
    ) -> tuple[Tensor, ...]:
        """Return the derived tensors on a device; they are derived anew for each new tensor of probabilities."""
        if self._key is None or self._key[0] is not probabilities or self._key[1] != device:
            self._key, self._tensors = (probabilities, device), tuple(tensor.to(device) for tensor in derive())
        return self._tensors


class GroupSampler(ABC):
    """Chooses a group, then one of its members; uniform until the error is well below chance.

    The groups are formed anew at each validation. Subclasses define the probabilities of the groups, what an episode
    varies about them (`vary`) and what they learn from its reward. Ours where the paper is silent: when to start
    (`start_below`), a fraction of uniform samples (`exploration`), and the form of the inverse (`inverse`).
    """

    def __init__(self, config: PolicyConfig, num_permutations: int, seed: int, history: "ErrorHistory") -> None:
        self.config, self.num_permutations, self.seed, self.history = config, num_permutations, seed, history
        self.one_group_per_batch = config.action == "batch"
        kind = PairGrouping if config.grouping == "pairs" else PermutationGrouping
        self.grouping: PairGrouping | PermutationGrouping = kind(config, num_permutations, seed)
        self.started = False
        self.began: int | None = None
        """The iteration at which the current episode began; None between episodes."""
        self.episodes = 0
        self.groups: Groups | None = None
        self.preferred = torch.zeros(config.num_groups)
        """(|C|,) the probabilities that the sampler prefers, exploration included."""
        self.behaviour = self.preferred
        """(|C|,) the probabilities with which the groups are sampled: an episode may vary the preferred ones."""

    @abstractmethod
    def probabilities(self, groups: Groups) -> Tensor:
        """Return π, the probabilities of the groups that the sampler has learned, (|C|,); 0 for an empty group."""

    def untrained(self, groups: Groups) -> Tensor:
        """Return the probabilities of a sampler that has learned nothing: every permutation is equally likely."""
        return groups.sizes

    def vary(self, groups: Groups, iteration: int) -> None:  # noqa: B027 (fixed preferences stay as they are)
        """Change `behaviour` for the episode that begins, so that its reward tells what to prefer."""

    def action(self, groups: Groups, sampled: SampleCounts) -> Tensor:
        """Return the weights w, (|C|,), for which Σ_j w_j ∇ log π_j is the score of what the episode has sampled."""
        return torch.zeros_like(groups.sizes)

    def learn(self, episode: "Episode") -> None:  # noqa: B027
        """Learn from the reward of an episode; samplers without an `action` do not."""

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Return a batch from the groups; uniform samples before the start."""
        return self.grouping.propose(self, samples, per_sample, generator)

    def observe(
        self, validation: PermutationValidation, sampled: SampleCounts, iteration: int, *, ends: bool, begins: bool
    ) -> Observation:
        """End the episode, if one ends here, form the groups anew, and begin the next episode, if one begins."""
        episode = self.end_episode(validation, sampled, iteration) if ends else None
        self.history.add(iteration, validation.error)
        acting = {f"acting_{name}": array for name, array in self.arrays().items()}
        self.started = self.started or validation.error < self.config.start_below * validation.chance
        if self.started:
            self.groups = self.grouping.form(validation)
            self.act()
        # an episode whose groups are formed anew midway, as in a branch of a run, does not count
        self.began = iteration if begins else None
        if begins and self.groups is not None:
            self.vary(self.groups, iteration)
        arrays = {"sampled": sampled.permutations.numpy().copy(), **acting, **self.arrays()}
        return Observation(arrays, self._entry(episode) if episode else None, self.concerns())

    def resume(self, sampled: SampleCounts) -> Observation:
        """Sample the restored groups as the config says now, in their episode, and return the record of them."""
        if self.groups is not None:
            restored = self.behaviour
            self.act()
            if self.began is not None:
                self.vary(self.groups, self.began)
                if sampled.batches and not torch.equal(self.behaviour, restored):
                    self.began = None  # as in an inverse branch: the episode's first batches were sampled otherwise
        return Observation(self.arrays(), concerns=self.concerns())

    def end_episode(self, validation: PermutationValidation, sampled: SampleCounts, iteration: int) -> "Episode | None":
        """Return the episode that ends here, after learning from it; None if the sampler did not act in it."""
        if self.groups is None or self.began is None or not sampled.batches:  # no batches: in another stage of S&T
            return None
        self.episodes += 1
        episode = self.history.episode(
            groups=self.groups,
            preferred=self.preferred,
            behaviour=self.behaviour,
            counts=self.grouping.counts(self.groups, sampled),
            action=self.action(self.groups, sampled),
            iteration=iteration,
            error=validation.error,
        )
        if episode.reward is not None:
            self.learn(episode)
        return episode

    def act(self) -> None:
        """Sample the current groups with the preferred probabilities from now on."""
        assert self.groups is not None
        self.preferred = self.explored(self.target(self.groups))
        self.behaviour = self.preferred

    def target(self, groups: Groups) -> Tensor:
        """Return π, or its inverse with `inverse`, (|C|,)."""
        probabilities = self.probabilities(groups)
        if not self.config.inverse:
            return probabilities
        return inverted(probabilities, self.untrained(groups), self.config.inverse_floor)

    def explored(self, probabilities: Tensor) -> Tensor:
        """Return probabilities of the groups mixed with the exploration."""
        assert self.groups is not None
        return (1 - self.config.exploration) * probabilities + self.config.exploration * self.groups.sizes

    def _entry(self, episode: "Episode") -> dict[str, Any]:
        return {
            "episode": self.episodes,
            "reward": episode.reward,
            "baseline": episode.baseline,
            "error": episode.error,
            "entropy": float(entropy(episode.preferred.log())),
            "group_size": episode.groups.sizes.tolist(),
            "group_median": episode.groups.medians.tolist(),
            "probability": episode.preferred.tolist(),
            "mixture": episode.behaviour.tolist(),
            "sampled": episode.counts.tolist(),
        }

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return what `states/` stores of the current groups."""
        if self.groups is None:
            return {}
        arrays = {
            "group_medians": self.groups.medians.numpy(),
            "probabilities": self.preferred.numpy().copy(),
            "mixture": self.behaviour.numpy().copy(),
        }
        if self.groups.are_of_permutations:
            arrays["groups"] = self.groups.members.numpy().astype(np.int16)
        return arrays

    def concerns(self) -> list[dict[str, Any]]:
        """Return what is wrong with the sampling distribution: too little entropy, or one group that dominates it."""
        if self.groups is None:
            return []
        concerns: list[dict[str, Any]] = []
        if self.groups.are_of_permutations:
            log_q = self.groups.permutation_probabilities(self.preferred).log()
            fraction = float(entropy(log_q)) / math.log(len(log_q))
            if fraction < self.config.min_entropy_fraction:
                concerns.append({"concern": "narrow_sampling", "entropy_fraction": fraction})
        largest, group = self.preferred.max(dim=0)
        size = self.groups.sizes[group]
        if largest > size + (1 - size) * self.config.max_group_fraction:  # a large group may get many samples
            facts = {"group": int(group) + 1, "num_groups": len(self.preferred), "fraction": float(largest)}
            concerns.append({"concern": "dominant_group", **facts})
        return concerns

    @property
    def preference(self) -> Preference:
        """The preferred distribution over the groups."""
        if self.groups is None:
            return Preference([], [])
        return Preference(self.groups.sizes.tolist(), self.preferred.tolist())

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the config."""
        return {
            "history": self.history.points,
            "started": self.started,
            "began": self.began,
            "episodes": self.episodes,
            "groups": None if self.groups is None else vars(self.groups),
            "preferred": self.preferred.clone(),
            "behaviour": self.behaviour.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore everything but the config."""
        self.history.points = [(int(iteration), float(error)) for iteration, error in state["history"]]
        self.started, self.began, self.episodes = state["started"], state["began"], state["episodes"]
        self.groups = None if state["groups"] is None else Groups(**state["groups"])
        self.preferred, self.behaviour = state["preferred"].clone(), state["behaviour"].clone()


class Selected(NamedTuple):
    """What was selected among the candidates of each sample."""

    columns: Tensor
    """(B, M) columns of the candidates."""
    permutations: Tensor
    """(B, M) indices into Ψ."""
    groups: Tensor
    """(B, M) the group of each."""


def select(logits: Tensor, candidates: Tensor, log_weights: Tensor, noise: Tensor, count: int) -> Selected:
    """Sample `count` of each sample's candidates without replacement, weighted by their groups.

    The (B, K) candidates are ranked by the softmax ratios of their (B, K, |Ψ|) logits, and the ranks are divided into
    groups, whose (|C|,) log-weights apply.
    """
    ranks = softmax_ratios(logits.float(), candidates).argsort(dim=1).argsort(dim=1)
    groups = ranks * len(log_weights) // ranks.shape[1]
    # the largest of log p + Gumbel noise are samples without replacement from p
    columns = (log_weights[groups] + noise).topk(count, dim=1).indices
    return Selected(columns, candidates.gather(1, columns), groups.gather(1, columns))


def one_group_preferred(sizes: Tensor, group: int) -> Tensor:
    """Return probabilities of the groups, (|C|,), of which one has `PREFERENCE` more than by its size."""
    alone = torch.zeros_like(sizes)
    alone[group] = 1.0
    return PREFERENCE * alone + (1 - PREFERENCE) * sizes


def inverted(probabilities: Tensor, untrained: Tensor, floor: float) -> Tensor:
    """Return probabilities proportional to p² / π for those of an untrained sampler, p: its own inverse is itself.

    The floor bounds π from below, as a fraction of p. An empty group has probability 0.
    """
    inverse = torch.where(untrained > 0, untrained.square() / probabilities.clamp(min=floor * untrained), 0.0)
    return inverse / inverse.sum()


def gumbel(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return standard Gumbel noise."""
    uniform = torch.rand(shape, generator=generator, device=generator.device)
    return -(-uniform.clamp(1e-7, 1 - 1e-7).log()).log()


def group_permutations(state: Tensor, count: int, seed: int) -> Groups:
    """Cluster the rows of s, (|Ψ|, |X_val|), into `count` groups by k-means."""
    from sklearn.cluster import KMeans  # slow to import, and most commands cluster nothing
    from sklearn.exceptions import ConvergenceWarning

    rows = state.double().numpy()
    # one thread: with more, the order of the sums and so the last bits change from one call to the next
    with _thread_pools().limit(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than groups: some stay empty
        labels = KMeans(count, n_init=3, random_state=seed).fit_predict(rows)
    present = [label for label in range(count) if (labels == label).any()]
    medians = {label: float(np.median(rows[labels == label])) for label in present}
    hardest_first = sorted(present, key=lambda label: medians[label])
    rank = np.zeros(count, dtype=np.int64)
    rank[hardest_first] = np.arange(len(hardest_first))
    members = torch.from_numpy(rank[labels])
    empty = [label for label in range(count) if label not in present]
    return Groups(
        members=members,
        sizes=torch.bincount(members, minlength=count).float() / len(rows),
        medians=torch.tensor([medians[label] for label in hardest_first] + [1.0] * len(empty)),
        labels=torch.tensor([*hardest_first, *empty]),
    )


def group_pairs(state: Tensor, count: int) -> Groups:
    """Divide the permutations of each sample, the columns of s, into `count` groups of equal size, hardest first."""
    ranked = state.double().sort(dim=0).values
    groups = torch.arange(len(ranked)) * count // len(ranked)
    ratios = [ranked[groups == group] for group in range(count)]
    return Groups(
        members=torch.empty(0, dtype=torch.int64),
        sizes=torch.tensor([len(rows) / len(ranked) for rows in ratios]),
        medians=torch.tensor([float(np.median(rows)) for rows in ratios]),
        labels=torch.arange(count),
    )


@lru_cache(maxsize=1)  # it looks through all loaded libraries, which takes as long as a clustering
def _thread_pools() -> "ThreadpoolController":
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def entropy(log_probabilities: Tensor) -> Tensor:
    """Return H in nats; what cannot happen adds nothing."""
    possible = log_probabilities[log_probabilities > -torch.inf]
    return -(possible.exp() * possible).sum()
