"""Finding and reading the checkpoints of a run; `unshuffle.training.checkpoint` writes them."""

import pickle
from pathlib import Path
from typing import Any

import torch

from unshuffle.errors import UserError


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """Return the file of the checkpoint after so many iterations."""
    return folder / f"{iteration:08d}.pt"


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the files of all checkpoints, the oldest first; sorted by number, as names may differ in length."""
    return sorted((path for path in folder.glob("*.pt") if path.stem.isdigit()), key=lambda path: int(path.stem))


def checkpoint_iterations(folder: Path) -> list[int]:
    """Return the iterations of all checkpoints, in ascending order."""
    return [int(path.stem) for path in list_checkpoints(folder)]


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; nothing in it is executed."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError):
        raise UserError(f"checkpoint {path} is damaged; {_advice(path)}") from None
    return state


def _advice(path: Path) -> str:
    if list_checkpoints(path.parent)[:1] == [path]:
        return "there is none before it: without it the training starts from the beginning"
    return "delete it to use the one before"
