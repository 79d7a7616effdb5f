"""Checkpoints that hold everything, appear whole or not at all, and are read without pickle."""

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unshuffle.errors import UserError
from unshuffle.files import atomic_write


def checkpoint_path(folder: Path, iteration: int) -> Path:
    """The checkpoint after so many iterations."""
    return folder / f"{iteration:08d}.pt"


def list_checkpoints(folder: Path) -> list[Path]:
    """All checkpoints, the oldest first, by number and not by spelling."""
    return sorted((path for path in folder.glob("*.pt") if path.stem.isdigit()), key=lambda path: int(path.stem))


def save_checkpoint(folder: Path, iteration: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint, then delete all but the newest `keep`; a signal waits until it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(folder, iteration)
    with atomic_write(path, sync=True) as draft, draft.open("wb") as file:
        torch.save(state, file)
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink()
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; nothing in it is executed."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError):
        raise UserError(f"checkpoint {path} is damaged; {_way_out(path)}") from None
    return state


def _way_out(path: Path) -> str:
    if list_checkpoints(path.parent)[:1] == [path]:
        return "there is none before it: without it the training starts from the beginning"
    return "delete it to use the one before"


def random_state() -> dict[str, Any]:
    """The hidden states of every global generator, as tensors and plain values."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 - it is part of "everything"
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Put every global generator back."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
