"""Packing a folder of images or videos into a store: in parallel, and resumed after an interruption."""

import errno
import hashlib
import os
import shutil
from collections import deque
from collections.abc import Collection, Generator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict, Unpack

from rich.console import Console
from rich.filesize import decimal

from unshuffle.config import LimitsConfig
from unshuffle.console import progress as progress_bar
from unshuffle.data.media import (
    DEFAULT_LIMITS,
    VIDEO_SUFFIXES,
    BadMedia,
    check_short_side,
    encode_jpeg,
    file_status,
    find_images,
    find_videos,
    read_frames,
    read_image,
)
from unshuffle.data.shard_files import is_shards
from unshuffle.data.store import DATA, HEADER, INDEX, SKIPPED, Encoding, Header, Kind, Record, Store, Writer
from unshuffle.errors import UserError
from unshuffle.files import DRAFT_SUFFIX, locked
from unshuffle.stopping import worker_pool
from unshuffle.wording import counted

DEFAULT_SHORT_SIDE: dict[Kind, int] = {"images": 256, "videos": 128}
FORECAST_MARGIN = 1.1  # packing stops early only if the expected size exceeds the free space by this factor


class PackOptions(TypedDict, total=False):
    """How files become items."""

    short_side: int | None
    """Pixels of the short side; default: 256 for images, 128 for videos."""
    encoding: Encoding
    """"raw" (the default) or "jpeg"."""
    quality: int
    """JPEG quality, 1 to 100; default: 90."""
    every: int
    """Keep every n-th frame of a video; default: 1."""
    only: Collection[str] | None
    """Names of the files to pack, relative to the folder; default: all."""
    limits: LimitsConfig
    """What decoding one file may take; files that need more are skipped."""


@dataclass(frozen=True)
class _Job:
    """The files to pack, by name and in order, and the header of their store."""

    folder: Path
    files: dict[str, Path]
    weights: dict[str, int]
    """Expected size of each file in the store, relative to the others."""
    header: Header
    limits: LimitsConfig
    cached: bool
    """Whether the store goes into the cache of a run, not into the output folder of `unshuffle pack`."""


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
    return _run(_plan(kind, src, cached=False, **options), out, workers, progress)


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
    job = _plan(kind, folder, cached=True, **options)
    identity = f"{folder.resolve()}\n{sorted(asdict(job.header).items())}"
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:12]
    return _run(job, cache / f"{folder.resolve().name}-{kind}-{digest}", workers, progress)


