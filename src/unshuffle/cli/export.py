"""`unshuffle export`."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from unshuffle.cli.parsing import POSITIONAL, parse, write_json
from unshuffle.config import PRETRAINED
from unshuffle.options import to_dict
from unshuffle.runs.run import WEIGHTS_NAME, Run


@dataclass(frozen=True)
class ExportCommand:
    """Write the weights of a backbone in the format of another library, or a folder for the Hugging Face hub."""

    weights: Annotated[str, POSITIONAL]
    """A run folder, a weights file, pretrained, hf:OWNER/NAME, alexnet, torchvision:NAME, timm:NAME or random:NAME."""
    architecture: str | None = None
    """Architecture of a weights file that does not name it and is not recognised: resnet34, timm:NAME ..."""
    download: bool = False
    """Download hf:OWNER/NAME if it is not in the Hugging Face cache of this machine, or not in its latest version."""
    format: Literal["safetensors", "torchvision", "onnx", "hub"] = "safetensors"
    """safetensors: with metadata; torchvision: a state dict (.pth); onnx: checked against torch in onnxruntime; hub: a
    folder to upload to Hugging Face, with model card, config and safetensors."""
    out: Path | None = None
    """File to write, or folder for the format hub; by default beside the weights."""
    fold: bool = False
    """Fold batch normalisation into the convolutions, for programs that expect no batch normalisation."""
    half: bool = False
    """Store the weights in fp16, half the size (safetensors and hub only); they load as fp32."""
    json: Path | None = None
    """Write the architecture, size and, for onnx, the difference from torch to this JSON file."""


def main(args: Sequence[str]) -> int:
    """Export and print the architecture and size."""
    command = parse(ExportCommand, "export", args)
    from unshuffle.evaluation.features import find_backbone
    from unshuffle.models import export as exporting

    changes = {"fold": command.fold, "half": command.half}
    if command.format == "hub":
        out = (command.out or exporting.default_folder(command.weights)).expanduser()
    else:
        out = (command.out or exporting.default_file(command.weights, command.format, **changes)).expanduser()
    backbone = find_backbone(command.weights, architecture=command.architecture, download=command.download)
    if command.format == "hub":
        from unshuffle.report.model_card import model_card

        run = _run_of(Path(command.weights).expanduser())
        title = out.name if run is None else run.folder.resolve().name
        card = model_card(backbone, title, run, of_package=command.weights == PRETRAINED)
        exported = exporting.export_to_hub(backbone, out, card, **changes)
    else:
        exported = exporting.export(backbone, out, command.format, **changes)
    difference = f", within {exported['difference']:.1e} of torch" if "difference" in exported else ""
    print(f"{exported['architecture']} in {out}, {exported['bytes'] / 1e6:.1f} MB{difference}")
    if command.format == "hub":
        print(f"upload it with: hf upload OWNER/NAME {shlex.quote(str(out))}")
    write_json(command.json, "export", command.format, to_dict(command), exported)
    return 0


def _run_of(weights: Path) -> Run | None:
    """Return the run that weights come from, if they lie in its folder under their own name."""
    run = Run(weights.parent if weights.name == WEIGHTS_NAME else weights)
    return run if run.config_file.is_file() else None
