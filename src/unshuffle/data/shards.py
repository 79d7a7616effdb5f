"""A source of images or clips in tar shards (WebDataset convention), with random access and without unpacking.

A shard is scanned once for the offset and size of each item, and this index is cached; an item is then a range of
bytes. A clip is a video file, or frames that share a name up to its first dot (`run.000.jpg`, `run.001.jpg`).
"""

import os
import re
import tarfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from rich.console import Console
from rich.filesize import decimal

from unshuffle.accelerator import local_world_size
from unshuffle.config import LimitsConfig
from unshuffle.console import progress as progress_bar
from unshuffle.data.decode import decode
from unshuffle.data.media import (
    DEFAULT_LIMITS,
    HEIF_REASON,
    MIN_FRAMES,
    VIDEO_SUFFIXES,
    BadMedia,
    check_short_side,
    heif_readable,
    image_suffixes,
    memory_limit,
    read_frames,
    read_image_header,
    scaled_size,
)
from unshuffle.data.shard_files import (
    Member,
    ShardCache,
    ShardFile,
    find_shards,
    read_index,
    stat_shard,
    write_index,
)
from unshuffle.data.source import EncodedImage, IndexedSource, Items, Pixels
from unshuffle.data.store import Kind
from unshuffle.errors import UserError
from unshuffle.randomness import numpy_rng
from unshuffle.stopping import check_stopped, worker_pool
from unshuffle.wording import counted

FORMAT = 3  # of the index; a cached index of another format is ignored
SHARD_FOLDER = "shards"
"""Folder in the cache for indices and copies of shards."""
PREFETCHED = 2  # shards that are downloaded before their turn


@dataclass(frozen=True)
class ShardOptions:
    """How the members of shards become items, and how shards are shuffled and cached."""

    kind: Kind
    short_side: int
    every: int = 1
    """Keep every n-th frame of a clip."""
    window: int = 8
    """Number of shards that are mixed at any time of an epoch."""
    cache_gb: float = 20.0
    """Disk space for copies of remote shards, in GB; 0: no copies, each item is requested by itself."""
    limits: LimitsConfig = DEFAULT_LIMITS
    """What decoding one member may take; members that need more are skipped."""

    def __post_init__(self) -> None:
        check_short_side(self.short_side)


class Entry(NamedTuple):
    """One item in the index of a shard."""

    name: str
    height: int
    width: int
    frames: int
    plain: bool
    offsets: list[int]
    """Offsets of its members in the tar: one per frame, or a single one for a video file."""
    lengths: list[int]
    checksums: list[int]
    """CRC-32 of each."""


class Index(NamedTuple):
    """The items of one shard."""

    entries: list[Entry]
    skipped: list[tuple[str, str]]
    """Name and reason for each member that cannot be used."""


def open_shards(address: str, options: ShardOptions, cache: Path, progress: bool = True) -> "ShardSource":
    """Open all shards that an address means as one source; shards without a cached index are indexed in parallel."""
    locations = find_shards(address)
    indexed: list[tuple[ShardFile, Index]] = []
    console = Console(stderr=True, quiet=not progress)
    with (
        worker_pool(name="index") as pool,
        progress_bar(console, "indexing shards", len(locations)) as advance,
    ):
        for file_and_index in pool.map(lambda location: _cached_index(location, options, cache), locations):
            indexed.append(file_and_index)
            advance(len(indexed))
    source = ShardSource(indexed, options, cache)
    if not len(source):
        reason = " (first problem: {}: {})".format(*source.skipped[0]) if source.skipped else ""
        raise UserError(
            f"there are no {options.kind} in the {counted(len(indexed), 'shards')} at {address}{reason}: "
            f"check --{options.kind}"
        )
    return source


