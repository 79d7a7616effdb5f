"""From the media that a config names to the samples of each task: training samples, X_val and the pretext test set."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from unshuffle.config import Config
from unshuffle.data.batches import Samples
from unshuffle.data.media import VIDEO_SUFFIXES, image_suffixes
from unshuffle.data.source import Items, Skipped
from unshuffle.data.sources import Media, SourceFacts, origins
from unshuffle.errors import UserError
from unshuffle.randomness import numpy_rng
from unshuffle.tasks import build_tasks
from unshuffle.wording import counted, source_sentence, split_sentence

MAX_HELD_OUT = 5  # at most one sample in so many is held out for validation
MAX_TEST = 10  # and at most one in so many for the pretext test set


@dataclass(frozen=True)
class SplitFacts:
    """How many samples a task has; `wording.split_sentence` states what is unusual about them."""

    training: int
    validation: int
    test: int
    """Samples of the pretext test set, 0 if there is none."""
    requested: int
    """data.val_size."""
    source: str
    """images, or videos if the task takes their frames."""
    medium: str
    """What the task is made for, images or videos."""


@dataclass(frozen=True)
class Data:
    """The samples to train on, to validate on and to test on, for each task, and what was found in the data."""

    training: dict[str, Samples] = field(default_factory=dict)
    validation: dict[str, Samples] = field(default_factory=dict)
    """X_val: what the samplers and the rollouts see."""
    test: dict[str, Samples] = field(default_factory=dict)
    """The pretext test set, which nothing in the training depends on; tasks with few samples have none."""
    sources: list[SourceFacts] = field(default_factory=list)
    splits: dict[str, SplitFacts] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    skipped_file: Path | None = None
    """File for the list of them: in the run folder if that is given, otherwise beside the cache."""

    def sentences(self) -> list[str]:
        """Return what was found, for the console."""
        splits = [split_sentence(task, vars(split)) for task, split in self.splits.items()]
        found = [source_sentence(vars(source)) for source in self.sources] + [text for text in splits if text]
        return [*found, *self._other_media()]

    def _other_media(self) -> list[str]:
        """Return a sentence for ignored files that another option takes."""
        given = {source.medium for source in self.sources}
        suffixes = {"videos": VIDEO_SUFFIXES - {".gif"}, "images": image_suffixes() - {".gif"}}
        sentences = []
        for medium in suffixes.keys() - given:
            ignored = sum(source.ignored.get(suffix, 0) for source in self.sources for suffix in suffixes[medium])
            if ignored:
                files = counted(ignored, medium)
                sentences.append(f"note: {files} ignored: give the folder as --{medium} too to use them")
        return sentences


def prepare(config: Config, progress: bool = True) -> Data:
    """Open, pack or generate the data, and hold out X_val and the pretext test set for each task."""
    tasks = build_tasks(config, config.task_names)
    media = Media(config, min_frames=max(task.min_frames for task in tasks.values()), progress=progress)
    data = Data(sources=media.facts, skipped=media.skipped, skipped_file=media.skipped_file)
    for name, task in tasks.items():
        samples, validation, test = task.samples(media), task.validation_samples(media), task.test_samples(media)
        if validation is not None:
            chosen = numpy_rng(config.seed, "validation split").permutation(len(validation))[: config.data.val_size]
            validation = replace(validation, items=validation.items[np.sort(chosen)])
        training, validation, test = hold_out(samples, config, validation, test)
        data.training[name], data.validation[name] = training, validation
        if len(test):
            data.test[name] = test
        source = "images" if task.uses_images(media) else "videos"
        data.splits[name] = SplitFacts(
            len(training), len(validation), len(test), config.data.val_size, source, task.medium
        )
    return data


def hold_out(
    samples: Samples, config: Config, validation: Samples | None = None, test: Samples | None = None
) -> tuple[Samples, Samples, Samples]:
    """Divide samples into those to train on, X_val and the pretext test set; of few samples most are trained on.

    Nothing is held out for a set that is given, nor for the pretext test set if most of so few files would be on no
    side then. Windows of one video are siblings.
    """
    files = origins(samples.source)
    names = [files[item] for item in samples.items]
    val_size = 0 if validation is not None else min(config.data.val_size, max(1, len(names) // MAX_HELD_OUT))
    enough = len(set(names)) >= MAX_TEST
    test_size = 0 if test is not None or not enough else min(config.data.test_size, len(names) // MAX_TEST)
    positions = split(names, val_size, test_size, config.data.sibling_pattern, config.seed)
    training, *held_out = (replace(samples, items=samples.items[part]) for part in positions)
    return training, held_out[0] if validation is None else validation, held_out[1] if test is None else test


def split(names: Sequence[str], val_size: int, test_size: int, pattern: str, seed: int) -> tuple[Items, Items, Items]:
    """Return positions to train on, of X_val and of the pretext test set; siblings of a sample are on its side alone.

    Siblings are samples with the same name, which are windows of one video, or with the same match of the pattern.
    Those of held-out samples that are not needed are on no side. All tasks use the same random stream, so tasks on the
    same items hold out the same ones. X_val does not depend on the test set.
    """
    families = _families(names, pattern)
    keys = sorted(families)
    remaining = numpy_rng(seed, "validation split").permutation(len(keys)).tolist()
    held_out: list[Items] = []
    for size, purpose, advice in (
        (val_size, "for validation", ""),
        (test_size, "as the pretext test set", ", or set data.test_size to 0"),
    ):
        positions: list[int] = []
        while len(positions) < size and remaining:
            positions += families[keys[remaining.pop(0)]]
        if not remaining:
            siblings = " and siblings stay together" if pattern or len(keys) < len(names) else ""
            verb = "is" if size == 1 else "are"
            raise UserError(
                f"nothing is left to train on of {counted(len(names), 'samples')} when {size} {verb} held out "
                f"{purpose}{siblings}: give more data{advice}"
            )
        held_out.append(np.array(sorted(positions[:size]), dtype=np.int64))
    training = sorted(position for key in remaining for position in families[keys[key]])
    return np.array(training), held_out[0], held_out[1]


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
