"""What is in the cache (`data.cache`), and deleting it: only files that unshuffle wrote, by their names."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unshuffle.config import STATES
from unshuffle.data.inventory import SKIPPED_FOLDER
from unshuffle.data.pack import clear_store, is_cached_store
from unshuffle.data.shards import SHARD_FOLDER
from unshuffle.data.store import HEADER, Header
from unshuffle.errors import UserError
from unshuffle.files import DRAFT_SUFFIX, locked_folder
from unshuffle.wording import counted

_LOOSE_FILES = {  # folder, what its files are named, and what they are
    SHARD_FOLDER: (re.compile(r"[0-9a-f]{24}-.*\.index"), "shard indices"),
    f"{SHARD_FOLDER}/images": (re.compile(r"[0-9a-f]{24}\.tar"), "copied remote shards"),
    f"{SHARD_FOLDER}/videos": (re.compile(r"[0-9a-f]{24}\.tar"), "copied remote shards"),
    SKIPPED_FOLDER: (re.compile(r".*-[0-9a-f]{8}\.csv"), "skipped-file lists"),
}
_STATE_NAME = re.compile(r"[a-z-]+-[0-9a-f]{12}")
INDEX_FOLDER = "indexes"
"""Folder of the cache with a folder of features for each dataset that the live page searches."""
_INDEX = (
    re.compile(r"[0-9a-f]{32}"),
    (re.compile(r"job\.txt|([0-9]{9}|joined)\.npz|values\.npy"), "parts of a search index"),
)


def _loose_kinds(cache: Path) -> dict[str, tuple[re.Pattern[str], str]]:
    """Return the folders of files that are no stores: what these are named, and what they are."""
    folder, (name, kind) = cache / INDEX_FOLDER, _INDEX
    inside = sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else []
    return _LOOSE_FILES | {f"{INDEX_FOLDER}/{path.name}": kind for path in inside if name.fullmatch(path.name)}


@dataclass(frozen=True)
class CacheEntry:
    """A packed store, or all files of one kind in a folder of the cache."""

    name: str
    what: str
    source: str
    """The folder that was packed; empty if it is not known."""
    size: int
    """In bytes."""
    last_used: float
    """Seconds since 1970."""
    clear: Callable[[], int]
    """Deletes it and returns the bytes that are freed."""

    @property
    def idle_days(self) -> float:
        """Days since it was last used."""
        return (time.time() - self.last_used) / 86400


def list_cache(cache: Path) -> list[CacheEntry]:
    """Return what unshuffle has in the cache, the largest first; links and other files are left out."""
    if not cache.is_dir():
        return []
    stores = [_store_entry(path) for path in cache.iterdir() if is_cached_store(path)]
    states = [path for path in (cache / STATES).glob("*") if _STATE_NAME.fullmatch(path.name) and not path.is_symlink()]
    stores += [_state_entry(path) for path in states if path.is_dir()]
    loose = [entry for name in _loose_kinds(cache) if (entry := _loose_entry(cache, name)) is not None]
    return sorted([*stores, *loose], key=lambda entry: (-entry.size, entry.name))


def _store_entry(folder: Path) -> CacheEntry:
    what, source = "packed store that is damaged or was only begun", ""
    try:
        header = Header.load(folder)
    except UserError:
        pass
    else:
        how = "raw pixels" if header.encoding == "raw" else "JPEG"
        state = "" if header.complete else ", incomplete"
        what, source = f"{header.kind} as {how}, short side {header.short_side} px{state}", header.origin
    statuses = [path.lstat() for path in folder.iterdir()]
    used = folder / HEADER if (folder / HEADER).exists() else folder
    return CacheEntry(
        folder.name,
        what,
        source,
        sum(status.st_size for status in statuses),
        used.stat().st_mtime,
        lambda: clear_store(folder),
    )


def _state_entry(folder: Path) -> CacheEntry:
    statuses = [path.lstat() for path in (folder, *folder.rglob("*"))]
    size = sum(status.st_size for status in statuses[1:])

    def clear() -> int:
        with locked_folder(folder, f"{folder} belongs to an evaluation that is running: wait for its end, or stop it"):
            shutil.rmtree(folder)
        return size

    what = f"interrupted evaluation ({folder.name.rpartition('-')[0]})"
    return CacheEntry(f"{STATES}/{folder.name}", what, "", size, max(status.st_mtime for status in statuses), clear)


def _loose_entry(cache: Path, name: str) -> CacheEntry | None:
    files = list(_loose_files(cache, name))
    if not files:
        return None
    statuses = [path.lstat() for path in files]
    return CacheEntry(
        name,
        counted(len(files), _loose_kinds(cache)[name][1]),
        "",
        sum(status.st_size for status in statuses),
        max(status.st_mtime for status in statuses),
        lambda: _clear_loose(cache, name),
    )


def _loose_files(cache: Path, name: str) -> Iterator[Path]:
    pattern, _ = _loose_kinds(cache)[name]
    folder = cache / name
    for path in sorted(folder.iterdir()) if folder.is_dir() and not folder.is_symlink() else ():
        # a killed process may have left a draft
        complete = re.sub(rf"\.[0-9a-f]{{16}}{re.escape(DRAFT_SUFFIX)}$", "", path.name)
        if path.is_file() and not path.is_symlink() and pattern.fullmatch(complete):
            yield path


def _clear_loose(cache: Path, name: str) -> int:
    freed = 0
    for path in _loose_files(cache, name):
        freed += path.lstat().st_size
        path.unlink(missing_ok=True)
    with suppress(OSError):  # not empty
        (cache / name).rmdir()
    return freed


def entry_sentence(entry: CacheEntry) -> str:
    """Return what an entry is, from which source, and when it was last used."""
    days = int(entry.idle_days)
    used = "today" if days < 1 else f"{counted(days, 'days')} ago"
    source = f", of {entry.source}" if entry.source else ""
    return f"{entry.what}{source}; last used {used}"