class ShardSource(IndexedSource):
    """Images or clips in tar shards; thread-safe. Far cheaper to read a few shards at a time, so it shuffles itself."""

    def __init__(self, indexed: Sequence[tuple[ShardFile, Index]], options: ShardOptions, cache: Path):
        self.files, self.options = [file for file, _ in indexed], options
        indices = [index for _, index in indexed]
        labelled = list(zip(_labels(self.files), indices, strict=True))
        entries = [entry for index in indices for entry in index.entries]
        self.names = [f"{label}/{entry.name}" for label, index in labelled for entry in index.entries]
        self.skipped = [(f"{label}/{name}", reason) for label, index in labelled for name, reason in index.skipped]
        self.sizes = np.array([(entry.height, entry.width) for entry in entries], np.int64).reshape(-1, 2)
        self.counts = np.array([entry.frames for entry in entries], np.int64)
        self._shards: Items = np.repeat(np.arange(len(indexed)), [len(index.entries) for index in indices])
        self._plain = np.array([entry.plain for entry in entries], bool)
        members = np.array([len(entry.offsets) for entry in entries], np.int64)
        self._is_video = (members == 1) & (self.counts > 1)
        self._first = np.cumsum(members) - members
        self._offsets = np.array([offset for entry in entries for offset in entry.offsets], np.int64)
        self._lengths = np.array([length for entry in entries for length in entry.lengths], np.int64)
        self._checksums = np.array([checksum for entry in entries for checksum in entry.checksums], np.int64)
        self._cache = self._open_cache(cache)
        self._next_shard: dict[int, int] = {}

    def _open_cache(self, cache: Path) -> ShardCache | None:
        remote = sorted(file.size for file in self.files if file.local is None)
        limit = int(self.options.cache_gb * 10**9)
        if not remote or not limit:
            return None
        # two tasks read clips, each in its own order
        streams = 2 if self.options.kind == "videos" else 1
        processes = local_world_size()
        needed = sum(remote[-processes * (streams * self.options.window + PREFETCHED) :])
        if needed > limit:
            each = "" if processes == 1 else f" for each of {processes} processes"
            raise UserError(
                f"data.shard_window {self.options.window}{each} needs copies of up to {decimal(needed)} of shards at a "
                f"time, more than data.shard_cache_gb {self.options.cache_gb:g} allows: lower the former or raise the "
                "latter"
            )
        return ShardCache(cache / SHARD_FOLDER / self.options.kind, limit)

    def read(self, item: int, frames: Sequence[int]) -> Pixels:
        """Read the chosen frames of one item, as (len(frames), height, width, 3) RGB."""
        self.check_frames(item, frames)
        if self._is_video[item]:
            return self._read_video(item, frames)
        return np.stack([decode(encoded) for encoded in self.read_encoded(item, frames)])

    @property
    def encoded(self) -> bool:
        """Whether all items consist of images, so that `read_encoded` works for every one."""
        return not self._is_video.any()

    def read_encoded(self, item: int, frames: Sequence[int]) -> list[EncodedImage]:
        """Read the chosen frames of one item as they are stored in the shard, for `decode_batch`."""
        self.check_frames(item, frames)
        name, size, plain = self.names[item], self.size(item), bool(self._plain[item])
        memory_gb = self.options.limits.memory_gb
        return [EncodedImage(name, self._bytes(item, frame), *size, plain, memory_gb) for frame in frames]

    def order(self, items: Items, rng: np.random.Generator) -> Items:
        """Shuffle `items` for one epoch, a few shards at a time; return the positions in `items`."""
        positions, turns = windowed_order(self._shards[items], self.options.window, rng)
        # from now on these shards are read completely, so it pays to copy each of them before its turn
        self._next_shard = dict(zip(turns.tolist(), np.roll(turns, -1).tolist(), strict=True))
        return positions

    def rank_items(self, items: Items, seed: int, rank: int, world_size: int) -> Items:
        """Return the rank's slice of `items`: whole shards, the same ones in every epoch."""
        own: Items = items[assign_ranks(self._shards[items], seed, world_size) == rank]
        return own

    def _read_video(self, item: int, frames: Sequence[int]) -> Pixels:
        name, limits = self.names[item], memory_limit(self.options.limits.memory_gb)
        try:
            with (
                _temporary_file(self._bytes(item), name) as path,
                closing(read_frames(path, self.options.short_side, self.options.every, limits)) as clip,
            ):
                decoded = islice(clip, max(frames) + 1)
                chosen = {number: frame for number, frame in enumerate(decoded) if number in frames}
            return np.stack([chosen[frame] for frame in frames])
        except (BadMedia, KeyError) as problem:
            raise UserError(
                f"{name} has changed since its shard was indexed ({problem}): start again, which indexes it anew"
            ) from problem

    def _bytes(self, item: int, frame: int = 0) -> bytes:
        """Read a video file, or one frame of an item that consists of images."""
        shard, number = int(self._shards[item]), self._first[item] + frame
        columns = (self._offsets, self._lengths, self._checksums)
        file, member = self.files[shard], Member(*(int(column[number]) for column in columns))
        next_shard = self._next_shard.get(shard)
        if file.local is not None or self._cache is None or next_shard is None:
            return file.read(member)
        if self.files[next_shard].local is None:
            self._cache.prefetch(self.files[next_shard])
        return self._cache.read(file, member)


