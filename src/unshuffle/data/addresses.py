"""Addresses of tar shards: one file, a pattern or a folder of them, on this machine or wherever fsspec reaches."""

import hashlib
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

from unshuffle.data.media import explain
from unshuffle.errors import UserError

T = TypeVar("T")
PAUSES = (1.0, 10.0)  # seconds before storage is asked again

# What tells one state of a file from the next; every kind of storage has some of these.
_STAMPS = ("size", "mtime", "ETag", "etag", "LastModified", "last_modified", "md5Hash", "updated", "created")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_TAR = re.compile(r"\.tar(\?[^/]*)?$")  # a signed web address goes on after a question mark
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")


@dataclass(frozen=True)
class ShardFile:
    """One tar file, wherever it lies."""

    address: str
    fs: Any
    path: str
    size: int
    digest: str
    """Changes when the address or the file does."""

    @property
    def local(self) -> Path | None:
        """Its path, if it lies on this machine."""
        return Path(self.path) if isinstance(self.fs, LocalFileSystem) else None

    def read_range(self, offset: int, length: int) -> bytes:
        """Some bytes of it."""
        with reading(self.address):
            return patiently(lambda: bytes(self.fs.cat_file(self.path, start=offset, end=offset + length)))


def is_shards(address: str) -> bool:
    """Whether an address means shards: a URL, the name or pattern of tar files, or a folder of nothing else."""
    folder = Path(address).expanduser()
    if "://" in address or not folder.is_dir():
        return "://" in address or _names_a_tar(address)
    visible = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return bool(visible) and all(path.is_file() and _names_a_tar(path.name) for path in visible)


def refuse_shards(path: Path) -> None:
    """Say what shards are for, where only a folder will do."""
    if is_shards(str(path)) or ":/" in str(path):  # a path has lost one slash of s3://
        raise UserError(f"{path} means tar shards, which only pretrain, doctor and bench read: unpack them")


def find_shards(address: str) -> list[tuple[Any, str]]:
    """The file system and path of every shard that an address means, none twice."""
    found = chain.from_iterable(_find(one) for one in expand_braces(address))
    shards = {fs.unstrip_protocol(path): (fs, path) for fs, path in found}
    for name in shards:
        if name.endswith(_COMPRESSED):
            raise UserError(
                f"{name} is compressed, so nothing in it can be found without reading all: unpack it to .tar"
            )
    return list(shards.values())


def look_up(fs: Any, path: str) -> ShardFile:
    """Ask the storage about a shard."""
    address = path if isinstance(fs, LocalFileSystem) else fs.unstrip_protocol(path)
    with reading(address):
        info = fs.info(path)
    if info["type"] != "file":
        raise UserError(f"{address} is not a file, and a shard is a tar file")
    if info.get("size") is None:
        raise UserError(f"{address} cannot be read in parts: its server does not tell its size")
    stamps = {name: str(info[name]) for name in _STAMPS if name in info}
    digest = hashlib.sha256(f"{fs.unstrip_protocol(path)}\n{sorted(stamps.items())}".encode(errors="surrogateescape"))
    return ShardFile(address, fs, path, int(info["size"]), digest.hexdigest()[:24])


def expand_braces(pattern: str) -> list[str]:
    """`a-{00..02}.{x,y}` written out: numbers keep their zeros, and every combination is there."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    heads = [pattern[: match.start()] + choice for choice in _choices(match[1])]
    tails = expand_braces(pattern[match.end() :])
    return [head + tail for head in heads for tail in tails]


def _choices(inside: str) -> list[str]:
    numbers = _RANGE.fullmatch(inside)
    if numbers is None:
        return inside.split(",")
    first, last = int(numbers[1]), int(numbers[2])
    step = 1 if first <= last else -1
    return [str(number).zfill(len(numbers[1])) for number in range(first, last + step, step)]


@contextmanager
def reading(address: str) -> Iterator[None]:
    """Turn what storage drivers raise into one sentence; they raise almost anything."""
    try:
        yield
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError(f"{address} does not exist") from error
    except ImportError as error:
        raise UserError(
            f"{address} needs a package that is not installed ({explain(error)}): pip install 'unshuffle[remote]' "
            "brings those of S3, Google and the web"
        ) from error
    except Exception as error:
        raise UserError(f"{address} cannot be read: {explain(error)}") from error


def patiently(work: Callable[[], T]) -> T:
    """Try again what fails for a moment, as storage does in the course of a long run."""
    for pause in PAUSES:
        try:
            return work()
        except (FileNotFoundError, PermissionError):
            raise
        except Exception:
            time.sleep(pause)
    return work()


def _names_a_tar(address: str) -> bool:
    return bool(_TAR.search(address)) or address.endswith(_COMPRESSED)


def _find(address: str) -> list[tuple[Any, str]]:
    with reading(address):
        fs, path = fsspec.core.url_to_fs(address if "://" in address else str(Path(address).expanduser()))
        # only * makes a pattern: ? and [ stand in signed web addresses
        if "*" in path:
            paths = sorted(fs.glob(path))
        elif _names_a_tar(path):
            paths = [path]
        else:
            paths = sorted(name for name in fs.ls(path, detail=False) if name.endswith(".tar"))
    if not paths:
        raise UserError(f"there are no tar files at {address}")
    return [(fs, one) for one in paths]
