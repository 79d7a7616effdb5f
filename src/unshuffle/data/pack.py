"""Packing a folder of images or videos into a store: in parallel, and resumed after an interruption."""

import errno
import hashlib
import os
import re
import shutil
from collections import deque
from collections.abc import Collection, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import numpy as np
from rich.console import Console
from rich.filesize import decimal

from unshuffle.config import DataConfig, LimitsConfig
from unshuffle.console import progress as progress_bar
from unshuffle.console import say
from unshuffle.data.inventory import Inventory, take_inventory
from unshuffle.data.media import (
    DEFAULT_LIMITS,
    HEIF_REASON,
    MIN_FRAMES,
    VIDEO_SUFFIXES,
    BadMedia,
    check_short_side,
    count_frames,
    encode_jpeg,
    file_status,
    heif_readable,
    read_frames,
    read_image,
    read_image_size,
    read_video_header,
    scaled_size,
)
from unshuffle.data.shard_files import is_shards
from unshuffle.data.store import DATA, HEADER, INDEX, SKIPPED, Encoding, Header, Kind, Record, Store, Writer
from unshuffle.errors import UserError
from unshuffle.files import DRAFT_SUFFIX, locked
from unshuffle.stopping import worker_pool
from unshuffle.wording import counted, ignored_words

DEFAULT_SHORT_SIDE: dict[Kind, int] = {"images": 256, "videos": 128}
FORECAST_MARGIN = 1.1  # packing stops early only if the expected size exceeds the free space by this factor
_CACHED_NAME = re.compile(r".*-(images|videos)-[0-9a-f]{12}", re.DOTALL)
PROBED_FILES = 500  # files whose headers are read to estimate the size of a store
JPEG_MARGIN = 2.0  # the same before packing as JPEG, whose size is not known before
JPEG_FRACTION = 1 / 8  # size of a JPEG of quality 90 divided by that of its pixels: 0.09 at 256 px, 0.14 at 96 px


class PackOptions(TypedDict, total=False):
    """How files become items."""

    short_side: int | None
    """Pixels of the short side; default: 256 for images, 128 for videos."""
    encoding: Literal["auto", "raw", "jpeg"]
    """"raw", "jpeg" or "auto" (the default): raw, unless that is expected to take more than `max_raw_gb`."""
    max_raw_gb: float
    """With "auto": largest expected size in GB of a raw store; default: 10."""
    quality: int
    """JPEG quality, 1 to 100; default: 90."""
    every: int
    """Keep every n-th frame of a video; default: 1."""
    clip_frames: int
    """Cut videos with twice as many frames or more into windows of so many; 0 (the default): store them whole."""
    clips_per_video: int
    """Windows of a video at most; default: 8."""
    only: Collection[str] | None
    """Names of the files to pack, relative to the folder; default: all."""
    limits: LimitsConfig
    """What decoding one file may take; files that need more are skipped."""


@dataclass(frozen=True)
class _Job:
    """The files to pack, by name and in order, and the header of their store."""

    folder: Path
    inventory: Inventory
    sizes: Mapping[str, int]
    """Size of each file in bytes."""
    header: Header
    limits: LimitsConfig
    cached: bool
    """Whether the store goes into the cache of a run, not into the output folder of `unshuffle pack`."""
    max_raw_bytes: float | None
    """Largest expected size of a raw store, if the encoding is chosen by it."""

    @property
    def files(self) -> Mapping[str, Path]:
        """The files by name."""
        return self.inventory.files

    def encoded(self, encoding: Encoding, quality: int) -> "_Job":
        """Return the same job for another encoding."""
        # Options without effect must not give equal stores different headers.
        header = replace(self.header, encoding=encoding, quality=quality if encoding == "jpeg" else None)
        return replace(self, header=header)

    @cached_property
    def expected(self) -> dict[str, int]:
        """Expected size of each file in a raw store in bytes, from the headers of some of them."""
        names = list(self.files)
        spaced = np.unique(np.linspace(0, len(names) - 1, min(PROBED_FILES, len(names))).round().astype(int))
        probed: dict[str, int] = {}
        for name in (names[position] for position in spaced):
            with suppress(BadMedia):
                probed[name] = _raw_bytes(self.files[name], self.header)
        if len(spaced) == len(names):
            return {name: probed.get(name, 0) for name in names}
        # Packed images are of about equal size; the length of a video is about proportional to its file size.
        weights = self.sizes if self.header.kind == "videos" else dict.fromkeys(names, 1)
        scale = sum(probed.values()) / max(1, sum(weights[name] for name in probed))
        return {name: probed.get(name, round(scale * weights[name])) for name in names}

    @property
    def expected_bytes(self) -> int:
        """Expected size of the store."""
        raw = sum(self.expected.values())
        return raw if self.header.encoding == "raw" else round(JPEG_FRACTION * raw)


