"""Tar shards of images or clips, in the WebDataset convention, as a source: nothing is unpacked, and any item is near.

A shard is read through once, to note where each item lies and how large it is; that index is kept. An item is then a
range of bytes. Clips are frames that share a name up to its first dot (`run.000.jpg`, `run.001.jpg`), or video files.
"""

import json
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from tempfile import NamedTemporaryFile
from typing import Any, BinaryIO, NamedTuple, TypeVar, cast

import numpy as np
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unshuffle.data.addresses import ShardFile, find_shards, look_up, reading
from unshuffle.data.decode import decode
from unshuffle.data.images import image_suffixes, peek_image
from unshuffle.data.media import BadMedia, check_not_empty, check_short_side, explain, scaled_size
from unshuffle.data.shard_cache import ShardCache, read_local
from unshuffle.data.share import local_processes
from unshuffle.data.source import Encoded, Items, Pixels
from unshuffle.data.store import Kind
from unshuffle.data.videos import MIN_FRAMES, VIDEO_SUFFIXES, read_frames
from unshuffle.errors import UserError
from unshuffle.randomness import numpy_rng
from unshuffle.wording import counted

T = TypeVar("T")
FORMAT = 1  # of the index; another one is made anew
GIGABYTE = 10**9
AHEAD = 2  # shards that are fetched before their turn


@dataclass(frozen=True)
class ShardOptions:
    """How members become items, and how shards are gone through."""

    kind: Kind
    short_side: int
    every: int = 1
    """Keep every n-th frame of a clip."""
    window: int = 8
    """Shards that an epoch mixes at a time."""
    cache_gb: float = 20.0
    """Disk space for copies of remote shards; 0: no copies, each item is asked for by itself."""

    def __post_init__(self) -> None:
        check_short_side(self.short_side)


class Entry(NamedTuple):
    """One item of a shard as its index has it."""

    name: str
    height: int
    width: int
    frames: int
    plain: bool
    offsets: list[int]
    """Where its members begin: one for each frame, or a single one that holds all."""
    lengths: list[int]


@dataclass(frozen=True)
class Index:
    """What is in one shard."""

    entries: list[Entry]
    skipped: list[tuple[str, str]]
    """Name and reason for each member that cannot be used."""


def open_shards(address: str, options: ShardOptions, cache: Path, progress: bool = True) -> "ShardSource":
    """The items of all shards that an address means; the shards that are new are read through, in parallel."""
    found = find_shards(address)
    pool = ThreadPoolExecutor(thread_name_prefix="index")
    try:
        indexed = pool.map(lambda shard: _look_up_and_index(shard, options, cache), found)
        files, indices = zip(*_counted(indexed, len(found), progress), strict=True)
    finally:
        pool.shutdown(cancel_futures=True)
    source = ShardSource(files, indices, options, cache)
    if not len(source):
        reason = "; the first problem: {}: {}".format(*source.skipped[0]) if source.skipped else ""
        raise UserError(f"there are no {options.kind} in the {counted(len(files), 'shards')} at {address}{reason}")
    return source


