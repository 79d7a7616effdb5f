"""Names that tell things apart in a figure."""

from collections.abc import Sequence
from pathlib import Path

from unshuffle.errors import UserError


def short_names(given: Sequence[str | Path]) -> list[str]:
    """The last parts of paths, as few as tell them apart; what is no path stays as it is."""
    whole = [_parts(one) for one in given]
    for length in range(1, max(map(len, whole)) + 1):
        names = ["/".join(parts[-length:]) for parts in whole]
        if len(set(names)) == len(names):
            return names
    raise UserError("the same is given twice")


def _parts(one: str | Path) -> tuple[str, ...]:
    path = Path(one).expanduser()
    return path.absolute().parts if path.exists() else (str(one),)


def chosen_names(names: Sequence[str], given: Sequence[str | Path]) -> list[str]:
    """The names that the user chose, if they did."""
    if not names:
        return short_names(given)
    if len(set(names)) != len(given) or len(names) != len(given):
        raise UserError(f"give {len(given)} different names, as there are {len(given)} to name")
    return list(names)
