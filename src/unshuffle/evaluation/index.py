"""Search by similarity: exact nearest neighbours, and the features of a dataset with its neighbours and outliers.

`evaluate retrieval` searches a gallery of any size with `Search`; an `Index` holds the features of a whole dataset, for
`embed`, `neighbours` and the live page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from unshuffle.accelerator import choose_device
from unshuffle.config import FEATURE_BATCH, NEAR_DUPLICATE, PRETRAINED, VIDEO_FRAMES, LimitsConfig, Pool
from unshuffle.data.dataset import LabelledDataset, Square, open_dataset
from unshuffle.data.media import DEFAULT_LIMITS, check_short_side
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.embed import write_file
from unshuffle.evaluation.features import (
    FeatureCache,
    find_backbone,
    item_features,
    merge_chunks,
    pooled,
    preprocess,
)
from unshuffle.models import Backbone
from unshuffle.models.registry import backbone_features
from unshuffle.wording import counted, features_sentence

QUERIES, GALLERY = 4096, 4096  # a product of so many by so many is held at a time
USUAL = 10
"""Neighbours of each item that are computed once and kept."""
OUTLIER_NEIGHBOURS = 5
"""Nearest items whose mean similarity tells an outlier."""
FEW = 10
"""Of so many items the mean is halved before it is subtracted: that of a few is no measure of what is usual."""
EXACT_VALUES = 20_000 * 9216
"""Numbers in an index, 20,000 images by pool5 of CaffeNet, up to which all items are compared with a query."""
SHORTLIST = 500
"""Items of a larger index that are compared with a query."""
CODE = 256
"""Numbers for each item by which the shortlist is made."""
CODE_SAMPLE = 2048
"""Items that the directions of the codes are fitted to."""
BLOCK = 64
"""Queries at a time."""


# ---- exact search


class Search:
    """Exact search by cosine similarity: the k most similar of all vectors that were added, for each query."""

    def __init__(self, queries: Tensor, k: int, device: torch.device) -> None:
        self.queries = F.normalize(queries.to(device), dim=1)
        self.k = k
        self.seen = 0
        self._similarities = torch.full((len(queries), k), -torch.inf, device=device, dtype=queries.dtype)
        self._indices = torch.full((len(queries), k), -1, device=device)
        self._buffer = self.queries.new_empty(min(QUERIES, len(queries)) * GALLERY)

    def add(self, vectors: Tensor) -> None:
        """Compare all queries with further vectors of the gallery."""
        for part in vectors.split(GALLERY):
            part = part.to(self.queries.device)
            # Scaling the products is cheaper than scaling the vectors, and the answers are the same.
            scale = 1 / torch.linalg.vector_norm(part, dim=1).clamp(min=1e-12)
            for begin in range(0, len(self.queries), QUERIES):
                self._merge(slice(begin, begin + QUERIES), part, scale)
            self.seen += len(part)

    def _merge(self, rows: slice, part: Tensor, scale: Tensor) -> None:
        scores = self._products(self.queries[rows], part).mul_(scale)
        if self.seen == 0:
            best, columns = scores.topk(min(self.k, len(part)), dim=1)
        else:
            best, columns = _above(scores, self._similarities[rows, -1:])
        similarities = torch.cat([self._similarities[rows], best], dim=1)
        candidates = torch.cat([self._indices[rows], columns + self.seen], dim=1)
        self._similarities[rows], chosen = similarities.topk(self.k, dim=1)
        self._indices[rows] = candidates.gather(1, chosen)

    def _products(self, queries: Tensor, part: Tensor) -> Tensor:
        products = self._buffer[: len(queries) * len(part)].view(len(queries), len(part))
        if products.device.type != "cpu":
            return torch.mm(queries, part.T, out=products)
        # Numpy's BLAS is faster at this than the one that torch comes with.
        np.matmul(queries.numpy(), part.numpy().T, out=products.numpy())
        return products

    @property
    def neighbours(self) -> Tensor:
        """Indices of the nearest vectors in the order in which they were added, (queries, k), the nearest first."""
        return self._indices[:, : self.seen]

    @property
    def similarities(self) -> Tensor:
        """Cosines of the nearest vectors, (queries, k)."""
        return self._similarities[:, : self.seen]


def _above(scores: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values above each row's threshold, side by side, and their columns; shorter rows end in -inf.

    Once much of the gallery is seen they are few, and selecting them is far faster than sorting rows.
    """
    row, column = (scores > threshold).nonzero(as_tuple=True)
    counts = row.bincount(minlength=len(scores))
    slot = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    values = scores.new_full((len(scores), int(counts.max())), -torch.inf)
    columns = torch.full(values.shape, -1, device=row.device)
    values[row, slot], columns[row, slot] = scores[row, column], column
    return values, columns


