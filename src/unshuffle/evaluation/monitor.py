"""A check of the features while they are learned: retrieval on a small labelled set, and their effective rank."""

from dataclasses import dataclass

import torch
from torch import Tensor

from unshuffle.evaluation.effective_rank import effective_rank
from unshuffle.evaluation.features import colour_histograms, extract, raw_pixels
from unshuffle.evaluation.labelled import LabelledImages
from unshuffle.evaluation.search import TOP, nearest, top_k_accuracy
from unshuffle.models import Backbone


@dataclass(frozen=True)
class RetrievalMonitor:
    """Retrieval and effective rank on a small labelled set."""

    gallery: LabelledImages
    queries: LabelledImages
    device: torch.device

    def neighbours(self, backbone: Backbone) -> Tensor:
        """Indices of each query's nearest gallery images."""
        return self._nearest(*self._features(backbone))

    def __call__(self, backbone: Backbone) -> dict[str, float]:
        """Top-k accuracies of a backbone, and the effective rank of its features of the gallery."""
        queries, gallery = self._features(backbone)
        rank = effective_rank(gallery.to(self.device))
        return {**self._score(self._nearest(queries, gallery)), "rankme": rank}

    def baselines(self) -> dict[str, dict[str, float]]:
        """The accuracies of features that nobody had to learn."""
        features = {"raw pixels": raw_pixels, "colour histograms": colour_histograms}
        return {
            name: self._score(self._nearest(feature(self.queries.pixels), feature(self.gallery.pixels)))
            for name, feature in features.items()
        }

    def _features(self, backbone: Backbone) -> tuple[Tensor, Tensor]:
        queries, gallery = (extract(backbone, side.pixels, self.device) for side in (self.queries, self.gallery))
        return queries, gallery

    def _nearest(self, queries: Tensor, gallery: Tensor) -> Tensor:
        return nearest(queries, gallery, min(max(TOP), len(self.gallery)))

    def _score(self, neighbours: Tensor) -> dict[str, float]:
        return top_k_accuracy(neighbours, self.queries.labels, self.gallery.labels)
