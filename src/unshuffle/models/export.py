"""Backbones for use elsewhere: safetensors, a state dict as torchvision would write it, or ONNX."""

import copy
import importlib.util
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch

from unshuffle.errors import UserError
from unshuffle.files import atomic_write, check_new_file
from unshuffle.models.fold import fold_batch_norm
from unshuffle.models.registry import Backbone
from unshuffle.models.weights import METADATA, write_weights
from unshuffle.runs.run import WEIGHTS_NAME

Format = Literal["safetensors", "torchvision", "onnx"]
SUFFIXES: dict[Format, str] = {"safetensors": ".safetensors", "torchvision": ".pth", "onnx": ".onnx"}
TOLERANCE = 1e-4
"""Largest difference between torch and onnxruntime, as a share of the largest value."""


def export(backbone: Backbone, out: Path, form: Format, *, fold: bool = False) -> dict[str, Any]:
    """Write a backbone that is in its form for evaluation; returns what is worth telling about the file."""
    check_new_file(out, "--out")
    if out.suffix != SUFFIXES[form]:
        raise UserError(f"the name of a file in the format {form} ends with {SUFFIXES[form]}, and {out} does not")
    if fold:
        backbone = fold_batch_norm(backbone)
    metadata = {**backbone.metadata, **_description(backbone)} | ({"batch_norm": "folded"} if fold else {})
    findings = _WRITERS[form](backbone, metadata, out)
    return {"file": str(out), "bytes": out.stat().st_size, **metadata, **findings}


def default_file(weights: str, form: Format, *, fold: bool = False) -> Path:
    """Where an export goes that is not told: into the run folder or beside the weights file, or else where we are."""
    path = Path(weights).expanduser()
    base = path / WEIGHTS_NAME if path.is_dir() else path if path.is_file() else Path(weights.replace(":", "-") + ".x")
    out = base.with_name(f"{base.stem}{'-folded' if fold else ''}{SUFFIXES[form]}")
    if form == "safetensors" and out == base and base.is_file():
        raise UserError(f"{base} is the backbone as safetensors already: use it as it is, or give --out or --fold")
    return out


def _description(backbone: Backbone) -> dict[str, str]:
    return {
        "architecture": backbone.architecture,
        "input_size": str(backbone.eval_size),
        "normalisation": str(backbone.normalisation),
    }


def _write_safetensors(backbone: Backbone, metadata: dict[str, str], out: Path) -> dict[str, Any]:
    write_weights(backbone, metadata, out)
    return {}


def _write_torchvision(backbone: Backbone, metadata: dict[str, str], out: Path) -> dict[str, Any]:
    """A plain state dict; the metadata travels where torch keeps the versions of layers, out of everybody's way."""
    state = backbone.forms()["torchvision"].state_dict()
    weights = OrderedDict((key, value.detach().cpu().clone()) for key, value in state.items())
    weights._metadata = state._metadata | {METADATA: metadata}  # type: ignore[attr-defined]
    with atomic_write(out) as draft:
        torch.save(weights, draft)
    return {}


def _write_onnx(backbone: Backbone, metadata: dict[str, str], out: Path) -> dict[str, Any]:
    """The network with any number of images at a time, kept only if onnxruntime computes what torch does."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"ONNX needs {package}: pip install 'unshuffle[onnx]'")
    backbone = copy.deepcopy(backbone).cpu().eval()
    example = torch.zeros(2, 3, backbone.eval_size, backbone.eval_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about its own insides
        program = torch.onnx.export(
            backbone,
            (example,),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    assert program is not None
    program.model.metadata_props.update(metadata)
    with atomic_write(out) as draft:
        program.save(draft, external_data=False)
        difference = onnx_difference(backbone, draft)
        if not difference <= TOLERANCE:
            raise UserError(f"onnxruntime and torch differ by {difference:.1e}, so {out} was not written")
    return {"difference": difference}


@torch.no_grad()
def onnx_difference(backbone: Backbone, file: Path) -> float:
    """Largest difference between a backbone and its ONNX file, as a share of the largest value, for 1 and for 3 images."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for count in (1, 3):
        images = torch.randn(count, 3, backbone.eval_size, backbone.eval_size, generator=generator)
        ours, theirs = backbone(images), torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        worst = max(worst, float((ours - theirs).abs().max() / ours.abs().max()))
    return worst


_WRITERS: dict[Format, Callable[[Backbone, dict[str, str], Path], dict[str, Any]]] = {
    "safetensors": _write_safetensors,
    "torchvision": _write_torchvision,
    "onnx": _write_onnx,
}