def pack(
    kind: Kind,
    src: Path,
    out: Path,
    *,
    workers: int | None = None,
    progress: bool = True,
    **options: Unpack[PackOptions],
) -> Store:
    """Decode every image or video of `src` into a store at `out`, or continue an interrupted packing.

    The bytes depend neither on the number of workers nor on interruptions, as long as no file takes longer than
    `limits.max_seconds`. Files that cannot be used are left out and listed in `Store.skipped`. A complete store of the
    same files and options is returned at once.
    """
    if is_shards(str(src)) or ":/" in str(src):  # a Path has lost one slash of s3://
        raise UserError(f"{src} means tar shards, which only pretrain, doctor and bench read: unpack them to a folder")
    jobs = _plan(kind, src, cached=False, **options)
    begun = [job for job in jobs if (out / HEADER).exists() and Header.load(out).encoding == job.header.encoding]
    store = _run(_choose(jobs, begun), out, workers, progress)
    if _lacks_heif(store):
        raise UserError(f"{out} was packed before pillow-heif was installed: delete it to pack it again")
    return store


def _lacks_heif(store: Store) -> bool:
    """Return whether a store was packed before HEIC images could be read, and could hold more now."""
    return heif_readable() and any(reason == HEIF_REASON for _, reason in store.skipped)


def cached_store(
    kind: Kind,
    folder: Path,
    cache: Path,
    *,
    workers: int | None = None,
    progress: bool = True,
    **options: Unpack[PackOptions],
) -> Store:
    """Open `folder` if it is a store; otherwise pack it into a store under `cache`, or open the one packed earlier."""
    if Store.is_store(folder):
        store = Store(folder)
        if store.kind != kind:
            raise UserError(f"{folder} is a store of {store.kind}, but {kind} are needed: give it as --{store.kind}")
        return store
    jobs = _plan(kind, folder, cached=True, **options)
    paths = {job.header.encoding: _cached_path(job, cache) for job in jobs}
    begun = [job for job in jobs if (paths[job.header.encoding] / HEADER).exists()]
    job = _choose(jobs, sorted(begun, key=lambda job: not _is_complete(job, paths[job.header.encoding])))
    path = paths[job.header.encoding]
    store = _run(job, path, workers, progress)
    if _lacks_heif(store):
        clear_store(path)
        store = _run(job, path, workers, progress)
    with suppress(OSError):  # a cache may be read-only
        os.utime(path / HEADER)  # for `unshuffle cache`, which tells when a store was last used
    return store


def clear_store(folder: Path) -> int:
    """Delete the files of a store and its folder, unless that has other files too; return the bytes that are freed."""
    freed = 0
    with locked(folder / DATA, f"{folder} is being packed by another process: wait for its end, or stop it"):
        for path in sorted(folder.iterdir(), key=lambda path: path.name != HEADER):  # a store without header is none
            if _belongs_to_store(path.name) and not path.is_dir():
                freed += path.lstat().st_size
                path.unlink()
    with suppress(OSError):
        folder.rmdir()
    return freed


def is_cached_store(folder: Path) -> bool:
    """Return whether a folder in the cache is a store that was packed there, complete or not."""
    if folder.is_symlink() or not folder.is_dir() or not _CACHED_NAME.fullmatch(folder.name):
        return False
    return Store.is_store(folder) or all(_belongs_to_store(path.name) for path in folder.iterdir())


def _cached_path(job: _Job, cache: Path) -> Path:
    values = asdict(job.header)
    del values["origin"]
    if not job.header.clip_frames:  # as in versions without windows, whose stores are the same
        del values["clip_frames"], values["clips_per_video"]
    folder = job.folder.resolve()
    digest = hashlib.sha256(os.fsencode(f"{folder}\n{sorted(values.items())}")).hexdigest()[:12]
    return cache / f"{folder.name}-{job.header.kind}-{digest}"


