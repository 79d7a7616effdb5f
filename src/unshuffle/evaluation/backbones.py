"""The trunk that an evaluation is asked to judge, from the few words that name it."""

from pathlib import Path

import torch

from unshuffle.errors import UserError
from unshuffle.models import BACKBONES, Backbone, build_backbone
from unshuffle.models.weights import load_backbone


def find_backbone(spec: str, seed: int = 0) -> Backbone:
    """A trunk in the form for evaluation: of a run folder or a file, or with random weights.

    `random` is the paper's trunk, `random:NAME` any other of the registry.
    """
    if not spec:
        raise UserError("say whose features to evaluate: give --weights")
    name, _, architecture = spec.partition(":")
    if name == "random":
        torch.manual_seed(seed)
        return build_backbone(architecture or "caffenet").for_evaluation()
    path = Path(spec).expanduser()
    if path.exists():
        return load_backbone(path)
    raise UserError(f"there are no weights at {spec}, and it is no other name of a trunk ({', '.join(BACKBONES)})")
