"""`unshuffle analyze`."""

import sys
from collections.abc import Sequence

from rich.console import Console

from unshuffle.analysis.analysis import ANALYSES, find_analysis, run_warnings
from unshuffle.cli.parsing import HELP, overview, parse, write_json
from unshuffle.console import say
from unshuffle.files import check_folder
from unshuffle.options import to_dict

SUMMARY = "Analyse runs as the paper does: each analysis writes its numbers and a figure."


def main(args: Sequence[str]) -> int:
    """Run one analysis, or list them."""
    if not args or args[0] in HELP:
        usage = "unshuffle analyze NAME ... [--out FOLDER] [--json FILE] [OPTIONS]"
        print(overview(usage, SUMMARY, {name: entry.summary for name, entry in ANALYSES.items()}))
        return 0 if args else 2
    name, *options = args
    command = parse(find_analysis(name), f"analyze {name}", options, positional=True)
    if command.out is not None:
        check_folder(command.folder, "--out")
    console = Console()
    result = command.analyse(console)
    say(console, result.statement)
    console.print(result.table)
    for warning in run_warnings(command):
        print(f"warning: {warning}", file=sys.stderr)
    for path in result.write(command.folder, to_dict(command)):
        say(console, f"  {path}")
    write_json(command.json, f"analyze {name}", result.statement, to_dict(command), result.metrics)
    return 0
