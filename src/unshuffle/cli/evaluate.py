"""`unshuffle evaluate`."""

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from unshuffle.cli.parsing import HELP, REQUIRED, overview, parse, write_json
from unshuffle.config import STATES
from unshuffle.console import say
from unshuffle.evaluation.protocol import (
    EVALUATIONS,
    Evaluation,
    OtherEvaluation,
    Result,
    find_evaluation,
    rounded,
    with_preset,
)
from unshuffle.files import check_folder, locked_folder
from unshuffle.options import to_dict
from unshuffle.stopping import Stopped, stopping_at_once

MIN_FREE = 5e9
"""Free bytes on the disk of the cache below which the state of an evaluation is not kept there."""
SUMMARY = "Evaluate a backbone: retrieval, probes, fine-tuning, action recognition, PASCAL VOC."


def main(args: Sequence[str]) -> int:
    """Run one evaluation, or list them."""
    if not args or args[0] in HELP:
        usage = "unshuffle evaluate NAME --weights W [--preset auto|quick|paper] [--json FILE] [OPTIONS]"
        print(overview(usage, SUMMARY, {name: entry.summary for name, entry in EVALUATIONS.items()}))
        return 0 if args else 2
    name, *options = args
    kind = find_evaluation(name)

    choices: list[str | None] = []

    def defaults(values: dict[str, Any]) -> Evaluation:
        default, choice = with_preset(kind, values)
        choices.append(choice)
        return replace(default, weights=REQUIRED)

    command = parse(kind, f"evaluate {name}", options, defaults)
    if command.out is not None:
        check_folder(command.out.expanduser(), "--out")
    console = Console()
    for choice in filter(None, choices):
        say(console, f"{choice}; --preset paper has the published schedule")
    state = _state_folder(name, command)
    try:
        with stopping_at_once():
            result = command.run(console) if state is None else _run_resumably(command, state, console)
    except Stopped as stop:
        kept = command.out or state
        saved = "nothing is saved" if kept is None else f"the same command continues from {kept}"
        print(f"interrupted {stop}; {saved}".replace(" ;", ";"), file=sys.stderr)
        return 128 + stop.signum
    say(console, f"{result.protocol}: {result.statement}")
    if result.table is not None:
        console.print(result.table)
    if command.out is not None and result.neighbours is not None:
        from unshuffle.report.pictures import draw_evaluation

        for picture in draw_evaluation(result, command.weights, command.out.expanduser()):
            say(console, f"picture: {picture}")
    write_json(command.json, f"evaluate {name}", result.protocol, to_dict(command), rounded(result.metrics))
    return 0


def _state_folder(name: str, command: Evaluation) -> Path | None:
    """Return the folder in the cache for the state of an evaluation without --out; None if it cannot be written."""
    if command.out is not None:
        return None
    from unshuffle.data.dataset import CACHE

    options = {key: value for key, value in to_dict(command).items() if key not in command.incidental}
    text = json.dumps([str(Path.cwd()), options], default=str)
    folder = CACHE.expanduser() / STATES / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return folder if shutil.disk_usage(folder).free > MIN_FREE else None
    except OSError:
        return None


def _run_resumably(command: Evaluation, state: Path, console: Console) -> Result:
    """Run an evaluation with its state in a folder that is deleted at the end."""
    refusal = "the same evaluation is running in another process: wait for its end, or give --out"
    with locked_folder(state, refusal):
        try:
            result = replace(command, out=state).run(console)
        except OtherEvaluation:
            say(console, f"weights or data have changed since {state} was written: starting from the beginning")
            shutil.rmtree(state)
            state.mkdir()
            result = replace(command, out=state).run(console)
        finally:
            with suppress(OSError):  # not empty, as a rule
                state.rmdir()
        shutil.rmtree(state, ignore_errors=True)
    return result
