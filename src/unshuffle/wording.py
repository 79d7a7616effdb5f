"""Parts of the sentences in messages: counted nouns, and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def counted(number: int, nouns: str) -> str:
    """Return `1 image` or `2 images`: the number with its noun, which is given in the plural."""
    return f"{number} {nouns.removesuffix('s') if number == 1 else nouns}"


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ` (did you mean ...?)` with the known name closest to a misspelt one; empty if none is close."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def describe_concern(concern: Mapping[str, Any]) -> str:
    """Return the sentence for a sampler's concern, as a `warning` entry of metrics.jsonl holds it."""
    if concern["concern"] == "narrow_sampling":
        return (
            f"the sampling has narrowed to {100 * concern['entropy_fraction']:.0f} % of the entropy of uniform sampling"
        )
    return f"group {concern['group']} of {concern['num_groups']} gets {100 * concern['fraction']:.0f} % of the samples"
