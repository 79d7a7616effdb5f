"""Cost of validation and policy in the preset `paper`: a real run over several episodes.

    python benchmarks/schedule.py --images FOLDER --videos FOLDER [--iterations 3900] [--device cuda]

The policy is active from the start, so that its whole cost is measured. The first 100 iterations and the validation
before them, in which libraries choose their algorithms, do not count. Results go to results/schedule_DEVICE.csv.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from table import write_table

import unshuffle
from unshuffle.runs.run import Run

WARMUP = 100


def main() -> None:
    """Train, and write one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True)
    parser.add_argument("--videos", required=True)
    parser.add_argument("--iterations", type=int, default=3900)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = unshuffle.pretrain(
            args.images,
            args.videos,
            Path(folder, "run"),
            preset="paper",
            device=args.device,
            optim={"iterations": args.iterations},
            policy={"start_below": 2.0},
            log={"pictures": False, "checkpoint_every": 10 * args.iterations, "monitor_every": 10 * args.iterations},
        )
        row = figures(run)
    write_table(f"schedule_{args.device}", [row], args.device)


def figures(run: Run) -> dict[str, Any]:
    """Return the step time, the fraction of waiting, and the cost of the validations of an interval."""
    lines = [entry for entry in run.metrics("train") if entry["iteration"] > WARMUP]
    samples = 2 * run.config.optim.batch_size
    step = sum(samples / entry["samples_per_second"] for entry in lines) / len(lines)
    costs = [entry["duration"] for entry in run.metrics("cost") if 0 < entry["iteration"] < run.config.optim.iterations]
    policy = run.config.policy
    validations = 1 if policy.batches == policy.interval else 2  # where an episode ends, and where a shorter one begins
    validating = validations * sum(costs) / len(costs)
    return {
        "iterations": run.config.optim.iterations,
        "ms_per_iteration": round(1e3 * step, 3),
        "waiting_for_data": round(sum(entry["waiting_for_data"] for entry in lines) / len(lines), 5),
        "validations_measured": len(costs),
        "seconds_of_a_validation_and_policy": round(sum(costs) / len(costs), 4),
        "fraction_of_validation_and_policy": round(validating / (validating + policy.interval * step), 5),
    }


if __name__ == "__main__":
    main()
