"""Tar shards as files: finding them on this machine or in remote storage (fsspec), reading and caching them.

Remote storage is not reliable: failed requests are repeated a few times, and what arrives is compared with the size and
the checksums of the index.
"""

import hashlib
import itertools
import json
import math
import os
import re
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from unshuffle.data.media import explain
from unshuffle.errors import UserError
from unshuffle.files import atomic_write
from unshuffle.stopping import check_stopped

T = TypeVar("T")
OPENING_PAUSES = (1.0, 4.0)
"""Seconds before a failed request is repeated while shards are found and indexed; a wrong address is noticed soon."""
READING_PAUSES = (1.0, 4.0, 15.0, 60.0)
"""The same for reading them: a long run outlasts short outages."""
TIMEOUT_SECONDS = 60.0
"""Seconds within which a web server must accept a connection, and send more bytes; other drivers have their own."""
CONNECTIONS = 4  # shards that are downloaded at the same time
MAX_SHARDS = 100_000  # addresses that braces may stand for
PROTOCOLS = ("file", "http", "https", "s3", "gs", "gcs", "az", "abfs", "hf")
"""Storage that addresses may name. Others of fsspec's run code, start programs or wrap further addresses."""
STALE_SECONDS = 3600  # age at which the unfinished copy of a killed process is deleted

# Keys of a file's information that change with its content, the most precise first; storage reports some of them.
# Times are not compared where there is better: a listing of S3 has other fractions of a second than a single request.
_VERSION_KEYS = (
    ("md5Hash", "Content-MD5"),
    ("ETag", "etag"),
    ("mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created"),
)
_TRANSIENT_STATUS = {408, 425, 429}  # of those below 500: too late, too early, too often
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

    @property
    def local(self) -> Path | None:
        """Its path, if it is on this machine."""
        return Path(self.path) if isinstance(self.fs, LocalFileSystem) else None

    def read(self, member: "Member") -> bytes:
        """Read a member of the tar from the disk or the storage."""
        with storage_errors_explained(self.address):
            if self.local is not None:
                return self.verified(read_range(self.local, member), member)
            end = member.offset + member.length
            return with_retries(
                lambda: self.verified(bytes(self.fs.cat_file(self.path, start=member.offset, end=end)), member),
                READING_PAUSES,
            )

    def verified(self, data: bytes, member: "Member") -> bytes:
        """Return the bytes of a member if they are those that were indexed; otherwise raise an error."""
        if len(data) == member.length and zlib.crc32(data) == member.checksum:
            return data
        self.check_unchanged()
        if len(data) != member.length:
            raise DamagedTransfer(f"{len(data)} bytes arrived instead of {member.length}")
        raise DamagedTransfer("the bytes that arrived are not those that were indexed")

    def check_unchanged(self) -> None:
        """Raise a UserError if size or version are no longer those of this file, as far as the storage answers."""
        self.fs.invalidate_cache(self.path)  # of listings
        try:
            current = stat_shard(self.fs, self.path)
        except UserError:
            return
        if current.digest != self.digest:
            raise UserError(
                f"{self.address} has changed since it was indexed: start again, which indexes it anew; a run that is "
                "to be resumed needs the file as it was"
            )

    def scan(self, function: Callable[[BinaryIO], T]) -> T:
        """Return what a function makes of the whole file, which it may have to read several times."""

        def attempt() -> T:
            with self.fs.open(self.path, "rb") as raw:
                return function(raw)

        with storage_errors_explained(self.address):
            return with_retries(attempt, OPENING_PAUSES if self.local is None else ())


class Member(NamedTuple):
    """The bytes of one member of a tar."""

    offset: int
    length: int
    checksum: int
    """CRC-32."""


