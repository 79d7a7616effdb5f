"""`unshuffle doctor`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from unshuffle.cli.parsing import HIDDEN, ConfigCommand, parse_config_command, write_json
from unshuffle.options import to_dict


@dataclass(frozen=True)
class DoctorCommand(ConfigCommand):
    """Check that the data can be read and is enough, and that each task can overfit 16 samples."""

    out: Annotated[Path | None, HIDDEN] = None
    samples: Annotated[int, Ge(2)] = 16
    """Number of samples to overfit, 2 or more; fewer are easier."""
    choices: Annotated[int, Ge(2)] = 10
    """Number of permutations to tell apart, 2 or more; chance is 1/N."""
    steps: Annotated[int, Ge(1)] = 300
    """Training steps for each task at most; raise it if the accuracy still rises at the end."""
    json: Path | None = None
    """Write the numbers of samples, accuracy, chance, loss and steps of each task to this JSON file."""


def main(args: Sequence[str]) -> int:
    """Examine data and tasks; the exit code is 1 if a task fails or has too few samples."""
    command = parse_config_command(DoctorCommand, "doctor", args, preset_by_data=True)
    from unshuffle.doctor import examine

    config = command.run_config()
    findings = examine(config, samples=command.samples, choices=command.choices, steps=command.steps)
    settings = {**to_dict(config), "samples": command.samples, "choices": command.choices, "steps": command.steps}
    write_json(command.json, "doctor", f"overfit {command.samples} samples", settings, findings)
    return 0 if all(task["passed"] for task in findings.values()) else 1
