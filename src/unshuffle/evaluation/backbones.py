"""The backbone that an evaluation is asked to judge, from the few words that name it."""

from pathlib import Path

import torch

from unshuffle.errors import UserError
from unshuffle.models import BACKBONES, Backbone, build_backbone
from unshuffle.models.torchvision_timm import cached_weights, is_published
from unshuffle.models.weights import load_backbone


def find_backbone(spec: str, seed: int = 0) -> Backbone:
    """A backbone in the form for evaluation.

    `spec` is a run folder; a weights file; `alexnet`, `torchvision:NAME` or `timm:NAME` for pretrained weights that are
    on this machine already; or `random` for the paper's backbone untrained and `random:NAME` for any other.
    """
    if not spec:
        raise UserError("say whose features to use: give --weights")
    name, _, architecture = spec.partition(":")
    if name == "random":
        torch.manual_seed(seed)
        return build_backbone(architecture or "caffenet").for_evaluation()
    path = Path(spec).expanduser()
    if path.exists():
        return load_backbone(path)
    if is_published(spec):
        return load_backbone(cached_weights(spec), architecture=spec if ":" in spec else f"torchvision:{spec}")
    if spec in BACKBONES:
        raise UserError(
            f"{spec} has no weights of its own: give a run folder or a file, or random:{spec} for it untrained"
        )
    raise UserError(f"there are no weights at {spec}, and there is no backbone of that name")
