"""Backbones on disk: safetensors with metadata that says what is needed to use them, and the files of other programs."""

import json
import pickle
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from unshuffle.errors import UserError
from unshuffle.files import atomic_write
from unshuffle.models.fold import absorb
from unshuffle.models.normalisation import Normalisation
from unshuffle.models.registry import BACKBONES, Backbone, build_backbone
from unshuffle.runs.run import WEIGHTS_NAME

METADATA = "unshuffle"
"""Under this name a state dict that `unshuffle export` wrote carries its metadata."""
_PICKLED = (".pth", ".pt", ".tar", ".bin")

Weights = dict[str, Tensor]


def save_backbone(
    backbone: Backbone,
    name: str,
    path: Path,
    *,
    crop_size: int,
    permutations: Mapping[str, npt.NDArray[np.int64]],
) -> None:
    """Write a backbone under its registered name, with the sets it was trained on."""
    metadata = {
        "architecture": name,
        "input_size": str(backbone.eval_size),
        "training_crop_size": str(crop_size),
        "normalisation": str(backbone.normalisation),
        **{f"{task}_permutations": json.dumps(rows.tolist()) for task, rows in permutations.items()},
    }
    write_weights(backbone, metadata, path)


def write_weights(backbone: nn.Module, metadata: dict[str, str], path: Path) -> None:
    """Write a backbone, or what holds one, with given metadata; a kill never leaves half a file."""
    weights = {key: value.detach().cpu().contiguous() for key, value in backbone.state_dict().items()}
    with atomic_write(path) as draft:
        draft.write_bytes(_sorted_metadata(save(weights, metadata)))


def _sorted_metadata(content: bytes) -> bytes:
    """A safetensors file whose bytes depend on nothing but what it holds: the library writes metadata in any order.

    It begins with the length of the header in 8 bytes, then the header, which is JSON padded to a multiple of 8.
    """
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def read_weights(path: Path) -> tuple[Weights, dict[str, str]]:
    """Tensors and metadata of a backbone's file, or of the run folder that holds one."""
    file = path / WEIGHTS_NAME if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"there are no weights at {file}")
    if file.suffix in _PICKLED:
        return _read_pickled(file)
    try:
        with safe_open(file, framework="pt") as stored:
            return {key: stored.get_tensor(key) for key in stored.keys()}, stored.metadata() or {}  # noqa: SIM118
    except SafetensorError:
        kinds = f", and a file of torch's ends with {', '.join(_PICKLED)}" if file.suffix != ".safetensors" else ""
        raise UserError(f"{file} is not a whole safetensors file{kinds}") from None


def _read_pickled(file: Path) -> tuple[Weights, dict[str, str]]:
    """A state dict that torch saved, alone or inside a checkpoint; a file that would run code is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about kinds of pickles
            stored = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, IndexError, AttributeError):
        # what torch says here is advice on how to read the file all the same, and run the code in it
        raise UserError(
            f"{file} is not a whole state dict that can be read safely: it is damaged, or holds more than tensors, "
            "which could run code; save model.state_dict() instead"
        ) from None
    for key in ("state_dict", "model", "weights"):
        if isinstance(stored, dict) and isinstance(stored.get(key), dict):
            stored = stored[key]
    if not isinstance(stored, dict):
        raise UserError(f"{file} holds no state dict")
    metadata = getattr(stored, "_metadata", {}).get(METADATA, {})
    weights = {key: value for key, value in stored.items() if isinstance(value, Tensor)}
    if not weights:
        raise UserError(f"{file} holds no tensors")
    return weights, metadata


def load_into(backbone: Backbone, name: str, path: Path) -> None:
    """Fill a backbone with stored weights, to train it on: the images will be our own crops."""
    weights, metadata = read_weights(path)
    _fill(backbone, name, weights, metadata, path)


def _fill(backbone: Backbone, name: str, weights: Weights, metadata: dict[str, str], path: Path) -> None:
    architecture = metadata.get("architecture", name)
    if architecture != name:
        raise UserError(f"{path} holds weights of {architecture}, not of {name}")
    for form in backbone.forms().values():
        fitting = _fitting(weights, form.state_dict())
        if fitting is not None:
            if bad := [key for key, value in fitting.items() if not value.isfinite().all()]:
                raise UserError(f"{path} holds numbers that are not finite, first in {bad[0]}: its training diverged")
            form.load_state_dict(fitting, strict=False)  # all is there but for counts that old files do not have
            return
    raise UserError(f"{path} does not fit {name}: {_misfit(weights, backbone.state_dict())}")


def _fitting(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> Weights | None:
    """The wanted tensors, if all are there in their shapes, with whatever before all of their names."""
    keys = [key for key in wanted if not key.endswith("num_batches_tracked")]
    for prefix in _prefixes(weights, keys[0]):
        found = {key: weights[prefix + key] for key in wanted if prefix + key in weights}
        if all(key in found and found[key].shape == wanted[key].shape for key in keys):
            return found
    return None


def _prefixes(weights: Mapping[str, Tensor], key: str) -> Iterator[str]:
    for stored in weights:
        prefix = stored.removesuffix(key)
        if stored.endswith(key) and (not prefix or prefix.endswith(".")):
            yield prefix


def _misfit(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    missing = [key for key in wanted if key not in weights]
    if missing:
        return f"it lacks {missing[0]}" + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
    key = next(key for key in wanted if weights[key].shape != wanted[key].shape)
    return f"{key} has the shape {tuple(weights[key].shape)}, not {tuple(wanted[key].shape)}"


def load_backbone(path: str | Path, architecture: str | None = None) -> Backbone:
    """The backbone stored at `path` (a file or a run folder) in the form that evaluations use.

    Takes what `unshuffle` writes, and state dicts of others (.pth, .pt) if they fit a registered backbone;
    `architecture` is needed only where a file does not name its own and does not fit any.
    """
    path = Path(path).expanduser()
    weights, metadata = read_weights(path)
    name = architecture or metadata.get("architecture") or _recognised(weights)
    if name is None:
        raise UserError(
            f"{path} does not say what architecture it is of and fits none of {', '.join(sorted(BACKBONES))}"
        )
    backbone = build_backbone(name)
    if _is_folded(backbone, weights):
        absorb(backbone)
    _fill(backbone, name, weights, metadata, path)
    backbone.metadata, known = metadata, metadata.get("normalisation")
    backbone.normalisation = Normalisation.parse(known) if known else backbone.published_normalisation
    return backbone.for_evaluation()


def _is_folded(backbone: Backbone, weights: Mapping[str, Any]) -> bool:
    """Whether the backbone has batch normalisation and the weights have none."""
    return not any(key.endswith("running_mean") for key in weights) and any(
        key.endswith("running_mean") for key in backbone.state_dict()
    )


def _recognised(weights: Weights) -> str | None:
    """The first registered backbone, in any of its forms, that the weights fit."""
    for name in sorted(BACKBONES):
        with torch.device("meta"):  # shapes will do
            backbone = build_backbone(name)
            if _is_folded(backbone, weights):
                absorb(backbone)
            if any(_fitting(weights, form.state_dict()) is not None for form in backbone.forms().values()):
                return name
    return None
