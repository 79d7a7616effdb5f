"""Packing a folder of images or videos into a store, once, in parallel, and resumed if it was interrupted."""

import errno
import hashlib
import io
import os
import shutil
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypedDict, Unpack

from PIL import Image
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from unshuffle.data.addresses import refuse_shards
from unshuffle.data.images import find_images, read_image
from unshuffle.data.media import BadMedia, check_short_side
from unshuffle.data.source import Pixels
from unshuffle.data.store import DATA, HEADER, INDEX, SKIPPED, Encoding, Header, Kind, Record, Store, Writer
from unshuffle.data.videos import VIDEO_SUFFIXES, find_videos, read_frames
from unshuffle.errors import UserError
from unshuffle.files import locked
from unshuffle.wording import counted

DEFAULT_SHORT_SIDE: dict[Kind, int] = {"images": 256, "videos": 128}
CLEARLY = 1.1  # a forecast is only trusted to say that a store is too large when it is so by this factor


class PackOptions(TypedDict, total=False):
    """How files become items; what is left out has its default."""

    short_side: int | None
    """Pixels of the short side: 256 for images and 128 for videos unless said otherwise."""
    encoding: Encoding
    """"raw", the default, or "jpeg"."""
    quality: int
    """Quality of the JPEGs: 90."""
    every: int
    """Keep every n-th frame of a video: 1."""
    only: Collection[str] | None
    """Names of the files to pack, relative to the folder: all unless said otherwise."""


@dataclass(frozen=True)
class _Job:
    """The files to pack, in order and by name, and the header of the store that they make."""

    folder: Path
    files: dict[str, Path]
    weights: dict[str, int]
    """What each file is expected to add to the store, in proportion to the others."""
    header: Header
    cached: bool
    """Whether the store goes into the cache of a run, and not where `unshuffle pack` was told to put it."""


def pack(
    kind: Kind,
    src: Path,
    out: Path,
    *,
    workers: int | None = None,
    progress: bool = True,
    **options: Unpack[PackOptions],
) -> Store:
    """Decode every image or video of `src` into a store at `out`, or carry on with one begun earlier.

    The bytes do not depend on the number of workers nor on interruptions. Files that cannot be used are
    left out and listed in `Store.skipped`. A finished store of the same files and options is given at once.
    """
    refuse_shards(src)
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
    """The store that `folder` is, or the one that it packs into, kept under `cache` for the next time."""
    if Store.is_store(folder):
        return _open_as(kind, folder)
    job = _plan(kind, folder, cached=True, **options)
    identity = f"{folder.resolve()}\n{sorted(asdict(job.header).items())}"
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:12]
    return _run(job, cache / f"{folder.resolve().name}-{kind}-{digest}", workers, progress)


def _open_as(kind: Kind, folder: Path) -> Store:
    store = Store(folder)
    if store.kind != kind:
        raise UserError(f"{folder} is a store of {store.kind}, and {kind} are needed")
    return store


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
) -> _Job:
    short_side = DEFAULT_SHORT_SIDE[kind] if short_side is None else short_side
    _check_options(short_side, quality, every)
    files = {name: path for name, path in _find(kind, src).items() if only is None or name in only}
    found = {name: path.stat() for name, path in files.items()}
    header = Header(
        kind=kind,
        encoding=encoding,
        # Options that change nothing must not make two equal stores look different.
        quality=quality if encoding == "jpeg" else None,
        short_side=short_side,
        every=every if kind == "videos" else 1,
        source=_fingerprint(found),
    )
    # Images come out about equally large; a video is as long as its file is large.
    weights = {name: status.st_size if kind == "videos" else 1 for name, status in found.items()}
    return _Job(src, files, weights, header, cached)


def _check_options(short_side: int, quality: int, every: int) -> None:
    check_short_side(short_side)
    if not 1 <= quality <= 100:
        raise UserError(f"a JPEG quality of {quality} is not between 1 and 100")
    if every < 1:
        raise UserError(f"every {every} frames makes no sense: it must be at least 1")


