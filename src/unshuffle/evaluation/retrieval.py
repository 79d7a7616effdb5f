"""Nearest-neighbour retrieval, Tab. 1 of the paper: images, videos or objects of VOC."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, Self

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from unshuffle.accelerator import choose_device
from unshuffle.errors import UserError
from unshuffle.evaluation.backbones import find_backbone
from unshuffle.evaluation.coverage import check_covered, note, shared_files, sharing, tell_shared
from unshuffle.evaluation.features import pool5
from unshuffle.evaluation.identity import fingerprint
from unshuffle.evaluation.items import Items, class_folders, voc_objects
from unshuffle.evaluation.kept import kept_features
from unshuffle.evaluation.labelled import LabelledImages, Neighbours, one_of_each
from unshuffle.evaluation.protocol import Evaluation, Result
from unshuffle.evaluation.published import published_table
from unshuffle.evaluation.search import GALLERY, Search, top_k_accuracy
from unshuffle.evaluation.skips import skipped_figures, tell_skipped
from unshuffle.evaluation.streaming import WORKERS, Chunk, stream
from unshuffle.models.registry import backbone_features

NEIGHBOURS = 5  # in a picture


class Side(NamedTuple):
    """The queries or the gallery."""

    items: Items
    owners: Tensor
    """Which item each vector is of."""

    @property
    def labels(self) -> Tensor:
        """The class of each vector."""
        return torch.tensor(self.items.labels)[self.owners]


@dataclass(frozen=True)
class Retrieval(Evaluation):
    """Nearest neighbours by cosine of pool5: is the class of a query among its k nearest? (Tab. 1)"""

    train: Path | None = None
    """The gallery: images, or videos, in a folder for each class."""
    test: Path | None = None
    """The queries, in the same classes."""
    voc: Path | None = None
    """Instead of the two: a VOC devkit, whose objects are cut out and compared."""
    year: int = 2007
    """The year of the devkit."""
    train_set: str = "trainval"
    """Image set whose objects are the gallery."""
    test_set: str = "test"
    """Image set whose objects are the queries."""
    min_pixels: int = 10_000
    """Objects with a smaller box are left out."""
    difficult: bool = True
    """Whether objects that are marked as difficult take part."""
    frames: int = 10
    """Frames of each video."""
    per_video: bool = False
    """Compare videos by the mean vector of their frames; otherwise every frame is a query of its own."""
    fit: Literal["auto", "crop", "squash"] = "auto"
    """How an image becomes a square: crop its middle, or squash it; auto squashes objects of VOC only."""
    size: int = 0
    """Side of the input in pixels; 0 is the backbone's own, 227 for CaffeNet."""
    top: tuple[int, ...] = (1, 5, 10, 20, 50)
    """Each k."""
    examples: int = 8
    """Queries in the picture that --out gets, each of another class."""
    limit: int = 0
    """At most so many images, videos or objects on each side, evenly over the classes; 0 is no limit."""
    batch_size: int = 64
    """Images that pass the backbone together."""
    workers: int = WORKERS
    """Threads that read files."""

    @classmethod
    def quick(cls) -> Self:
        """At most 500 things on each side."""
        return cls(preset="quick", limit=500)

    incidental = Evaluation.incidental | {"batch_size", "examples"}
    stated = Evaluation.stated | {"year", "train_set", "test_set"}
    may_be_zero = Evaluation.may_be_zero | {"min_pixels", "size", "limit", "examples"}

    def measure(self, console: Console) -> Result:
        """Search the gallery for the nearest neighbours of every query."""
        if not self.top:
            raise UserError("--top needs a number, or several")
        device = choose_device(self.device)
        backbone = find_backbone(self.weights, self.seed).to(device)
        size = self.size or backbone.eval_size
        backbone_features(backbone, size)  # or the size is said to be wrong before anything is read
        sources = self._sources()
        idle = frozenset({"limit"} if all(items.idle(self.limit) for items in sources) else ())
        gallery_items, query_items = (self._prepared(items, size) for items in sources)
        shared = len(shared_files(*({item.path for item in items.items} for items in (gallery_items, query_items))))
        tell_shared(console, shared)
        weights = fingerprint(backbone)

        def vectors(items: Items, title: str) -> Iterator[Chunk]:
            return stream(
                items,
                lambda pixels: pool5(backbone, pixels, size),
                device,
                console,
                title,
                batch=self.batch_size,
                workers=self.workers,
                kept=kept_features(self.folder(f"features/{title}"), [weights, items.fingerprint(), self.per_video]),
                means=self.per_video,
            )

        chunks = list(vectors(query_items, "queries"))
        queries = Side(query_items, torch.cat([chunk.items for chunk in chunks]))
        search = Search(torch.cat([chunk.values for chunk in chunks]), max(max(self.top), NEIGHBOURS), device)
        owners = []
        for chunk in merged(vectors(gallery_items, "gallery"), GALLERY):
            search.add(chunk.values)
            owners.append(chunk.items)
        gallery = Side(gallery_items, torch.cat(owners))
        self._check_sides(queries, gallery, console)
        return replace(self._result(queries, gallery, search.neighbours.cpu(), size, shared), idle=idle)

    def _check_sides(self, queries: Side, gallery: Side, console: Console) -> None:
        """Say what was left out; a class of the gallery without a readable file is refused, a lacking one noted."""
        for side, title in ((queries, "queries"), (gallery, "gallery")):
            tell_skipped(console, side.items.skipped, title)
        found, place = gallery.labels.tolist(), self._side_name(self.train, self.train_set)
        check_covered(found, gallery.items.labels, gallery.items.classes, f"file in {place}")
        lost = len(set(queries.labels.tolist()) - set(found))
        if lost:
            note(console, f"{lost} of the classes of the queries are not in the gallery: they cannot be found")

    def _sources(self) -> tuple[Items, Items]:
        """Gallery and queries."""
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
            raise UserError("say what to retrieve: give --train and --test (folders by class), or --voc")
        gallery = class_folders(self.train)
        queries = class_folders(self.test, gallery.classes)
        if gallery.kind != queries.kind:
            raise UserError(f"{self.train} holds {gallery.kind}, but {self.test} holds {queries.kind}")
        return gallery, queries

    def _prepared(self, items: Items, size: int) -> Items:
        if self.per_video and items.kind != "videos":
            raise UserError(f"per_video is for videos, and there are {items.kind}")
        fit = items.fit if self.fit == "auto" else self.fit
        return replace(items, side=size, fit=fit, frames=self.frames).first(self.limit)

    def _result(self, queries: Side, gallery: Side, neighbours: Tensor, size: int, shared: int) -> Result:
        accuracies = top_k_accuracy(neighbours, queries.labels, gallery.labels, self.top)
        counts = {"queries": len(queries.owners), "gallery": len(gallery.owners)}
        kind = queries.items.kind
        figures = {
            **accuracies,
            **counts,
            "shared_files": shared,
            "skipped": skipped_figures([*queries.items.skipped, *gallery.items.skipped]),
        }
        return Result(
            f"retrieval, {self._unit(kind)}",
            f"{counts['queries']:,} queries ({self._side_name(self.test, self.test_set)}) in a gallery of "
            f"{counts['gallery']:,} ({self._side_name(self.train, self.train_set)}), "
            f"{f'{sharing(shared)}, ' if shared else ''}"
            f"{self._crop(queries.items)} {size} px; percent of the queries whose class is among "
            "their k nearest by cosine of pool5",
            figures,
            self._table(accuracies, kind),
            self._examples(queries, gallery, neighbours),
        )

    def _table(self, accuracies: dict[str, float], kind: str) -> Table:
        on = "UCF-101" if kind == "videos" else "VOC 2007"
        same = kind == "objects" and self.unchanged("year", "train_set", "test_set", "limit")
        titles = {key: key.replace("top", "top ") for key in accuracies}
        theirs = {title: f"{on} {key}" for key, title in titles.items()}
        ours = {"this network": {titles[key]: value for key, value in accuracies.items()}}
        return published_table("1", ours, on, theirs, same=same)

    def _unit(self, kind: str) -> str:
        if kind == "videos":
            return f"per video, the mean of {self.frames} frames" if self.per_video else "per frame"
        return "per image" if kind == "images" else "per object"

    def _side_name(self, folder: Path | None, split: str) -> str:
        return f"VOC{self.year} {split}" if folder is None else str(folder)

    def _crop(self, items: Items) -> str:
        frames = f"{self.frames} frames of each video, " if items.kind == "videos" else ""
        if items.kind == "objects":
            marked = "all" if self.difficult else "all but the difficult"
            frames = f"{marked} boxes of {self.min_pixels:,} pixels or more, "
        return frames + ("centre square at" if items.fit == "crop" else "squashed to")

    def _examples(self, queries: Side, gallery: Side, neighbours: Tensor) -> Neighbours | None:
        """Some queries and their nearest as images; read again, as no image was kept."""
        if not self.examples:
            return None
        chosen = one_of_each(queries.labels, self.examples)
        found = neighbours[chosen, :NEIGHBOURS].flatten().tolist()
        return Neighbours(_pictures(queries, chosen), _pictures(gallery, found))


def _pictures(side: Side, rows: list[int]) -> LabelledImages:
    """The frames that vectors were made of; the first one of a video that has but one vector."""
    owners = side.owners[rows].tolist()
    first = torch.searchsorted(side.owners, side.owners[rows]).tolist()
    pixels = [side.items.read(owner)[row - start] for owner, row, start in zip(owners, rows, first, strict=True)]
    files = [str(side.items.items[owner].path) for owner in owners]
    return LabelledImages(np.stack(pixels), side.labels[rows], side.items.classes, files)


def merged(chunks: Iterable[Chunk], rows: int) -> Iterator[Chunk]:
    """The same in chunks of at least so many rows, but for the last: large products are faster."""
    held: list[Chunk] = []
    for chunk in chunks:
        held.append(chunk)
        if sum(len(some.items) for some in held) >= rows:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(chunks: list[Chunk]) -> Chunk:
    return Chunk(torch.cat([chunk.values for chunk in chunks]), torch.cat([chunk.items for chunk in chunks]))
