"""`unshuffle export`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from unshuffle.cli.parsing import POSITIONAL, parse, write_json
from unshuffle.options import to_dict


@dataclass(frozen=True)
class ExportCommand:
    """Write the weights of a backbone in the format of another library."""

    weights: Annotated[str, POSITIONAL]
    """A run folder, a weights file, pretrained, alexnet, torchvision:NAME, timm:NAME or random:NAME."""
    architecture: str | None = None
    """Which network a weights file holds that neither states it nor is recognised: resnet34, timm:NAME ..."""
    format: Literal["safetensors", "torchvision", "onnx"] = "safetensors"
    """safetensors: with metadata; torchvision: a state dict (.pth); onnx: checked against torch in onnxruntime."""
    out: Path | None = None
    """File to write; by default beside the weights."""
    fold: bool = False
    """Fold batch normalisation into the convolutions, for layers that are used without it."""
    half: bool = False
    """Store the weights in fp16, half the size (safetensors only); they load as fp32."""
    json: Path | None = None
    """Write the architecture, size and, for onnx, the difference from torch to this JSON file."""


def main(args: Sequence[str]) -> int:
    """Export and print the architecture and size."""
    command = parse(ExportCommand, "export", args)
    from unshuffle.evaluation.features import find_backbone
    from unshuffle.models import export as exporting

    changes = {"fold": command.fold, "half": command.half}
    out = (command.out or exporting.default_file(command.weights, command.format, **changes)).expanduser()
    backbone = find_backbone(command.weights, architecture=command.architecture)
    exported = exporting.export(backbone, out, command.format, **changes)
    difference = f", within {exported['difference']:.1e} of torch" if "difference" in exported else ""
    print(f"{exported['architecture']} in {out}, {exported['bytes'] / 1e6:.1f} MB{difference}")
    write_json(command.json, "export", command.format, to_dict(command), exported)
    return 0
