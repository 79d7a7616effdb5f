"""Packing a folder of images or videos into a store, once, in parallel, and resumed if it was interrupted."""

import hashlib
import io
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from PIL import Image
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from unshuffle.data.images import find_images, read_image
from unshuffle.data.media import MIN_SIDE, BadMedia
from unshuffle.data.source import Pixels
from unshuffle.data.store import DATA, HEADER, INDEX, SKIPPED, Encoding, Header, Kind, Record, Store, Writer
from unshuffle.data.videos import VIDEO_SUFFIXES, find_videos, read_frames
from unshuffle.errors import UserError

DEFAULT_SHORT_SIDE: dict[Kind, int] = {"images": 256, "videos": 128}


@dataclass(frozen=True)
class _Job:
    """The files to pack, in order and by name, and the header of the store that they make."""

    folder: Path
    files: dict[str, Path]
    header: Header


def pack(
    kind: Kind,
    src: Path,
    out: Path,
    *,
    short_side: int | None = None,
    encoding: Encoding = "raw",
    quality: int = 90,
    every: int = 1,
    workers: int | None = None,
    progress: bool = True,
) -> Store:
    """Decode every image or video of `src` into a store at `out`, or carry on with one begun earlier.

    The bytes do not depend on the number of workers nor on interruptions. Files that cannot be used are
    left out and listed in `Store.skipped`. A finished store of the same files and options is given at once.
    """
    return _run(_plan(kind, src, short_side, encoding, quality, every), out, workers, progress)


def cached_store(
    kind: Kind,
    folder: Path,
    cache: Path,
    *,
    short_side: int | None = None,
    encoding: Encoding = "raw",
    quality: int = 90,
    every: int = 1,
    workers: int | None = None,
    progress: bool = True,
) -> Store:
    """The store that `folder` is, or the one that it packs into, kept under `cache` for the next time."""
    if Store.is_store(folder):
        return _open_as(kind, folder)
    job = _plan(kind, folder, short_side, encoding, quality, every)
    identity = f"{folder.resolve()}\n{sorted(asdict(job.header).items())}"
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:12]
    return _run(job, cache / f"{folder.resolve().name}-{kind}-{digest}", workers, progress)


def _open_as(kind: Kind, folder: Path) -> Store:
    store = Store(folder)
    if store.kind != kind:
        raise UserError(f"{folder} is a store of {store.kind}, and {kind} are needed")
    return store


def _plan(kind: Kind, src: Path, short_side: int | None, encoding: Encoding, quality: int, every: int) -> _Job:
    short_side = DEFAULT_SHORT_SIDE[kind] if short_side is None else short_side
    _check_options(short_side, quality, every)
    files = _find(kind, src)
    header = Header(
        kind=kind,
        encoding=encoding,
        # Options that change nothing must not make two equal stores look different.
        quality=quality if encoding == "jpeg" else None,
        short_side=short_side,
        every=every if kind == "videos" else 1,
        source=_fingerprint(files),
    )
    return _Job(src, files, header)


def _check_options(short_side: int, quality: int, every: int) -> None:
    if short_side < MIN_SIDE:
        raise UserError(f"a short side of {short_side} pixels is too small: the least is {MIN_SIDE}")
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


def _fingerprint(files: dict[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in files.items():
        status = path.stat()
        digest.update(os.fsencode(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    return digest.hexdigest()


def _run(job: _Job, out: Path, workers: int | None, progress: bool) -> Store:
    if workers is not None and workers < 1:
        raise UserError(f"{workers} workers cannot pack anything: give 1 or more")
    _claim(out)
    if not _is_finished(job, out):
        with _only_packer(out):
            if not _is_finished(job, out):  # by the packer that this one had to wait for
                _fill(job, out, workers or os.cpu_count() or 1, progress)
    return Store(out)


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


@contextmanager
def _only_packer(out: Path) -> Iterator[None]:
    """Let a second packer of the same store wait for the first; the lock goes when its process does."""
    with (out / DATA).open("ab") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fill(job: _Job, out: Path, workers: int, progress: bool) -> None:
    job.header.save(out)
    with Writer(out, job.header) as writer, _progress_bar(job, writer, progress) as advance:
        left = {name: path for name, path in job.files.items() if name not in writer.done}
        # Closed at once on an error, or its threads would decode on for as long as the traceback lives.
        with closing(_encode_all(left, job.header, workers)) as results:
            for name, result in results:
                _put(writer, name, result)
                advance()
        if writer.is_empty:
            raise _nothing_readable(job, writer)
        writer.finish()


def _put(writer: Writer, name: str, result: Record | BadMedia) -> None:
    if isinstance(result, BadMedia):
        writer.skip(name, str(result))
    else:
        writer.add(name, result)


def _nothing_readable(job: _Job, writer: Writer) -> UserError:
    name, reason = writer.skipped[0]
    return UserError(
        f"no readable {job.header.kind.removesuffix('s')} in {job.folder} "
        f"({len(job.files)} files tried; first problem: {name}: {reason})"
    )


def _encode_all(files: dict[str, Path], header: Header, workers: int) -> Generator[tuple[str, Record | BadMedia]]:
    """Results in the files' order, with only a few files under way so that memory stays bounded."""
    pool = ThreadPoolExecutor(workers)
    waiting: deque[tuple[str, Future[Record | BadMedia]]] = deque()
    try:
        for name, path in files.items():
            waiting.append((name, pool.submit(_encode_file, path, header)))
            if len(waiting) >= 2 * workers:
                yield _finished(waiting)
        while waiting:
            yield _finished(waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _finished(
    waiting: deque[tuple[str, Future[Record | BadMedia]]],
) -> tuple[str, Record | BadMedia]:
    name, future = waiting.popleft()
    return name, future.result()


def _encode_file(path: Path, header: Header) -> Record | BadMedia:
    try:
        chunks: list[bytes] = []
        for frame in _read(path, header):
            height, width, _ = frame.shape
            chunks.append(_encode_frame(frame, header))
        return Record.seal(height, width, chunks)
    except BadMedia as problem:
        return problem


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
        return Text(f"{task.finished_speed or task.speed or 0:.1f} files/s")


@contextmanager
def _progress_bar(job: _Job, writer: Writer, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar on the error stream; calling what it gives counts one more file."""
    bar = Progress(
        TextColumn("packing {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _SpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[skipped]} skipped"),
        console=Console(stderr=True),
        disable=not shown,
    )
    task = bar.add_task(job.header.kind, total=len(job.files), completed=len(writer.done), skipped=len(writer.skipped))
    with bar:
        yield lambda: bar.update(task, advance=1, skipped=len(writer.skipped))
