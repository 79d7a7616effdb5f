"""Exact search for neighbours: ours, and the flat index of faiss-cpu, on the same vectors and threads.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/retrieval.py [--queries 5000] [--gallery 50000]

Needs faiss-cpu. The seconds are the processor's, which other programs do not change much, and the clock's. Ours begins
with any vectors, faiss with vectors of length 1 in its index, as it has to. The two take turns, and the better round of
each counts. The neighbours must be the same, except where two are equally near to six digits, or nothing is written.
Results go to results/retrieval_cpu.csv.
"""

import argparse
import csv
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.evaluation.retrieval import Search


def main() -> None:
    """Measure both, and write the table."""
    args = arguments()
    threads = torch.get_num_threads()
    faiss.omp_set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    # Like pool5: nothing below zero, and many zeros.
    queries, gallery = (
        torch.randn(count, args.dimensions, generator=generator).sub_(0.5).relu_()
        for count in (args.queries, args.gallery)
    )
    F.normalize(queries, out=queries)
    F.normalize(gallery, out=gallery)
    index = faiss.IndexFlatIP(args.dimensions)
    added = timed(lambda: index.add(gallery.numpy()))
    ours, theirs = [], []
    for _ in range(args.rounds):
        search = Search(queries, args.k, torch.device("cpu"))
        ours.append(timed(lambda: search.add(gallery)))  # noqa: B023, called at once
        found: list[Tensor] = []
        theirs.append(timed(lambda: found.extend(map(torch.from_numpy, index.search(queries.numpy(), args.k)))))  # noqa: B023
        same = compare(search, found[0], found[1])
    rows = [
        row("unshuffle", "search", min(ours), args, same),
        row("faiss IndexFlatIP", "search", min(theirs), args, same),
        row("faiss IndexFlatIP", "add", added, args, same),
    ]
    out = Path(__file__).parent / "results" / "retrieval_cpu.csv"
    with out.open("w", newline="") as file:
        file.write(f"# python {' '.join(sys.argv)}\n")
        file.write(
            f"# Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, "
            f"faiss {faiss.__version__}; {processor()}, {threads} threads; fp32; other programs were running\n"
        )
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(out.read_text())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--gallery", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, default=9216)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Seconds of the processor and of the clock."""
    processor, clock = time.process_time(), time.perf_counter()
    job()
    return time.process_time() - processor, time.perf_counter() - clock


def compare(search: Search, similarities: Tensor, places: Tensor) -> float:
    """Share of the neighbours that have the same rank in both; others must be as near."""
    difference = float((search.similarities - similarities).abs().max())
    if difference > 2e-6:
        sys.exit(f"the similarities differ by {difference}")
    return float((search.neighbours == places).double().mean())


def row(program: str, what: str, seconds: tuple[float, float], args: argparse.Namespace, same: float) -> dict[str, str]:
    return {
        "program": program,
        "what": what,
        "queries": str(args.queries),
        "gallery": str(args.gallery),
        "dimensions": str(args.dimensions),
        "k": str(args.k),
        "rounds": str(args.rounds),
        "processor_seconds": f"{seconds[0]:.2f}",
        "clock_seconds": f"{seconds[1]:.2f}",
        "same_neighbours": f"{same:.6f}",
    }


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    main()