def nearest(queries: Tensor, gallery: Tensor, k: int) -> Tensor:
    """Return the indices of the k most similar gallery vectors of each query, (queries, k), the nearest first."""
    search = Search(queries, k, queries.device)
    search.add(gallery)
    return search.neighbours


# ---- features of a dataset


class Matches(NamedTuple):
    """The most similar items of each query, the nearest first."""

    items: Tensor
    """(queries, k) indices"""
    similarities: Tensor
    """(queries, k)"""


@dataclass(frozen=True, eq=False)
class Index:
    """The features of the readable items of a dataset, and exact search in them.

    Two items are compared by the cosine of their features minus the mean of the dataset: what all of its items have in
    common says nothing about similarity. It is 1 for the same features and about 0 for unrelated ones.
    """

    features: Tensor
    """(items, dimensions)"""
    dataset: LabelledDataset
    """The items, one for each row; `dataset.skipped` lists those that could not be read."""
    backbone: Backbone
    """The backbone that computed the features."""
    weights: str
    """What the weights of the backbone were named by: pretrained, or a run folder ..."""
    pool: Pool
    """How its map became the features of an item."""

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        """Return one line: the items, where they are from, and what their features are."""
        items = f"{counted(len(self), self.dataset.kind)} of {self.dataset.address}"
        return f"<Index of {items}: {self.description}, {counted(self.features.shape[1], 'numbers')} each>"

    @property
    def names(self) -> list[str]:
        """File of each row, relative to the folder."""
        return self.dataset.names

    @property
    def description(self) -> str:
        """What the features are, in words."""
        return features_sentence(self.pool, self.backbone.architecture, self.weights, self.dataset.square.side)

    @cached_property
    def _mean(self) -> Tensor:
        return self.features.mean(dim=0) * (len(self) / (len(self) + FEW))

    @cached_property
    def _centred(self) -> Tensor:
        return F.normalize(self.features - self._mean, dim=1)

    @cached_property
    def _norms(self) -> Tensor:
        """(items,) lengths of the features minus the mean."""
        return torch.cat([torch.linalg.vector_norm(part - self._mean, dim=1) for part in self.features.split(GALLERY)])

    @cached_property
    def _shortlist(self) -> "Shortlist":
        return Shortlist.of(self.features, self._mean)

    def embed(self, image: Image.Image | Pixels | str | Path) -> Tensor:
        """Return the features of an image that need not be in the dataset, (dimensions,)."""
        device = next(self.backbone.parameters()).device
        pixels = preprocess(image, self.dataset.square.side, self.backbone.normalise)[None].to(device)
        with torch.inference_mode():
            return pooled(self.backbone(pixels), self.pool)[0].float().cpu()

    def search(self, queries: Tensor, k: int = USUAL, *, exact: bool = True) -> Matches:
        """Return the k items most similar to each of (queries, dimensions) features, or to those of one query.

        The result has the `items`, (queries, k) rows of the index, and their `similarities`, the nearest first. If that
        need not be exact, only the items of a shortlist are compared with a query in a large index.
        """
        if not isinstance(queries, Tensor | np.ndarray | list | tuple):
            raise UserError(
                f"queries are features, not {type(queries).__name__}: Index.embed computes those of an image"
            )
        queries = torch.atleast_2d(torch.as_tensor(queries, dtype=self.features.dtype))
        if queries.shape[1:] != self.features.shape[1:]:
            shape, dimensions = tuple(queries.shape), self.features.shape[1]
            raise UserError(f"queries have the shape {shape}, but must be (queries, {dimensions}): see Index.embed")
        if not queries.isfinite().all():
            raise UserError("queries hold values that are not finite")
        _positive("k", k)
        centred = F.normalize(queries - self._mean, dim=1)
        if exact or self.features.numel() <= EXACT_VALUES:
            found = [self._compare(block, self.features, self._norms, k) for block in centred.split(BLOCK)]
        else:
            found = []
            for query in centred.split(1):
                rows = self._shortlist.rows(query[0], max(k, SHORTLIST))
                chosen, similarities = self._compare(query, self.features[rows], self._norms[rows], k)
                found.append(Matches(rows[chosen], similarities))
        return Matches(*(torch.cat(parts) for parts in zip(*found, strict=True)))

    def _compare(self, queries: Tensor, features: Tensor, norms: Tensor, k: int) -> Matches:
        """Return the k rows most similar to queries that are centred; the features are not, which saves a copy."""
        products = queries @ features.T - (queries @ self._mean)[:, None]
        similarities, rows = (products / norms.clamp(min=1e-12)).topk(min(k, len(features)), dim=1)
        return Matches(rows, similarities)

    def neighbours(self, k: int = USUAL) -> Matches:
        """Return the k other items most similar to each item, (items, k); fewer if there are not as many.

        As of `search`, the result has `items` and `similarities`.
        """
        _positive("k", k)
        items, similarities = self._nearest if k <= USUAL else self._others(k)
        return Matches(items[:, :k], similarities[:, :k])

    def near_duplicates(self, threshold: float = NEAR_DUPLICATE) -> list[list[int]]:
        """Return groups of items of which each has another one in the group that is at least so similar."""
        near = self.neighbours()
        group = list(range(len(self)))

        def root(item: int) -> int:
            while group[item] != item:
                item = group[item]
            return item

        for item, position in (near.similarities >= threshold).nonzero().tolist():
            first, second = sorted((root(item), root(int(near.items[item, position]))))
            group[second] = first
        members: dict[int, list[int]] = {}
        for item in range(len(self)):
            members.setdefault(root(item), []).append(item)
        return [items for items in members.values() if len(items) > 1]

    def outliers(self, count: int = 12, k: int = OUTLIER_NEIGHBOURS) -> list[tuple[int, float]]:
        """Return the items that are least similar to their k nearest on average, the least first, and that average."""
        means = self.neighbours(k).similarities.mean(dim=1)
        values, items = means.topk(min(_positive("count", count), len(self)), largest=False)
        return list(zip(items.tolist(), values.tolist(), strict=True))

    def write(self, out: str | Path) -> Path:
        """Write the features as .npy (with the names beside it), .parquet or .csv, and return the file."""
        return write_file(Path(out).expanduser(), self.names, self.features.numpy())

    @cached_property
    def _nearest(self) -> Matches:
        return self._others(USUAL)

    def _others(self, k: int) -> Matches:
        k = min(k, len(self) - 1)
        search = Search(self._centred, k + 1, next(self.backbone.parameters()).device)
        search.add(self._centred)
        items, similarities = search.neighbours.cpu(), search.similarities.cpu()
        own = items == torch.arange(len(self))[:, None]
        own[:, -1] |= ~own.any(dim=1)  # an item with many equals may not be among its own nearest
        return Matches(items[~own].view(len(self), k), similarities[~own].view(len(self), k))


