"""Tar shards as files: finding them on this machine or in remote storage (fsspec), reading and caching them."""

import hashlib
import itertools
import math
import os
import re
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from unshuffle.data.media import explain
from unshuffle.errors import UserError
from unshuffle.files import atomic_write

T = TypeVar("T")
RETRY_SECONDS = (1.0, 10.0)  # pauses before a failed request to the storage is repeated
CONNECTIONS = 4  # shards that are downloaded at the same time
MAX_SHARDS = 100_000  # addresses that braces may stand for
PROTOCOLS = ("file", "http", "https", "s3", "gs", "gcs", "az", "abfs", "hf")
"""Storage that addresses may name. Others of fsspec's run code, start programs or wrap further addresses."""
STALE_SECONDS = 3600  # age at which the unfinished copy of a killed process is deleted

# Keys of a file's information that change with its content; every storage service reports some of them.
_VERSION_KEYS = (
    "size",
    "mtime",
    "ETag",
    "etag",
    "LastModified",
    "last_modified",
    "md5Hash",
    "updated",
    "created",
)
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_TAR = re.compile(r"\.tar(\?[^/]*)?$")  # a signed web address continues after a question mark
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"([0-9]{1,18})\.\.([0-9]{1,18})")


@dataclass(frozen=True)
class ShardFile:
    """One tar file, local or remote."""

    address: str
    fs: Any
    path: str
    size: int
    digest: str
    """Changes when the address or the content of the file changes."""
    modified: float | None = None
    """When a file on this machine was last written."""

    @property
    def local(self) -> Path | None:
        """Its path, if it is on this machine."""
        return Path(self.path) if isinstance(self.fs, LocalFileSystem) else None

    def read_range(self, offset: int, length: int) -> bytes:
        """Read `length` bytes from the disk or the storage."""
        with storage_errors_explained(self.address):
            if self.local is not None:
                self._check_unchanged(self.local)
                return read_range(self.local, offset, length)
            return with_retries(lambda: bytes(self.fs.cat_file(self.path, start=offset, end=offset + length)))

    def _check_unchanged(self, path: Path) -> None:
        """Raise a UserError if the file was replaced or written to: the offsets would be those of other bytes."""
        status = path.stat()
        if (status.st_size, status.st_mtime) != (self.size, self.modified):
            raise UserError(
                f"{self.address} has changed since it was indexed: restore it and run the same command with --resume, "
                "or start again, which indexes it anew"
            )


def is_shards(address: str) -> bool:
    """Whether an address means shards: a URL, the name or pattern of tar files, or a folder of tar files only."""
    folder = Path(address).expanduser()
    if "://" in address or not folder.is_dir():
        return "://" in address or _is_tar_name(address)
    visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return bool(visible) and all(path.is_file() and _is_tar_name(path.name) for path in visible)


def find_shards(address: str) -> list[tuple[Any, str]]:
    """File system and path of every shard that an address means, without duplicates."""
    patterns = expand_braces(address)
    for pattern in patterns:
        check_address(pattern)
    shards = {fs.unstrip_protocol(path): (fs, path) for pattern in patterns for fs, path in _find(pattern)}
    for name in shards:
        if name.endswith(_COMPRESSED):
            raise UserError(f"{name} is compressed, which rules out reading single items: decompress it to .tar")
    return list(shards.values())


def check_address(address: str) -> None:
    """Raise a UserError for an address that fsspec would interpret in unforeseen ways."""
    if "::" in address:
        raise UserError(f"{address} chains addresses by ::, which is not supported: give the address of the tar files")
    protocol, separator, _ = address.partition("://")
    if separator and protocol not in PROTOCOLS:
        raise UserError(
            f"{address} is not at an address that is supported ({'://, '.join(PROTOCOLS)}://): copy the shards to one, "
            "or to this machine"
        )


def stat_shard(fs: Any, path: str) -> ShardFile:
    """Request size and version of a shard from its storage."""
    address = path if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(path)
    with storage_errors_explained(address):
        info = fs.info(path)
    if info["type"] != "file":
        raise UserError(f"{address} is not a file: a shard must be a tar file")
    if info.get("size") is None:
        raise UserError(f"{address} cannot be read in parts, as its server does not report its size: download it")
    version = {name: str(info[name]) for name in _VERSION_KEYS if name in info}
    digest = hashlib.sha256(f"{fs.unstrip_protocol(path)}\n{sorted(version.items())}".encode(errors="surrogateescape"))
    modified = info["mtime"] if isinstance(fs, LocalFileSystem) else None
    return ShardFile(address, fs, path, int(info["size"]), digest.hexdigest()[:24], modified)


