"""Classes named by where they are, "module:Class", and imported only when they are asked for."""

import ast
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def class_at(place: str) -> Any:
    """Import the class."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def first_line_at(place: str) -> str:
    """The first line about the class, read from its source: importing it would import torch."""
    module, _, name = place.partition(":")
    spec = find_spec(module)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""
