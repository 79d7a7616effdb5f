"""Uniform sampling, the paper's baseline."""

from typing import Any

import torch

from unshuffle.errors import UserError
from unshuffle.policy.sampler import Observation, Proposal, SampleCounts
from unshuffle.policy.state import PermutationValidation


class Uniform:
    """Samples every permutation with the same probability throughout."""

    preference = None

    def __init__(self, num_permutations: int) -> None:
        self.num_permutations = num_permutations

    def propose(self, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
        """Return independent uniform samples."""
        return propose_uniformly(self.num_permutations, samples, per_sample, generator)

    def observe(
        self, validation: PermutationValidation, sampled: SampleCounts, iteration: int, *, ends: bool, begins: bool
    ) -> Observation:
        """Record what was sampled."""
        return Observation({"sampled": sampled.permutations.numpy().copy()})

    def resume(self, sampled: SampleCounts) -> Observation:
        """Return an empty record: there are no groups."""
        return Observation({})

    def state_dict(self) -> dict[str, Any]:
        """Return |Ψ|, the only thing that the samples depend on."""
        return {"num_permutations": self.num_permutations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that the state is of as many permutations."""
        if state["num_permutations"] != self.num_permutations:
            raise UserError(
                f"the checkpoint has {state['num_permutations']} permutations, but this run has "
                f"{self.num_permutations}: resume with the config that the run was started with"
            )


def propose_uniformly(num_permutations: int, samples: int, per_sample: int, generator: torch.Generator) -> Proposal:
    """Return (samples, per_sample) independent uniform samples of the permutations."""
    shape = (samples, per_sample)
    return Proposal(torch.randint(num_permutations, shape, generator=generator, device=generator.device))