@dataclass(frozen=True, eq=False)
class Shortlist:
    """Short codes of all items: their components along the directions in which a sample of them differs most."""

    directions: Tensor
    """(dimensions, codes)"""
    codes: Tensor
    """(items, codes)"""

    @classmethod
    def of(cls, features: Tensor, mean: Tensor) -> "Shortlist":
        """Return the codes of features, read a part at a time: they may be larger than the memory."""
        sample = torch.linspace(0, len(features) - 1, min(CODE_SAMPLE, len(features))).round().long()
        # principal components by the products of the samples, of which there are fewer than dimensions
        centred = F.normalize(features[sample] - mean, dim=1)
        variances, vectors = torch.linalg.eigh(centred @ centred.T)
        count = min(CODE, max(1, int((variances > 1e-6 * variances[-1]).sum())))
        directions = centred.T @ (vectors[:, -count:] / variances[-count:].clamp(min=1e-12).sqrt())
        parts = [F.normalize(part - mean, dim=1) @ directions for part in features.split(GALLERY)]
        return cls(directions, torch.cat(parts))

    def rows(self, query: Tensor, count: int) -> Tensor:
        """Return the items whose codes are most similar to that of a query, in their order."""
        similar = self.codes @ (query @ self.directions)
        return similar.topk(min(count, len(self.codes)), sorted=False).indices.sort().values


