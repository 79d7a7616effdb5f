"""The samplers for another training loop: told the error of each item, they propose what to train on next."""

from copy import deepcopy
from typing import Any, Literal

import torch
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.errors import UserError
from unshuffle.policy import build_sampler
from unshuffle.policy.sampler import SampleCounts
from unshuffle.policy.state import PermutationValidation


class ItemSampler:
    """Proposes which of a number of items to train on: permutations, classes, augmentations, tasks.

    Call `propose` for each batch and `tell` after each validation. Items are grouped by their errors; `reinforce` and
    `exp3` learn which groups to prefer from how the mean error changes, `hard-first` and `easy-first` follow a rule.
    Until the first `tell` sampling is uniform.
    """

    def __init__(
        self,
        items: int,
        sampler: Literal["uniform", "reinforce", "exp3", "hard-first", "easy-first"] = "reinforce",
        *,
        groups: int = 10,
        seed: int = 0,
    ) -> None:
        """Sample among so many items, in at most as many groups."""
        if items < 2:
            raise UserError(f"a sampler chooses among 2 items or more, and there are {items}")
        config = PolicyConfig(sampler=sampler, num_groups=max(2, min(groups, items)), start_below=2.0)
        self.items = items
        self._sampler = build_sampler(config, items, seed)
        self._counts = SampleCounts(items, config.num_groups)
        self._generator = torch.Generator().manual_seed(seed)
        self._told = 0

    def propose(self, count: int) -> Tensor:
        """Return the (count,) items of a batch, by their number."""
        items = self._sampler.propose(count, 1, self._generator).permutations
        self._counts.add(items)
        return items[:, 0]

    def tell(self, errors: Tensor) -> None:
        """Take in the (items,) error of each item, from 0 to 1, measured after the batches that were proposed."""
        errors = errors.detach().double().cpu()
        if errors.shape != (self.items,) or not bool(((errors >= 0) & (errors <= 1)).all()):
            raise UserError(f"tell takes {self.items} errors from 0 to 1, one for each item")
        # in place of the softmax ratios, which are above 1 where the answer is right: groups then follow the errors
        validation = PermutationValidation(2 * (1 - errors).float()[:, None], errors)
        self._counts.reduce(lambda counts: counts)
        self._sampler.observe(validation, self._counts, self._told, ends=True, begins=True)
        self._counts.reset()
        self._told += 1

    @property
    def probabilities(self) -> Tensor:
        """The (items,) probability with which each item is sampled now."""
        groups, behaviour = getattr(self._sampler, "groups", None), getattr(self._sampler, "behaviour", None)
        if groups is None or behaviour is None:
            return torch.full((self.items,), 1 / self.items)
        probabilities: Tensor = groups.permutation_probabilities(behaviour)
        return probabilities

    def state_dict(self) -> dict[str, Any]:
        """Return what is needed to resume the loop, as tensors and plain values; call it right after `tell`."""
        return {
            "sampler": deepcopy(self._sampler.state_dict()),  # which refers to the moments of its optimiser
            "generator": self._generator.get_state(),
            "told": self._told,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._sampler.load_state_dict(state["sampler"])
        self._generator.set_state(state["generator"])
        self._told = state["told"]
        self._counts.reset()
