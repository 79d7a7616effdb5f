"""From the media that a config names to the samples of each task: training samples, and X_val held out of them."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from unshuffle.config import Config
from unshuffle.data.batches import Samples
from unshuffle.data.source import Items, Skipped
from unshuffle.data.sources import Media, SourceFacts
from unshuffle.errors import UserError
from unshuffle.randomness import numpy_rng
from unshuffle.tasks import TASKS, build_tasks
from unshuffle.wording import counted, source_sentence, split_sentence

MAX_HELD_OUT = 5  # at most one sample in so many is held out


@dataclass(frozen=True)
class SplitFacts:
    """How many samples a task has; `wording.split_sentence` states what is unusual about them."""

    training: int
    validation: int
    requested: int
    """data.val_size."""
    source: str
    """images, or videos if the task takes their frames."""


@dataclass(frozen=True)
class Data:
    """The samples to train on and to validate on, for each task, and what was found in the data."""

    training: dict[str, Samples] = field(default_factory=dict)
    validation: dict[str, Samples] = field(default_factory=dict)
    sources: list[SourceFacts] = field(default_factory=list)
    splits: dict[str, SplitFacts] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def sentences(self) -> list[str]:
        """Return what was found, for the console."""
        splits = [split_sentence(task, vars(split), TASKS[task].medium) for task, split in self.splits.items()]
        return [source_sentence(vars(source)) for source in self.sources] + [text for text in splits if text]


def prepare(config: Config, progress: bool = True) -> Data:
    """Open, pack or generate the data, and hold out X_val for each task."""
    tasks = build_tasks(config, config.task_names)
    media = Media(config, min_frames=max(task.min_frames for task in tasks.values()), progress=progress)
    data = Data(sources=media.facts, skipped=media.skipped)
    for name, task in tasks.items():
        samples, given = task.samples(media), task.validation_samples(media)
        if given is not None:
            chosen = numpy_rng(config.seed, "validation split").permutation(len(given))[: config.data.val_size]
            training, validation = samples, replace(given, items=given.items[np.sort(chosen)])
        else:
            training, validation = hold_out(samples, config)
        data.training[name], data.validation[name] = training, validation
        source = "images" if task.medium == "images" and media.images is not None else "videos"
        data.splits[name] = SplitFacts(len(training), len(validation), config.data.val_size, source)
    return data


def hold_out(samples: Samples, config: Config) -> tuple[Samples, Samples]:
    """Divide samples into those to train on and X_val; of few samples most are trained on."""
    names = [samples.source.names[item] for item in samples.items]
    size = min(config.data.val_size, max(1, len(names) // MAX_HELD_OUT))
    training, validation = split(names, size, config.data.sibling_pattern, config.seed)
    return replace(samples, items=samples.items[training]), replace(samples, items=samples.items[validation])


def split(names: Sequence[str], val_size: int, pattern: str, seed: int) -> tuple[Items, Items]:
    """Return positions to train on and positions of X_val; siblings of a validation sample are in neither.

    Without a pattern no sample has siblings. All tasks use the same random stream, so tasks on the same items hold out
    the same ones.
    """
    families = _families(names, pattern)
    keys = sorted(families)
    remaining = numpy_rng(seed, "validation split").permutation(len(keys))
    held_out: list[int] = []
    while len(held_out) < val_size and len(remaining):
        held_out += families[keys[remaining[0]]]
        remaining = remaining[1:]
    if not len(remaining):
        siblings = " and siblings stay together" if pattern else ""
        raise UserError(
            f"nothing is left to train on of {counted(len(names), 'samples')} when {val_size} are held out for "
            f"validation{siblings}: give more data"
        )
    training = sorted(position for key in remaining for position in families[keys[key]])
    return np.array(training), np.array(sorted(held_out[:val_size]))


def _families(names: Sequence[str], pattern: str) -> dict[str, list[int]]:
    """Return the positions of the names with the same match."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise UserError(f"data.sibling_pattern is not a regular expression: {error}") from None
    families: dict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        match = expression.search(name) if pattern else None
        key = match.group(1 if expression.groups else 0) if match else None
        families[name if key is None else key].append(position)
    return families
