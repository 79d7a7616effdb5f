"""Sentences for the user, made of facts."""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


POOLINGS = {
    "avg": "the mean of each channel of pool5",
    "max": "the maximum of each channel of pool5",
    "flat": "all of pool5",
}


def counted(number: int, nouns: str) -> str:
    """Return `1 image` or `2 images`: the number with its noun, which is given in the plural."""
    return f"{number} {nouns.removesuffix('s') if number == 1 else nouns}"


def printable(text: str) -> str:
    """Return text with control characters escaped (`\\x1b`): names of files may hold any.

    On a terminal they would move the cursor, forge lines or reverse the direction of writing.
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def listed(names: Sequence[str], limit: int = 4) -> str:
    """Return `a, b and 7 more`: the first names, and how many there are beyond the limit."""
    shown = ", ".join(printable(name) for name in names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"


def skipped_sentence(skipped: int, steps: int) -> str:
    """Return how many of so many training steps were skipped, and why."""
    verb = "was" if skipped == 1 else "were"
    return (
        f"{skipped} of {counted(steps, 'steps')} {verb} skipped because the loss or a gradient was not finite; "
        "metrics.jsonl lists the files of their batches"
    )


def did_you_mean(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return ` (did you mean ...?)` with the known name closest to a misspelt one; empty if none is close."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f" (did you mean {prefix}{close[0]}?)" if close else ""


def describe_concern(concern: Mapping[str, Any]) -> str:
    """Return the sentence for a sampler's concern, as a `warning` entry of metrics.jsonl holds it."""
    if concern["concern"] == "narrow_sampling":
        percent = 100 * concern["entropy_fraction"]
        return f"the sampling has narrowed to {percent:.0f} % of the entropy of uniform sampling"
    return f"group {concern['group']} of {concern['num_groups']} gets {100 * concern['fraction']:.0f} % of the samples"


def features_sentence(pool: str, architecture: str, weights: str, side: int) -> str:
    """Return what features are: the pooling, the network, its weights and the size of its input."""
    return f"{POOLINGS[pool]} of {architecture} ({printable(weights)}) at {side} px"


def plus_minus(mean: float | None, std: float | None, decimals: int = 1) -> str:
    """`55.0 ± 7.1`: a mean and its standard deviation, as far as there are such."""
    if mean is None:
        return "-"
    return f"{mean:.{decimals}f}" if std is None else f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def source_sentence(source: Mapping[str, Any]) -> str:
    """Return how many items a data source has, where they are and how they are stored; an entry of `sources`."""
    if source["storage"] == "synthetic":
        items = counted(source["items"], "images" if source["medium"] == "images" else "clips")
        frames = f"{source['frames']} frames of " if source.get("frames") else ""
        return f"{items} of the synthetic world, {frames}{source['short_side']} px"
    skipped = f", {counted(source['skipped'], 'files')} skipped" if source["skipped"] else ""
    if source["storage"] == "shards":
        storage = f"read from {counted(source['shards'], 'shards')} at short side {source['short_side']} px"
    else:
        storage = f"packed at short side {source['short_side']} px in {source['path']}"
    return f"{counted(source['items'], source['medium'])} in {source['address']}{skipped}; {storage}"


def split_sentence(task: str, split: Mapping[str, Any]) -> str | None:
    """Return what is unexpected about the samples of a task, an entry of `splits`; None if nothing is."""
    remarks = []
    if split.get("medium") == "images" and split["source"] == "videos":
        remarks.append("no images were given, so the frames of the videos are used")
    if split["validation"] < split["requested"]:
        samples = counted(split["validation"], "samples")
        remarks.append(
            f"only {samples} are held out for validation (data.val_size is {split['requested']}), as most of so few "
            "must be trained on"
        )
    if not split["test"]:
        remarks.append("there is no pretext test set, so errors are those on X_val")
    return f"{task} task: {'; '.join(remarks)}" if remarks else None
