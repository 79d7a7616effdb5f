"""Where results will be written: what is wrong with the place is found before the work, not after it."""

import os
from pathlib import Path

from unshuffle.errors import UserError


def check_file(file: Path, option: str) -> None:
    """Refuse a file that could not be written in the end."""
    if file.is_dir():
        raise UserError(f"{file} is a folder, and {option} must be a file")
    if not file.parent.is_dir():
        raise UserError(f"there is no folder {file.parent} to write {option} into")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UserError(f"cannot write {file}: choose another {option}")


def check_new_file(file: Path, option: str) -> None:
    """Refuse also a file that is there already."""
    if file.is_file():
        raise UserError(f"{file} exists: choose another {option}")
    check_file(file, option)


def check_folder(folder: Path, option: str) -> None:
    """Refuse a folder that could not be made, or not be written into."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, and {option} must be a folder")
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write into {existing}: choose another {option}")
