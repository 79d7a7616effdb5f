"""Figures about data, for `unshuffle doctor`: sizes and durations of files, and near-duplicates among samples."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from unshuffle.data.batches import Samples, spaced_frames
from unshuffle.data.inventory import Kind
from unshuffle.data.media import BadMedia, read_image_size, read_video_header
from unshuffle.data.source import Items, Pixels
from unshuffle.data.sources import origins

MEASURED_FILES = 1000
COMPARED_SAMPLES = 5000
HASH_SIDE = 8
MAX_DISTANCE = 3
"""Bits of 64 in which the hashes of near-duplicates differ at most."""
CHUNK = 1024
CANDIDATES = 10
"""Samples that are looked at for each distinct one."""
_ALIKE = HASH_SIDE**2 - 2 * MAX_DISTANCE
"""Product of the hashes of two near-duplicates at least."""

T = TypeVar("T", Sequence[Path], Items)
Hashes = npt.NDArray[np.float32]
"""(N, 64) bits as -1 and 1, whose products give Hamming distances."""


@dataclass(frozen=True)
class FileStatistics:
    """Sizes and durations of some files, in order; the medians are in the middle."""

    files: int
    """Files that were measured."""
    sizes: Sequence[tuple[int, int]]
    """Width and height, by area."""
    seconds: Sequence[float] = ()
    """Durations of videos that state them."""


def measure_files(paths: Sequence[Path], kind: Kind) -> FileStatistics:
    """Read the headers of files, evenly spaced if they are many; those that cannot be read are left out."""
    sizes: list[tuple[int, int]] = []
    seconds: list[float] = []
    for path in _spaced(paths, MEASURED_FILES):
        with suppress(BadMedia):
            if kind == "images":
                sizes.append(read_image_size(path))
            else:
                facts = read_video_header(path)
                sizes.append((facts.width, facts.height))
                seconds += [facts.seconds] if facts.seconds else []
    return FileStatistics(len(sizes), sorted(sizes, key=lambda size: (size[0] * size[1], size)), sorted(seconds))


@dataclass(frozen=True)
class Duplicates:
    """Near-duplicates among the samples of a task."""

    compared: int
    found: int
    """Samples that look like another one, of another file."""
    held_out: int
    """Those of X_val and of the pretext test set that look like one that is trained on."""
    examples: Sequence[tuple[str, str]]


def find_duplicates(training: Samples, held_out: Sequence[Samples], examples: int = 3) -> Duplicates:
    """Compare the samples of a task by a hash of how they look; of many training samples some are compared."""
    few = Samples(training.source, _spaced(training.items, COMPARED_SAMPLES), training.frames, training.side)
    parts = [few, *held_out]
    hashes = np.concatenate([_hashes(part) for part in parts])
    names = [name for part in parts for name in _names(part, part.source.names)]
    files = np.unique([name for part in parts for name in _names(part, origins(part.source))], return_inverse=True)[1]
    partners = _partners(hashes, hashes, files, files)
    alike = np.flatnonzero(partners >= 0)
    trained = len(few.items)
    leaked = _partners(hashes[trained:], hashes[:trained], files[trained:], files[:trained])
    pairs = dict.fromkeys(tuple(sorted((names[item], names[partners[item]]))) for item in alike)
    shown = [(first, second) for first, second in list(pairs)[:examples]]
    return Duplicates(len(hashes), len(alike), int((leaked >= 0).sum()), shown)


def distinct_items(samples: Samples, count: int) -> Items:
    """Return the first items of which none looks nearly like another one; the first ones if there are too few."""
    candidates = replace(samples, items=samples.items[: CANDIDATES * count])
    hashes, chosen = _hashes(candidates), list[int]()
    for position, row in enumerate(hashes):
        if len(chosen) < count and all(row @ hashes[other] < _ALIKE for other in chosen):
            chosen.append(position)
    rest = [position for position in range(len(hashes)) if position not in chosen]
    items: Items = samples.items[np.sort([*chosen, *rest][:count])]
    return items


def difference_hash(pixels: Pixels) -> npt.NDArray[np.bool_]:
    """Return 64 bits of (height, width, 3): whether each cell of a coarse grid is brighter than its left neighbour."""
    small = Image.fromarray(pixels).convert("L").resize((HASH_SIDE + 1, HASH_SIDE), Image.Resampling.BOX)
    grey = np.asarray(small, np.int16)
    bits: npt.NDArray[np.bool_] = (grey[:, 1:] > grey[:, :-1]).ravel()
    return bits


def _hashes(samples: Samples) -> Hashes:
    """Return the hash of each sample's middle frame."""
    source = samples.source
    rows = [
        difference_hash(source.read(item, spaced_frames(source.num_frames(item), 1, 0))[0])
        for item in samples.items.tolist()
    ]
    bits = np.array(rows, bool).reshape(len(rows), HASH_SIDE * HASH_SIDE)
    return np.where(bits, np.float32(1), np.float32(-1))


def _partners(queries: Hashes, gallery: Hashes, query_files: Items, gallery_files: Items) -> Items:
    """Return for each query the position of the most similar sample of another file, -1 if none is a near-duplicate."""
    partners = np.full(len(queries), -1)
    for start in range(0, len(queries) if len(gallery) else 0, CHUNK):
        rows = slice(start, start + CHUNK)
        agreement = queries[rows] @ gallery.T
        agreement[query_files[rows, None] == gallery_files] = -np.inf
        nearest = agreement.argmax(axis=1)
        near = np.take_along_axis(agreement, nearest[:, None], axis=1)[:, 0] >= _ALIKE
        partners[rows] = np.where(near, nearest, -1)
    return partners


def _names(samples: Samples, names: Sequence[str]) -> list[str]:
    return [names[item] for item in samples.items.tolist()]


def _spaced(values: T, count: int) -> T:
    """Return at most `count` values, evenly spaced."""
    step = max(1, -(-len(values) // count))
    return values[::step]
