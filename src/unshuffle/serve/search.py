"""Search by similarity: indexes of folders, built in the background and kept in the cache; imports torch."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console

from unshuffle.config import PRETRAINED, Pool, addresses
from unshuffle.data.cache import INDEX_FOLDER
from unshuffle.data.dataset import CACHE, SYNTHETIC, LabelledDataset, Square, digest, open_dataset
from unshuffle.data.media import BadMedia, encode_jpeg, resize_short_side
from unshuffle.errors import UserError
from unshuffle.evaluation.features import FeatureCache, find_backbone, weights_digest
from unshuffle.evaluation.index import Index, build_index, open_unlabelled
from unshuffle.models.registry import backbone_features
from unshuffle.runs.history import evenly_spaced
from unshuffle.runs.run import Run
from unshuffle.serve.library import Library
from unshuffle.serve.uploads import decode_image

MAX_FLAT_BYTES = 8_000_000_000
"""Features of a folder up to this size on the disk are all of pool5, of a larger one the mean of each channel."""
MAX_INDEXES = 4
"""Indexes that are kept in memory."""
SECONDS_BETWEEN_LOOKS = 5.0
"""So often the files of a folder are compared with those that were indexed."""
FOUND, LISTED, PICTURE_SIDE = 10, 60, 160
RANDOM = "random"


@dataclass
class _Job:
    """An index that is being built, or is ready."""

    identity: str
    weights: str
    done: int = 0
    total: int = 0
    problem: str = ""
    index: Index | None = None
    thread: threading.Thread | None = field(default=None, repr=False)


@dataclass(frozen=True)
class _Opened:
    """A dataset as it was at a time."""

    identity: str
    dataset: LabelledDataset
    looked: float

    @cached_property
    def items(self) -> dict[str, int]:
        """The number of each item by the name that a page knows it by: numbers change when files are added."""
        return {_id(name): number for number, name in enumerate(self.dataset.names)}


@dataclass(frozen=True)
class _Choice:
    """Something that a page can choose; what it stands for never comes from a request."""

    id: str
    title: str
    value: str


class Searches:
    """The datasets and backbones to choose from, and an index for each pair that was asked for."""

    def __init__(self, library: Library, data: Sequence[str], cache: Path = CACHE) -> None:
        self._library, self._data = library, list(data)
        self._cache = cache.expanduser() / INDEX_FOLDER
        self._lock = threading.RLock()
        self._building = threading.Lock()  # one index at a time
        self._jobs: dict[tuple[str, str], _Job] = {}
        self._opened: dict[str, _Opened] = {}

    # ---- choices

    def _runs(self) -> list[tuple[str, Any]]:
        return [
            (name, watched.run) for name, watched in self._library.runs().items() if watched.state.state != "damaged"
        ]

    def datasets(self) -> list[_Choice]:
        """Return the folders given to the server and those of the runs, each once."""
        paths = list(self._data)
        for _, run in self._runs():
            paths += [str(path) for path in addresses(run.config.images) if Path(path).expanduser().exists()]
        if not paths and self._runs():
            world = next(iter(self._runs()))[1].config.synthetic
            paths.append(f"synthetic:images:{min(world.images, 500)}:0")
        titles: dict[str, str] = {}
        for path in paths:
            titles.setdefault(_resolved(path), "synthetic world" if path.startswith(SYNTHETIC) else path)
        return [_Choice(_id(path), title, path) for path, title in titles.items()]

    def backbones(self) -> list[_Choice]:
        """Return the trained backbones of the runs, the one that comes with the package, and untrained ones."""
        trained = [(name, run) for name, run in self._runs() if run.weights.is_file()]
        choices = [_Choice(_id(f"{run.folder}"), name, str(run.folder)) for name, run in trained]
        architectures = dict.fromkeys([*(run.config.model.backbone for _, run in trained), "caffenet"])
        untrained = [f"{RANDOM}:{name}" for name in architectures]
        choices += [_Choice(_id(spec), f"untrained {spec.partition(':')[2]}", spec) for spec in untrained]
        return [*choices, _Choice(_id(PRETRAINED), "weights of the package", PRETRAINED)]

    def state(self, data: str | None, weights: Sequence[str], text: str = "") -> dict[str, Any]:
        """Return the choices, start the indexes that are missing, and return how far they are.

        Some items are listed: of all, or of those with a text in their name.
        """
        datasets, backbones = self.datasets(), self.backbones()
        answer: dict[str, Any] = {
            "datasets": [{"id": choice.id, "title": choice.title} for choice in datasets],
            "backbones": [{"id": choice.id, "title": choice.title} for choice in backbones],
            **{"data": "", "weights": [], "indexes": [], "items": 0, "names": [], "identity": ""},
        }
        if not datasets:
            return answer
        chosen = next((choice for choice in datasets if choice.id == data), datasets[0])
        known = [choice for spec in weights for choice in backbones if choice.id == spec]
        # a trained backbone and the untrained one of the same kind
        known = known or [backbones[0], next(choice for choice in backbones if choice.value.startswith(RANDOM))]
        opened = self._open(chosen, renew=True)
        jobs = [(choice, self._job(chosen, choice, opened)) for choice in dict.fromkeys(known)]
        names = [name for name in opened.dataset.names if text.lower() in name.lower()]
        return answer | {
            "data": chosen.id,
            "weights": [choice.id for choice in known],
            "items": len(opened.dataset),
            "identity": digest([opened.identity, *(job.weights for _, job in jobs)])[:12],
            "names": [[_id(name), name] for name in evenly_spaced(names, LISTED)],
            "indexes": [_progress(choice, job) for choice, job in jobs],
        }

    # ---- indexes

    def _open(self, data: _Choice, *, renew: bool = False) -> _Opened:
        """Return a dataset and its identity, which changes when its files do; they are looked at now and then."""
        with self._lock:
            known = self._opened.get(data.id)
            old = known is None or time.monotonic() - known.looked > SECONDS_BETWEEN_LOOKS
            if known is None or (renew and old and not data.value.startswith(SYNTHETIC)):
                dataset = open_dataset(data.value, kind="images", labelled=False, square=Square(PICTURE_SIDE))
                known = self._opened[data.id] = _Opened(dataset.identity(), dataset, time.monotonic())
            return known

    def _job(self, data: _Choice, backbone: _Choice, opened: _Opened) -> _Job:
        """Return the index of a choice, which is built if there is none for files and weights as they are now."""
        weights = _weights_version(backbone)
        with self._lock:
            job = self._jobs.get((data.id, backbone.id))
            if job is not None and (job.identity, job.weights) == (opened.identity, weights):
                return job
            job = _Job(opened.identity, weights, total=len(opened.dataset))
            while len(self._jobs) >= MAX_INDEXES:
                self._jobs.pop(next(iter(self._jobs)))
            self._jobs[data.id, backbone.id] = job
            job.thread = threading.Thread(target=self._build, args=(job, data, backbone), daemon=True)
            job.thread.start()
            return job

    def _build(self, job: _Job, data: _Choice, choice: _Choice) -> None:
        def advance(done: int) -> None:
            job.done = done

        try:
            with self._building:
                backbone = find_backbone(choice.value)
                dataset = open_unlabelled(backbone, data.value, kind="images")
                size = 4 * len(dataset) * backbone_features(backbone, dataset.square.side)
                pool: Pool = "flat" if size <= MAX_FLAT_BYTES else "grid"
                name = digest([weights_digest(backbone), dataset.square.side, pool, dataset.identity()])
                index = build_index(
                    backbone,
                    dataset,
                    choice.title,
                    pool=pool,
                    device=torch.device("cpu"),  # a run may be using the GPU
                    console=Console(quiet=True),
                    cache=FeatureCache(self._cache / name[:32], name),
                    workers=1,
                    advance=advance,
                )
                index.search(index.features[:1], exact=False)  # what all queries need is computed now
                job.index = index
        except (UserError, OSError) as problem:
            job.problem = str(problem)
        except Exception as problem:  # a thread has nobody to raise it to
            job.problem = f"the index could not be built ({type(problem).__name__})"

    def _index(self, data: str, weights: str) -> tuple[_Choice, _Choice, Index]:
        chosen = next((choice for choice in self.datasets() if choice.id == data), None)
        backbone = next((choice for choice in self.backbones() if choice.id == weights), None)
        if chosen is None or backbone is None:
            raise UserError("there is no such dataset or backbone: reload the page")
        job = self._job(chosen, backbone, self._open(chosen))
        if job.index is None:
            raise UserError(job.problem or "the index is still being built: wait for it")
        return chosen, backbone, job.index

    # ---- queries

    def like_item(self, data: str, weights: str, item: str) -> dict[str, Any]:
        """Return the nearest neighbours of an item, without the item itself."""
        chosen, backbone, index = self._index(data, weights)
        row = _row_of(self._open(chosen), item, index)
        found = index.search(index.features[[row]], FOUND + 1, exact=False)
        rows = [(other, value) for other, value in _pairs(found) if other != row][:FOUND]
        return _answer(backbone, index, rows)

    def like_image(self, data: str, weights: str, image: bytes) -> dict[str, Any]:
        """Return the nearest neighbours of an image, or of the middle frame of a clip."""
        _, backbone, index = self._index(data, weights)
        found = index.search(index.embed(decode_image(image))[None], FOUND, exact=False)
        return _answer(backbone, index, _pairs(found))

    def picture(self, data: str, item: str) -> bytes:
        """Return an item as a small JPEG."""
        chosen = next((choice for choice in self.datasets() if choice.id == data), None)
        if chosen is None:
            raise UserError("there is no such dataset: reload the page")
        opened = self._open(chosen)
        try:
            pixels = opened.dataset.load_resized(_number_of(opened, item))
        except BadMedia:  # it stays a grey square among the others
            pixels = np.full((PICTURE_SIDE, PICTURE_SIDE, 3), 128, np.uint8)
        return encode_jpeg(np.asarray(resize_short_side(Image.fromarray(pixels), PICTURE_SIDE)), 80)


def _id(text: str) -> str:
    """Return a name for the address bar, from which no path can be made."""
    return digest([text])[:12]


def _resolved(address: str) -> str:
    """Return the same text for the same folder, however it was given."""
    path = Path(address).expanduser()
    return str(path.resolve()) if path.exists() else address


def _weights_version(backbone: _Choice) -> str:
    """Return what changes when the weights of a run do: it may have been trained further."""
    try:
        status = Run(Path(backbone.value)).weights.stat()
    except OSError:  # no run: untrained, or of the package
        return ""
    return f"{status.st_mtime_ns} {status.st_size}"


def _number_of(opened: _Opened, item: str) -> int:
    if item not in opened.items:
        raise UserError("this image is no longer in the folder")
    return opened.items[item]


def _row_of(opened: _Opened, item: str, index: Index) -> int:
    """Return the row of an item in an index, which has none for files that cannot be read."""
    name = opened.dataset.names[_number_of(opened, item)]
    if name not in index.names:
        raise UserError("this image cannot be read, so it has no neighbours")
    return index.names.index(name)


def _pairs(found: Any) -> list[tuple[int, float]]:
    return list(zip(found.items[0].tolist(), found.similarities[0].tolist(), strict=True))


def _answer(choice: _Choice, index: Index, rows: Sequence[tuple[int, float]]) -> dict[str, Any]:
    found = [{"item": _id(index.names[row]), "name": index.names[row], "similarity": value} for row, value in rows]
    return {"weights": choice.id, "title": choice.title, "found": found}


def _progress(choice: _Choice, job: _Job) -> dict[str, Any]:
    return {
        "title": choice.title,
        "ready": job.index is not None,
        "done": job.done,
        "total": job.total,
        "problem": job.problem,
        "description": "" if job.index is None else job.index.description,
    }