def _find(kind: Kind, src: Path) -> dict[str, Path]:
    paths = find_images(src) if kind == "images" else find_videos(src)
    if not paths:
        looked_for = ".jpg, .png, .webp and all else that Pillow reads"
        if kind == "videos":
            looked_for = ", ".join(sorted(VIDEO_SUFFIXES))
        raise UserError(f"there are no {kind} in {src} (looked for {looked_for})")
    return {path.relative_to(src).as_posix(): path for path in paths}


def _fingerprint(found: dict[str, os.stat_result]) -> str:
    digest = hashlib.sha256()
    for name, status in found.items():
        digest.update(os.fsencode(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    return digest.hexdigest()


def _run(job: _Job, out: Path, workers: int | None, progress: bool) -> Store:
    if workers is not None and workers < 1:
        raise UserError(f"{workers} workers cannot pack anything: give 1 or more")
    with _full_disk_explained(job, out):
        _claim(out)
        if not _is_finished(job, out):
            with locked(out / DATA):
                if not _is_finished(job, out):  # by the packer that this one had to wait for
                    _fill(job, out, workers or os.cpu_count() or 1, progress)
    return Store(out)


@contextmanager
def _full_disk_explained(job: _Job, out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise _no_room(job, out, f"there is no space left on the disk of {out}") from error


def _no_room(job: _Job, out: Path, problem: str) -> UserError:
    return UserError(
        f"{problem}: make room and run the same command again, which goes on where this one stopped, "
        f"or delete {out} and choose {_savings(job)}"
    )


def _savings(job: _Job) -> str:
    """What else the user can do, in the options of the command that packs."""
    option, side, place = "--", "short_side", "an output folder"
    if job.cached:
        option, side, place = "--data.", "image_short_side", "a --data.cache"
        if job.header.kind == "videos":
            side = "frame_short_side"
    jpeg = f"{option}encoding jpeg, " if job.header.encoding == "raw" else ""
    return f"{jpeg}a smaller {option}{side} or {place} on a larger disk"


def _claim(out: Path) -> None:
    """Make the store's folder, unless it is there already and somebody's for something else."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out} is a file, and a store is a folder: choose another output")
    out.mkdir(parents=True, exist_ok=True)
    ours = {HEADER, f"{HEADER}.tmp", DATA, INDEX, SKIPPED}
    if not (out / HEADER).exists() and any(path.name not in ours for path in out.iterdir()):
        raise UserError(f"{out} holds other files and no store: choose a new or an empty folder")


def _is_finished(job: _Job, out: Path) -> bool:
    """Whether the store is complete; an error if it is, or was to be, the store of another job."""
    if not (out / HEADER).exists():
        return False
    found = Header.load(out)
    wanted = replace(job.header, complete=found.complete)
    if found != wanted:
        raise _mismatch(job, out, asdict(found), asdict(wanted))
    return found.complete


def _mismatch(job: _Job, out: Path, found: dict[str, object], wanted: dict[str, object]) -> UserError:
    remedy = f"choose another output folder, or delete {out} to pack it anew"
    differing = [
        f"{option} {value}, not {wanted[option]}"
        for option, value in found.items()
        if option != "source" and value != wanted[option]
    ]
    if differing:
        return UserError(f"{out} was packed with {' and '.join(differing)}: {remedy}")
    return UserError(f"{out} was packed from other files than those now in {job.folder}: {remedy}")


def _fill(job: _Job, out: Path, workers: int, progress: bool) -> None:
    job.header.save(out)
    with Writer(out, job.header) as writer, _progress_bar(job, writer, progress) as advance:
        forecast = _Forecast(job, out, writer)
        left = {name: path for name, path in job.files.items() if name not in writer.done}
        # Closed at once on an error, or its threads would decode on for as long as the traceback lives.
        with closing(_encode_all(left, job.header, out, workers)) as results:
            for name, result in results:
                _put(writer, name, result)
                advance(forecast.after(name))
        if not writer.size:
            raise _nothing_readable(job, writer)
        writer.finish()


class _Forecast:
    """How large the store will be, told from the files that are done."""

    def __init__(self, job: _Job, out: Path, writer: Writer):
        self._job, self._out, self._writer = job, out, writer
        self._done = sum(weight for name, weight in job.weights.items() if name in writer.done)
        self._all = sum(job.weights.values())
        self._room = 0
        self._measure_room()

    def after(self, name: str) -> int | None:
        """The expected size, or None while too few files are done; an error if the disk is too small for it."""
        self._done += self._job.weights[name]
        if not self._done or len(self._writer.done) < min(50, 5 + len(self._job.files) // 20):
            return None
        expected = self._writer.size * self._all // self._done
        if expected > CLEARLY * self._room:
            self._measure_room()
        if expected > CLEARLY * self._room:
            raise self._too_large(expected)
        return expected

    def _measure_room(self) -> None:
        """Note how large the store can get: more than before if somebody has made room.

        It is never less than before, as files that wait to be written take space that they will give back.
        """
        self._room = max(self._room, self._writer.size + shutil.disk_usage(self._out).free)

    def _too_large(self, expected: int) -> UserError:
        written = self._writer.size
        problem = (
            f"{self._job.folder} needs about {decimal(expected)} as a store in {self._out}, "
            f"{decimal(written)} of it are written, and only {decimal(self._room - written)} are free"
        )
        return _no_room(self._job, self._out, problem)


def _put(writer: Writer, name: str, result: Record | BadMedia) -> None:
    if isinstance(result, BadMedia):
        writer.skip(name, str(result))
    else:
        writer.add(name, result)


def _nothing_readable(job: _Job, writer: Writer) -> UserError:
    name, reason = writer.skipped[0]
    return UserError(
        f"no readable {job.header.kind.removesuffix('s')} in {job.folder} "
        f"({counted(len(job.files), 'files')} tried; first problem: {name}: {reason})"
    )


_Waiting = tuple[str, Record, Future[BadMedia | None]]


def _encode_all(
    files: dict[str, Path], header: Header, out: Path, workers: int
) -> Generator[tuple[str, Record | BadMedia]]:
    """Results in the files' order, with only a few files under way so that memory stays bounded."""
    pool = ThreadPoolExecutor(workers)
    waiting: deque[_Waiting] = deque()
    try:
        for name, path in files.items():
            record = Record(out)
            waiting.append((name, record, pool.submit(_encode_file, path, header, record)))
            if len(waiting) >= 2 * workers:
                yield _finished(waiting)
        while waiting:
            yield _finished(waiting)
    finally:
        pool.shutdown(cancel_futures=True)
        for _, record, _ in waiting:
            record.close()


def _finished(waiting: deque[_Waiting]) -> tuple[str, Record | BadMedia]:
    name, record, future = waiting[0]
    problem = future.result()
    waiting.popleft()
    return name, problem or record


def _encode_file(path: Path, header: Header, record: Record) -> BadMedia | None:
    """Fill the record, or say why that cannot be done."""
    try:
        for frame in _read(path, header):
            height, width, _ = frame.shape
            record.append(height, width, _encode_frame(frame, header))
    except BadMedia as problem:
        record.close()
        return problem
    return None


def _read(path: Path, header: Header) -> Iterator[Pixels]:
    if header.kind == "images":
        return iter([read_image(path, header.short_side)])
    return read_frames(path, header.short_side, header.every)


def _encode_frame(frame: Pixels, header: Header) -> bytes:
    if header.quality is None:
        return frame.tobytes()
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "JPEG", quality=header.quality)
    return buffer.getvalue()


class _SpeedColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.1f}/s")


@contextmanager
def _progress_bar(job: _Job, writer: Writer, shown: bool) -> Iterator[Callable[[int | None], None]]:
    """A bar on the error stream; calling what it gives counts one more file and shows the expected size."""
    bar = Progress(
        TextColumn("packing {task.description}"),
        BarColumn(),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        _SpeedColumn(Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[skipped]} skipped{task.fields[size]}"),
        console=Console(stderr=True),
        disable=not shown,
    )
    done, skipped = len(writer.done), len(writer.skipped)
    task = bar.add_task(job.header.kind, total=len(job.files), completed=done, skipped=skipped, size="")

    def advance(expected: int | None) -> None:
        size = "" if expected is None else f", about {decimal(expected)}"
        bar.update(task, advance=1, skipped=len(writer.skipped), size=size)

    with bar:
        yield advance
