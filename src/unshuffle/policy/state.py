"""D: validation, every permutation of Ψ applied to every sample of X_val.

A crop's features do not depend on the order it stands in, so the trunk and fc6 run once for each part of each sample,
and only the head runs for each permutation.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from unshuffle.data.shuffle import permute
from unshuffle.models.ordering import OrderingNetwork

ROWS_AT_ONCE = 8192  # (sample, permutation) pairs that pass the head together; bounds the memory


@dataclass(frozen=True)
class Validation:
    """How well the network recognises each permutation."""

    permutation_errors: Tensor
    """(|Ψ|,) share of X_val on which each permutation was not recognised."""

    @property
    def error(self) -> float:
        """E: share of all (permutation, sample) pairs that were not recognised."""
        return float(self.permutation_errors.mean())

    @property
    def chance(self) -> float:
        """E of blind guessing."""
        return 1 - 1 / len(self.permutation_errors)


@torch.no_grad()
def validate(network: OrderingNetwork, task: str, crops: Iterable[Tensor], permutations: Tensor) -> Validation:
    """Validate a task on chunks of X_val, each (B, P, 3, S, S), with the (|Ψ|, P) permutations."""
    was_training = network.training
    network.eval()
    correct = torch.zeros(len(permutations), device=permutations.device)
    samples = 0
    for chunk in crops:
        vectors = network.embed({task: chunk})[task]
        correct += _recognised(network, task, vectors, permutations)
        samples += len(chunk)
    network.train(was_training)
    return Validation(1 - correct.cpu().double() / samples)


def _recognised(network: OrderingNetwork, task: str, vectors: Tensor, permutations: Tensor) -> Tensor:
    """(|Ψ|,) number of samples on which each permutation was recognised."""
    counts = []
    labels = torch.arange(len(permutations), device=permutations.device)
    step = max(1, ROWS_AT_ONCE // len(vectors))
    for some, their_labels in zip(permutations.split(step), labels.split(step), strict=True):
        ordered = permute(vectors, some.expand(len(vectors), *some.shape))
        predicted = network.head(task).classify(ordered.flatten(0, 1)).argmax(dim=1)
        counts.append((predicted.unflatten(0, ordered.shape[:2]) == their_labels).sum(dim=0))
    return torch.cat(counts)
