"""Files: checked before the work, written whole or not at all, by one process at a time, verified when read."""

import errno
import json
import math
import os
import secrets
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from unshuffle.errors import UserError
from unshuffle.stopping import signals_deferred

DRAFT_SUFFIX = ".tmp"
"""How the names of files end that are not yet complete; only a killed process leaves one behind."""
T = TypeVar("T")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a cell begins with that spreadsheets take for a formula."""


@contextmanager
def atomic_write(path: Path, *, sync: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` on success; neither an error nor a signal leaves half a file.

    The temporary file has an unpredictable name in the same folder and is created here, so that several processes may
    write the same file (the last one to finish wins) and a link that someone has placed there is never followed. If
    `path` itself is a link, the file replaces it. With `sync` the file is on the disk afterwards and survives a power
    cut.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}{DRAFT_SUFFIX}")
    with signals_deferred():
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))  # less what the umask forbids
        try:
            yield draft
            if sync:
                _sync(draft)
            draft.replace(path)
            if sync and os.name == "posix":  # other systems cannot open a folder
                _sync(path.parent)
        finally:
            draft.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_file(file: Path, option: str) -> None:
    """Raise a UserError if a file that `option` names cannot be written."""
    if file.is_dir():
        raise UserError(f"{file} is a folder, but {option} must be a file")
    if not file.parent.is_dir():
        raise UserError(f"there is no folder {file.parent} to write {option} into")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(f"cannot write {file}: choose another {option}")


def check_new_file(file: Path, option: str) -> None:
    """Raise a UserError if a file cannot be written or exists already."""
    if file.is_file():
        raise UserError(f"{file} exists: choose another {option}")
    check_file(file, option)


def check_folder(folder: Path, option: str) -> None:
    """Raise a UserError if a folder cannot be created or written into."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, but {option} must be a folder")
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write into {existing}: choose another {option}")


@contextmanager
def locked(path: Path, refusal: str | None = None) -> Iterator[None]:
    """Hold an exclusive lock on a file, which ends with the process and leaves the content alone.

    If another process holds it: wait, or with a `refusal` raise it as a UserError. Where files have no locks (Windows,
    some network file systems) nothing is refused.
    """
    with path.open("ab") as file:
        _lock(file.fileno(), refusal)
        yield


@contextmanager
def locked_folder(folder: Path, refusal: str) -> Iterator[None]:
    """Hold an exclusive lock on a folder as `locked` does on a file, without a file in it."""
    if sys.platform == "win32":  # which cannot open a folder
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _lock(descriptor, refusal)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, refusal: str | None) -> None:
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal is not None else 0))
    except BlockingIOError:
        raise UserError(refusal or "") from None
    except OSError:
        if refusal is None:
            raise


def check_zip(path: Path) -> None:
    """Raise BadZipFile if the content of a zip archive, such as torch.save writes, is not what its checksums say.

    torch.load compares no checksums.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            # torch reads nothing from what is marked as a folder, a bit which no checksum covers
            marked = [member.filename for member in archive.infolist() if member.external_attr & 0x10]
            bad = archive.testzip() or next(iter(marked), None)
            listed, stated = len(archive.infolist()), _stated_members(path, archive)
    except Exception as error:  # a damaged directory gives errors of many kinds, from UnicodeDecodeError to zlib.error
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: a damaged offset
            raise
        raise zipfile.BadZipFile(str(error)) from error
    if bad is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {bad}")
    if listed != stated:  # a wrong length in the directory makes zipfile take further entries for a comment
        raise zipfile.BadZipFile(f"the directory lists {listed} of {stated} members")


def _stated_members(path: Path, archive: zipfile.ZipFile) -> int:
    """Return how many members the end of a zip archive states; beyond 65,534 it does not say, and all are right."""
    with path.open("rb") as file:
        file.seek(-22 - len(archive.comment), os.SEEK_END)
        stated = int.from_bytes(file.read(12)[10:], "little")
    return stated if stated < 0xFFFF else len(archive.infolist())


def csv_cell(value: T) -> T | str:
    """Return a cell of a CSV file; text that a spreadsheet would run as a formula gets an apostrophe in front.

    Names of files may begin with any character. Numbers stay as they are, as text too.
    """
    if not isinstance(value, str) or not value.lstrip("'").startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def csv_text(cell: str) -> str:
    """Return the text that `csv_cell` made a cell of."""
    return cell[1:] if cell.startswith("'") and cell.lstrip("'").startswith(_FORMULA) else cell


def write_measurement(path: Path, command: str, protocol: str, config: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Write the JSON of `--json`: {"command", "protocol", "config", "metrics"}; NaN and infinity become null."""
    document = {"command": command, "protocol": protocol, "config": config, "metrics": metrics}
    path.write_text(json.dumps(_strict(document), indent=1, default=str) + "\n")


def _strict(value: Any) -> Any:
    """Replace what strict JSON cannot hold."""
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
