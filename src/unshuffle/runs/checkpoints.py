"""Finding and reading the checkpoints of a run; `unshuffle.training.checkpoint` writes them."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import torch
from rich.console import Console

from unshuffle.console import say
from unshuffle.errors import UserError
from unshuffle.files import check_zip


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """Return the file of the checkpoint after so many iterations."""
    return folder / f"{iteration:08d}.pt"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the files of all checkpoints, the oldest first; sorted by number, as names may differ in length."""
    return sorted((path for path in folder.glob("*.pt") if path.stem.isdigit()), key=lambda path: int(path.stem))


def checkpoint_iterations(folder: Path) -> list[int]:
    """Return the iterations of all checkpoints, in ascending order."""
    return [int(path.stem) for path in list_checkpoints(folder)]


class DamagedCheckpoint(UserError):
    """A checkpoint whose content is not what was written."""


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU, once all its checksums are verified; nothing in it is executed."""
    try:
        check_zip(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):  # the file may be sound
        raise
    except Exception as error:  # of many kinds, as for the zip: KeyError, UnpicklingError, RuntimeError ...
        raise DamagedCheckpoint(f"checkpoint {path} is damaged ({_first_line(error)})") from error
    if not isinstance(state, dict):
        raise DamagedCheckpoint(f"checkpoint {path} is damaged (it holds no state)")
    return state


def _first_line(error: Exception) -> str:
    """Return what is wrong in a few words; torch's messages also advise how to run the code in a file."""
    if isinstance(error, pickle.UnpicklingError):
        return "it contains more than tensors and plain values"
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


@contextmanager
def fitting(path: Path) -> Iterator[None]:
    """Raise a UserError if what a checkpoint holds does not fit the network or the program that uses it."""
    try:
        yield
    except UserError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError) as error:
        if type(error).__name__ == "OutOfMemoryError":
            raise
        problem = f"it lacks {error}" if isinstance(error, KeyError) else _first_line(error)
        raise UserError(f"checkpoint {path} does not fit ({problem}): was it written by another version?") from error


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The newest checkpoint of a folder that is not damaged."""

    path: Path
    state: dict[str, Any]
    warning: str | None
    """One sentence if newer checkpoints are damaged."""

    @property
    def iteration(self) -> int:
        """Iterations before the checkpoint."""
        return int(self.path.stem)


def newest_checkpoint(folder: Path, until: int | None = None) -> LoadedCheckpoint | None:
    """Return the newest checkpoint that is not damaged, up to an iteration; None if there are no checkpoints at all.

    Damaged ones stay where they are until the next checkpoint is written. If all are damaged, raise a UserError.
    """
    problems: list[str] = []
    for path in reversed(list_checkpoints(folder)):
        if until is not None and int(path.stem) > until:
            continue
        try:
            state = load_checkpoint(path)
        except DamagedCheckpoint as problem:
            problems.append(str(problem))
            continue
        warning = f"{'; '.join(problems)}: using the newest that is not, {path.name}" if problems else None
        return LoadedCheckpoint(path, state, warning)
    if problems:
        count = f"all {len(problems)} checkpoints" if len(problems) > 1 else "the only checkpoint"
        raise DamagedCheckpoint(f"{count} in {folder} cannot be used: {problems[0]}")
    return None


def usable_checkpoints(folder: Path, console: Console) -> list[Path]:
    """Return the checkpoints whose checksums are right, the oldest first; print a sentence for each damaged one."""
    usable: list[Path] = []
    for path in list_checkpoints(folder):
        try:
            check_zip(path)
        except BadZipFile as error:
            say(console, f"checkpoint {path} is damaged ({error}) and left out")
        else:
            usable.append(path)
    return usable
