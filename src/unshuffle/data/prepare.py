"""From what the user gave to the samples of each task: what is given decides the tasks."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from unshuffle.config import Config, DataConfig, Tasks
from unshuffle.data.addresses import is_shards
from unshuffle.data.batches import Samples
from unshuffle.data.pack import cached_store
from unshuffle.data.shards import ShardOptions, ShardSource, open_shards
from unshuffle.data.source import Items, Source
from unshuffle.data.splits import find_split_list
from unshuffle.data.store import Kind, Store
from unshuffle.data.synthetic import synthetic_clips, synthetic_images
from unshuffle.errors import UserError
from unshuffle.randomness import numpy_rng, stream_seed
from unshuffle.wording import counted

ONE_HELD_BACK_IN = 5  # samples, at the most
Skipped = tuple[str, str]
"""The name of a file that cannot be used, and why."""


@dataclass(frozen=True)
class Data:
    """Samples to train on and samples to validate on, for each task ("spatial", "temporal")."""

    training: dict[str, Samples]
    validation: dict[str, Samples]
    found: list[str] = field(default_factory=list)
    """What there is, in sentences for the user."""
    remarks: list[str] = field(default_factory=list)
    """What was made of it that is not plain from the options, in sentences too."""
    skipped: list[Skipped] = field(default_factory=list)


def prepare(config: Config, progress: bool = True) -> Data:
    """Open or pack or draw the data, and hold back X_val for each task."""
    data = Data({}, {})
    clips = _clips(config, data, progress)
    images = _images(config, data, progress)
    wanted = _wanted(config.tasks, clips is not None)
    if "temporal" in wanted and clips is None:
        raise UserError("the temporal task needs videos: give --videos, or choose --tasks S")
    apart = _Apart(config, data, progress)
    usable = _usable(clips, "temporal" in wanted, config, data)
    if "spatial" in wanted and images is not None:
        everything = np.arange(len(images))
        _add(data, "spatial", _tiled(images, everything, config), apart.tiled("images", config.data.val_images), config)
    elif "spatial" in wanted and clips is not None:
        # the same clips as the temporal task, and so the same split: what one validates on the other does not train on
        data.remarks.append("no images were given: the spatial task takes the frames of the videos")
        _add(data, "spatial", _tiled(clips, usable, config), apart.tiled("videos", config.data.val_videos), config)
    if "temporal" in wanted and clips is not None:
        _add(data, "temporal", _clipped(clips, usable, config), apart.clipped(config.data.val_videos), config)
    return data


@dataclass(frozen=True)
class _Apart:
    """Opens what is given for validation alone, if anything is."""

    config: Config
    data: Data
    progress: bool

    def tiled(self, kind: Kind, address: str | None) -> Samples | None:
        source = self._source(kind, address)
        return None if source is None else _tiled(source, np.arange(len(source)), self.config)

    def clipped(self, address: str | None) -> Samples | None:
        source = self._source("videos", address)
        return None if source is None else _clipped(source, _usable(source, True, self.config, self.data), self.config)

    def _source(self, kind: Kind, address: str | None) -> Source | None:
        data = self.config.data
        side = data.image_short_side if kind == "images" else data.frame_short_side
        return None if address is None else _open(kind, address, side, data, self.data, self.progress)


def _clipped(source: Source, items: Items, config: Config) -> Samples:
    span, reverse = config.data.frame_span, config.shuffle.reverse
    return Samples(source, items, config.shuffle.frames, min(source.size(0)), span, reverse)


def _tiled(source: Source, items: Items, config: Config) -> Samples:
    short_side = min(source.size(0))
    side = round(short_side * config.shuffle.image_share)
    if side // config.shuffle.grid * config.shuffle.tile_share < 4:
        raise UserError(f"images of {short_side} px are too small for shuffle.grid {config.shuffle.grid}")
    return Samples(source, items, 1, side)


def _usable(clips: Source | None, ordered: bool, config: Config, data: Data) -> Items:
    """The clips with enough frames to be ordered; the others are listed as skipped."""
    if clips is None or not ordered:
        return np.arange(0 if clips is None else len(clips))
    usable, too_short = _long_enough(clips, config.shuffle.frames)
    data.skipped.extend(too_short)
    _check_bad_share(too_short, len(clips), "clips", config.data)
    return usable


def _wanted(tasks: Tasks, clips: bool) -> list[str]:
    if tasks == "auto":
        return ["spatial", "temporal"] if clips else ["spatial"]
    return {"S": ["spatial"], "T": ["temporal"]}.get(tasks, ["spatial", "temporal"])


def _images(config: Config, data: Data, progress: bool) -> Source | None:
    if config.tasks == "T":
        return None
    if config.images is not None:
        return _open("images", config.images, config.data.image_short_side, config.data, data, progress)
    if config.videos is not None:
        return None
    world = config.synthetic
    data.found.append(f"{world.images} images of the synthetic world, {world.image_size} px")
    return synthetic_images(world.images, world.image_size, _world_seed(config, "images"))


def _clips(config: Config, data: Data, progress: bool) -> Source | None:
    if config.tasks == "S" and config.images is not None:
        return None
    if config.videos is not None:
        return _open("videos", config.videos, config.data.frame_short_side, config.data, data, progress)
    if config.images is not None or config.tasks == "S":
        return None
    world = config.synthetic
    data.found.append(
        f"{world.clips} clips of the synthetic world, {world.clip_frames} frames of {world.frame_size} px"
    )
    return synthetic_clips(world.clips, world.frame_size, world.clip_frames, _world_seed(config, "clips"))


def _world_seed(config: Config, kind: str) -> int:
    return int(stream_seed(config.seed, "world", kind).generate_state(1)[0])


def _open(kind: Kind, address: str, short_side: int, config: DataConfig, data: Data, progress: bool) -> Source:
    address = str(address)  # from Python it may be a Path
    source: Store | ShardSource
    if is_shards(address):
        source = shards = _open_shards(kind, address, short_side, config, progress)
        how = f"{counted(len(shards.files), 'shards')}, read at short side {short_side}"
    else:
        source = store = _open_folder(kind, Path(address).expanduser(), short_side, config, progress)
        how = f"packed at short side {store.header.short_side} in {store.path}"
    data.skipped.extend(source.skipped)
    found, skipped = counted(len(source), kind), counted(len(source.skipped), "files")
    data.found.append(f"{found} in {address}, {skipped} skipped; {how}")
    _check_bad_share(source.skipped, len(source) + len(source.skipped), kind, config)
    return source


def _open_shards(kind: Kind, address: str, short_side: int, config: DataConfig, progress: bool) -> ShardSource:
    options = ShardOptions(
        kind, short_side, every=config.frame_every, window=config.shard_window, cache_gb=config.shard_cache_gb
    )
    return open_shards(address, options, config.cache.expanduser(), progress)


def _open_folder(kind: Kind, folder: Path, short_side: int, config: DataConfig, progress: bool) -> Store:
    split = find_split_list(folder) if kind == "videos" else None
    if split is not None and Store.is_store(split.folder):
        raise UserError(f"{folder} lists videos of the packed store {split.folder}: give the folder of video files")
    return cached_store(
        kind,
        folder if split is None else split.folder,
        config.cache.expanduser(),
        short_side=short_side,
        encoding=config.encoding,
        every=config.frame_every,
        only=None if split is None else split.names,
        progress=progress,
    )


def _check_bad_share(bad: Sequence[Skipped], total: int, kind: str, config: DataConfig) -> None:
    if len(bad) > config.max_bad_share * total:
        name, reason = bad[0]
        raise UserError(
            f"{len(bad)} of {total} {kind} cannot be used, more than data.max_bad_share = {config.max_bad_share:g} "
            f"allows; the first is {name}: {reason}"
        )


def _long_enough(clips: Source, frames: int) -> tuple[Items, list[Skipped]]:
    counts = np.array([clips.num_frames(item) for item in range(len(clips))])
    short = np.flatnonzero(counts < frames).tolist()
    skipped = [(clips.names[item], f"{counted(counts[item], 'frames')}, and {frames} are needed") for item in short]
    return np.flatnonzero(counts >= frames), skipped


def _add(data: Data, task: str, samples: Samples, apart: Samples | None, config: Config) -> None:
    """Samples to train on, and X_val: held back from them, or some of those that are given for it."""
    if apart is not None:
        order = numpy_rng(config.seed, "validation split").permutation(len(apart))[: config.data.val_size]
        data.training[task], data.validation[task] = samples, replace(apart, items=apart.items[np.sort(order)])
        return
    names = [samples.source.names[item] for item in samples.items]
    size = _held_back(task, len(names), config.data.val_size, data)
    training, validation = split(names, size, config.data.sibling_pattern, config.seed)
    for part, chosen in ((data.training, training), (data.validation, validation)):
        part[task] = replace(samples, items=samples.items[chosen])


def _held_back(task: str, total: int, val_size: int, data: Data) -> int:
    """|X_val|: as many as are wanted, but the most of few samples is to be trained on."""
    size = min(val_size, max(1, total // ONE_HELD_BACK_IN))
    if size < val_size:
        part = f"{size} of {counted(total, 'samples')}"
        data.remarks.append(
            f"{task}, held back to validate on: only {part}, a fifth, though data.val_size is {val_size}"
        )
    return size


def split(names: Sequence[str], val_size: int, pattern: str, seed: int) -> tuple[Items, Items]:
    """Positions to train on and positions of X_val; siblings of a validation sample are in neither.

    Without a pattern every sample is a family of its own.
    """
    families = _families(names, pattern)
    keys = sorted(families)
    order = numpy_rng(seed, "validation split").permutation(len(keys))
    held_back: list[int] = []
    while len(held_back) < val_size and len(order):
        held_back += families[keys[order[0]]]
        order = order[1:]
    if not len(order):
        siblings = " and siblings stay together" if pattern else ""
        raise UserError(
            f"nothing is left to train on of {counted(len(names), 'samples')} "
            f"when {val_size} to validate on are held back{siblings}: give more data"
        )
    training = sorted(position for key in order for position in families[keys[key]])
    return np.array(training), np.array(sorted(held_back[:val_size]))


def _families(names: Sequence[str], pattern: str) -> dict[str, list[int]]:
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(f"data.sibling_pattern is not a regular expression: {error}") from None
    families: dict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        match = expression.search(name) if pattern else None
        key = match.group(1 if expression.groups else 0) if match else None
        families[name if key is None else key].append(position)
    return families
