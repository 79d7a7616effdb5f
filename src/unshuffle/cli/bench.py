"""`unshuffle bench`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from unshuffle.cli.parsing import HIDDEN, ConfigCommand, parse_config_command, write_json
from unshuffle.options import to_dict


@dataclass(frozen=True)
class BenchCommand(ConfigCommand):
    """Measure the training throughput of this machine, and the time of each part of a step."""

    out: Annotated[Path | None, HIDDEN] = None
    iterations: Annotated[int, Ge(1)] = 50
    """Training steps to measure; more give steadier figures."""
    json: Path | None = None
    """Write the figures to this JSON file."""


def main(args: Sequence[str]) -> int:
    """Measure and print."""
    command = parse_config_command(BenchCommand, "bench", args, preset_by_data=True)
    from unshuffle.bench import bench, with_world

    config = with_world(command.run_config())
    figures = bench(config, iterations=command.iterations)
    settings = {**to_dict(config), "iterations": command.iterations}
    write_json(command.json, "bench", "whole iterations, then each part alone", settings, figures)
    return 0
