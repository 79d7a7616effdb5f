"""`unshuffle doctor`: check that the data can be read and that each task can overfit a few samples.

Training that stays at chance is the first complaint about every jigsaw code, so it is the first thing to rule out.
"""

from dataclasses import replace
from typing import Any

from rich.console import Console

from unshuffle.config import Config, check
from unshuffle.console import ResilientConsole, say
from unshuffle.data.squares import Squares
from unshuffle.errors import UserError
from unshuffle.options import merge
from unshuffle.tasks import TASKS
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training.trainer import Tally, Trainer, build_trainer, fit_crop_sizes
from unshuffle.wording import counted, printable

EXPECTED_ACCURACY = 0.95
VALIDATE_EVERY = 10
LISTED_FILES = 10
ADVICE = (
    "At least one task cannot overfit a few samples, so it will not learn from all of them either. Try learning rates "
    "ten times higher or lower (optim.backbone.lr, TASK.optimiser.lr), TASK.optimiser.kind adamw, and for "
    "the ordering tasks TASK.head.dropout 0 and TASK.head.centre."
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
        results[task] = overfit(config, data, task, samples, choices, steps)
        say(console, _verdict(task, results[task], samples))
    passed = all(result["passed"] for result in results.values())
    say(console, "All tasks passed: this set-up can learn." if passed else ADVICE)
    return results


def _describe_data(data: Data, console: Console) -> None:
    for sentence in data.sentences():
        say(console, sentence)
    for name, reason in data.skipped[:LISTED_FILES]:
        say(console, f"  skipped {printable(name)}: {printable(reason)}")
    if len(data.skipped) > LISTED_FILES:
        say(console, f"  and {len(data.skipped) - LISTED_FILES} more")
    for task, split in data.splits.items():
        held_out = f"{split.validation} for validation, {split.test} as the pretext test set"
        say(console, f"{task}: {counted(split.training, 'samples')} to train on, {held_out}")


def _verdict(task: str, result: dict[str, Any], samples: int) -> str:
    figures = f"accuracy {result['accuracy']:.2f} on {samples} samples after {counted(result['steps'], 'steps')}"
    details = f"chance {result['chance']:.2f}, loss {result['loss']:.3f}"
    if result["passed"]:
        return f"{task}: passed: {figures} ({details})"
    return f"{task}: FAILED: {figures} (expected ≥ {EXPECTED_ACCURACY}; {details})"


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
        "accuracy": accuracy,
        "chance": 1 - trainer.tasks[task].chance,
        "steps": trainer.iteration,
        "loss": float(tally.losses[task] / tally.steps[task]),  # NaN if the step was skipped
        "passed": accuracy >= EXPECTED_ACCURACY,
    }


def _small_trainer(config: Config, data: Data, task: str, samples: int, choices: int) -> Trainer:
    """Return the user's set-up with few samples, few permutations or mild views, centre windows and no schedule."""
    available = len(data.training[task])
    if available < 2:
        raise UserError(f"the {task} task has only {available} sample to train on, but doctor needs 2 or more")
    few = replace(data.training[task], items=data.training[task].items[:samples])
    small = replace(
        merge(config, {task: {"batch_size": 0, **TASKS[task].easier(choices)}}),
        policy=replace(config.policy, sampler="uniform", inverse=False),
        optim=replace(config.optim, batch_size=samples, warmup=0, schedule="steps", milestones=()),
    )
    if issubclass(TASKS[task], OrderingTask):
        per_sample = max(4, config.permutations.per_sample)
        small = merge(small, {"permutations": {"per_sample": per_sample}})
    return build_trainer(small, Data({task: few}, {task: few}))
