"""The file that every command that measures can write."""

import json
import math
from pathlib import Path
from typing import Any


def write_measurement(path: Path, command: str, protocol: str, config: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Write {"command", "protocol", "config", "metrics"} as JSON; what is not a number becomes null."""
    document = {"command": command, "protocol": protocol, "config": config, "metrics": metrics}
    path.write_text(json.dumps(_strict(document), indent=1, default=str) + "\n")


def _strict(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
