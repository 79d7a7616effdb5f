"""The packed store: a folder of resized images or clips that opens at once and is read through a memory map.

`store.json` is the header with the options of the packing, `index.jsonl` has a line per item, `data.bin` holds the
items' bytes one after another, and `skipped.jsonl` has a line per file that could not be used. An item is an image, a
video, or one of several windows of a long video.
"""

import io
import json
import os
import shutil
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import MISSING, asdict, dataclass, fields, replace
from itertools import chain
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any, Literal, Self

import numpy as np

from unshuffle.data.media import decode_jpeg
from unshuffle.data.source import IndexedSource, Items, Pixels
from unshuffle.errors import UserError
from unshuffle.files import atomic_write

Kind = Literal["images", "videos"]
Encoding = Literal["raw", "jpeg"]
Row = dict[str, Any]

FORMAT = 1
HEADER, INDEX, DATA, SKIPPED = "store.json", "index.jsonl", "data.bin", "skipped.jsonl"
CHECKSUMS = "crc32"
"""Key of the header for the checksums of the files other than data.bin, whose items have theirs in the index."""
SPOOL_BYTES = 32 << 20  # an item that is not yet in the store is kept in memory up to this size, above it on disk
COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Header:
    """The options and the source of a store; stores with equal headers hold the same bytes."""

    kind: Kind
    encoding: Encoding
    quality: int | None
    short_side: int
    every: int
    source: str
    max_pixels: int | None = None
    """Limits of the packing (`LimitsConfig`), which decide about the files that are skipped; None where they have no
    effect, and in the stores of versions without limits."""
    max_frames: int | None = None
    max_seconds: float | None = None
    clip_frames: int | None = None
    """Frames of the windows that long videos are cut into; 0 or None: videos are stored whole."""
    clips_per_video: int | None = None
    origin: str = ""
    """The folder that was packed, in the cache only; two stores that differ in it alone hold the same bytes."""
    complete: bool = False
    format: int = FORMAT

    def save(self, folder: Path) -> None:
        """Write the header into the store's folder; that of a complete store has the checksums of the other files."""
        values = asdict(self)
        if self.complete:
            checksums = {name: zlib.crc32((folder / name).read_bytes()) for name in (INDEX, SKIPPED)}
            values[CHECKSUMS] = {**checksums, HEADER: _values_checksum(values)}
        with atomic_write(folder / HEADER, sync=True) as draft:
            draft.write_text(json.dumps(values, indent=1))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the header of a store; raise a UserError if it is damaged or has another format."""
        try:
            values = json.loads((folder / HEADER).read_bytes())
            version = values["format"]
            if version == FORMAT:
                known = [entry.name for entry in fields(cls) if entry.name in values or entry.default is MISSING]
                _check_files(folder, values)
                return cls(**{name: values[name] for name in known})
        except UserError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise _damaged(folder, f"{HEADER} cannot be read") from error
        raise UserError(f"{folder} has store format {version}, but this version reads only {FORMAT}: pack it again")


def _values_checksum(values: dict[str, Any]) -> int:
    """Return the checksum of the header's own values."""
    return zlib.crc32(json.dumps({name: value for name, value in values.items() if name != CHECKSUMS}).encode())


def _check_files(folder: Path, values: dict[str, Any]) -> None:
    """Raise a UserError if a file has another checksum than the header's values state; older headers state none."""
    checksums = values.get(CHECKSUMS, {})
    for name in (HEADER, INDEX, SKIPPED) if checksums else ():
        actual = _values_checksum(values) if name == HEADER else zlib.crc32((folder / name).read_bytes())
        if actual != checksums[name]:
            raise _damaged(folder, f"wrong checksum of {name}")


