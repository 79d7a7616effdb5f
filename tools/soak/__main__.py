"""Reliability campaign: kills, faults, damaged and hostile files. Nothing may be lost.

    make soak                                                    # all of it
    PYTHONPATH=tools .venv/bin/python -m soak --short            # the form that CI runs
    PYTHONPATH=tools .venv/bin/python -m soak --only c --seed 7  # one part again, with the seed that was printed

Each line of the table says what was tried, how often, what became of it and how many tries lost something; the exit
code is 1 if any did. Then the folder with all files is kept.
"""

import argparse
import importlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import fields, replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: with other numbers of threads sums differ

from soak.campaign import SHORT, Campaign, Counts

PARTS = {"a": "kills", "b": "processes", "c": "media", "d": "damage", "e": "storage", "f": "numbers"}
"""The module of each part."""


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="soak", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    parser.add_argument("--short", action="store_true", help="fewer tries, for CI")
    parser.add_argument(
        "--only", default=",".join(PARTS), help=f"parts, such as a,c (default: all, {', '.join(PARTS)})"
    )
    parser.add_argument("--minutes", type=float, default=0, help="repeat with the next seed until so many have passed")
    for entry in fields(Counts):
        parser.add_argument(f"--{entry.name}", type=int, help=f"number of {entry.name} (default: {entry.default})")
    return parser.parse_args()


def main() -> int:
    """Run the chosen parts and return the exit code."""
    options = parse()
    given = {entry.name: value for entry in fields(Counts) if (value := getattr(options, entry.name)) is not None}
    counts = replace(SHORT if options.short else Counts(), **given)
    names = [name.strip() for name in options.only.split(",")]
    if unknown := [name for name in names if name not in PARTS]:
        print(f"there is no part {unknown[0]}: choose from {', '.join(PARTS)}")
        return 2
    begin, seed, lost = time.monotonic(), options.seed, 0
    while True:
        lost += run(seed, counts, names)
        seed += 1
        if time.monotonic() - begin >= 60 * options.minutes:
            break
    print(f"{lost or 'nothing'} lost, in {(time.monotonic() - begin) / 60:.1f} minutes")
    return 1 if lost else 0


def run(seed: int, counts: Counts, names: list[str]) -> int:
    """Run parts of the campaign with one seed; return how many tries lost something."""
    campaign = Campaign(seed, Path(tempfile.mkdtemp(prefix="soak-")), counts)
    print(
        f"seed {seed}\n| part | what was tried | times | what became of it | lost | time |\n|---|---|---|---|---|---|"
    )
    for name in names:
        importlib.import_module(f"soak.{PARTS[name]}").check(campaign)
    lost = sum(len(row.lost) for row in campaign.rows)
    if lost:
        print(f"the files are kept in {campaign.folder}")
    else:
        shutil.rmtree(campaign.folder, ignore_errors=True)
    return lost


if __name__ == "__main__":
    sys.exit(main())