def _positive(name: str, number: int) -> int:
    if not isinstance(number, Integral) or number < 1:
        raise UserError(f"{name} is {number!r}, but must be a whole number of 1 or more")
    return number


def build_index(
    backbone: Backbone,
    dataset: LabelledDataset,
    weights: str,
    *,
    pool: Pool,
    device: torch.device,
    console: Console,
    batch: int = FEATURE_BATCH,
    workers: int | None = None,
    cache: FeatureCache | None = None,
    advance: Callable[[int], None] | None = None,
) -> Index:
    """Compute the features of a dataset; unreadable items are left out and added to its `skipped`.

    Parts in the cache are not computed again, and the features are mapped from its file; `advance` is told how many
    items are done.
    """
    backbone = backbone.to(device).eval()
    title = f"embedding {dataset.kind}"
    chunks = []
    for chunk in item_features(
        backbone, dataset, device, console, title, pool=pool, batch=batch, workers=workers, cache=cache
    ):
        if cache is None:
            chunks.append(chunk)
        if advance is not None:
            advance(int(chunk.items[-1]) + 1)
    values, items, _ = merge_chunks(chunks) if cache is None else cache.join()
    return Index(values, dataset.subset(items.tolist()), backbone, weights, pool)


def embed(
    data: str | Path,
    weights: str | Path = PRETRAINED,
    *,
    architecture: str | None = None,
    download: bool = False,
    pool: Pool = "grid",
    kind: Literal["auto", "images", "videos"] = "auto",
    size: int | None = None,
    frames: int = VIDEO_FRAMES,
    batch: int = FEATURE_BATCH,
    workers: int | None = None,
    device: str = "auto",
    seed: int = 0,
    limits: LimitsConfig = DEFAULT_LIMITS,
    console: Console | None = None,
) -> Index:
    """Return the features of all images or videos of a folder, of a file or of any other dataset.

    The options are those of `unshuffle embed`. Files that cannot be read are listed in `index.dataset.skipped`.
    """
    if pool not in get_args(Pool):
        raise UserError(f"pool is '{pool}', but must be one of {', '.join(get_args(Pool))}")
    backbone = find_backbone(str(weights), seed, architecture, download)
    dataset = open_unlabelled(backbone, data, kind=kind, size=size, frames=frames, limits=limits)
    return build_index(
        backbone,
        dataset,
        str(weights),
        pool=pool,
        device=choose_device(device),
        console=console or Console(stderr=True),
        batch=batch,
        workers=workers,
    )


def open_unlabelled(
    backbone: Backbone,
    data: str | Path,
    *,
    kind: Literal["auto", "images", "videos"] = "auto",
    size: int | None = None,
    frames: int = VIDEO_FRAMES,
    limits: LimitsConfig = DEFAULT_LIMITS,
) -> LabelledDataset:
    """Open data without classes as squares for a backbone, by default of the size that it is evaluated at."""
    size = backbone.eval_size if size is None else size
    check_short_side(size)
    backbone_features(backbone, size)  # a wrong size is an error before anything is read
    return open_dataset(data, kind=kind, labelled=False, square=Square(size), frames=frames, limits=limits)