class ShardSource:
    """Images or clips in tar files; safe to read from threads."""

    def __init__(self, files: Sequence[ShardFile], indices: Sequence[Index], options: ShardOptions, cache: Path):
        self.files, self.options = files, options
        labels = _labels(files)
        pairs = [(label, entry) for label, index in zip(labels, indices, strict=True) for entry in index.entries]
        entries = [entry for _, entry in pairs]
        self._names = [f"{label}/{entry.name}" for label, entry in pairs]
        self.skipped = [
            (f"{label}/{name}", reason)
            for label, index in zip(labels, indices, strict=True)
            for name, reason in index.skipped
        ]
        self._shards: Items = np.repeat(np.arange(len(files)), [len(index.entries) for index in indices])
        self._sizes = np.array([(entry.height, entry.width) for entry in entries], np.int32).reshape(-1, 2)
        self._frames = np.array([entry.frames for entry in entries], np.int32)
        self._plain = np.array([entry.plain for entry in entries], bool)
        self._members = np.array([len(entry.offsets) for entry in entries], np.int64)
        self._first = np.cumsum(self._members) - self._members
        self._offsets = np.array([offset for entry in entries for offset in entry.offsets], np.int64)
        self._lengths = np.array([length for entry in entries for length in entry.lengths], np.int64)
        self._cache = self._open_cache(cache)
        self._next: dict[int, int] = {}

    def _open_cache(self, cache: Path) -> ShardCache | None:
        remote = sorted(file.size for file in self.files if file.local is None)
        limit = int(self.options.cache_gb * GIGABYTE)
        if not remote or not limit:
            return None
        # clips are gone through by two tasks, each in its own order
        streams = 2 if self.options.kind == "videos" else 1
        processes = local_processes()
        needed = sum(remote[-processes * (streams * self.options.window + AHEAD) :])
        if needed > limit:
            each = "" if processes == 1 else f" for each of {processes} processes"
            raise UserError(
                f"data.shard_window {self.options.window}{each} means copies of up to {decimal(needed)} of shards at a "
                f"time, more than data.shard_cache_gb {self.options.cache_gb:g} allows: lower one or raise the other"
            )
        return ShardCache(cache / "shards" / self.options.kind, limit)

    @property
    def names(self) -> Sequence[str]:
        """Shard and path within it."""
        return self._names

    def __len__(self) -> int:
        """Number of items."""
        return len(self._names)

    def num_frames(self, item: int) -> int:
        """Number of frames of one item: 1 for an image."""
        return int(self._frames[item])

    def size(self, item: int) -> tuple[int, int]:
        """Height and width of an item's frames as they are read, which is after the resize."""
        height, width = self._sizes[item]
        return int(height), int(width)

    def read(self, item: int, frames: Sequence[int]) -> Pixels:
        """The chosen frames of one item, as (len(frames), height, width, 3) RGB."""
        self._check_frames(item, frames)
        if self._is_video(item):
            return self._read_video(item, frames)
        return np.stack([decode(encoded) for encoded in self.read_encoded(item, frames)])

    @property
    def encoded(self) -> bool:
        """Whether all items are made of images, so that `read_encoded` serves every one."""
        return not bool(((self._members == 1) & (self._frames > 1)).any())

    def read_encoded(self, item: int, frames: Sequence[int]) -> list[Encoded]:
        """The chosen frames of one item as they lie in the shard, for `decode_batch`."""
        self._check_frames(item, frames)
        members = [int(self._first[item]) + frame for frame in frames]
        name, size, plain = self._names[item], self.size(item), bool(self._plain[item])
        return [Encoded(name, self._bytes(item, member), *size, plain) for member in members]

    def order(self, items: Items, rng: np.random.Generator) -> Items:
        """Positions in `items` for one epoch: all of them once, from a few shards at a time."""
        positions, turns = windowed_order(self._shards[items], self.options.window, rng)
        # from here on these shards are read from end to end, so it pays to copy them, each before its turn
        self._next = dict(zip(turns.tolist(), np.roll(turns, -1).tolist(), strict=True))
        return positions

    def share(self, items: Items, seed: int, rank: int, world: int) -> Items:
        """Those of `items` that one of `world` processes trains on: whole shards, the same ones in every epoch."""
        mine: Items = items[owners(self._shards[items], seed, world) == rank]
        return mine

    def _is_video(self, item: int) -> bool:
        return bool(self._members[item] == 1 < self._frames[item])

    def _check_frames(self, item: int, frames: Sequence[int]) -> None:
        count = self.num_frames(item)
        for frame in frames:
            if not 0 <= frame < count:
                raise IndexError(f"{self._names[item]} has {count} frames, so none has number {frame}")

    def _read_video(self, item: int, frames: Sequence[int]) -> Pixels:
        data, name = self._bytes(item, int(self._first[item])), self._names[item]
        try:
            with _as_file(data, name) as path:
                decoded = islice(read_frames(path, self.options.short_side, self.options.every), max(frames) + 1)
                kept = {number: frame for number, frame in enumerate(decoded) if number in frames}
            return np.stack([kept[frame] for frame in frames])
        except (BadMedia, KeyError) as problem:
            raise UserError(f"{name} is not what it was when its shard was indexed: {problem}") from problem

    def _bytes(self, item: int, member: int) -> bytes:
        shard = int(self._shards[item])
        file, offset, length = self.files[shard], int(self._offsets[member]), int(self._lengths[member])
        if file.local is not None:
            with reading(file.address):
                return read_local(file.local, offset, length)
        following = self._next.get(shard)
        if self._cache is None or following is None:
            return file.read_range(offset, length)
        if self.files[following].local is None:
            self._cache.ahead(self.files[following])
        return self._cache.read(file, offset, length)