def windowed_order(shards: Items, window: int, rng: np.random.Generator) -> tuple[Items, Items]:
    """Shuffle samples that are stored in the given shards; return their positions, and the shards in order of use.

    The shards are arranged at random around a circle, one turn each; a sample comes at a random time within `window`
    turns from that of its shard. So `window` shards are mixed at any time, at both ends of the epoch too, and a new one
    begins as another ends. With at most `window` shards all orders are equally likely.
    """
    numbers, shard_of_sample = np.unique(shards, return_inverse=True)
    count = len(numbers)
    turns = rng.permutation(count)
    begin = np.argsort(turns)[shard_of_sample]
    time = (begin + min(window, count) * rng.random(len(shards))) % max(count, 1)
    return np.argsort(time, kind="stable"), numbers[turns]


def assign_ranks(shards: Items, seed: int, world_size: int) -> Items:
    """Return, for samples that are stored in the given shards, the rank that trains on each.

    A shard belongs to one rank for the whole run, so that its copy need not move. The largest are assigned first, each
    to the rank with the fewest samples so far, so that all ranks have about equally many.
    """
    numbers, shard_of_sample, counts = np.unique(shards, return_inverse=True, return_counts=True)
    if len(numbers) < world_size:
        raise UserError(
            f"{world_size} processes need at least {world_size} shards, but there are {len(numbers)}: "
            "start fewer processes or split the shards"
        )
    shuffled = numpy_rng(seed, "shards of processes").permutation(len(numbers))
    largest_first = shuffled[np.argsort(-counts[shuffled], kind="stable")]
    loads, ranks = np.zeros(world_size, np.int64), np.zeros(len(numbers), np.int64)
    for shard in largest_first:
        ranks[shard] = loads.argmin()
        loads[ranks[shard]] += counts[shard]
    return ranks[shard_of_sample]


def _labels(files: Sequence[ShardFile]) -> list[str]:
    """Prefixes for the names of items: the shards' file names, or their addresses if file names are not unique.

    File names stay the same when the shards are moved.
    """
    short = [PurePosixPath(file.path).name for file in files]
    return short if len(set(short)) == len(short) else [file.address for file in files]


def _cached_index(location: tuple[Any, str], options: ShardOptions, cache: Path) -> tuple[ShardFile, Index]:
    """Read the index of a shard from the cache, or build it and write it there."""
    file = stat_shard(*location)
    limits = options.limits
    within = f"{limits.max_pixels}-{limits.max_frames}-{limits.max_seconds:g}"
    name = f"{file.digest}-{options.kind}-{options.short_side}-{options.every}-{within}-{FORMAT}.index"
    path = cache / SHARD_FOLDER / name
    rows = read_index(path)
    outdated = rows is not None and heif_readable() and any(why == HEIF_REASON for _, why in rows["skipped"])
    if rows is not None and not outdated:
        with suppress(OSError):
            os.utime(path)  # for `unshuffle cache`, which tells when it was last used
        return file, Index([Entry(*row) for row in rows["entries"]], [(name, why) for name, why in rows["skipped"]])
    index = index_shard(file, options)
    file.check_unchanged()  # or the index would be half of one version and half of another
    write_index(path, index._asdict())
    return file, index


def index_shard(file: ShardFile, options: ShardOptions) -> Index:
    """Scan a shard and list its items; members of other kinds, such as labels, are ignored."""
    return file.scan(lambda raw: _index(raw, options))


