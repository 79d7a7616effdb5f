"""Appendix F's control: samples what another sampler avoids."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from unshuffle.errors import UserError
from unshuffle.policy.groups import GroupSampler
from unshuffle.policy.sampler import Observation, Preference, Proposal, SampleCounts, Sampler
from unshuffle.policy.state import PermutationValidation


class Inverse:
    """Lets another sampler learn as usual, but samples its groups in proportion to 1 / π."""

    def __init__(self, sampler: Sampler, floor: float) -> None:
        """`floor`: lower bound of π in the inversion."""
        if not isinstance(sampler, GroupSampler):
            raise UserError("policy.inverse needs a sampler that prefers some groups: choose another policy.sampler")
        self.sampler, self.floor = sampler, floor

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Return a batch from the groups, with the inverse probabilities."""
        return self.sampler.propose(samples, per_sample, generator)

    def observe(
        self, validation: PermutationValidation, sampled: SampleCounts, iteration: int, *, ends: bool, begins: bool
    ) -> Observation:
        """Let the sampler observe the validation, then invert its probabilities."""
        observation = self.sampler.observe(validation, sampled, iteration, ends=ends, begins=begins)
        if self.sampler.groups is None:
            return observation
        self.act()
        arrays = {**observation.arrays, **self.sampler.arrays()}
        return replace(observation, arrays=arrays, concerns=self.sampler.concerns())

    def resume(self) -> Observation:
        """Sample the restored groups with the inverse probabilities, and return the record of them."""
        if self.sampler.groups is not None:
            self.act()
        return Observation(self.sampler.arrays(), concerns=self.sampler.concerns())

    def act(self) -> None:
        """Sample the current groups with the inverse probabilities from now on."""
        groups = self.sampler.groups
        assert groups is not None
        self.sampler.sample_with(inverted(self.sampler.probabilities(groups), groups.sizes, self.floor))

    @property
    def preference(self) -> Preference:
        """The current sampling distribution over the groups."""
        return self.sampler.preference

    def state_dict(self) -> dict[str, Any]:
        """Return the sampler's state."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the sampler's state."""
        self.sampler.load_state_dict(state)


def inverted(probabilities: Tensor, sizes: Tensor, floor: float) -> Tensor:
    """Return probabilities proportional to 1 / π, with a floor under π; 0 for an empty group."""
    inverse = torch.where(sizes > 0, 1 / probabilities.clamp(min=floor), 0.0)
    return inverse / inverse.sum()
