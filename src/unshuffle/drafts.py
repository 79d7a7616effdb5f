"""Files that appear whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unshuffle.stopping import undisturbed


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` once it is whole; neither a failure nor a signal leaves a half behind."""
    draft = path.with_name(f"{path.name}.tmp")
    with undisturbed():
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