def _index(raw: BinaryIO, options: ShardOptions) -> Index:
    good: dict[str, Entry] = {}
    bad: dict[str, str] = {}
    suffixes = image_suffixes() | (VIDEO_SUFFIXES if options.kind == "videos" else frozenset())
    for tar, member in _members(raw):
        check_stopped()
        name = str(PurePosixPath(member.name))
        if _suffix(name) not in suffixes:
            continue
        # of two members with one name the later counts, as when a tar is unpacked
        good.pop(name, None)
        bad.pop(name, None)
        try:
            good[name] = _entry(name, tar, member, options)
        except BadMedia as problem:
            bad[name] = str(problem)
    if options.kind == "videos":
        good, bad = _join_frames(good, bad, options.every)
    return Index([good[name] for name in sorted(good)], sorted(bad.items()))


def _members(raw: BinaryIO) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    """Visible files in a tar; raises an error if it is damaged, where tarfile alone would silently stop early."""
    with tarfile.open(fileobj=raw, mode="r:") as tar:
        for member in tar:
            hidden = any(part.startswith(".") for part in PurePosixPath(member.name).parts)
            if not member.isdir() and not hidden:
                yield tar, member
        raw.seek(tar.offset)
        if raw.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError("no header where the next one should be")


def _entry(name: str, tar: tarfile.TarFile, member: tarfile.TarInfo, options: ShardOptions) -> Entry:
    """Index one member as an item of its own."""
    content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise BadMedia("it is a link or a sparse file in the tar, and not all the bytes of a file")
    frames, plain = 1, False
    with content:
        is_video = options.kind == "videos" and _suffix(name) in VIDEO_SUFFIXES
        if not is_video and member.size > options.limits.memory_gb * 1e9:
            raise BadMedia(f"its {decimal(member.size)} are more than limits.memory_gb allows")
        data = content.read()
    if is_video:
        height, width, frames = _read_video_header(data, name, options)
    else:
        height, width, plain = read_image_header(data, options.short_side, options.limits)
    return Entry(name, height, width, frames, plain, [member.offset_data], [member.size], [zlib.crc32(data)])


def _read_video_header(data: bytes, name: str, options: ShardOptions) -> tuple[int, int, int]:
    """Height, width and number of frames; all frames are decoded to count them, as headers are often wrong."""
    with _temporary_file(data, name) as path:
        frames = read_frames(path, every=options.every, limits=options.limits)
        height, width, _ = next(frames).shape
        return *scaled_size((height, width), options.short_side), 1 + sum(1 for _ in frames)


def _join_frames(good: dict[str, Entry], bad: dict[str, str], every: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """Replace images that share a key by a clip; images that share the key of a video are its previews."""
    joined = {name: entry for name, entry in good.items() if entry.frames > 1}
    problems = {name: reason for name, reason in bad.items() if _suffix(name) in VIDEO_SUFFIXES}
    videos = {_key(name) for name in (*joined, *problems)}
    clips: dict[str, list[str]] = defaultdict(list)
    for name in sorted({**good, **bad}.keys() - joined.keys() - problems.keys(), key=_natural_order):
        if _key(name) not in videos:
            clips[_key(name)].append(name)
    for key, names in clips.items():
        unusable = [name for name in names if name in bad]
        frames = [good[name] for name in names if name in good][::every]
        if unusable:
            problems[key] = f"a frame cannot be used: {unusable[0]}: {bad[unusable[0]]}"
        elif len(frames) < MIN_FRAMES:
            problems[key] = f"a clip needs at least {MIN_FRAMES} frames and this one gives {len(frames)}"
        else:
            joined[key] = frames[0]._replace(
                name=key,
                frames=len(frames),
                plain=all(frame.plain for frame in frames),
                offsets=[frame.offsets[0] for frame in frames],
                lengths=[frame.lengths[0] for frame in frames],
                checksums=[frame.checksums[0] for frame in frames],
            )
    return joined, problems


def _key(name: str) -> str:
    """The WebDataset key: the path up to the first dot of the file's name."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.split(".", 1)[0]))


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _natural_order(name: str) -> list[str | int]:
    """Sort key that puts 2 before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]


@contextmanager
def _temporary_file(data: bytes, name: str) -> Iterator[Path]:
    """Write bytes to a temporary file with the suffix of `name`, by which some decoders choose the format."""
    with NamedTemporaryFile(suffix=_suffix(name)) as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
