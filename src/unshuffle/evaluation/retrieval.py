"""Nearest-neighbour retrieval by cosine similarity."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.evaluation.features import colour_histograms, extract, raw_pixels
from unshuffle.evaluation.labelled import LabelledImages
from unshuffle.models import Backbone

TOP = (1, 5, 10, 20)


def nearest(queries: Tensor, gallery: Tensor, k: int) -> Tensor:
    """Indices of the k most similar gallery vectors of each query, (queries, k), the best first."""
    gallery = F.normalize(gallery, dim=1)
    chunks = [(F.normalize(some, dim=1) @ gallery.T).topk(k, dim=1).indices for some in queries.split(1024)]
    return torch.cat(chunks)


def top_k_accuracy(neighbours: Tensor, queries: Tensor, gallery: Tensor, top: Sequence[int] = TOP) -> dict[str, float]:
    """Percent of the queries whose class is among their first k neighbours, from (queries, >= max k) indices."""
    hits = gallery[neighbours] == queries[:, None]
    return {f"top{k}": 100 * float(hits[:, :k].any(dim=1).double().mean()) for k in top if k <= hits.shape[1]}


@dataclass(frozen=True)
class RetrievalMonitor:
    """Retrieval on a small labelled set, as a check of the features while they are learned."""

    gallery: LabelledImages
    queries: LabelledImages
    device: torch.device

    def neighbours(self, trunk: Backbone) -> Tensor:
        """Indices of each query's nearest gallery images."""
        return self._nearest(*(extract(trunk, side.pixels, self.device) for side in (self.queries, self.gallery)))

    def __call__(self, trunk: Backbone) -> dict[str, float]:
        """Top-k accuracies of a trunk."""
        return self._score(self.neighbours(trunk))

    def baselines(self) -> dict[str, dict[str, float]]:
        """The same for features that nobody had to learn."""
        features = {"raw pixels": raw_pixels, "colour histograms": colour_histograms}
        return {
            name: self._score(self._nearest(feature(self.queries.pixels), feature(self.gallery.pixels)))
            for name, feature in features.items()
        }

    def _nearest(self, queries: Tensor, gallery: Tensor) -> Tensor:
        return nearest(queries, gallery, min(max(TOP), len(self.gallery)))

    def _score(self, neighbours: Tensor) -> dict[str, float]:
        return top_k_accuracy(neighbours, self.queries.labels, self.gallery.labels)