def _choose(jobs: Sequence[_Job], begun: Sequence[_Job]) -> _Job:
    """Return the job whose encoding is to be used: the one begun, or the first whose store is expected to be small."""
    if begun or len(jobs) == 1:
        return (*begun, *jobs)[0]
    raw, jpeg = jobs
    return jpeg if raw.max_raw_bytes is not None and raw.expected_bytes > raw.max_raw_bytes else raw


def _plan(
    kind: Kind,
    src: Path,
    *,
    cached: bool,
    short_side: int | None = None,
    encoding: Literal["auto", "raw", "jpeg"] = "auto",
    max_raw_gb: float = DataConfig.max_raw_gb,
    quality: int = 90,
    every: int = 1,
    clip_frames: int = 0,
    clips_per_video: int = DataConfig.clips_per_video,
    only: Collection[str] | None = None,
    limits: LimitsConfig = DEFAULT_LIMITS,
) -> list[_Job]:
    """Return the job, or one for each encoding if it is yet to be chosen."""
    short_side = DEFAULT_SHORT_SIDE[kind] if short_side is None else short_side
    check_short_side(short_side)
    if not 1 <= quality <= 100:
        raise UserError(f"the JPEG quality must be between 1 and 100, not {quality}")
    if every < 1:
        raise UserError(f"keeping every n-th frame needs n of at least 1, not {every}")
    if clip_frames and clip_frames < MIN_FRAMES:
        raise UserError(f"a window of {clip_frames} frames is too short: give {MIN_FRAMES} or more, or 0 for none")
    inventory = _find(kind, src, cached)
    if only is not None:  # what is not asked for is not ignored either
        inventory = Inventory({name: path for name, path in inventory.files.items() if name in only}, {})
    statuses = {name: file_status(path) for name, path in inventory.files.items()}
    fingerprint = hashlib.sha256()
    for name, status in statuses.items():
        fingerprint.update(os.fsencode(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    header = Header(
        kind=kind,
        encoding="raw",
        quality=None,
        short_side=short_side,
        every=every if kind == "videos" else 1,
        source=fingerprint.hexdigest(),
        max_pixels=limits.max_pixels,
        max_frames=limits.max_frames if kind == "videos" else None,
        max_seconds=limits.max_seconds,
        clip_frames=clip_frames if kind == "videos" else 0,
        clips_per_video=clips_per_video if kind == "videos" and clip_frames else 0,
        origin=str(src.absolute()) if cached else "",  # a store that is given away should not name folders
    )
    sizes = {name: status.st_size for name, status in statuses.items()}
    job = _Job(src, inventory, sizes, header, limits, cached, max_raw_gb * 1e9 if encoding == "auto" else None)
    encodings: Sequence[Encoding] = ("raw", "jpeg") if encoding == "auto" else (encoding,)
    return [job.encoded(name, quality) for name in encodings]


def _find(kind: Kind, src: Path, cached: bool) -> Inventory:
    inventory = take_inventory(src, kind)
    if not inventory.files:
        looked_for, other = ".jpg, .png, .webp and other common formats", "videos"
        if kind == "videos":
            looked_for, other = ", ".join(sorted(VIDEO_SUFFIXES)), "images"
        command = "--" if cached else "pack "
        ignored = f"; {ignored_words(inventory.ignored)}" if inventory.ignored else ""
        raise UserError(
            f"no {kind} found in {src} (looked for {looked_for}, by name and by content{ignored}): "
            f"check the path, or use {command}{other}"
        )
    return inventory


def _raw_bytes(path: Path, header: Header) -> int:
    """Return the size of a file in a raw store, as its own header has it."""
    if header.kind == "images":
        width, height = scaled_size(read_image_size(path), header.short_side)
        return 3 * width * height
    facts = read_video_header(path)
    width, height = scaled_size((max(1, facts.width), max(1, facts.height)), header.short_side)
    frames = -(-facts.frames // header.every)
    spans = _windows(frames, header)
    return 3 * width * height * (frames if spans is None else sum(map(len, spans)))


def _windows(frames: int, header: Header) -> list[range] | None:
    """Return the windows of a video with so many frames; None if it is stored whole.

    Each window is in the middle of an equal part of the video.
    """
    length = header.clip_frames or 0
    if not length or frames < 2 * length:
        return None
    count = min(header.clips_per_video or 1, frames // length)
    starts = [((2 * number + 1) * frames // count - length) // 2 for number in range(count)]
    return [range(start, start + length) for start in starts]


def _run(job: _Job, out: Path, workers: int | None, progress: bool) -> Store:
    if workers is not None and workers < 1:
        raise UserError(f"the number of workers must be at least 1, not {workers}")
    try:
        _create_folder(out)
        if not _is_complete(job, out):
            with locked(out / DATA):
                if not _is_complete(job, out):  # by another process, while this one waited for the lock
                    _fill(job, out, workers or os.cpu_count() or 1, Console(stderr=True, quiet=not progress))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_room(job, out, f"there is no space left on the disk of {out}") from error
    store = Store(out)
    store.ignored = job.inventory.ignored
    return store


def _no_room(job: _Job, out: Path, problem: str) -> UserError:
    """Return an error that names the options of the running command for a smaller store or another disk."""
    option, side, folder = "--", "short_side", "an output folder"
    if job.cached:
        option, folder = "--data.", "a --data.cache"
        side = "image_short_side" if job.header.kind == "images" else "frame_short_side"
    jpeg = f"{option}encoding jpeg, " if job.header.encoding == "raw" else ""
    clips = f"fewer {option}clips_per_video, " if job.header.clip_frames else ""
    again, delete = "", ""
    if (out / HEADER).exists():
        again, delete = ", which continues where this one stopped", f"delete {out} and "
    return UserError(
        f"{problem}: free some space and run the same command again{again}, "
        f"or {delete}choose {jpeg}{clips}a smaller {option}{side} or {folder} on a larger disk"
    )


def _create_folder(out: Path) -> None:
    """Create the store's folder; raise a UserError if it exists and contains other files than a store's."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, but a store is a folder: choose another output folder")
    out.mkdir(parents=True, exist_ok=True)
    if not (out / HEADER).exists() and not all(_belongs_to_store(path.name) for path in out.iterdir()):
        raise UserError(f"{out} contains other files and no store: choose a new or an empty folder")


def _belongs_to_store(name: str) -> bool:
    """Whether a store has such a file, or a killed process may have left it."""
    return name in (HEADER, DATA, INDEX, SKIPPED) or (name.startswith(HEADER) and name.endswith(DRAFT_SUFFIX))


def _is_complete(job: _Job, out: Path) -> bool:
    """Whether the store is complete; raise a UserError if it has other options or was packed from other files."""
    if not (out / HEADER).exists():
        return False
    existing, expected = asdict(Header.load(out)), asdict(job.header)
    complete = bool(existing.pop("complete"))
    del existing["origin"]
    for name in ("clip_frames", "clips_per_video"):  # absent in the stores of versions without windows
        existing[name] = existing[name] or 0
    unlimited = {name for name in ("max_pixels", "max_frames", "max_seconds") if existing[name] is None}
    differing = [name for name in existing if existing[name] != expected[name] and name not in unlimited]
    if not differing:
        return complete
    cause = f"from other files than those now in {job.folder}"
    if differing != ["source"]:
        options = [f"{name} {existing[name]}, not {expected[name]}" for name in differing if name != "source"]
        cause = f"with {' and '.join(options)}"
    raise UserError(f"{out} was packed {cause}: choose another output folder, or delete {out} to pack it again")


def _announce(job: _Job, out: Path, console: Console) -> None:
    """Print the expected size of the store before packing; raise a UserError if the disk is too small for it."""
    data = out / DATA
    written, free = data.stat().st_size if data.exists() else 0, shutil.disk_usage(out).free
    size = f"about {decimal(job.expected_bytes)}"
    margin = FORECAST_MARGIN if job.header.encoding == "raw" else JPEG_MARGIN
    if job.expected_bytes - written > margin * free:
        raise _no_room(job, out, f"{job.folder} needs {size} as a store in {out}, and only {decimal(free)} are free")
    how = "as raw pixels" if job.header.encoding == "raw" else "as JPEG"
    if job.header.encoding == "jpeg" and job.max_raw_bytes is not None:
        option = "data.max_raw_gb" if job.cached else "max_raw_gb"
        how += f", since raw pixels would take more than {option} ({job.max_raw_bytes / 1e9:g} GB)"
    files = counted(len(job.files), job.header.kind)
    say(console, f"packing {files} of {job.folder} into {out}: {size} {how}; {decimal(free)} are free")


def _fill(job: _Job, out: Path, workers: int, console: Console) -> None:
    kind = job.header.kind
    _announce(job, out, console)
    job.header.save(out)
    with (
        closing(Writer(out, job.header)) as writer,
        progress_bar(console, f"packing {kind}", len(job.files), done=len(writer.done)) as advance,
    ):
        forecast = _SizeForecast(job, out, writer)
        remaining = {name: path for name, path in job.files.items() if name not in writer.done}
        # Closed at once on an error, or its threads would continue to decode for as long as the traceback lives.
        with closing(_encode_all(remaining, job, out, workers)) as results:
            for name, result in results:
                if isinstance(result, BadMedia):
                    writer.skip(name, str(result))
                else:
                    writer.add(name, _item_names(name, result, job.files))
                expected = forecast.after(name)
                size = "" if expected is None else f", about {decimal(expected)}"
                advance(len(writer.done), f"{len(writer.skipped)} skipped{size}")
        if not writer.size:
            name, reason = writer.skipped[0]
            raise UserError(
                f"no readable {kind.removesuffix('s')} in {job.folder} "
                f"({counted(len(job.files), 'files')} tried; first problem: {name}: {reason}): check the files, which "
                f"are all listed in {out / SKIPPED}"
            )
        writer.finish()


class _SizeForecast:
    """The expected size of the store, extrapolated from the files packed so far."""

    def __init__(self, job: _Job, out: Path, writer: Writer):
        self._job, self._out, self._writer = job, out, writer
        self._done = sum(size for name, size in job.expected.items() if name in writer.done)
        self._total = sum(job.expected.values())
        self._capacity = self._current_capacity()

    def after(self, name: str) -> int | None:
        """Expected size after one more file, None while too few are packed; a UserError if the disk is too small."""
        self._done += self._job.expected[name]
        if not self._done or len(self._writer.done) < min(50, 5 + len(self._job.files) // 20):
            return None
        written = self._writer.size
        expected = written * self._total // self._done
        if expected > FORECAST_MARGIN * self._capacity:
            # It grows if files are deleted meanwhile; records that are not yet written shrink it only temporarily.
            self._capacity = max(self._capacity, self._current_capacity())
        if expected > FORECAST_MARGIN * self._capacity:
            problem = (
                f"{self._job.folder} needs about {decimal(expected)} as a store in {self._out}, "
                f"{decimal(written)} of it are written, and only {decimal(self._capacity - written)} are free"
            )
            raise _no_room(self._job, self._out, problem)
        return expected

    def _current_capacity(self) -> int:
        """Return the largest size that the store can reach."""
        return self._writer.size + shutil.disk_usage(self._out).free


def _item_names(file: str, records: Sequence[Record], files: Mapping[str, Path]) -> dict[str, Record]:
    """Return the items of a file by name: that of the file, with the number of the window if there are several."""
    if len(records) == 1:
        return {file: records[0]}
    names = [f"{file}#{number}" for number in range(1, len(records) + 1)]
    while any(name in files for name in names):
        names = [f"{name}#" for name in names]
    return dict(zip(names, records, strict=True))


def _encode_all(
    files: Mapping[str, Path], job: _Job, out: Path, workers: int
) -> Generator[tuple[str, list[Record] | BadMedia]]:
    """Results in the order of the files; only a few are in progress at a time, so that memory stays bounded."""
    pending: deque[Future[tuple[str, list[Record] | BadMedia]]] = deque()
    with worker_pool(workers, "pack") as pool:
        for name, path in files.items():
            pending.append(pool.submit(_encode_file, name, path, job, out))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _encode_file(name: str, path: Path, job: _Job, out: Path) -> tuple[str, list[Record] | BadMedia]:
    """Return the name with the windows of a file, one as a rule, or with the problem if the file cannot be used."""
    records, header, spans = [Record(out)], job.header, None
    try:
        if header.kind == "images":
            frames = iter([read_image(path, header.short_side, job.limits)])
        else:
            if header.clip_frames:
                spans = _windows(-(-count_frames(path, job.limits) // header.every), header)
            frames = read_frames(path, header.short_side, header.every, job.limits, spans)
        for number, frame in enumerate(frames):
            if spans is not None and number == sum(map(len, spans[: len(records)])):
                records.append(Record(out))
            chunk = frame.tobytes() if header.quality is None else encode_jpeg(frame, header.quality)
            records[-1].append(frame, chunk)
        if len(records) > 1 and len(records[-1].lengths) < MIN_FRAMES:  # the end of a video that is truncated
            records.pop().close()
    except BaseException as problem:
        for record in records:
            record.close()
        if isinstance(problem, BadMedia):
            return name, problem
        raise
    return name, records