def expand_braces(pattern: str) -> list[str]:
    """Expand `a-{00..02}.{x,y}` to every combination, as a shell does; numbers keep their leading zeros."""
    texts = _BRACES.split(pattern)  # the text between braces, and what each of them holds, in turn
    choices = [[text] if number % 2 == 0 else _choices(text) for number, text in enumerate(texts)]
    if math.prod(map(len, choices)) > MAX_SHARDS:
        raise UserError(f"{pattern} stands for more than {MAX_SHARDS} shards: check the numbers in its braces")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _choices(braced: str) -> list[str]:
    numbers = _RANGE.fullmatch(braced)
    if numbers is None:
        return braced.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    if abs(last - first) >= MAX_SHARDS:
        raise UserError(f"{{{braced}}} stands for more than {MAX_SHARDS} shards: check the numbers in the braces")
    step = 1 if first <= last else -1
    return [str(number).zfill(len(numbers[1])) for number in range(first, last + step, step)]


@contextmanager
def storage_errors_explained(address: str) -> Iterator[None]:
    """Raise every error of a storage driver as a UserError; drivers raise almost anything."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{address} does not exist: check the address") from error
    except tarfile.TarError as error:
        problem = f"is not a tar file, or is damaged or truncated ({explain(error)})"
        raise UserError(f"{address} {problem}: create or copy it again") from error
    except ImportError as error:
        raise UserError(
            f"{address} needs a package that is not installed ({explain(error)}): pip install 'unshuffle[remote]' "
            "installs those for S3, Google Cloud Storage and HTTP"
        ) from error
    except Exception as error:
        raise UserError(f"{address} cannot be read: {explain(error)}") from error


def with_retries(request: Callable[[], T]) -> T:
    """Repeat a request that fails: storage has short outages in the course of a long run."""
    for pause in RETRY_SECONDS:
        try:
            return request()
        except (FileNotFoundError, PermissionError):
            raise
        except Exception:
            time.sleep(pause)
    return request()


def _is_tar_name(address: str) -> bool:
    return bool(_TAR.search(address)) or address.endswith(_COMPRESSED)


def _find(address: str) -> list[tuple[Any, str]]:
    with storage_errors_explained(address):
        fs, path = fsspec.core.url_to_fs(address if "://" in address else str(Path(address).expanduser()))
        # only * makes a pattern: ? and [ occur in signed web addresses
        if "*" in path:
            paths = sorted(fs.glob(path))
        elif _is_tar_name(path):
            paths = [path]
        else:
            paths = sorted(name for name in fs.ls(path, detail=False) if name.endswith(".tar"))
    if not paths:
        raise UserError(f"there are no tar files at {address}: check the address")
    return [(fs, shard) for shard in paths]


class ShardCache:
    """Whole copies of remote shards in a folder of limited size; the least recently used are deleted. Thread-safe."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._downloads: dict[str, Future[Path]] = {}
        self._incoming_bytes = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="shard")
        folder.mkdir(parents=True, exist_ok=True)
        for draft in folder.glob("*.tmp"):
            if time.time() - draft.stat().st_mtime > STALE_SECONDS:
                draft.unlink(missing_ok=True)

    def read(self, file: ShardFile, offset: int, length: int) -> bytes:
        """Read `length` bytes of a shard once its copy is complete."""
        while True:
            path = self.prefetch(file).result()
            try:
                os.utime(path)
                return read_range(path, offset, length)
            except FileNotFoundError:  # deleted by another process, to make room for its own shards
                continue

    def prefetch(self, file: ShardFile) -> "Future[Path]":
        """Start to download a shard, unless it is in the cache or on its way."""
        with self._lock:
            download = self._downloads.get(file.digest)
            if download is None or (download.done() and (download.exception() or not download.result().exists())):
                download = self._downloads[file.digest] = self._pool.submit(self._download, file)
            return download

    def _download(self, file: ShardFile) -> Path:
        path = self.folder / f"{file.digest}.tar"
        if path.exists():
            return path
        with self._lock:
            self._incoming_bytes += file.size
        try:
            self._make_room()
            with atomic_write(path) as draft:
                with storage_errors_explained(f"{file.address}, copied to {self.folder},"):
                    with_retries(lambda: file.fs.get_file(file.path, str(draft)))
                if draft.stat().st_size != file.size:
                    raise UserError(
                        f"{file.address} has changed since it was indexed, or its download was interrupted: "
                        "run the same command again"
                    )
        finally:
            with self._lock:
                self._incoming_bytes -= file.size
        return path

    def _make_room(self) -> None:
        with self._lock:
            copies = sorted(_last_use_and_size(path) for path in self.folder.glob("*.tar"))
            total = sum(size for _, size, _ in copies)
            for _, size, path in copies:
                if total + self._incoming_bytes <= self.limit:
                    break
                path.unlink(missing_ok=True)
                total -= size


def _last_use_and_size(path: Path) -> tuple[float, int, Path]:
    try:
        status = path.stat()
    except FileNotFoundError:  # another process has just deleted it
        return 0.0, 0, path
    return status.st_mtime, status.st_size, path


def read_range(path: Path, offset: int, length: int) -> bytes:
    """Read `length` bytes of a local file."""
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
