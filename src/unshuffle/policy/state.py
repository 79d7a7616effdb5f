"""Validation (part D of the paper's Figure 2): every permutation of Ψ applied to every sample of X_val.

The features of a crop do not depend on its position, so the backbone and fc6 run once for each part of each sample,
and only the head runs for each permutation.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unshuffle.models.heads import Head

PAIRS_AT_ONCE = {"cpu": 8192, "cuda": 32768}
"""(sample, permutation) pairs that pass the head together: bounds the memory and keeps a GPU busy."""


@dataclass(frozen=True)
class PermutationValidation:
    """How well the network recognises each permutation."""

    state: Tensor
    """s of Eq. 4, (|Ψ|, |X_val|): the softmax ratios; above 1 where the permutation is recognised."""
    permutation_errors: Tensor
    """(|Ψ|,) fraction of X_val on which each permutation was not recognised."""

    @property
    def error(self) -> float:
        """E of Eq. 6: fraction of all (permutation, sample) pairs that were not recognised."""
        return float(self.permutation_errors.mean())

    @property
    def sample_errors(self) -> Tensor:
        """(|X_val|,) fraction of Ψ that was not recognised on each sample; 1 where the ratios are NaN."""
        return 1 - (self.state > 1).double().mean(dim=0)

    @property
    def chance(self) -> float:
        """E at chance."""
        return 1 - 1 / len(self.permutation_errors)

    @property
    def is_finite(self) -> bool:
        """Whether the network's outputs were finite numbers."""
        return bool(np.isfinite(self.state.numpy()).all())  # torch would start its threads for this


@torch.no_grad()
def validate(head: Head, embeddings: Iterable[Tensor], permutations: Tensor) -> PermutationValidation:
    """Classify all (|Ψ|, P) permutations of chunks of (B, P, fc6) embeddings; call it in evaluation mode."""
    ratios, hits = [], torch.zeros(len(permutations), dtype=torch.int64)
    for chunk in embeddings:
        # heads may keep a vector for each part at each position
        at_once = max(1, pairs_at_once(permutations.device) // chunk.shape[1] ** 2)
        for samples in chunk.split(at_once):
            chunk_ratios, chunk_hits = _classify_all(head, samples, permutations)
            ratios.append(chunk_ratios)
            hits += chunk_hits
    state = torch.cat(ratios, dim=1)
    return PermutationValidation(state, 1 - hits.double() / state.shape[1])


def merge_validations(parts: Sequence[PermutationValidation]) -> PermutationValidation:
    """Return the validation on all of X_val from those on its slices."""
    state = torch.cat([part.state for part in parts], dim=1)
    hits = torch.stack([((1 - part.permutation_errors) * part.state.shape[1]).round() for part in parts]).sum(dim=0)
    return PermutationValidation(state, 1 - hits / state.shape[1])


def pairs_at_once(device: torch.device) -> int:
    """Return how many pairs may pass the head together on a device."""
    return PAIRS_AT_ONCE.get(device.type, PAIRS_AT_ONCE["cpu"])


def _classify_all(head: Head, embeddings: Tensor, permutations: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ratios (|Ψ|, B) and hits (|Ψ|,) of every permutation on some samples, on the CPU."""
    ratios, hits = [], []
    labels = torch.arange(len(permutations), device=permutations.device)
    step = max(1, pairs_at_once(permutations.device) // len(embeddings))
    classify = head.order_classifier(embeddings)
    for chunk, chunk_labels in zip(permutations.split(step), labels.split(step), strict=True):
        logits = classify(chunk).float()
        ratios.append(softmax_ratios(logits, chunk_labels).T)
        hits.append((logits.argmax(dim=2) == chunk_labels).sum(dim=0))
    return torch.cat(ratios).cpu(), torch.cat(hits).cpu()


def softmax_ratios(logits: Tensor, labels: Tensor) -> Tensor:
    """Return y_l = (y*_l + 1) / (y*_p + 1) of Eq. 3, (B, K), from logits (B, K, |Ψ|) and the labels, (K,) or (B, K).

    p is the second highest when l is the highest, and the highest otherwise: the highest of all but l.
    """
    probabilities = logits.softmax(dim=2)
    index = labels.expand(logits.shape[:2])[..., None]
    label = probabilities.gather(2, index)
    rival = probabilities.scatter_(2, index, -1.0).amax(dim=2, keepdim=True)
    return ((label + 1) / (rival + 1)).squeeze(2)
