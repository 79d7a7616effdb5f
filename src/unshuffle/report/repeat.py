"""The command that repeats a run."""

import shlex
from typing import Any

from unshuffle.config import Config, preset_config
from unshuffle.options import differences


def changes(config: Config) -> dict[str, Any]:
    """What differs from the config's preset: dotted names and values; where the run was written does not count."""
    names = differences(preset_config(config.preset), config)
    return {name: _value(config, name) for name in names if name not in ("preset", "out")}


def repeat_command(config: Config) -> str:
    """`unshuffle pretrain` with the preset and every option that differs from it."""
    words = ["unshuffle", "pretrain", "--preset", config.preset]
    for name, value in changes(config).items():
        words += _option(name, value)
    return shlex.join(words)


def _value(config: Config, name: str) -> Any:
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        section, dot, field = name.rpartition(".")
        return [f"--{name}" if value else f"--{section}{dot}no_{field}"]
    values = value if isinstance(value, tuple) else (value,)
    return [f"--{name}", *map(str, values)]
