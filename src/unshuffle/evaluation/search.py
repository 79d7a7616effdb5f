"""Exact search for nearest neighbours by cosine similarity, among any number of vectors."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

TOP = (1, 5, 10, 20)
QUERIES, GALLERY = 1024, 8192  # a product of so many by so many is held at a time


class Search:
    """The k most similar of all vectors that were added, for each query."""

    def __init__(self, queries: Tensor, k: int, device: torch.device) -> None:
        self.queries = F.normalize(queries.to(device), dim=1)
        self.k = k
        self.seen = 0
        self._similarities = torch.full((len(queries), k), -torch.inf, device=device, dtype=queries.dtype)
        self._places = torch.full((len(queries), k), -1, device=device)

    def add(self, vectors: Tensor) -> None:
        """Compare all queries with some more vectors of the gallery."""
        for part in vectors.split(GALLERY):
            part = part.to(self.queries.device)
            # Scaling the products is cheaper than scaling the vectors, and the answers are the same.
            scale = 1 / torch.linalg.vector_norm(part, dim=1).clamp(min=1e-12)
            for begin in range(0, len(self.queries), QUERIES):
                self._merge(slice(begin, begin + QUERIES), part, scale)
            self.seen += len(part)

    def _merge(self, rows: slice, part: Tensor, scale: Tensor) -> None:
        best, places = (self.queries[rows] @ part.T).mul_(scale).topk(min(self.k, len(part)), dim=1)
        similarities = torch.cat([self._similarities[rows], best], dim=1)
        candidates = torch.cat([self._places[rows], places + self.seen], dim=1)
        self._similarities[rows], chosen = similarities.topk(self.k, dim=1)
        self._places[rows] = candidates.gather(1, chosen)

    @property
    def neighbours(self) -> Tensor:
        """Numbers of the nearest vectors in the order in which they were added, (queries, k), the best first."""
        return self._places[:, : self.seen]

    @property
    def similarities(self) -> Tensor:
        """Their cosines."""
        return self._similarities[:, : self.seen]


def nearest(queries: Tensor, gallery: Tensor, k: int) -> Tensor:
    """Indices of the k most similar gallery vectors of each query, (queries, k), the best first."""
    search = Search(queries, k, queries.device)
    search.add(gallery)
    return search.neighbours


def top_k_accuracy(neighbours: Tensor, queries: Tensor, gallery: Tensor, top: Sequence[int] = TOP) -> dict[str, float]:
    """Percent of the queries whose class is among their first k neighbours, from (queries, >= max k) indices."""
    hits = gallery[neighbours] == queries[:, None]
    return {f"top{k}": 100 * float(hits[:, :k].any(dim=1).double().mean()) for k in top if k <= hits.shape[1]}
