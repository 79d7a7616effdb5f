"""`unshuffle doctor`: check that the data can be read, is enough, and that each task can overfit a few samples.

Training that stays at chance is the first complaint about every jigsaw code, so it is the first thing to rule out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from unshuffle.config import Config, check, merge_sections
from unshuffle.console import ResilientConsole, say
from unshuffle.data.inventory import write_skipped
from unshuffle.data.sources import Concatenation
from unshuffle.data.squares import Squares
from unshuffle.data.statistics import Duplicates, FileStatistics, distinct_items, find_duplicates, measure_files
from unshuffle.data.store import Store
from unshuffle.errors import UserError
from unshuffle.options import merge
from unshuffle.tasks import TASKS
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training.trainer import Tally, Trainer, build_trainer, fit_crop_sizes
from unshuffle.wording import FEW_SAMPLES, counted, duration, printable, skipped_lines

T = TypeVar("T")
EXPECTED_ACCURACY = 0.95
VALIDATE_EVERY = 10
ADVICE = (
    "At least one task cannot overfit a few samples, so it will not learn from all of them either. Try learning rates "
    "ten times higher or lower (optim.backbone.lr, TASK.optimiser.lr), TASK.optimiser.kind adamw, and for "
    "the ordering tasks TASK.head.dropout 0 and TASK.head.centre."
)

TOO_FEW = (
    f"At least one task has fewer than {FEW_SAMPLES} samples to train on, which is too few to learn anything that "
    "generalises. Give more data."
)


def examine(
    config: Config, *, samples: int = 16, choices: int = 10, steps: int = 300, console: Console | None = None
) -> dict[str, dict[str, Any]]:
    """Read the data, overfit a few samples with each task, print the results and return them by task."""
    console = console or ResilientConsole()
    check(config)
    for name, value, least in (("samples", samples, 2), ("choices", choices, 2), ("steps", steps, 1)):
        if value < least:
            raise UserError(f"{name} is {value}, but must be {least} or more")
    config, remarks = fit_crop_sizes(config)
    for remark in remarks:
        say(console, remark)
    data = prepare(config)
    _describe_data(data, console)
    results = {}
    for task in data.training:
        split = data.splits[task]
        counts = {"training": split.training, "validation": split.validation, "test": split.test}
        results[task] = counts | overfit(config, data, task, samples, choices, steps)
        say(console, _verdict(task, results[task]))
    if any(result["accuracy"] < EXPECTED_ACCURACY and not _has_few(result) for result in results.values()):
        say(console, ADVICE)
    if any(_has_few(result) for result in results.values()):
        say(console, TOO_FEW)
    if all(result["passed"] for result in results.values()):
        say(console, "All tasks passed: this set-up can learn.")
    return results


def _describe_data(data: Data, console: Console) -> None:
    for sentence in data.sentences():
        say(console, sentence)
    for line in skipped_lines(data.skipped):
        say(console, line)
    if data.skipped and data.skipped_file is not None:
        say(console, f"  all skipped files are listed in {write_skipped(data.skipped_file, data.skipped)}")
    for source in data.sources:
        if source.folder is not None and source.path is not None:
            paths = [Path(source.folder, name) for name in dict.fromkeys(Store(Path(source.path)).origins)]
            statistics = measure_files(paths, source.medium)
            if statistics.files:
                say(console, _file_sentence(source.medium, statistics))
    for task, split in data.splits.items():
        held_out = f"{split.validation} for validation, {split.test} as the pretext test set"
        say(console, f"{task}: {counted(split.training, 'samples')} to train on, {held_out}")
    compared: set[int] = set()
    for task, training in data.training.items():
        if isinstance(training.source, Store | Concatenation) and id(training.source) not in compared:
            compared.add(id(training.source))
            held = [samples[task] for samples in (data.validation, data.test) if task in samples]
            for sentence in _duplicate_sentences(data.splits[task].source, find_duplicates(training, held)):
                say(console, sentence)


def _file_sentence(medium: str, statistics: FileStatistics) -> str:
    smallest, median, largest = (f"{width} x {height}" for width, height in _spread(statistics.sizes))
    text = f"{medium}: median size {median} px, from {smallest} to {largest}"
    if statistics.seconds:
        shortest, middle, longest = (duration(seconds) for seconds in _spread(statistics.seconds))
        text += f"; median duration {middle}, from {shortest} to {longest}"
    return f"{text} ({counted(statistics.files, 'files')} measured)"


def _spread(values: Sequence[T]) -> tuple[T, T, T]:
    """Return the smallest, the median and the largest of sorted values."""
    return values[0], values[len(values) // 2], values[-1]


def _duplicate_sentences(medium: str, duplicates: Duplicates) -> Iterator[str]:
    if not duplicates.found:
        yield f"{medium}: no near-duplicates among {duplicates.compared}"
        return
    found = f"{duplicates.found} of {duplicates.compared} look nearly like another one"
    verbs = ("is", "looks") if duplicates.held_out == 1 else ("are", "look")
    held_out = (
        f"; {duplicates.held_out} of them {verbs[0]} held out and {verbs[1]} like a training one, so errors will be "
    )
    held_out = f"{held_out}too low: remove copies, or keep them together with data.sibling_pattern"
    yield f"{medium}: {found}{held_out if duplicates.held_out else ''}"
    for pair in duplicates.examples:
        yield f"  such as {' and '.join(map(printable, pair))}"


def _verdict(task: str, result: dict[str, Any]) -> str:
    samples = counted(result["samples"], "samples")
    figures = f"accuracy {result['accuracy']:.2f} on {samples} after {counted(result['steps'], 'steps')}"
    details = f"chance {result['chance']:.2f}, loss {result['loss']:.3f}"
    if _has_few(result):
        few = counted(result["training"], "samples")
        return f"{task}: TOO FEW: {few} to train on (expected ≥ {FEW_SAMPLES}); {figures} ({details})"
    if not result["passed"]:
        return f"{task}: FAILED: {figures} (expected ≥ {EXPECTED_ACCURACY}; {details})"
    return f"{task}: passed: {figures} ({details})"


def _has_few(result: dict[str, Any]) -> bool:
    return bool(result["training"] < FEW_SAMPLES)


def overfit(config: Config, data: Data, task: str, samples: int, choices: int, steps: int) -> dict[str, Any]:
    """Train a task on a few samples until it has memorised them or the steps are used up, and return its figures."""
    trainer = _small_trainer(config, data, task, samples, choices)
    pixels = trainer.validation_pixels[task]
    accuracy = 0.0
    while accuracy < EXPECTED_ACCURACY and trainer.iteration < steps:
        tally = Tally()
        trainer.step({task: Squares.of(pixels)}, tally)
        if trainer.iteration % VALIDATE_EVERY == 0 or trainer.iteration == steps:
            accuracy = 1 - trainer.validate(task).error
    return {
        "samples": len(pixels),
        "accuracy": accuracy,
        "chance": 1 - trainer.tasks[task].chance,
        "steps": trainer.iteration,
        "loss": float(tally.losses[task] / tally.steps[task]),  # NaN if the step was skipped
        "passed": accuracy >= EXPECTED_ACCURACY and len(data.training[task]) >= FEW_SAMPLES,
    }


def _small_trainer(config: Config, data: Data, task: str, samples: int, choices: int) -> Trainer:
    """Return the user's set-up with few samples, few permutations or mild views, centre windows and no schedule."""
    available = len(data.training[task])
    if available < 2:
        raise UserError(f"the {task} task has only {available} sample to train on, but doctor needs 2 or more")
    training, samples = data.training[task], min(samples, available)
    # copies have different labels, which cannot be learned
    distinct = isinstance(training.source, Store | Concatenation)
    few = replace(training, items=distinct_items(training, samples) if distinct else training.items[:samples])
    small = replace(
        merge_sections(config, {task: {"batch_size": 0, **TASKS[task].easier(choices)}}),
        policy=replace(config.policy, sampler="uniform", inverse=False),
        optim=replace(config.optim, batch_size=samples, warmup=0, schedule="steps", milestones=()),
    )
    if issubclass(TASKS[task], OrderingTask):
        per_sample = max(4, config.permutations.per_sample)
        small = merge(small, {"permutations": {"per_sample": per_sample}})
    return build_trainer(small, Data({task: few}, {task: few}))
