"""What had to be left out of an evaluation: said in a few lines, counted in its figures."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

Skipped = tuple[str, str]
"""A file that cannot be used, and why."""
SHOWN, LISTED = 3, 100


def tell_skipped(console: Console, skipped: Sequence[Skipped], where: str) -> None:
    """Say how many were left out, and name the first ones."""
    if not skipped:
        return
    console.print(f"{where}: {len(skipped)} skipped", highlight=False, markup=False)
    for file, reason in skipped[:SHOWN]:
        console.print(f"  {file}: {reason}", highlight=False, soft_wrap=True, markup=False)
    if len(skipped) > SHOWN:
        console.print(f"  and {len(skipped) - SHOWN} more; --json lists them", highlight=False)


def skipped_figures(skipped: Sequence[Skipped]) -> dict[str, Any]:
    """For JSON: how many, and the names and reasons of the first hundred."""
    return {"count": len(skipped), "files": [{"file": file, "reason": reason} for file, reason in skipped[:LISTED]]}
