"""Comparison of samplers: final test errors of the preset `demo`, over seeds.

    python benchmarks/samplers.py [--seeds 5] [--processes 2]

All arms have the same iterations, data and networks; runs differ in the sampler and the seed alone. `literal` is
Algorithm 1, as in the preset `paper-literal`; `pairs` are groups of pairs and rollouts, with the options of the preset
`small`; both with shorter episodes. Results go to results/samplers_demo.csv, one row per run; the table of means is
printed.
"""

import argparse
import multiprocessing
import os
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from table import write_table

from unshuffle.config import PolicyConfig, paper_literal, small

TASKS = ("spatial", "temporal")
SHORT = {"interval": 50, "batches": 50}
"""Episodes short enough for 400 iterations."""


def arms() -> dict[str, dict[str, Any]]:
    """Return the policy options of each arm."""
    literal = changes(paper_literal().policy) | SHORT
    pairs = changes(small().policy) | SHORT | {"sampler": "rollouts", "rollout_iterations": 10}
    return {
        "uniform": {"sampler": "uniform"},
        "reinforce": {"sampler": "reinforce"},
        "inverse": {"sampler": "reinforce", "inverse": True},
        "exp3": {"sampler": "exp3"},
        "literal": literal,
        "pairs": pairs,
        "pairs, inverse": {**pairs, "inverse": True},
    }


def changes(policy: PolicyConfig) -> dict[str, Any]:
    """Return the options of a preset's policy that differ from the defaults."""
    default = vars(PolicyConfig())
    return {name: value for name, value in vars(policy).items() if value != default[name]}


def main() -> None:
    """Run all arms, write every run and print the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    # one thread per process: sums in another order would change the runs
    os.environ["OMP_NUM_THREADS"] = "1"
    jobs = [(arm, seed) for seed in range(args.seeds) for arm in arms()]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.processes, mp_context=context) as pool:
        rows = list(pool.map(run, *zip(*jobs, strict=True)))
    write_table("samplers_demo", rows, note="one thread per run")
    print_means(rows)


def run(arm: str, seed: int) -> dict[str, Any]:
    """Train the preset `demo` in a temporary folder, and return its final figures."""
    import unshuffle

    with tempfile.TemporaryDirectory() as folder:
        log = {"pictures": False, "monitor_every": 400}
        result = unshuffle.pretrain(out=Path(folder, "run"), seed=seed, device="cpu", policy=arms()[arm], log=log)
        errors = {entry["task"]: round(entry["error"], 4) for entry in result.metrics("test")}
        top1 = [entry["top1"] for entry in result.metrics("monitor")][-1]
    return {"sampler": arm, "seed": seed, **errors, "top1": round(top1, 2)}


def print_means(rows: list[dict[str, Any]]) -> None:
    """Print mean, standard deviation and standard error of each arm as a Markdown table."""
    print("| sampler | spatial error | temporal error | top 1 |\n|---|---|---|---|")
    for arm in arms():
        cells = []
        for name in (*TASKS, "top1"):
            values = [row[name] for row in rows if row["sampler"] == arm]
            std = statistics.stdev(values) if len(values) > 1 else 0.0
            digits = 1 if name == "top1" else 3
            error = std / len(values) ** 0.5
            cells.append(f"{statistics.mean(values):.{digits}f} ± {std:.{digits}f} (± {error:.{digits}f})")
        print(f"| {arm} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
