"""Writing checkpoints, and the state of all random generators; `runs.checkpoints` lists and reads checkpoints."""

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unshuffle.errors import UserError
from unshuffle.files import DRAFT_SUFFIX, atomic_write
from unshuffle.runs.checkpoints import checkpoint_iterations, checkpoint_path, list_checkpoints
from unshuffle.wording import resume_advice


def save_checkpoint(folder: Path, iteration: int, state: dict[str, Any], keep: int) -> Path:
    """Write a checkpoint, then delete all but the newest `keep`; signals are deferred until it is written.

    If the disk is full, raise a UserError: the checkpoints before stay, and no half file.
    """
    path = checkpoint_path(folder, iteration)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, sync=True) as draft, draft.open("wb") as file:
            _save(state, file)
    except OSError as error:
        kept = checkpoint_iterations(folder)
        before = f"the checkpoint of iteration {kept[-1]} is kept" if kept else "there is none before it"
        raise UserError(
            f"checkpoint {path} cannot be written ({error.strerror or error}), and {before}: {resume_advice(error)}"
        ) from error
    _delete_outdated(folder, iteration, keep)
    return path


def _save(state: dict[str, Any], file: io.BufferedWriter) -> None:
    """Write the state; torch turns the error of a full disk into one of its own, without the cause."""
    problems: list[OSError] = []

    class Recorder:
        def write(self, content: bytes) -> int:
            try:
                return file.write(content)
            except OSError as error:
                problems.append(error)
                raise

        def flush(self) -> None:
            file.flush()

    try:
        torch.save(state, Recorder())  # type: ignore[arg-type]
    except Exception:
        if problems:
            raise problems[0] from None
        raise


def _delete_outdated(folder: Path, iteration: int, keep: int) -> None:
    """Delete old checkpoints, later ones (damaged, as the run continued from before them) and halves of killed runs."""
    checkpoints = list_checkpoints(folder)
    later = [path for path in checkpoints if int(path.stem) > iteration]
    drafts = [path for path in folder.iterdir() if path.name.endswith(DRAFT_SUFFIX)]
    for old in checkpoints[: len(checkpoints) - len(later)][:-keep] + later + drafts:
        old.unlink(missing_ok=True)


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
