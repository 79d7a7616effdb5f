"""`unshuffle evaluate`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from unshuffle.cli.parsing import HELP, REQUIRED, overview, parse, write_json
from unshuffle.console import say
from unshuffle.evaluation.protocol import EVALUATIONS, Evaluation, find_evaluation, rounded
from unshuffle.files import check_folder
from unshuffle.options import to_dict
from unshuffle.stopping import Stopped, stopping_at_once

SUMMARY = "Evaluate a backbone: retrieval, probes, fine-tuning, action recognition, PASCAL VOC."


def main(args: Sequence[str]) -> int:
    """Run one evaluation, or list them."""
    if not args or args[0] in HELP:
        usage = "unshuffle evaluate NAME --weights W [--preset paper|quick] [--json FILE] [OPTIONS]"
        print(overview(usage, SUMMARY, {name: entry.summary for name, entry in EVALUATIONS.items()}))
        return 0 if args else 2
    name, *options = args
    kind = find_evaluation(name)

    def defaults(values: dict[str, Any]) -> Evaluation:
        return replace(kind.quick() if values.get("preset") == "quick" else kind(), weights=REQUIRED)

    command = parse(kind, f"evaluate {name}", options, defaults)
    if command.out is not None:
        check_folder(command.out.expanduser(), "--out")
    console = Console()
    try:
        with stopping_at_once():
            result = command.run(console)
    except Stopped as stop:
        saved = f"the same command continues from {command.out}" if command.out else "nothing is saved without --out"
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
