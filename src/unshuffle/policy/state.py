"""D: validation, every permutation of Ψ applied to every sample of X_val.

A crop's features do not depend on the order it stands in, so the backbone and fc6 run once for each part of each sample,
and only the head runs for each permutation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from unshuffle.models.ordering import OrderingNetwork

PAIRS_AT_ONCE = {"cpu": 8192, "cuda": 32768}
"""(sample, permutation) pairs that pass the head together: bounds the memory, and a GPU wants much work at once."""


@dataclass(frozen=True)
class Validation:
    """How well the network recognises each permutation."""

    state: Tensor
    """s of Eq. 4, (|Ψ|, |X_val|): the softmax ratios; above 1 where the permutation is recognised."""
    permutation_errors: Tensor
    """(|Ψ|,) share of X_val on which each permutation was not recognised."""

    @property
    def error(self) -> float:
        """E: share of all (permutation, sample) pairs that were not recognised."""
        return float(self.permutation_errors.mean())

    @property
    def sample_errors(self) -> Tensor:
        """(|X_val|,) share of Ψ that was not recognised on each sample; all of it where the ratios are no numbers."""
        return 1 - (self.state > 1).double().mean(dim=0)

    @property
    def chance(self) -> float:
        """E of blind guessing."""
        return 1 - 1 / len(self.permutation_errors)


@torch.no_grad()
def validate(network: OrderingNetwork, task: str, crops: Iterable[Tensor], permutations: Tensor) -> Validation:
    """Validate a task on chunks of X_val, each (B, P, 3, S, S), with the (|Ψ|, P) permutations."""
    was_training = network.training
    network.eval()
    ratios, hits = [], torch.zeros(len(permutations), dtype=torch.int64)
    for chunk in crops:
        # heads may keep a vector for each part at each position
        at_once = max(1, pairs_at_once(permutations.device) // chunk.shape[1] ** 2)
        for vectors in network.embed({task: chunk})[task].split(at_once):
            some_ratios, some_hits = _all_orders(network, task, vectors, permutations)
            ratios.append(some_ratios)
            hits += some_hits
    network.train(was_training)
    state = torch.cat(ratios, dim=1)
    return Validation(state, 1 - hits.double() / state.shape[1])


def merge(parts: Sequence[Validation]) -> Validation:
    """One validation from those of the parts that X_val was shared in."""
    state = torch.cat([part.state for part in parts], dim=1)
    hits = torch.stack([((1 - part.permutation_errors) * part.state.shape[1]).round() for part in parts]).sum(dim=0)
    return Validation(state, 1 - hits / state.shape[1])


def pairs_at_once(device: torch.device) -> int:
    """How many pairs a device takes together."""
    return PAIRS_AT_ONCE.get(device.type, PAIRS_AT_ONCE["cpu"])


def _all_orders(network: OrderingNetwork, task: str, vectors: Tensor, permutations: Tensor) -> tuple[Tensor, Tensor]:
    """Ratios (|Ψ|, B) and hits (|Ψ|,) of every permutation on some samples, on the CPU."""
    ratios, hits = [], []
    labels = torch.arange(len(permutations), device=permutations.device)
    step = max(1, pairs_at_once(permutations.device) // len(vectors))
    classify = network.head(task).order_classifier(vectors)
    for orders, their_labels in zip(permutations.split(step), labels.split(step), strict=True):
        logits = classify(orders).float()
        ratios.append(softmax_ratios(logits, their_labels).T)
        hits.append((logits.argmax(dim=2) == their_labels).sum(dim=0))
    return torch.cat(ratios).cpu(), torch.cat(hits).cpu()


def softmax_ratios(logits: Tensor, labels: Tensor) -> Tensor:
    """y_l = (y*_l + 1) / (y*_p + 1) of Eq. 3, (B, K), from logits (B, K, |Ψ|) and the labels, (K,) or (B, K).

    p is the second highest when l is the highest, and the highest otherwise: the highest of all but l.
    """
    probabilities = logits.softmax(dim=2)
    index = labels.expand(logits.shape[:2])[..., None]
    label = probabilities.gather(2, index)
    rival = probabilities.scatter_(2, index, -1.0).amax(dim=2, keepdim=True)
    return ((label + 1) / (rival + 1)).squeeze(2)
