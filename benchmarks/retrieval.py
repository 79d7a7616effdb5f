"""Exact nearest-neighbour search: ours against the flat index of faiss-cpu, on the same vectors and threads.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/retrieval.py [--queries 5000] [--gallery 50000]

Needs faiss-cpu. Seconds are CPU time, which other programs hardly affect, and wall-clock time. Ours starts from any
vectors, faiss from normalised vectors in its index, as it needs. The two take turns, and the better round of each
counts. The neighbours must agree except for ties within six digits; otherwise nothing is written. Results go to
results/retrieval_cpu.csv.
"""

import argparse
import sys
import time
from collections.abc import Callable

import faiss
import numpy as np
import torch
from table import processor, write_table
from torch import Tensor
from torch.nn import functional as F

from unshuffle.evaluation.index import Search


def main() -> None:
    """Measure both, and write the table."""
    args = arguments()
    faiss.omp_set_num_threads(torch.get_num_threads())
    generator = torch.Generator().manual_seed(0)
    # like pool5: nothing below zero, and many zeros
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
        faiss_result: list[Tensor] = []
        theirs.append(
            timed(lambda: faiss_result.extend(map(torch.from_numpy, index.search(queries.numpy(), args.k))))  # noqa: B023
        )
        same = compare(search, *faiss_result)
    rows = [
        row("unshuffle", "search", min(ours), args, same),
        row("faiss IndexFlatIP", "search", min(theirs), args, same),
        row("faiss IndexFlatIP", "add", added, args, same),
    ]
    note = f"numpy {np.__version__}, faiss {faiss.__version__}; {processor()}; fp32; other programs were running"
    write_table("retrieval_cpu", rows, note=note)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=5000)
    parser.add_argument("--gallery", type=int, default=50_000)
    parser.add_argument("--dimensions", type=int, default=9216)
    parser.add_argument("--k", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=2)
    return parser.parse_args()


def timed(job: Callable[[], object]) -> tuple[float, float]:
    """Return CPU and wall-clock seconds."""
    cpu, clock = time.process_time(), time.perf_counter()
    job()
    return time.process_time() - cpu, time.perf_counter() - clock


def compare(search: Search, similarities: Tensor, neighbours: Tensor) -> float:
    """Return the fraction of neighbours with the same rank in both; others must be equally near."""
    difference = float((search.similarities - similarities).abs().max())
    if difference > 2e-6:
        sys.exit(f"the similarities differ by {difference}")
    return float((search.neighbours == neighbours).double().mean())


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


if __name__ == "__main__":
    main()
