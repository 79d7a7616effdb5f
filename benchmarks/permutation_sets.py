"""Time to choose a permutation set, and how far apart its permutations are.

    python benchmarks/permutation_sets.py [--out FILE.csv]

Seconds are the median of 3 runs; minimum and mean are Hamming distances over all pairs, with seed 0. Results go to
results/permutation_sets.csv.
"""

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from table import processor, write_table

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="file to write instead")
    args = parser.parse_args()
    rows = [measure(*case) for case in CASES]
    note = f"numpy {np.__version__}; {processor()}, {os.cpu_count()} cores; seconds: median of {REPEATS}; seed 0"
    write_table("permutation_sets", rows, note=note, out=args.out)


def measure(parts: int, count: int, criterion: Criterion) -> dict[str, Any]:
    seconds = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        permutations = permutation_set(parts, count, criterion=criterion)
        seconds.append(time.perf_counter() - begin)
    distances = hamming_statistics(permutations)
    return {
        "parts": parts,
        "count": count,
        "criterion": criterion,
        "seconds": f"{statistics.median(seconds):.3f}",
        "minimum": distances.minimum,
        "mean": f"{distances.mean:.4f}",
    }


if __name__ == "__main__":
    main()
