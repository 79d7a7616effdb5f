"""One process at a time."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Hold a file, or wait for whoever holds it; the lock goes when its process does, and what is in it stays."""
    with path.open("ab") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
