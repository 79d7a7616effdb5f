"""Is the data readable, and can this set-up leave chance? The first complaint of every jigsaw code, answered first."""

from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from unshuffle.assembly import build_trainer
from unshuffle.config import Config, check
from unshuffle.console import ResilientConsole, say
from unshuffle.data.prepare import Data, prepare
from unshuffle.data.squares import Squares
from unshuffle.errors import UserError
from unshuffle.options import merge
from unshuffle.training.trainer import Tally, Trainer
from unshuffle.wording import counted

ENOUGH = 0.95  # accuracy at which a handful counts as learned
VALIDATE_EVERY = 10


@dataclass(frozen=True)
class Overfit:
    """What came of overfitting."""

    accuracy: float
    chance: float
    steps: int
    loss: float

    @property
    def learns(self) -> bool:
        """Whether the handful was learned."""
        return self.accuracy >= ENOUGH


def examine(
    config: Config, *, samples: int = 16, choices: int = 10, steps: int = 300, console: Console | None = None
) -> dict[str, dict[str, Any]]:
    """Read the data, overfit a handful of samples with each task, and say what was found."""
    console = console or ResilientConsole()
    check(config)
    for name, value, least in (("samples", samples, 2), ("choices", choices, 2), ("steps", steps, 1)):
        if value < least:
            raise UserError(f"{name} is {value}, but must be {least} or more")
    data = prepare(config)
    _show_data(data, console)
    findings = {}
    for task in data.training:
        result = overfit(config, data, task, samples, choices, steps)
        findings[task] = {**result.__dict__, "learns": result.learns}
        say(console, _verdict(task, result, samples, choices))
    learns = all(finding["learns"] for finding in findings.values())
    say(console, "This set-up can learn." if learns else ADVICE)
    return findings


ADVICE = (
    "This set-up does not learn even a handful. What helped others: optim.*.lr ten times higher or lower, "
    "optim.temporal.optimiser adamw, model.*.centre on, model.*.dropout 0, shuffle.shared_crop on."
)


def _show_data(data: Data, console: Console) -> None:
    for sentence in data.found + data.remarks:
        say(console, sentence)
    for name, reason in data.skipped[:10]:
        say(console, f"  skipped {name}: {reason}")
    if len(data.skipped) > 10:
        say(console, f"  and {len(data.skipped) - 10} more")
    for task, samples in data.training.items():
        held_back = len(data.validation[task])
        console.print(
            f"{task}: {counted(len(samples), 'samples')} to train on, {held_back} held back",
            highlight=False,
            soft_wrap=True,
        )


def _verdict(task: str, result: Overfit, samples: int, choices: int) -> str:
    word = "learns" if result.learns else "STAYS BEHIND"
    return (
        f"{task}: {word}: accuracy {result.accuracy:.2f} on {samples} samples and {choices} permutations "
        f"after {counted(result.steps, 'steps')} (chance {result.chance:.2f}, loss {result.loss:.3f})"
    )


def overfit(config: Config, data: Data, task: str, samples: int, choices: int, steps: int) -> Overfit:
    """Train one task on a handful until it knows every permutation of every sample, or the steps run out."""
    trainer = _small_trainer(config, data, task, samples, choices)
    pixels = trainer.validation_pixels[task]
    accuracy = 0.0
    while accuracy < ENOUGH and trainer.iteration < steps:
        tally = Tally()
        trainer.step({task: Squares.of(pixels)}, tally)
        if trainer.iteration % VALIDATE_EVERY == 0 or trainer.iteration == steps:
            accuracy = 1 - trainer.validate(task).error
    return Overfit(accuracy, 1 / choices, trainer.iteration, float(tally.losses[task]))


def _small_trainer(config: Config, data: Data, task: str, samples: int, choices: int) -> Trainer:
    """The user's set-up with a handful of samples, few permutations, centre squares and no schedule."""
    available = len(data.training[task])
    if available < 2:
        raise UserError(f"the {task} task has only {available} sample to train on, and doctor needs 2 or more")
    handful = replace(data.training[task], items=data.training[task].items[:samples])
    small = replace(
        config,
        tasks="auto",
        policy=replace(config.policy, sampler="uniform"),
        permutations=merge(config.permutations, {task: choices, "per_sample": max(4, config.permutations.per_sample)}),
        optim=replace(config.optim, batch_size=samples, warmup=0, milestones=()),
    )
    return build_trainer(small, Data({task: handful}, {task: handful}))
