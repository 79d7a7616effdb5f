"""Writing files: checked before the work, whole or not at all, one process at a time."""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from unshuffle.errors import UserError
from unshuffle.stopping import signals_deferred

T = TypeVar("T")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a cell begins with that spreadsheets take for a formula."""


@contextmanager
def atomic_write(path: Path, *, sync: bool = False, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` on success; neither an error nor a signal leaves half a file.

    With `sync` the file is on the disk afterwards and survives a power cut. With `shared` several processes may write
    the same file at the same time: each has a temporary path of its own, and the last one to finish wins.
    """
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp" if shared else f"{path.name}.tmp")
    with signals_deferred():
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
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if refusal is not None else 0))
            except BlockingIOError:
                raise UserError(refusal or "") from None
            except OSError:
                if refusal is None:
                    raise
        yield


def csv_cell(value: T) -> T | str:
    """Return a cell of a CSV file; text that a spreadsheet would run as a formula gets an apostrophe in front.

    Names of files may begin with any character. Numbers stay as they are, as text too.
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def csv_text(cell: str) -> str:
    """Return the text that `csv_cell` made a cell of."""
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(_FORMULA) else cell


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
