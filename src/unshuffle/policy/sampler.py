"""The interface of samplers: one sampler per task proposes the permutations of each batch and observes each validation.

Each algorithm has a file of its own. All but uniform sampling choose a group of what is equally hard first, then a
member of it; the base class of these is in policy/groups.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from unshuffle.policy.state import PermutationValidation


@dataclass(frozen=True)
class Selection:
    """How to select the permutations of each sample among its candidates, once the network has classified them."""

    log_weights: Tensor
    """(|C|,) log-weight of a candidate of each group."""
    noise: Tensor
    """(B, K) standard Gumbel noise, one value per candidate."""


@dataclass(frozen=True)
class Proposal:
    """The permutations of a batch."""

    permutations: Tensor
    """(B, M) indices into Ψ; with a selection (B, K), the candidates."""
    log_prior: Tensor | None = None
    """(|Ψ|,) added to the training logits, so that the classifier is not biased by the sampling distribution."""
    selection: Selection | None = None
    """How to select among the candidates; None if all permutations are trained on."""

    def rows(self, rows: slice) -> "Proposal":
        """Return the proposal for a slice of the batch."""
        selection = self.selection and replace(self.selection, noise=self.selection.noise[rows])
        return replace(self, permutations=self.permutations[rows], selection=selection)


@dataclass(frozen=True)
class Observation:
    """The record of a sampler's observation of a validation."""

    arrays: dict[str, npt.NDArray[Any]]
    """Stored under `states/`: the groups, their probabilities, and what was sampled since the last validation."""
    episode: dict[str, Any] | None = None
    """The log entry of the episode that ended here, if one did."""
    concerns: list[dict[str, Any]] = field(default_factory=list)
    """Log entries of problems with the sampling distribution; `wording.describe_concern` puts them into words."""


@dataclass(frozen=True)
class Preference:
    """The distribution over the groups that a sampler prefers, hardest first; empty lists while it is still uniform."""

    sizes: list[float]
    """|c_j| / |Ψ|."""
    probabilities: list[float]
    """Preferred probability of each group; an episode may vary it."""


class SampleCounts:
    """How often each permutation and each group was trained on since the last validation.

    Each process adds its slice of every batch, on its device and without synchronising; `reduce` sums over processes.
    """

    def __init__(self, num_permutations: int, num_groups: int) -> None:
        self.permutations = torch.zeros(num_permutations)
        self.groups = torch.zeros(num_groups)
        """Counted for groups of pairs only: other groups follow from the permutations."""
        self.batches = 0
        self._unreduced = torch.zeros(num_permutations + num_groups + 1)
        """What was counted since the last `reduce`; the last cell counts batches."""

    def add(self, permutations: Tensor, groups: Tensor | None = None, *, skipped: Tensor | None = None) -> None:
        """Count this process's slice of a batch, (B, M) permutations and their groups, unless its step was skipped."""
        cells = permutations.flatten()
        if groups is not None:
            cells = torch.cat([cells, groups.flatten() + len(self.permutations)])
        self._unreduced = self._unreduced.to(cells.device)
        one = torch.ones((), device=cells.device) if skipped is None else (~skipped).float()
        self._unreduced.index_add_(0, cells, one.expand(len(cells)))
        self._unreduced[-1] += one

    def reduce(self, total: Callable[[Tensor], Tensor]) -> None:
        """Add what was counted since the last call, summed over processes by `total`; all had the same batches."""
        own = self._unreduced.cpu().clone()
        self.batches += int(own[-1])
        permutations, groups = total(own[:-1]).split([len(self.permutations), len(self.groups)])
        self.permutations += permutations
        self.groups += groups
        self._unreduced.zero_()

    def reset(self) -> None:
        """Set all counts to zero."""
        self.permutations.zero_()
        self.groups.zero_()
        self._unreduced.zero_()
        self.batches = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the counts; call `reduce` first, as counts of single processes are not part of it."""
        return {"permutations": self.permutations.clone(), "groups": self.groups.clone(), "batches": self.batches}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts and drop those that were not reduced."""
        self.permutations, self.groups = state["permutations"].clone(), state["groups"].clone()
        self.batches = state["batches"]
        self._unreduced.zero_()


class Sampler(Protocol):
    """Proposes the permutations to train on, and may learn from each validation."""

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Return the permutations of a batch, on the generator's device."""

    def observe(
        self, validation: PermutationValidation, sampled: SampleCounts, iteration: int, *, ends: bool, begins: bool
    ) -> Observation:
        """Take in a validation and the counts since the last one; an episode may end or begin here, or both."""

    def resume(self, sampled: SampleCounts) -> Observation:
        """Sample again with the restored groups, as the config says now, and return their record; learn nothing.

        `sampled` are the counts since the last validation.
        """

    @property
    def preference(self) -> Preference | None:
        """The current distribution over groups; None for a sampler without groups."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