def windowed_order(shards: Items, window: int, rng: np.random.Generator) -> tuple[Items, Items]:
    """An order of samples that lie in the given shards, and the shards in the order of their turns.

    The shards take turns at random, one after another around a circle; a sample comes at a random time within `window`
    turns from that of its shard. So at any time `window` shards are mixed, at the ends of the epoch too, and one is new
    as another is done. With no more shards than that the order is uniform.
    """
    numbers, which = np.unique(shards, return_inverse=True)
    count = len(numbers)
    turns = rng.permutation(count)
    begin = np.argsort(turns)[which]
    time = (begin + min(window, count) * rng.random(len(shards))) % max(count, 1)
    return np.argsort(time, kind="stable"), numbers[turns]


def owners(shards: Items, seed: int, world: int) -> Items:
    """For samples that lie in the given shards, the process that trains on each.

    A shard belongs to one process for the whole run, so that its copy need not move; the largest are dealt first, each
    to the process that has the least, so that all have about as many samples.
    """
    numbers, which, counts = np.unique(shards, return_inverse=True, return_counts=True)
    if len(numbers) < world:
        raise UserError(f"{world} processes need {world} shards or more to divide, and there are {len(numbers)}")
    dealt = numpy_rng(seed, "shards of processes").permutation(len(numbers))
    dealt = dealt[np.argsort(-counts[dealt], kind="stable")]
    loads, owner = np.zeros(world, np.int64), np.zeros(len(numbers), np.int64)
    for shard in dealt:
        owner[shard] = loads.argmin()
        loads[owner[shard]] += counts[shard]
    return owner[which]


def _labels(files: Sequence[ShardFile]) -> list[str]:
    """What the names of items begin with: the shards' file names, which a move does not change, if they differ."""
    short = [PurePosixPath(file.path).name for file in files]
    return short if len(set(short)) == len(short) else [file.address for file in files]


