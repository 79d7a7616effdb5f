"""Export of backbones: safetensors, a state dict in torchvision's layout, ONNX, or a folder for Hugging Face."""

import copy
import importlib.util
import json
import secrets
import shutil
import warnings
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch

from unshuffle.errors import UserError
from unshuffle.files import DRAFT_SUFFIX, atomic_write, check_folder, check_new_file
from unshuffle.models.batch_norm import TOLERANCE, fold_batch_norm
from unshuffle.models.hub import CARD, CONFIG, WEIGHTS, hub_config
from unshuffle.models.registry import Backbone
from unshuffle.models.weights import METADATA, describe, write_weights
from unshuffle.runs.run import WEIGHTS_NAME

Format = Literal["safetensors", "torchvision", "onnx"]
SUFFIXES: dict[Format, str] = {"safetensors": ".safetensors", "torchvision": ".pth", "onnx": ".onnx"}


def export(backbone: Backbone, out: Path, form: Format, *, fold: bool = False, half: bool = False) -> dict[str, Any]:
    """Write a backbone, given in its evaluation form, and return a description of the file."""
    if half and form != "safetensors":
        raise UserError(f"--half is for the formats safetensors and hub, not for {form}")
    check_new_file(out, "--out")
    if out.suffix != SUFFIXES[form]:
        raise UserError(f"--out {out} must end with {SUFFIXES[form]} for the format {form}")
    backbone, metadata = _described(backbone, fold)
    checks = {}
    if form == "safetensors":
        write_weights(backbone, metadata, out, half=half)
    elif form == "torchvision":
        _write_torchvision(backbone, metadata, out)
    else:
        checks["difference"] = _write_onnx(backbone, metadata, out)
    return {"file": str(out), "bytes": out.stat().st_size, **metadata, **checks}


def export_to_hub(
    backbone: Backbone, out: Path, card: str, *, fold: bool = False, half: bool = False
) -> dict[str, Any]:
    """Write a folder that huggingface_hub uploads as it is, with this model card, and return a description of it.

    The weights have the names of torchvision or timm, where the backbone is theirs. The folder appears only when
    complete.
    """
    check_folder(out, "--out")
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: choose another --out")
    if fold and backbone.architecture.startswith("timm:"):
        raise UserError("--fold is not for timm's networks in the format hub: timm could not load them")
    backbone, metadata = _described(backbone, fold)
    draft = out.with_name(f"{out.name}.{secrets.token_hex(8)}{DRAFT_SUFFIX}")
    draft.mkdir(parents=True)
    try:
        write_weights(backbone.forms()["torchvision"], metadata, draft / WEIGHTS, half=half)
        (draft / CONFIG).write_text(json.dumps(hub_config(backbone), indent=2) + "\n")
        (draft / CARD).write_text(card, encoding="utf-8")
        with suppress(FileNotFoundError):
            out.rmdir()
        draft.replace(out)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return {"folder": str(out), "bytes": (out / WEIGHTS).stat().st_size, **metadata}


def _described(backbone: Backbone, fold: bool) -> tuple[Backbone, dict[str, str]]:
    """Return a backbone, folded if that is asked for, and the metadata of its file."""
    if fold:
        backbone = fold_batch_norm(backbone)
    return backbone, {**backbone.metadata, **describe(backbone)} | ({"batch_norm": "folded"} if fold else {})


def default_folder(weights: str) -> Path:
    """Return the default folder for the hub: `hub` in the run folder or beside the weights file, or else `NAME-hub`."""
    path = Path(weights).expanduser()
    if path.exists():
        return (path if path.is_dir() else path.parent) / "hub"
    return Path(f"{weights.replace(':', '-').replace('/', '-')}-hub")


def default_file(weights: str, form: Format, *, fold: bool = False, half: bool = False) -> Path:
    """Return the default output file: in the run folder, beside the weights file, or else in the working directory."""
    path = Path(weights).expanduser()
    base = (
        path / WEIGHTS_NAME
        if path.is_dir()
        else path
        if path.is_file()
        else Path(weights.replace(":", "-").replace("/", "-") + ".x")
    )
    out = base.with_name(f"{base.stem}{'-folded' if fold else ''}{'-half' if half else ''}{SUFFIXES[form]}")
    if form == "safetensors" and out == base and base.is_file():
        raise UserError(f"{base} is already a safetensors file: use it directly, or pass --out, --fold or --half")
    return out


def _write_torchvision(backbone: Backbone, metadata: dict[str, str], out: Path) -> None:
    """Write a plain state dict; its metadata goes where torch keeps the versions of layers, which loaders ignore."""
    state = backbone.forms()["torchvision"].state_dict()
    weights = OrderedDict((key, value.detach().cpu().clone()) for key, value in state.items())
    weights._metadata = state._metadata | {METADATA: metadata}  # type: ignore[attr-defined]
    with atomic_write(out) as draft:
        torch.save(weights, draft)


def _write_onnx(backbone: Backbone, metadata: dict[str, str], out: Path) -> float:
    """Write the network for any batch size and return its `onnx_difference`; the file is kept only if it is small."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"ONNX needs {package}: pip install 'unshuffle[onnx]'")
    backbone = copy.deepcopy(backbone).cpu().eval()
    example = torch.zeros(2, 3, backbone.eval_size, backbone.eval_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
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
            raise UserError(f"{out} was not written: onnxruntime and torch differ by {difference:.1e}")
    return difference


@torch.no_grad()
def onnx_difference(backbone: Backbone, file: Path) -> float:
    """Return the largest difference between a backbone and its ONNX file, as a fraction of the largest value."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for count in (1, 3):  # batch sizes
        images = torch.randn(count, 3, backbone.eval_size, backbone.eval_size, generator=generator)
        expected, exported = backbone(images), torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        worst = max(worst, float((expected - exported).abs().max() / expected.abs().max()))
    return worst
