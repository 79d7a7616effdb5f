"""Nearest-neighbour retrieval, Tab. 1 of the paper."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
import torch
from annotated_types import Ge, MinLen
from rich.console import Console
from rich.table import Table
from torch import Tensor

from unshuffle.accelerator import choose_device
from unshuffle.config import VIDEO_FRAMES, Count, Pool
from unshuffle.data.dataset import (
    LabelledDataset,
    LabelledImages,
    Square,
    one_per_class,
    shared_files,
    voc_objects,
)
from unshuffle.data.splits import find_split_list
from unshuffle.errors import UserError
from unshuffle.evaluation.features import (
    WORKERS,
    FeatureCache,
    FeatureChunk,
    extract_features,
    feature_length,
    find_backbone,
    merge_chunks,
    open_pair,
    pool5,
    weights_digest,
)
from unshuffle.evaluation.index import GALLERY, Search
from unshuffle.evaluation.protocol import (
    Evaluation,
    Result,
    check_covered,
    figure_table,
    note,
    note_shared,
    note_skipped,
    published_table,
    shared_sentence,
    skipped_figures,
)

TOP = (1, 5, 10, 20)
NEIGHBOURS = 5  # in a picture
UNTRAINED = "untrained network"


# ---- figures


def top_k_accuracy(neighbours: Tensor, queries: Tensor, gallery: Tensor, top: Sequence[int] = TOP) -> dict[str, float]:
    """Return the percentage of queries with their class among the first k of (queries, ≥ max k) neighbour indices."""
    hits = gallery[neighbours] == queries[:, None]
    return {f"top{k}": 100 * float(hits[:, :k].any(dim=1).double().mean()) for k in top if k <= hits.shape[1]}


def chance_accuracy(queries: Tensor, gallery: Tensor, top: Sequence[int] = TOP) -> dict[str, float]:
    """Return the percentage of queries with their class among k gallery items that are sampled at random."""
    classes = int(torch.cat([queries, gallery]).max()) + 1
    others = (len(gallery) - gallery.bincount(minlength=classes)).double()[:, None]
    # 1 - (others choose k) / (all choose k), as a product over the k items: none of them has the class
    sampled = torch.arange(min(max(top), len(gallery)), dtype=torch.double)
    missed = ((others - sampled).clamp(min=0) / (len(gallery) - sampled)).cumprod(dim=1)
    fractions = queries.bincount(minlength=classes).double() / len(queries)
    return {f"top{k}": 100 * (1 - float(fractions @ missed[:, k - 1])) for k in top if k <= len(gallery)}


# ---- the evaluation


@dataclass(frozen=True)
class Neighbours:
    """Some queries and their nearest neighbours, as images."""

    queries: LabelledImages
    neighbours: LabelledImages
    """Equally many for each query, one query after another, the nearest first."""


class Side(NamedTuple):
    """The queries or the gallery."""

    dataset: LabelledDataset
    items: Tensor
    """Index of the item that each vector is of."""

    @property
    def labels(self) -> Tensor:
        """Class of each vector."""
        return torch.tensor(self.dataset.labels)[self.items]


@dataclass(frozen=True)
class Retrieval(Evaluation):
    """Nearest neighbours by cosine of pool5: is the class of a query among its k nearest? (Tab. 1)"""

    train: str | None = None
    """The gallery: class folders (torchvision's ImageFolder layout) of images or of videos, a packed store or tar
    shards with labels, a split list such as ucfTrainTestlist/trainlist01.txt, VOC2007/ImageSets/Main/trainval.txt for
    the objects of VOC, or synthetic:images:COUNT:SEED (synthetic:videos:…)."""
    test: str | None = None
    """The queries, with the same classes."""
    voc: Path | None = None
    """Instead of --train and --test: a VOC devkit, whose objects are cut out along their boxes and compared, as in the
    paper."""
    year: Count = 2007
    """Year of the devkit."""
    train_set: str = "trainval"
    """Image set whose objects are the gallery."""
    test_set: str = "test"
    """Image set whose objects are the queries."""
    min_pixels: Annotated[int, Ge(0)] = 10_000
    """Leave out objects of VOC whose box has fewer pixels; the paper's limit is 10,000."""
    difficult: bool = True
    """Include objects of VOC that are marked as difficult; not specified in the paper."""
    frames: Count = VIDEO_FRAMES
    """Frames of each video, evenly spaced."""
    per_video: bool = False
    """Compare videos by the mean vector of their frames; otherwise every frame is a query of its own."""
    pool: Pool = "flat"
    """How pool5 becomes a vector: flat is all numbers, as in the paper; avg the mean of each channel, max its maximum,
    grid the means of its cells in a 3 x 3 grid."""
    fit: Literal["auto", "crop", "squash"] = "auto"
    """How an image becomes a square: crop its centre, or squash it; auto squashes objects of VOC only."""
    size: Annotated[int, Ge(0)] = 0
    """Side of the input in pixels; 0 is the backbone's own, 227 for CaffeNet."""
    top: Annotated[tuple[Count, ...], MinLen(1)] = (1, 5, 10, 20, 50)
    """Each k of the top-k accuracies."""
    examples: Annotated[int, Ge(0)] = 8
    """Queries in the picture that is written to --out, each of another class; 0 writes none."""
    limit: Annotated[int, Ge(0)] = 0
    """Use at most this many images, videos or objects as gallery and as queries, evenly over the classes; 0 is no
    limit."""
    batch_size: Count = 64
    """Images per forward pass; lower it if memory runs out."""
    workers: Count = WORKERS
    """Threads that decode files."""

    @classmethod
    def quick(cls) -> Self:
        """Return the options for at most 500 items in the gallery and as queries."""
        return cls(preset="quick", limit=500)

    incidental = Evaluation.incidental | {"batch_size", "examples"}
    stated = Evaluation.stated | {"year", "train_set", "test_set"}

    def measure(self, console: Console) -> Result:
        """Search the gallery for the nearest neighbours of every query."""
        device = choose_device(self.device)
        backbone = find_backbone(self.weights, self.seed, self.architecture, self.download).to(device)
        size = self.size or backbone.eval_size
        dimensions = feature_length(backbone, size, self.pool)  # a wrong size is an error before anything is read
        datasets = self._open(size)
        idle = frozenset({"limit"} if not any(dataset.exceeds(self.limit) for dataset in datasets) else ())
        gallery_dataset, query_dataset = (self._prepared(dataset, size) for dataset in datasets)
        shared = len(shared_files(gallery_dataset.paths(), set(query_dataset.paths())))
        note_shared(console, shared)
        networks = {"this network": backbone}
        if self.weights.partition(":")[0] != "random":
            networks[UNTRAINED] = find_backbone(f"random:{backbone.architecture}", self.seed).to(device)
        weights = [weights_digest(network) for network in networks.values()]

        def features(pixels: Tensor) -> Tensor:
            return torch.cat([pool5(network, pixels, size, self.pool) for network in networks.values()], dim=1)

        def vectors(dataset: LabelledDataset, title: str) -> Iterator[FeatureChunk]:
            return extract_features(
                dataset,
                features,
                device,
                console,
                title,
                batch=self.batch_size,
                workers=self.workers,
                cache=FeatureCache.at(
                    self.folder(f"features/{title}"), [*weights, dataset.identity(), self.per_video, self.pool]
                ),
                item_means=self.per_video,
            )

        query_vectors = merge_chunks(list(vectors(query_dataset, "queries")))
        queries = Side(query_dataset, query_vectors.items)
        k = max(max(self.top), NEIGHBOURS)
        searches = [Search(part, k, device) for part in query_vectors.values.split(dimensions, dim=1)]
        items = []
        for chunk in rebatched(vectors(gallery_dataset, "gallery"), GALLERY):
            for search, part in zip(searches, chunk.values.split(dimensions, dim=1), strict=True):
                search.add(part.contiguous())
            items.append(chunk.items)
        gallery = Side(gallery_dataset, torch.cat(items))
        self._check_sides(queries, gallery, console)
        found = {name: search.neighbours.cpu() for name, search in zip(networks, searches, strict=True)}
        return replace(self._result(queries, gallery, found, size, shared, idle), idle=idle)

    def _check_sides(self, queries: Side, gallery: Side, console: Console) -> None:
        """Note skipped files and classes that the gallery lacks; refuse a class whose files are all unreadable."""
        for side, title in ((queries, "queries"), (gallery, "gallery")):
            note_skipped(console, side.dataset, title, self.out)
        labels, name = gallery.labels.tolist(), self._side_name(self.train, self.train_set)
        check_covered(labels, gallery.dataset.labels, gallery.dataset.classes, f"file in {name}")
        lacking = len(set(queries.labels.tolist()) - set(labels))
        if lacking:
            note(console, f"{lacking} of the classes of the queries are not in the gallery: they cannot be retrieved")

    def _open(self, size: int) -> tuple[LabelledDataset, LabelledDataset]:
        """Return gallery and queries."""
        if self.voc is not None and (self.train or self.test):
            raise UserError("give --voc, or --train and --test, not both")
        if self.voc is not None:
            splits = (self.train_set, self.test_set)
            gallery, queries = (
                voc_objects(self.voc, self.year, split, min_pixels=self.min_pixels, difficult=self.difficult)
                for split in splits
            )
            return gallery, queries
        if self.train is None or self.test is None:
            raise UserError("there is nothing to retrieve: give --train and --test (class folders), or --voc")
        return open_pair(self.train, self.test, square=Square(size), frames=self.frames)

    def _prepared(self, dataset: LabelledDataset, size: int) -> LabelledDataset:
        if self.per_video and dataset.kind != "videos":
            raise UserError(f"--per_video is for videos, but {dataset.address} holds {dataset.kind}")
        auto: Literal["crop", "squash"] = "squash" if dataset.kind == "objects" else "crop"
        return dataset.with_square(Square(size, auto if self.fit == "auto" else self.fit)).limited(self.limit)

    def _result(
        self,
        queries: Side,
        gallery: Side,
        neighbours: Mapping[str, Tensor],
        size: int,
        shared: int,
        idle: frozenset[str],
    ) -> Result:
        labels = queries.labels, gallery.labels
        rows = {name: top_k_accuracy(found, *labels, self.top) for name, found in neighbours.items()}
        rows["chance"] = chance_accuracy(*labels, self.top)
        accuracies, nearest_rows = rows["this network"], neighbours["this network"]
        counts = {"queries": len(queries.items), "gallery": len(gallery.items)}
        kind = queries.dataset.kind
        figures = {
            **accuracies,
            "untrained": rows.get(UNTRAINED, accuracies),
            "chance": rows["chance"],
            **counts,
            "shared_files": shared,
            "skipped": skipped_figures([*queries.dataset.skipped, *gallery.dataset.skipped]),
        }
        return Result(
            f"retrieval, {self._unit(kind)}",
            f"{counts['queries']:,} queries ({self._side_name(self.test, self.test_set)}) in a gallery of "
            f"{counts['gallery']:,} ({self._side_name(self.train, self.train_set)}), "
            f"{f'{shared_sentence(shared)}, ' if shared else ''}"
            f"{self._crop(queries.dataset)} {size} px; percent of the queries whose class is among "
            "their k nearest by cosine of pool5",
            figures,
            self._table(rows, kind, idle),
            self._examples(queries, gallery, nearest_rows),
        )

    def _table(self, rows: Mapping[str, Mapping[str, float]], kind: str, idle: frozenset[str]) -> Table:
        titles = {key: key.replace("top", "top ") for key in rows["this network"]}
        ours = {name: {titles[key]: row[key] for key in titles} for name, row in rows.items()}
        data = self._published_data(kind) if self.is_papers(idle | {"top"}) else None
        if data is None:
            return figure_table(ours)
        return published_table("1", ours, data, {title: f"{data} {key}" for key, title in titles.items()})

    def _published_data(self, kind: str) -> str | None:
        """Return the data of Tab. 1 that gallery and queries are, in full: VOC 2007, or split 1 of UCF-101."""
        if kind == "objects":
            return "VOC 2007" if self.voc is not None else None
        sides = [find_split_list(Path(address).expanduser()) for address in (self.train, self.test) if address]
        is_ucf = [side is not None and (side.dataset, side.number) == ("UCF-101", 1) for side in sides]
        return "UCF-101" if is_ucf == [True, True] else None

    def _unit(self, kind: str) -> str:
        if kind == "videos":
            return f"per video, the mean of {self.frames} frames" if self.per_video else "per frame"
        return "per image" if kind == "images" else "per object"

    def _side_name(self, address: str | None, split: str) -> str:
        return f"VOC{self.year} {split}" if address is None else str(address)

    def _crop(self, dataset: LabelledDataset) -> str:
        chosen = f"{self.frames} frames of each video, " if dataset.kind == "videos" else ""
        if dataset.kind == "objects":
            marked = "all" if self.difficult else "all but the difficult"
            chosen = f"{marked} boxes of {self.min_pixels:,} pixels or more, "
        return chosen + ("centre square at" if dataset.square.fit == "crop" else "squashed to")

    def _examples(self, queries: Side, gallery: Side, neighbours: Tensor) -> Neighbours | None:
        """Return some queries and their neighbours as images, read again as none are kept in memory."""
        if not self.examples:
            return None
        chosen = one_per_class(queries.labels, self.examples)
        nearest_rows = neighbours[chosen, :NEIGHBOURS].flatten().tolist()
        return Neighbours(_pictures(queries, chosen), _pictures(gallery, nearest_rows))


def _pictures(side: Side, rows: list[int]) -> LabelledImages:
    """Return the frames that vectors were made of; the first one for a video with a single vector."""
    items = side.items[rows].tolist()
    first = torch.searchsorted(side.items, side.items[rows]).tolist()
    pixels = [side.dataset.load(item)[row - start] for item, row, start in zip(items, rows, first, strict=True)]
    files = [side.dataset.location(item) for item in items]
    return LabelledImages(np.stack(pixels), side.labels[rows], side.dataset.classes, files)


def rebatched(chunks: Iterable[FeatureChunk], rows: int) -> Iterator[FeatureChunk]:
    """Merge chunks into larger ones of at least `rows` rows, except the last: large products are faster."""
    pending: list[FeatureChunk] = []
    for chunk in chunks:
        pending.append(chunk)
        if sum(len(part.items) for part in pending) >= rows:
            yield merge_chunks(pending)
            pending = []
    if pending:
        yield merge_chunks(pending)