def _counted(indexed: Iterable[T], total: int, shown: bool) -> Iterator[T]:
    """The same, with a bar on the error stream."""
    columns = (TextColumn("indexing shards"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        yield from bar.track(indexed, total)


def _look_up_and_index(found: tuple[Any, str], options: ShardOptions, cache: Path) -> tuple[ShardFile, Index]:
    file = look_up(*found)
    kept = cache / "shards" / f"{file.digest}-{options.kind}-{options.short_side}-{options.every}-{FORMAT}.json"
    try:
        rows = json.loads(kept.read_bytes())
        return file, Index([Entry(*row) for row in rows["entries"]], [(name, why) for name, why in rows["skipped"]])
    except (OSError, ValueError, KeyError, TypeError):  # none yet, or a broken one
        index = index_shard(file, options)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=kept.parent, suffix=".tmp", delete=False) as draft:
        json.dump({"entries": index.entries, "skipped": index.skipped}, draft)
    Path(draft.name).replace(kept)
    return file, index


def index_shard(file: ShardFile, options: ShardOptions) -> Index:
    """Read through a shard and note what is in it; members of other kinds, such as labels, are passed over."""
    good: dict[str, Entry] = {}
    bad: dict[str, str] = {}
    wanted = image_suffixes() | (VIDEO_SUFFIXES if options.kind == "videos" else frozenset())
    with reading(file.address), _damage_explained(file), file.fs.open(file.path, "rb") as raw:
        for tar, member in _members(raw):
            name = str(PurePosixPath(member.name))
            if _suffix(name) not in wanted:
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
    """The visible files in a tar; an error if it is damaged, where tarfile alone would take the rest for absent."""
    with tarfile.open(fileobj=raw, mode="r:") as tar:
        for member in tar:
            hidden = any(part.startswith(".") for part in PurePosixPath(member.name).parts)
            if not member.isdir() and not hidden:
                yield tar, member
        raw.seek(tar.offset)
        if raw.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError("no header where the next one should be")


@contextmanager
def _damage_explained(file: ShardFile) -> Iterator[None]:
    try:
        yield
    except tarfile.TarError as error:
        problem = f"is no tar file, or is damaged or cut off ({explain(error)})"
        raise UserError(f"{file.address} {problem}: make or copy it again") from error


def _entry(name: str, tar: tarfile.TarFile, member: tarfile.TarInfo, options: ShardOptions) -> Entry:
    """A member as an item by itself."""
    content = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if content is None:
        raise BadMedia("it is a link or a sparse file in the tar, and not all the bytes of a file")
    frames, plain = 1, False
    with content:
        if options.kind == "videos" and _suffix(name) in VIDEO_SUFFIXES:
            height, width, frames = _peek_video(content.read(), name, options)
        else:
            check_not_empty(content.read(1))
            content.seek(0)
            height, width, plain = peek_image(cast(BinaryIO, content), options.short_side)
    return Entry(name, height, width, frames, plain, [member.offset_data], [member.size])


def _peek_video(data: bytes, name: str, options: ShardOptions) -> tuple[int, int, int]:
    """Height, width and number of frames; the number by decoding all of them, as headers are often wrong."""
    with _as_file(data, name) as path:
        frames = read_frames(path, every=options.every)
        height, width, _ = next(frames).shape
        return *scaled_size((height, width), options.short_side), 1 + sum(1 for _ in frames)


def _join_frames(good: dict[str, Entry], bad: dict[str, str], every: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """Clips in place of the images that share a key; images beside a video of that key are its previews."""
    joined = {name: entry for name, entry in good.items() if entry.frames > 1}
    problems = {name: reason for name, reason in bad.items() if _suffix(name) in VIDEO_SUFFIXES}
    videos = {_key(name) for name in (*joined, *problems)}
    clips: dict[str, list[str]] = defaultdict(list)
    for name in sorted({**good, **bad}.keys() - joined.keys() - problems.keys(), key=_natural):
        if _key(name) not in videos:
            clips[_key(name)].append(name)
    for key, names in clips.items():
        broken = [name for name in names if name in bad]
        kept = [good[name] for name in names if name in good][::every]
        if broken:
            problems[key] = f"a frame cannot be used: {broken[0]}: {bad[broken[0]]}"
        elif len(kept) < MIN_FRAMES:
            problems[key] = f"a clip needs at least {MIN_FRAMES} frames and this one gives {len(kept)}"
        else:
            joined[key] = _clip(key, kept)
    return joined, problems


def _clip(key: str, frames: Sequence[Entry]) -> Entry:
    return Entry(
        key,
        frames[0].height,
        frames[0].width,
        len(frames),
        all(frame.plain for frame in frames),
        [frame.offsets[0] for frame in frames],
        [frame.lengths[0] for frame in frames],
    )


def _key(name: str) -> str:
    """The WebDataset key: the path up to the first dot of the file's name."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.split(".", 1)[0]))


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _natural(name: str) -> list[str | int]:
    """Sorts 2 before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"([0-9]+)", name)]


@contextmanager
def _as_file(data: bytes, name: str) -> Iterator[Path]:
    """The bytes as a file for decoders that want one, with the suffix by which some of them go."""
    with NamedTemporaryFile(suffix=_suffix(name)) as file:
        file.write(data)
        file.flush()
        yield Path(file.name)
