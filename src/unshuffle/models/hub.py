"""Hugging Face: weights in its local cache, and the config.json of a folder to upload."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from unshuffle.errors import UserError
from unshuffle.models.registry import Backbone

PREFIX = "hf:"
"""Begins the name of weights on the Hugging Face hub: hf:OWNER/NAME, or hf:OWNER/NAME@REVISION."""
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
"""The files of a folder to upload."""
_WEIGHTS_NAMES = (WEIGHTS, "pytorch_model.bin")
_PUBLISHED = ("license", "origin_url", "paper_ids", "paper_name", "tag", "notes")
"""Keys of timm's configs that are about the weights it publishes, and say nothing about others."""


def is_on_hub(spec: str | Path) -> bool:
    """Return whether a name of weights means the hub."""
    return str(spec).startswith(PREFIX)


def hub_weights(spec: str | Path, *, download: bool = False) -> Path:
    """Return the weights file of `hf:OWNER/NAME` in the local cache, with its config.json beside it.

    Nothing is downloaded unless `download` asks for it.
    """
    repository, _, revision = str(spec).removeprefix(PREFIX).partition("@")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise UserError(f"'{spec}' is no name on the Hugging Face hub: write hf:OWNER/NAME")
    try:
        from huggingface_hub import snapshot_download, try_to_load_from_cache
    except ImportError:
        raise UserError(f"{spec} needs huggingface_hub: pip install 'unshuffle[hub]'") from None
    if download:
        try:
            snapshot_download(repository, revision=revision or None, allow_patterns=[CONFIG, *_WEIGHTS_NAMES])
        except Exception as error:  # of many kinds: unknown repository, no permission, no network, no space ...
            problem = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
            raise UserError(f"{spec} cannot be downloaded: {problem}") from None
    for name in _WEIGHTS_NAMES:
        cached = try_to_load_from_cache(repository, name, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    if download:
        raise UserError(f"{spec} holds no weights: neither {' nor '.join(_WEIGHTS_NAMES)} is there")
    raise UserError(
        f"{spec} is not in the Hugging Face cache of this machine and nothing is downloaded: add --download, or run "
        f"hf download {repository}"
    )


def hub_config(backbone: Backbone) -> dict[str, Any]:
    """Return the config.json of a backbone; where it is timm's, with timm's own keys, so that timm builds it."""
    stated = {
        "architecture": backbone.architecture,
        "input_size": backbone.eval_size,
        "normalisation": json.loads(backbone.normalisation.to_json()),
    }
    if not backbone.architecture.startswith("timm:"):
        return {"architecture": backbone.architecture, "num_features": backbone.channels, "unshuffle": stated}
    from timm.models._hub import save_config_for_hf

    with TemporaryDirectory() as folder:  # timm has it as a file only
        file = Path(folder) / CONFIG
        save_config_for_hf(backbone.get_submodule("network"), str(file))
        config: dict[str, Any] = json.loads(file.read_text())
    for key in _PUBLISHED:
        config["pretrained_cfg"].pop(key, None)
    if mean := backbone.normalisation.mean:
        config["pretrained_cfg"] |= {"mean": mean, "std": backbone.normalisation.std}
    return {**config, "unshuffle": stated}