class Record:
    """One item that is not yet in the store, as a chunk of bytes per frame.

    A long one is kept in an unnamed file in the store's folder: it disappears with the process, however that ends,
    and takes up neither memory nor space in /tmp.
    """

    def __init__(self, folder: Path):
        self.height = self.width = self.crc32 = 0
        self.lengths: list[int] = []
        self._spool = SpooledTemporaryFile(SPOOL_BYTES, dir=str(folder))  # noqa: SIM115

    def append(self, frame: Pixels, chunk: bytes) -> None:
        """Add a frame of the same size as those before it, encoded as a chunk of bytes."""
        self.height, self.width, _ = frame.shape
        self.lengths.append(len(chunk))
        self.crc32 = zlib.crc32(chunk, self.crc32)
        self._spool.write(chunk)

    def move_to(self, file: io.BufferedWriter) -> None:
        """Append all frames to a file and close the record."""
        with self._spool:
            self._spool.seek(0)
            shutil.copyfileobj(self._spool, file, COPY_BYTES)

    def close(self) -> None:
        """Discard the frames."""
        self._spool.close()


class Store(IndexedSource):
    """A complete store, read-only; thread-safe, and picklable (the copy opens the store again)."""

    def __init__(self, path: Path):
        self.path = Path(path)
        self.header = Header.load(self.path)
        self.kind, self.encoding = self.header.kind, self.header.encoding
        self.ignored: Mapping[str, int] = {}
        """Number of the other files in the folder that was packed, by extension, if the store was opened through it."""
        if not self.header.complete:
            raise UserError(f"{self.path} is incomplete: run the same pack again to finish it")
        try:
            self._open()
        except (OSError, ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise _damaged(self.path, getattr(error, "strerror", None) or str(error)) from error

    def _open(self) -> None:
        rows = _read_rows(self.path / INDEX)
        lengths = [_lengths(row) for row in rows]
        self.names = [row["name"] for row in rows]
        self.origins: list[str] = [row["file"] if "file" in row else row["name"] for row in rows]
        """File that each item comes from: the windows of a long video have it in common."""
        self.sizes = np.array([(row["height"], row["width"]) for row in rows])
        self.counts = np.array([len(frames) for frames in lengths])
        self._crcs: list[int] = [row["crc32"] for row in rows]
        self._first = np.cumsum(self.counts) - self.counts
        # Byte offsets of all frames of all items, and of the end.
        self._starts = np.cumsum(np.fromiter(chain([0], *lengths), np.int64))
        size = (self.path / DATA).stat().st_size
        if size != self._starts[-1]:
            raise ValueError(f"{DATA} has {size} bytes, but the index lists {self._starts[-1]}")
        offsets = [row["offset"] for row in rows]
        if not np.array_equal(offsets, self._starts[self._first]) or len(set(self.names)) < len(self):
            raise ValueError(f"{INDEX} is inconsistent")
        self._data: Pixels = np.asarray(np.memmap(self.path / DATA, np.uint8, mode="r"))
        self._checked = np.zeros(len(rows), bool)

    def __reduce__(self) -> tuple[type[Self], tuple[Path]]:
        return type(self), (self.path,)

    @staticmethod
    def is_store(path: Path) -> bool:
        """Whether a folder is a store, complete or not."""
        return (path / HEADER).is_file() and (path / DATA).is_file()

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Name and reason for each file that could not be used."""
        return [(row["name"], row["reason"]) for row in _read_rows(self.path / SKIPPED)]

    def read(self, item: int, frames: Sequence[int]) -> Pixels:
        """Read the chosen frames of one item, as (len(frames), height, width, 3) RGB."""
        self.check_frames(item, frames)
        first = self._first[item]
        starts = self._starts[first : first + self.counts[item] + 1]
        if not self._checked[item]:
            self._verify(item, self._data[starts[0] : starts[-1]])
        shape = (*self.size(item), 3)
        pixels = np.empty((len(frames), *shape), np.uint8)
        for position, frame in enumerate(frames):
            chunk = self._data[starts[frame] : starts[frame + 1]]
            pixels[position] = chunk.reshape(shape) if self.encoding == "raw" else decode_jpeg(chunk.data)
        return pixels

    @property
    def flat_bytes(self) -> int | None:
        """Size of all frames in bytes; None if they are compressed."""
        return len(self._data) if self.encoding == "raw" else None

    def flat(self) -> tuple[Pixels, Items]:
        """Verify all checksums; return the bytes of all frames, and the offset of each item."""
        starts, ends = self._starts[self._first], self._starts[self._first + self.counts]
        with ThreadPoolExecutor() as pool:
            records = (self._data[start:end] for start, end in zip(starts, ends, strict=True))
            list(pool.map(self._verify, range(len(self)), records))
        return self._data, starts

    def _verify(self, item: int, record: Pixels) -> None:
        if zlib.crc32(record.data) != self._crcs[item]:
            raise _damaged(self.path, f"wrong checksum of {self.names[item]}")
        self._checked[item] = True


class Writer:
    """Appends items to an incomplete store, continuing where the last writer was interrupted."""

    def __init__(self, folder: Path, header: Header):
        self._folder, self._header = folder, header
        for name in (DATA, INDEX, SKIPPED):
            (folder / name).touch()
        stored = (folder / DATA).stat().st_size
        rows = _truncate_to_usable(folder / INDEX, lambda row: _end(row) <= stored)
        self.size = _end(rows[-1]) if rows else 0
        """Size of all items so far, in bytes."""
        os.truncate(folder / DATA, self.size)
        self.skipped = [(row["name"], row["reason"]) for row in _truncate_to_usable(folder / SKIPPED)]
        self.done = {row.get("file", row["name"]) for row in rows} | {name for name, _ in self.skipped}
        """Names of the files that are packed or skipped."""
        self._files = ExitStack()
        self._data, self._index, self._skipped = (
            self._files.enter_context((folder / name).open("ab")) for name in (DATA, INDEX, SKIPPED)
        )

    def close(self) -> None:
        """Close the files, whether the store is complete or not."""
        self._files.close()

    def add(self, file: str, items: Mapping[str, Record]) -> None:
        """Append the items of a file by name, one or several windows: first their bytes, then their index lines."""
        raw = self._header.encoding == "raw"
        for number, (name, record) in enumerate(items.items(), start=1):
            record.move_to(self._data)
            self._data.flush()
            row = {"name": name, "height": record.height, "width": record.width, "offset": self.size}
            frames = {"frames": len(record.lengths)} if raw else {"lengths": record.lengths}
            window = {} if name == file else {"file": file, "window": number, "windows": len(items)}
            _append_row(self._index, row | frames | {"crc32": record.crc32} | window)
            self.size += sum(record.lengths)
        self.done.add(file)

    def skip(self, name: str, reason: str) -> None:
        """Record a file that cannot be used."""
        _append_row(self._skipped, {"name": name, "reason": reason})
        self.skipped.append((name, reason))
        self.done.add(name)

    def finish(self) -> None:
        """Mark the store complete once all its bytes are on the disk."""
        for file in (self._data, self._index, self._skipped):
            os.fsync(file.fileno())
        replace(self._header, complete=True).save(self._folder)


def _damaged(folder: Path, problem: str) -> UserError:
    return UserError(f"{folder} is damaged ({problem}): delete it and pack it again")


def _lengths(row: Row) -> list[int]:
    """Size of each frame in bytes; only compressed frames differ in size."""
    return row["lengths"] if "lengths" in row else [row["height"] * row["width"] * 3] * row["frames"]


def _end(row: Row) -> int:
    return int(row["offset"]) + sum(_lengths(row))


def _append_row(file: io.BufferedWriter, row: Row) -> None:
    file.write(json.dumps(row).encode() + b"\n")
    file.flush()


def _read_rows(path: Path) -> list[Row]:
    """Parse all lines at once, which is several times faster than line by line."""
    rows: list[Row] = json.loads(b"[" + b",".join(path.read_bytes().splitlines()) + b"]")
    return rows


def _truncate_to_usable(path: Path, usable: Callable[[Row], bool] = lambda row: True) -> list[Row]:
    """Truncate a file before its first unusable line, and return the rows that remain.

    Of a video whose windows are not all there, none remain.
    """
    rows: list[Row] = []
    size = whole_size = whole_rows = 0
    for line in path.read_bytes().splitlines(keepends=True):
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not usable(row):
            break
        rows.append(row)
        size += len(line)
        if row.get("window") == row.get("windows"):
            whole_size, whole_rows = size, len(rows)
    os.truncate(path, whole_size)
    return rows[:whole_rows]
