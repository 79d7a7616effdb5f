"""What a folder holds: its images or videos, recognised by name or content, and everything else, counted.

Every file is accounted for: used, skipped with a reason and listed in a file, or ignored and counted.
"""

import csv
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unshuffle.data.media import HEAD_BYTES, VIDEO_SUFFIXES, image_suffixes, recognise
from unshuffle.data.source import Skipped
from unshuffle.errors import UserError
from unshuffle.files import atomic_write, csv_cell
from unshuffle.stopping import check_stopped

Kind = Literal["images", "videos"]

HIDDEN, HIDDEN_FOLDERS, NO_EXTENSION = "hidden", "hidden folders", "without extension"
"""What is ignored besides the files with an extension; files of the operating system count as hidden."""
SKIPPED_FOLDER = "skipped"
"""Folder in the cache with the lists of skipped files that have no other place."""
SKIPPED_LIST = "skipped.csv"
"""Name of such a list in an output folder, such as that of a run."""
_SYSTEM_FILES = {"thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r"}
_SYSTEM_FOLDERS = {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"}
_CAMERA_RAW = (  # begin like a TIFF, of which Pillow would read a tiny preview
    *(".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".iiq", ".kdc", ".mos", ".mrw", ".nef", ".nrw"),
    *(".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".x3f"),
)
_SOUND = (".aac", ".flac", ".m4a", ".m4b", ".m4p", ".mka", ".mp3", ".oga", ".ogg", ".opus", ".wav", ".wma")
_NOT_BY_CONTENT = frozenset({*_CAMERA_RAW, *_SOUND})


@dataclass(frozen=True)
class Inventory:
    """The images or the videos of a folder and its subfolders, and what else is in them."""

    files: Mapping[str, Path]
    """By path relative to the folder, sorted. What cannot be read is among them, so that it is listed as skipped."""
    ignored: Mapping[str, int]
    """Number of the other files by extension, of hidden files and of hidden folders; the most frequent first."""


def take_inventory(folder: Path, kind: Kind) -> Inventory:
    """Find the images or videos of a folder, flat or nested, through links too, and count everything else.

    A file is one if its name ends like one or if its content begins like one. So are, to be listed as skipped: broken
    links, named pipes, subfolders without permission, and folders with the name of a file and no files below them.
    """
    if not folder.exists():
        raise UserError(f"{folder} does not exist: check the path")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder that contains the files")
    suffixes = image_suffixes() if kind == "images" else VIDEO_SUFFIXES
    matching: list[Path] = []
    named_folders: list[Path] = []
    unreadable: list[Path] = []
    ignored: Counter[str] = Counter()
    visited: set[str] = set()
    walk = os.walk(folder, followlinks=True, onerror=lambda error: unreadable.append(Path(error.filename)))
    for parent, folders, files in walk:  # no folder twice
        check_stopped()
        visited.add(os.path.realpath(parent))
        visible = sorted(name for name in folders if not _is_hidden(name, _SYSTEM_FOLDERS))
        ignored[HIDDEN_FOLDERS] += len(folders) - len(visible)
        folders[:] = [name for name in visible if os.path.realpath(Path(parent, name)) not in visited]
        for name in files:
            path = Path(parent, name)
            if _is_hidden(name, _SYSTEM_FILES):
                ignored[HIDDEN] += 1
            elif (suffix := path.suffix.lower()) in suffixes or kind in _kinds_by_content(path, suffix):
                matching.append(path)
            else:
                ignored[suffix or NO_EXTENSION] += 1
        named_folders += [path for name in folders if (path := Path(parent, name)).suffix.lower() in suffixes]
    if folder in unreadable:
        raise UserError(f"{folder} cannot be read: check its permissions")
    used = {parent for path in matching for parent in path.parents}
    matching += unreadable + [path for path in named_folders if path not in used and path not in unreadable]
    names = {path.relative_to(folder).as_posix(): path for path in matching}
    counts = sorted((+ignored).items(), key=lambda entry: (-entry[1], entry[0]))
    return Inventory(dict(sorted(names.items())), dict(counts))


def _is_hidden(name: str, system: set[str]) -> bool:
    return name.startswith(".") or name.lower() in system


def kinds_of_file(path: Path) -> frozenset[str]:
    """Return whether a file is an image, a video or both: by its name, or by its content if the name does not say."""
    suffix = path.suffix.lower()
    named = {"images": image_suffixes(), "videos": VIDEO_SUFFIXES}
    return frozenset(kind for kind, known in named.items() if suffix in known) or _kinds_by_content(path, suffix)


def _kinds_by_content(path: Path, suffix: str) -> frozenset[str]:
    """Return what a file is by its first bytes; opening a named pipe, for example, would wait for ever."""
    try:
        if suffix in _NOT_BY_CONTENT or not stat.S_ISREG(path.stat().st_mode):
            return frozenset()
        with path.open("rb") as file:
            return recognise(file.read(HEAD_BYTES))
    except OSError:
        return frozenset()


# ---- lists of skipped files


def skipped_file(address: str, cache: Path) -> Path:
    """Return the file in the cache that lists what was skipped at an address, for commands without an output folder."""
    digest = hashlib.sha256(os.fsencode(address)).hexdigest()[:8]
    return cache.expanduser() / SKIPPED_FOLDER / f"{Path(address).name or 'data'}-{digest}.csv"


def write_skipped(file: Path, skipped: Sequence[Skipped]) -> Path:
    """Write the list of skipped files with the reasons as CSV, and return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # file names need not be valid text
    with atomic_write(file) as draft, draft.open("w", newline="", encoding="utf-8", errors="backslashreplace") as table:
        csv.writer(table).writerows([("file", "reason"), *(map(csv_cell, row) for row in skipped)])
    return file
