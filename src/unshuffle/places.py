"""Classes named by where they are, "module:Class", and imported only when they are asked for."""

import ast
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unshuffle.errors import UserError
from unshuffle.wording import did_you_mean


def find_class(name: str, places: Mapping[str, str], kind: str) -> Any:
    """The class of a name, imported; a sentence if there is none of that kind."""
    if name not in places:
        hint = did_you_mean(name, places) or f"; there are {', '.join(places)}"
        raise UserError(f"there is no {kind} '{name}'{hint}")
    module, _, attribute = places[name].partition(":")
    return getattr(import_module(module), attribute)


def describe(places: Mapping[str, str]) -> dict[str, str]:
    """The first line about each class."""
    return {name: _first_line(place) for name, place in places.items()}


def _first_line(place: str) -> str:
    """Read from the source: importing it would import torch."""
    module, _, name = place.partition(":")
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""
