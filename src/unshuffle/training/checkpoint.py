"""Writing checkpoints, and the state of all random generators; `runs.checkpoints` lists and reads checkpoints."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unshuffle.files import atomic_write
from unshuffle.runs.checkpoints import checkpoint_path, list_checkpoints


def save_checkpoint(folder: Path, iteration: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint, then delete all but the newest `keep`; signals are deferred until it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(folder, iteration)
    with atomic_write(path, sync=True) as draft, draft.open("wb") as file:
        torch.save(state, file)
    for old in list_checkpoints(folder)[:-keep]:
        old.unlink()
    return path


def random_state() -> dict[str, Any]:
    """Return the states of all global generators, as tensors and plain values."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [kind, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "python": random.getstate(),
    }


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore all global generators."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, gauss))  # noqa: NPY002
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
