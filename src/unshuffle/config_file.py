"""Reading the config of a run from its YAML file."""

from pathlib import Path
from typing import Any

from unshuffle.config import Config, preset_config
from unshuffle.errors import UserError
from unshuffle.options import merge, read_yaml

REMOVED_KEYS = frozenset(
    {
        "data.gpu_share",
        "data.max_bad_share",
        "model.spatial",
        "model.temporal",
        "optim.trunk",
        "permutations.spatial",
        "permutations.temporal",
        "policy.groups",
        "policy.grouped",
        "policy.horizon",
        "policy.reward",
        "shuffle",
    }
)
"""Dotted keys and sections that earlier versions wrote and that no longer exist."""


def read_config(path: Path) -> Config:
    """Read a config that a run or a person wrote; missing keys take the values of its preset."""
    values = read_yaml(path, "config")
    removed = next((key for key in sorted(REMOVED_KEYS) if _holds_key(values, key)), None)
    if removed is not None:
        raise UserError(
            f"{path} was written by an older version of unshuffle and cannot be read: it sets {removed}, which no "
            "longer exists; read it with that version, or start a new run"
        )
    try:
        return merge(preset_config(values.get("preset", "demo")), values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _holds_key(values: Any, dotted: str) -> bool:
    key, _, rest = dotted.partition(".")
    return isinstance(values, dict) and key in values and (not rest or _holds_key(values[key], rest))