def _plan(
    kind: Kind,
    src: Path,
    *,
    cached: bool,
    short_side: int | None = None,
    encoding: Encoding = "raw",
    quality: int = 90,
    every: int = 1,
    only: Collection[str] | None = None,
    limits: LimitsConfig = DEFAULT_LIMITS,
) -> _Job:
    short_side = DEFAULT_SHORT_SIDE[kind] if short_side is None else short_side
    check_short_side(short_side)
    if not 1 <= quality <= 100:
        raise UserError(f"the JPEG quality must be between 1 and 100, not {quality}")
    if every < 1:
        raise UserError(f"keeping every n-th frame needs n of at least 1, not {every}")
    files = {name: path for name, path in _find(kind, src, cached).items() if only is None or name in only}
    statuses = {name: file_status(path) for name, path in files.items()}
    fingerprint = hashlib.sha256()
    for name, status in statuses.items():
        fingerprint.update(os.fsencode(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    header = Header(
        kind=kind,
        encoding=encoding,
        # Options without effect must not give equal stores different headers.
        quality=quality if encoding == "jpeg" else None,
        short_side=short_side,
        every=every if kind == "videos" else 1,
        source=fingerprint.hexdigest(),
        max_pixels=limits.max_pixels,
        max_frames=limits.max_frames if kind == "videos" else None,
        max_seconds=limits.max_seconds,
    )
    # Packed images are of about equal size; the length of a video is about proportional to its file size.
    weights = {name: status.st_size if kind == "videos" else 1 for name, status in statuses.items()}
    return _Job(src, files, weights, header, limits, cached)


def _find(kind: Kind, src: Path, cached: bool) -> dict[str, Path]:
    paths = find_images(src) if kind == "images" else find_videos(src)
    if not paths:
        looked_for, other = ".jpg, .png, .webp and other common formats", "videos"
        if kind == "videos":
            looked_for, other = ", ".join(sorted(VIDEO_SUFFIXES)), "images"
        command = "--" if cached else "pack "
        raise UserError(f"no {kind} found in {src} (looked for {looked_for}): check the path, or use {command}{other}")
    return {path.relative_to(src).as_posix(): path for path in paths}


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
    return Store(out)


def _no_room(job: _Job, out: Path, problem: str) -> UserError:
    """Return an error that names the options of the running command for a smaller store or another disk."""
    option, side, folder = "--", "short_side", "an output folder"
    if job.cached:
        option, folder = "--data.", "a --data.cache"
        side = "image_short_side" if job.header.kind == "images" else "frame_short_side"
    jpeg = f"{option}encoding jpeg, " if job.header.encoding == "raw" else ""
    return UserError(
        f"{problem}: free some space and run the same command again, which continues where this one stopped, "
        f"or delete {out} and choose {jpeg}a smaller {option}{side} or {folder} on a larger disk"
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
    unlimited = {name for name in ("max_pixels", "max_frames", "max_seconds") if existing[name] is None}
    differing = [name for name in existing if existing[name] != expected[name] and name not in unlimited]
    if not differing:
        return complete
    cause = f"from other files than those now in {job.folder}"
    if differing != ["source"]:
        options = [f"{name} {existing[name]}, not {expected[name]}" for name in differing if name != "source"]
        cause = f"with {' and '.join(options)}"
    raise UserError(f"{out} was packed {cause}: choose another output folder, or delete {out} to pack it again")


def _fill(job: _Job, out: Path, workers: int, console: Console) -> None:
    kind = job.header.kind
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
                    writer.add(name, result)
                expected = forecast.after(name)
                size = "" if expected is None else f", about {decimal(expected)}"
                advance(len(writer.done), f"{len(writer.skipped)} skipped{size}")
        if not writer.size:
            name, reason = writer.skipped[0]
            raise UserError(
                f"no readable {kind.removesuffix('s')} in {job.folder} "
                f"({counted(len(job.files), 'files')} tried; first problem: {name}: {reason}): check the files"
            )
        writer.finish()


class _SizeForecast:
    """The expected size of the store, extrapolated from the files packed so far."""

    def __init__(self, job: _Job, out: Path, writer: Writer):
        self._job, self._out, self._writer = job, out, writer
        self._done = sum(weight for name, weight in job.weights.items() if name in writer.done)
        self._total = sum(job.weights.values())
        self._capacity = self._current_capacity()

    def after(self, name: str) -> int | None:
        """Expected size after one more file, None while too few are packed; a UserError if the disk is too small."""
        self._done += self._job.weights[name]
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


def _encode_all(files: dict[str, Path], job: _Job, out: Path, workers: int) -> Generator[tuple[str, Record | BadMedia]]:
    """Results in the order of the files; only a few are in progress at a time, so that memory stays bounded."""
    pending: deque[Future[tuple[str, Record | BadMedia]]] = deque()
    with worker_pool(workers, "pack") as pool:
        for name, path in files.items():
            pending.append(pool.submit(_encode_file, name, path, job, out))
            if len(pending) >= 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def _encode_file(name: str, path: Path, job: _Job, out: Path) -> tuple[str, Record | BadMedia]:
    """Return the name with all frames of a file, or with the problem if the file cannot be used."""
    record, header = Record(out), job.header
    try:
        if header.kind == "images":
            frames = iter([read_image(path, header.short_side, job.limits)])
        else:
            frames = read_frames(path, header.short_side, header.every, job.limits)
        for frame in frames:
            record.append(frame, frame.tobytes() if header.quality is None else encode_jpeg(frame, header.quality))
    except BaseException as problem:
        record.close()
        if isinstance(problem, BadMedia):
            return name, problem
        raise
    return name, record
