"""Small words of the sentences that people read."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def counted(number: int, things: str) -> str:
    """`1 image`, `2 images`: the number and its things, which are given in the plural."""
    return f"{number} {things.removesuffix('s') if number == 1 else things}"


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """` (did you mean ...?)` with the known name nearest to a misspelt one, or nothing if none is near."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def describe_concern(concern: Mapping[str, Any]) -> str:
    """Return the sentence for a sampler's concern, as a `warning` entry of metrics.jsonl holds it."""
    if concern["concern"] == "narrow_sampling":
        percent = 100 * concern["entropy_fraction"]
        return f"the sampling has narrowed to {percent:.0f} % of the entropy of uniform sampling"
    return f"group {concern['group']} of {concern['num_groups']} gets {100 * concern['fraction']:.0f} % of the samples"
