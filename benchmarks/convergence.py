"""Whether bf16 with fused kernels learns as plain fp32 does: loss curves of the same run in both.

    python benchmarks/convergence.py --images FOLDER --videos FOLDER [--iterations 2000] [--batch_size 32]

Two runs of the preset `small` on the GPU that differ in `optim.precision` alone: fp32 without TF32, with the plain
modules; and bf16 with the fused kernels and the step as a CUDA graph. Results go to results/convergence_cuda.csv and
.svg.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from comparison import ordering_preset
from table import RESULTS, write_table

from unshuffle.options import merge
from unshuffle.pretraining import run_pretraining

TASKS = ("spatial", "temporal")


def main() -> None:
    """Run both, write the losses and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", required=True)
    parser.add_argument("--videos", required=True)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False
    rows = [row for precision in ("fp32", "bf16") for row in curve(args, precision)]
    write_table("convergence_cuda", rows, args.device)
    draw(rows)


def curve(args: argparse.Namespace, precision: str) -> list[dict[str, Any]]:
    """Return the losses every 50 iterations, and errors where there was a validation."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        changes = {
            "images": args.images,
            "videos": args.videos,
            "out": str(Path(folder, "run")),
            "device": args.device,
            "optim": {
                "iterations": args.iterations,
                "batch_size": args.batch_size,
                "precision": precision,
                "milestones": [args.iterations * 3 // 4],
            },
            "log": {"pictures": False, "checkpoint_every": args.iterations},
        }
        run = run_pretraining(merge(ordering_preset("small"), changes))
        seconds = time.perf_counter() - begin
        errors = {(entry["iteration"], entry["task"]): entry["error"] for entry in run.metrics("validation")}
        print(f"{precision}: {seconds:.0f} s, final errors {[errors[args.iterations, task] for task in TASKS]}")
        return [
            {
                "precision": precision,
                "iteration": entry["iteration"],
                "task": task,
                "loss": round(entry["loss"][task], 4),
                "error": errors.get((entry["iteration"], task), ""),
            }
            for entry in run.metrics("train")
            for task in TASKS
        ]


def draw(rows: list[dict[str, Any]]) -> None:
    """Draw the training losses, one panel per task."""
    figure, axes = plt.subplots(1, len(TASKS), figsize=(9, 3.6), layout="constrained")
    for axis, task in zip(axes, TASKS, strict=True):
        for precision, style in (("fp32", "-"), ("bf16", "--")):
            curve_rows = [row for row in rows if row["task"] == task and row["precision"] == precision]
            label = "plain fp32" if precision == "fp32" else "fast mode (bf16)"
            axis.plot([row["iteration"] for row in curve_rows], [row["loss"] for row in curve_rows], style, label=label)
        axis.set(title=task, xlabel="iteration", ylabel="training loss [nats]", ylim=(0, None))
        axis.legend()
    figure.savefig(RESULTS / "convergence_cuda.svg")


if __name__ == "__main__":
    main()
