"""`unshuffle pretrain`."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from unshuffle.cli.parsing import ConfigCommand, parse_config_command
from unshuffle.stopping import Stopped


@dataclass(frozen=True)
class PretrainCommand(ConfigCommand):
    """Learn features from unlabelled images and videos; without data, from a synthetic world."""

    resume: bool = False
    """Continue the run in --out, or start it where there is none."""


def main(args: Sequence[str]) -> int:
    """Pretrain, in one process or as one of the processes that torchrun started."""
    if os.environ.get("WORLD_SIZE", "1") == "1":  # torch takes seconds to import: not for a misspelt option
        return _pretrain(parse_config_command(PretrainCommand, "pretrain", args, preset_by_data=True))
    from unshuffle.training import distributed

    with distributed.started():
        with distributed.together():
            command = parse_config_command(PretrainCommand, "pretrain", args, preset_by_data=True)
        return _pretrain(command)


def _pretrain(command: PretrainCommand) -> int:
    from unshuffle.pretraining import run_pretraining
    from unshuffle.training.distributed import is_main

    try:
        run_pretraining(command.run_config(), resume=command.resume)
    except Stopped as stop:
        if is_main():
            print(stop, file=sys.stderr)
        return 128 + stop.signum
    return 0
