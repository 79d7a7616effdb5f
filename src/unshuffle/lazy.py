"""Classes that are imported only when they are asked for: torch takes seconds to import, `--help` should not."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from unshuffle.errors import UserError
from unshuffle.wording import did_you_mean

T = TypeVar("T")


@dataclass(frozen=True)
class LazyClass:
    """A class by its package, module and name, and the line that help texts show for it."""

    package: str
    module: str
    name: str
    summary: str

    def load(self) -> Any:
        """Import the class."""
        return getattr(import_module(f"{self.package}.{self.module}"), self.name)


def find_entry(name: str, registry: Mapping[str, T], kind: str) -> T:
    """Return what is registered under a name; raise a UserError, which says what may be meant, if nothing is."""
    entries = {entry.replace("_", "-"): value for entry, value in registry.items()}
    if name.replace("_", "-") not in entries:
        hint = did_you_mean(name, registry) or f"; choose one of {', '.join(registry)}"
        raise UserError(f"there is no {kind} '{name}'{hint}")
    return entries[name.replace("_", "-")]
