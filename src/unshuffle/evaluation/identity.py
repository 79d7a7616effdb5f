"""What tells one job from another: its options, its weights and its files."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from unshuffle.models import Backbone


def digest(things: Iterable[object]) -> str:
    """A short name for a list of things, by how they are written."""
    hashed = hashlib.sha256()
    for thing in things:
        hashed.update(f"{thing}\n".encode(errors="surrogateescape"))
    return hashed.hexdigest()


def stamp(path: Path) -> str:
    """Tells a file from itself after a change."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def fingerprint(backbone: Backbone) -> str:
    """Tells one set of weights from another."""
    hashed = hashlib.sha256(str(backbone.normalisation).encode())
    for key, value in backbone.state_dict().items():
        hashed.update(key.encode() + value.cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()
