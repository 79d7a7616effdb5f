"""Who chooses the permutations: every sampler behind one interface, one sampler for each task."""

from typing import Any, Protocol

import torch
from torch import Tensor

from unshuffle.config import PolicyConfig
from unshuffle.policy.state import Validation


class Sampler(Protocol):
    """Proposes permutations to train on and learns from each validation."""

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Tensor:
        """Indices into Ψ for a batch, (samples, per_sample), on the generator's device."""

    def observe(self, validation: Validation) -> None:
        """See how the network stands now."""

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs, as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where `state_dict` left off."""


class UniformSampler:
    """Every permutation is equally likely, always: the paper's baseline."""

    def __init__(self, num_permutations: int) -> None:
        self.num_permutations = num_permutations

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Tensor:
        """Independent uniform draws."""
        shape = (samples, per_sample)
        return torch.randint(self.num_permutations, shape, generator=generator, device=generator.device)

    def observe(self, validation: Validation) -> None:
        """Nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        """Nothing to remember."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


def build_sampler(config: PolicyConfig, num_permutations: int) -> Sampler:
    """The sampler that the config names."""
    return UniformSampler(num_permutations)
