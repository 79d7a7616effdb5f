"""Whether figures can mean what they say: every class is there, in numbers, and the test is of other files."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from unshuffle.console import say
from unshuffle.errors import UserError

FEW = 10
"""Fewer files of a class than this teach little."""


def check_covered(labels: Iterable[int], wanted: Iterable[int], classes: Sequence[str], what: str) -> None:
    """Refuse a class without a readable file: a mean over the classes, or a search for them, would be wrong."""
    if empty := sorted(set(wanted) - set(labels)):
        raise UserError(f"the class {classes[empty[0]]} has no readable {what}")


def tell_few(console: Console, labels: Sequence[int], classes: Sequence[str], what: str) -> None:
    """Say that there is little to learn from."""
    counts = np.bincount(labels, minlength=len(classes))
    if len(labels) < FEW * len(classes):
        each = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else f"{counts.max()}"
        note(console, f"only {len(labels):,} {what} for {len(classes)} classes, {each} of each: little to learn from")


def shared_files(train: Iterable[Path], test: Iterable[Path]) -> list[Path]:
    """The files to test on that are also to be learned from, whatever links lead to them."""
    known = {_identity(path) for path in train}
    return [path for path in test if _identity(path) in known]


def _identity(path: Path) -> tuple[int, int] | Path:
    try:
        status = path.stat()
    except OSError:  # in a packed store a name is no file
        return path.absolute()
    return status.st_dev, status.st_ino


def tell_shared(console: Console, shared: int) -> None:
    """Say that the test is no test of new files."""
    if shared:
        note(console, f"{sharing(shared)}: the figures do not tell how it does on new ones")


def sharing(shared: int) -> str:
    """In words, for a statement."""
    return f"{shared:,} of the test files are training files too"


def note(console: Console, text: str) -> None:
    """A remark, wrapped at words on a terminal and one line elsewhere."""
    say(console, f"note: {text}")
