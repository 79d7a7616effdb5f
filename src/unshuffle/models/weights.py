"""Trunks on disk: safetensors with metadata that says what is needed to use them."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from unshuffle.errors import UserError
from unshuffle.models.registry import Backbone, build_backbone

WEIGHTS_NAME = "backbone.safetensors"
NORMALISATION = "per image and channel: mean 0, deviation 1"


def save_backbone(
    trunk: Backbone,
    name: str,
    path: Path,
    *,
    crop_size: int,
    permutations: Mapping[str, npt.NDArray[np.int64]],
) -> None:
    """Write a trunk under its registered name, with the sets it was trained on."""
    metadata = {
        "architecture": name,
        "input_size": str(trunk.eval_size),
        "training_crop_size": str(crop_size),
        "normalisation": NORMALISATION,
        **{f"{task}_permutations": json.dumps(rows.tolist()) for task, rows in permutations.items()},
    }
    weights = {key: value.detach().cpu().contiguous() for key, value in trunk.state_dict().items()}
    draft = path.with_suffix(".tmp")
    save_file(weights, draft, metadata=metadata)
    draft.replace(path)


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a trunk's file, or of the run folder that holds one."""
    file = path / WEIGHTS_NAME if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"there are no weights at {file}")
    try:
        with safe_open(file, framework="pt") as stored:
            return {key: stored.get_tensor(key) for key in stored.keys()}, stored.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{file} is not a whole safetensors file: {error}") from None


def load_into(trunk: Backbone, name: str, path: Path) -> None:
    """Fill a trunk with stored weights."""
    weights, metadata = read_weights(path)
    architecture = metadata.get("architecture", name)
    if architecture != name:
        raise UserError(f"{path} holds weights of {architecture}, not of {name}")
    try:
        trunk.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"{path} does not fit {name}: {' '.join(str(error).split())}") from None


def load_backbone(path: str | Path, architecture: str | None = None) -> Backbone:
    """The trunk stored at `path` (a file or a run folder) in the form that evaluations use.

    `architecture` is needed only for files that do not name theirs.
    """
    path = Path(path)
    _, metadata = read_weights(path)
    name = architecture or metadata.get("architecture")
    if name is None:
        raise UserError(f"{path} does not say what architecture it is of: pass architecture=...")
    trunk = build_backbone(name)
    load_into(trunk, name, path)
    return trunk.for_evaluation()
