"""One training step: shuffled crops in, moved weights out."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.policy.samplers import Proposal
from unshuffle.training.optim import Optimisers


@dataclass(frozen=True)
class Outcome:
    """How one step went for a task, on the device: nobody has waited for it."""

    loss: Tensor
    accuracy: Tensor


class Step:
    """Forward, loss, backward and update of an ordering network; the tasks' losses are summed."""

    def __init__(
        self, network: nn.Module, permutations: Mapping[str, Tensor], optimisers: Optimisers, precision: str
    ) -> None:
        self.network, self.permutations, self.optimisers = network, permutations, optimisers
        self.precision = precision

    def __call__(
        self, crops: Mapping[str, Tensor], proposals: Mapping[str, Proposal], iteration: int
    ) -> dict[str, Outcome]:
        """Learn from (B, P, 3, S, S) crops of each task, put into the proposed orders."""
        self.optimisers.zero_grad()
        outcomes = self._gradients(crops, proposals)
        self.optimisers.step(iteration)
        return outcomes

    def _gradients(self, crops: Mapping[str, Tensor], proposals: Mapping[str, Proposal]) -> dict[str, Outcome]:
        device = next(iter(crops.values())).device
        orders = {task: self.permutations[task][chosen.permutations] for task, chosen in proposals.items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            logits = self.network(crops, orders)
        losses = {task: _loss(logits[task], proposals[task]) for task in logits}
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        return {
            task: Outcome(loss.detach(), _accuracy(logits[task].detach(), proposals[task].permutations))
            for task, loss in losses.items()
        }


def _loss(logits: Tensor, proposal: Proposal) -> Tensor:
    """Cross-entropy; with a prior, of logits that need not know how often each permutation is drawn."""
    logits = logits.float() if proposal.log_prior is None else logits.float() + proposal.log_prior
    return F.cross_entropy(logits.flatten(0, 1), proposal.permutations.flatten())


def _accuracy(logits: Tensor, labels: Tensor) -> Tensor:
    return (logits.argmax(dim=-1) == labels).float().mean()
