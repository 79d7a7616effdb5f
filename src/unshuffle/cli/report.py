"""`unshuffle report`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from unshuffle.cli.parsing import POSITIONAL, parse
from unshuffle.wording import counted


@dataclass(frozen=True)
class ReportCommand:
    """Write the HTML report of a run, finished or not, or of several runs side by side."""

    runs: Annotated[tuple[Path, ...], POSITIONAL]
    """Run folders, or the folder of an ablation."""
    out: Path | None = None
    """HTML file to write; by default report.html in the run folder, or in the working directory for several runs."""


def main(args: Sequence[str]) -> int:
    """Write the page and print its size."""
    command = parse(ReportCommand, "report", args)
    from unshuffle.report.page import check_page, default_file, write_report
    from unshuffle.runs.folders import find_runs, find_tables

    folders = [folder.expanduser() for folder in command.runs]
    out = default_file(folders) if command.out is None else command.out.expanduser()
    runs = find_runs(folders)
    check_page(out)
    for warning in write_report(runs, out, tables=find_tables(folders)):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{counted(len(runs), 'runs')} in {out}, {out.stat().st_size / 1e6:.1f} MB")
    return 0
