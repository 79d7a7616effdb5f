"""Time the choice of permutation sets and measure how far apart they are.

Run from the root of the repository (a few seconds):

    python benchmarks/permutation_sets.py

It writes `benchmarks/results/permutation_sets.csv`, or the file given with `--out`.
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from unshuffle.permutations import Criterion, hamming_statistics, permutation_set

CASES: list[tuple[int, int, Criterion]] = [
    (9, 1000, "maxmin"),
    (9, 1000, "mean"),
    (8, 1000, "maxmin"),
    (9, 100, "maxmin"),
    (16, 1000, "maxmin"),
    (25, 1000, "maxmin"),
]
REPEATS = 3


def cpu_model() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def measure(parts: int, count: int, criterion: Criterion) -> str:
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        permutations = permutation_set(parts, count, criterion=criterion)
        seconds.append(time.perf_counter() - start)
    distances = hamming_statistics(permutations)
    return f"{parts},{count},{criterion},{statistics.median(seconds):.3f},{distances.minimum},{distances.mean:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the choice of permutation sets.")
    default = Path(__file__).parent / "results" / "permutation_sets.csv"
    parser.add_argument("--out", type=Path, default=default, metavar="CSV", help="the file to write")
    out: Path = parser.parse_args().out
    lines = [
        f"# command: python {shlex.join(sys.argv)}",
        f"# python {platform.python_version()}, numpy {np.__version__}",
        f"# cpu: {cpu_model()}, {os.cpu_count()} cores",
        f"# seconds: median of {REPEATS}; minimum, mean: Hamming distance over all pairs; seed 0",
        "parts,count,criterion,seconds,minimum,mean",
    ]
    for line in lines:
        print(line)
    for case in CASES:
        lines.append(measure(*case))
        print(lines[-1], flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
