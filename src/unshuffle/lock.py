"""One process at a time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unshuffle.errors import UserError


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Hold a file, or wait for whoever holds it; the lock goes when its process does, and what is in it stays."""
    with path.open("ab") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def held(path: Path, refusal: str) -> Iterator[None]:
    """Hold a file, or refuse with a sentence if another process does; where files have no locks, nobody is refused."""
    with path.open("ab") as file:
        if sys.platform != "win32":
            import fcntl

            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(refusal) from None
            except OSError:  # some network file systems have no locks, and are trained on all the same
                pass
        yield