class DamagedTransfer(Exception):
    """What arrived is not what the storage has."""


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
        info = with_retries(lambda: fs.info(path), OPENING_PAUSES)
    if info["type"] != "file":
        raise UserError(f"{address} is not a file: a shard must be a tar file")
    if info.get("size") is None:
        raise UserError(f"{address} cannot be read in parts, as its server does not report its size: download it")
    versions = ({name: str(info[name]) for name in names if info.get(name)} for names in _VERSION_KEYS)
    version = {"size": str(info["size"]), **next((found for found in versions if found), {})}
    digest = hashlib.sha256(f"{fs.unstrip_protocol(path)}\n{sorted(version.items())}".encode(errors="surrogateescape"))
    return ShardFile(address, fs, path, int(info["size"]), digest.hexdigest()[:24])


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
        if not _is_final(error):
            raise UserError(f"{address} cannot be read: {_explain(error)}") from error
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
        raise UserError(f"{address} cannot be read: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    return f"{explain(_cause(error))}; check the storage and the connection, then run the same command again"


def with_retries(request: Callable[[], T], pauses: Sequence[float]) -> T:
    """Repeat a request that fails, after pauses of so many seconds, unless it is bound to fail again."""
    for pause in pauses:
        try:
            return request()
        except Exception as error:
            if _is_final(error):
                raise
        deadline = time.monotonic() + pause
        while (left := deadline - time.monotonic()) > 0:
            check_stopped()
            time.sleep(min(left, 0.2))
    return request()


def _cause(error: Exception) -> Exception:
    """Return the error behind one of fsspec's web driver, which calls a file not found whatever happened."""
    cause = error.__cause__
    from_web = isinstance(error, FileNotFoundError) and type(cause).__module__.startswith("aiohttp")
    return cause if from_web and isinstance(cause, Exception) else error


def _is_final(error: Exception) -> bool:
    """Return whether the same request would fail again."""
    cause = _cause(error)
    status = getattr(cause, "status", None)
    if isinstance(status, int):  # of an answer by HTTP
        return status < 500 and status not in _TRANSIENT_STATUS
    return isinstance(cause, UserError | FileNotFoundError | PermissionError | ImportError)


def _is_tar_name(address: str) -> bool:
    return bool(_TAR.search(address)) or address.endswith(_COMPRESSED)


def _find(address: str) -> list[tuple[Any, str]]:
    with storage_errors_explained(address):
        fs, path = _open_storage(address)
        # only * makes a pattern: ? and [ occur in signed web addresses
        if "*" in path:
            paths = sorted(with_retries(lambda: fs.glob(path), OPENING_PAUSES))
        elif _is_tar_name(path):
            paths = [path]
        else:
            names = with_retries(lambda: fs.ls(path, detail=False), OPENING_PAUSES)
            paths = sorted(name for name in names if name.endswith(".tar"))
    if not paths:
        raise UserError(f"there are no tar files at {address}: check the address")
    return [(fs, shard) for shard in paths]


def _open_storage(address: str) -> tuple[Any, str]:
    """Return the file system of an address and the path in it, with nothing remembered of earlier listings."""
    options: dict[str, Any] = {}
    protocol, separator, _ = address.partition("://")
    if separator and protocol in ("http", "https") and "client_kwargs" not in fsspec.config.conf.get(protocol, {}):
        import aiohttp  # of the extra `remote`

        # aiohttp's default, five minutes in all, is too short for a large shard and too long for a dead server
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=TIMEOUT_SECONDS, sock_read=TIMEOUT_SECONDS)
        options = {"client_kwargs": {"timeout": timeout}}
    fs, path = fsspec.core.url_to_fs(address if separator else str(Path(address).expanduser()), **options)
    fs.invalidate_cache()
    return fs, path


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

    def read(self, file: ShardFile, member: Member) -> bytes:
        """Read a member of a shard once its copy is complete; a damaged copy is replaced once."""
        with storage_errors_explained(f"{file.address}, copied to {self.folder},"):
            try:
                return file.verified(self._read(file, member), member)
            except DamagedTransfer:
                self._path(file).unlink(missing_ok=True)
                return file.verified(self._read(file, member), member)

    def _read(self, file: ShardFile, member: Member) -> bytes:
        while True:
            path = self.prefetch(file).result()
            try:
                os.utime(path)
                return read_range(path, member)
            except FileNotFoundError:  # deleted by another process, to make room for its own shards
                continue

    def _path(self, file: ShardFile) -> Path:
        return self.folder / f"{file.digest}.tar"

    def prefetch(self, file: ShardFile) -> "Future[Path]":
        """Start to download a shard, unless it is in the cache or on its way."""
        with self._lock:
            download = self._downloads.get(file.digest)
            if download is None or (download.done() and (download.exception() or not download.result().exists())):
                download = self._downloads[file.digest] = self._pool.submit(self._download, file)
            return download

    def _download(self, file: ShardFile) -> Path:
        path = self._path(file)
        if path.exists():
            return path
        with self._lock:
            self._incoming_bytes += file.size
        try:
            self._make_room()
            with atomic_write(path) as draft, storage_errors_explained(f"{file.address}, copied to {self.folder},"):
                with_retries(lambda: _copy(file, draft), READING_PAUSES)
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


def _copy(file: ShardFile, path: Path) -> None:
    file.fs.get_file(file.path, str(path))
    size = path.stat().st_size
    if size != file.size:
        file.check_unchanged()
        raise DamagedTransfer(f"{size} bytes arrived instead of {file.size}")


def _last_use_and_size(path: Path) -> tuple[float, int, Path]:
    try:
        status = path.stat()
    except FileNotFoundError:  # another process has just deleted it
        return 0.0, 0, path
    return status.st_mtime, status.st_size, path


def read_range(path: Path, member: Member) -> bytes:
    """Read the bytes of a member in a local file."""
    with path.open("rb") as file:
        file.seek(member.offset)
        return file.read(member.length)


def write_index(path: Path, value: Any) -> None:
    """Write what was found in a shard as JSON, after a line with its checksum."""
    text = json.dumps(value)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_text(f"{zlib.crc32(text.encode()):08x}\n{text}", encoding="utf-8")


def read_index(path: Path) -> Any:
    """Return what `write_index` wrote; None if there is nothing yet, or if it is damaged."""
    try:
        checksum, _, text = path.read_bytes().partition(b"\n")
        return json.loads(text) if checksum == f"{zlib.crc32(text):08x}".encode() else None
    except (OSError, ValueError):
        return None
