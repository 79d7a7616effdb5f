"""Classes that are imported only when they are asked for: torch takes seconds to import, `--help` should not."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from unshuffle.errors import UserError
from unshuffle.wording import did_you_mean


@dataclass(frozen=True)
class LazyClass:
    """A class by its module and name."""

    module: str
    name: str

    @property
    def summary(self) -> str:
        """The first line of the class's docstring, which help texts show; read without importing the module."""
        spec = find_spec(self.module)
        assert spec is not None and spec.origin is not None
        statements = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
        (definition,) = (node for node in statements if isinstance(node, ast.ClassDef) and node.name == self.name)
        return (ast.get_docstring(definition) or "").partition("\n")[0]

    def load(self) -> Any:
        """Import the class."""
        return getattr(import_module(self.module), self.name)


def find_class(name: str, registry: Mapping[str, LazyClass], kind: str) -> Any:
    """Return the class registered under a name; raise a UserError if there is none of that kind."""
    if name not in registry:
        hint = did_you_mean(name, registry) or f"; choose one of {', '.join(registry)}"
        raise UserError(f"there is no {kind} '{name}'{hint}")
    return registry[name].load()
