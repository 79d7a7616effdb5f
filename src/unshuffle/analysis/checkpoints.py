"""Scores of the backbones in a run's checkpoints."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rich.console import Console

from unshuffle.assembly import build_monitor, initial_backbone
from unshuffle.config import Config
from unshuffle.errors import UserError
from unshuffle.models import Backbone
from unshuffle.run import Run
from unshuffle.training.checkpoint import list_checkpoints, load_checkpoint


def score_checkpoints(run: Run, config: Config, console: Console) -> list[Mapping[str, Any]]:
    """Retrieval of every checkpoint on the folders of the config's monitor, as the monitor would have logged it."""
    files = list_checkpoints(run.checkpoints)
    if not files:
        raise UserError(f"{run.folder} has no checkpoint to score yet")
    monitor = build_monitor(config)
    assert monitor is not None
    scores: list[Mapping[str, Any]] = []
    for file in files:
        console.print(f"{run.folder}: checkpoint {int(file.stem)}", highlight=False, soft_wrap=True)
        backbone = load_backbone(config, load_checkpoint(file))
        scores.append({"iteration": int(file.stem), **monitor(backbone.to(monitor.device))})
    return scores


def load_backbone(config: Config, state: Mapping[str, Any]) -> Backbone:
    """The backbone as a checkpoint has it."""
    backbone = initial_backbone(replace(config, init=None))
    prefix = "backbone."
    weights = {name.removeprefix(prefix): value for name, value in state["network"].items() if name.startswith(prefix)}
    backbone.load_state_dict(weights)
    return backbone.eval()
