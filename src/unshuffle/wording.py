"""Sentences for the user, made of facts."""

import difflib
import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

FEW_SAMPLES = 100
"""With fewer samples, a task learns nothing that generalises."""
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


POOLINGS = {
    "avg": "the mean of each channel of pool5",
    "max": "the maximum of each channel of pool5",
    "grid": "the means of a 3 × 3 grid of pool5",
    "flat": "pool5",
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


def duration(seconds: float) -> str:
    """Return a time in the units that a reader wants: `0.8 s`, `45 s`, `3 min 20 s`, `5 h 12 min`, `22 days 18 h`."""
    if 0.05 <= seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return _two_units(whole, 60, "min", "s")
    minutes = round(seconds / 60)
    if minutes < 2 * 24 * 60:
        return _two_units(minutes, 60, "h", "min")
    return _two_units(round(seconds / 3600), 24, "days", "h")


def time_left(seconds: float, done: int, remaining: int) -> str:
    """Return `5 h 12 min left`: the time that the remaining work takes at the speed of what is done."""
    return f"{duration(seconds / done * remaining)} left" if done > 0 else "time left unknown"


def _two_units(amount: int, factor: int, large: str, small: str) -> str:
    whole, rest = divmod(amount, factor)
    return f"{whole} {large} {rest} {small}" if rest else f"{whole} {large}"


def skipped_sentence(skipped: int, steps: int) -> str:
    """Return how many of so many training steps were skipped, and why."""
    verb = "was" if skipped == 1 else "were"
    return (
        f"{skipped} of {counted(steps, 'steps')} {verb} skipped because the loss or a gradient was not finite; "
        "metrics.jsonl lists the files of their batches"
    )


_OS_ADVICE = {
    errno.EACCES: "change its permissions, or choose another place",
    errno.EPERM: "change its permissions, or choose another place",
    errno.EROFS: "choose another place",
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def os_error_sentence(error: OSError, verb: str = "used") -> str:
    """Return the system's error as a sentence: which file, what is wrong, what to do."""
    problem = (error.strerror or str(error) or type(error).__name__).lower()
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes | Path)]
    sentence = f"{' and '.join(names)} cannot be {verb}: {problem}" if names else problem
    advice = _OS_ADVICE.get(error.errno or 0)
    return f"{sentence}; {advice}" if advice else sentence


def resume_advice(error: OSError) -> str:
    """Return what to do about a file of a run that cannot be written."""
    return f"{_OS_ADVICE.get(error.errno or 0, 'correct that')}, then run the same command with --resume"


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
    return f"{POOLINGS[pool]} of {printable(weights)} ({architecture}, {side} px)"


def plus_minus(mean: float | None, std: float | None, decimals: int = 1) -> str:
    """`55.0 ± 7.1`: a mean and its standard deviation, as far as there are such."""
    if mean is None:
        return "-"
    return f"{mean:.{decimals}f}" if std is None else f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def skipped_lines(skipped: Sequence[tuple[str, str]], limit: int = 10) -> list[str]:
    """Return a line for each reason for which files were skipped, the most frequent first, with the first files."""
    names: dict[str, list[str]] = {}
    for name, reason in skipped:
        names.setdefault(reason, []).append(name)
    frequent = sorted(names.items(), key=lambda entry: -len(entry[1]))
    lines = [f"  skipped {listed(files, 3)}: {printable(reason)}" for reason, files in frequent[:limit]]
    rest = sum(len(files) for _, files in frequent[limit:])
    return [*lines, f"  and {rest} more"] if rest else lines


def ignored_words(ignored: Mapping[str, int], limit: int = 6) -> str:
    """Return how many files were ignored, by extension: `9 others ignored (5 .txt, 3 .json, 1 hidden folder)`."""
    singular = {
        what: what.removesuffix("s") if count == 1 and what[0] != "." else what for what, count in ignored.items()
    }
    counts = [f"{count} {printable(singular[what])}" for what, count in ignored.items()]
    rest = sum([*ignored.values()][limit:])
    shown = ", ".join([*counts[:limit], f"{rest} more"] if rest else counts)
    return f"{counted(sum(ignored.values()), 'others')} ignored ({printable(shown)})"


def source_sentence(source: Mapping[str, Any]) -> str:
    """Return how many items a data source has, where they are and how they are stored; an entry of `sources`."""
    if source["storage"] == "synthetic":
        items = counted(source["items"], "images" if source["medium"] == "images" else "clips")
        frames = f"{source['frames']} frames of " if source.get("frames") else ""
        return f"{items} of the synthetic world, {frames}{source['short_side']} px"
    skipped = f", {counted(source['skipped'], 'files')} skipped" if source["skipped"] else ""
    if source.get("ignored"):
        skipped += f", {ignored_words(source['ignored'])}"
    if source["storage"] == "shards":
        storage = f"read from {counted(source['shards'], 'shards')} at short side {source['short_side']} px"
    else:
        storage = f"packed at short side {source['short_side']} px in {source['path']}"
    files = source.get("files") or source["items"]  # older runs have none
    clips = f" (long ones as windows: {counted(source['items'], 'clips')} in all)" if files < source["items"] else ""
    return f"{counted(files, source['medium'])}{clips} in {source['address']}{skipped}; {storage}"


def split_sentence(task: str, split: Mapping[str, Any]) -> str | None:
    """Return what is unexpected about the samples of a task, an entry of `splits`; None if nothing is."""
    remarks = []
    if split.get("medium") == "images" and split["source"] == "videos":
        remarks.append("no images were given, so the frames of the videos are used")
    if split["training"] < FEW_SAMPLES:
        remarks.append(
            f"only {counted(split['training'], 'samples')} to train on, too few to learn anything that generalises "
            f"(give {FEW_SAMPLES} or more)"
        )
    if split["validation"] < split["requested"]:
        samples, verb = counted(split["validation"], "samples"), "is" if split["validation"] == 1 else "are"
        remarks.append(
            f"only {samples} {verb} held out for validation (data.val_size is {split['requested']}), because most of "
            "so few are needed for training"
        )
    if not split["test"]:
        remarks.append("there is no pretext test set, so errors are those on the validation set")
    return f"{task} task: {'; '.join(remarks)}" if remarks else None
