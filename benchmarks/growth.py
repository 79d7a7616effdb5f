"""How time and memory grow with the work: permutations, grid, frames, validation samples, batch.

    python benchmarks/growth.py [--device cuda] [--iterations 20] [--only permutations,grid]

The preset `paper` with one number changed at a time, on noise of the size of real data. Each row has the
time of a training step and of a validation, the peak memory of either, and the work: crops that pass the backbone in a
step, and parts that are put into an order in a validation. Results go to results/growth_DEVICE.csv and .svg.
"""

import argparse
import gc
import resource
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from table import RESULTS, write_table
from unshuffle.assembly import build_trainer
from unshuffle.data.prepare import Data

from unshuffle import bench
from unshuffle.config import Config, paper
from unshuffle.data.batches import Samples
from unshuffle.data.synthetic import SyntheticSource
from unshuffle.options import merge


def variants() -> dict[str, dict[int, dict[str, Any]]]:
    """What grows, the values it takes, and the options of each."""
    return {
        "permutations": {n: {"permutations": {"spatial": n, "temporal": n}} for n in (100, 1000, 10000)},
        "grid": {n: {"shuffle": {"grid": n}, "tasks": "S"} for n in (3, 4, 5)},
        "frames": {n: {"shuffle": {"frames": n}, "tasks": "T", "permutations": {"temporal": 20}} for n in (4, 8, 16)},
        "validation samples": {n: {"data": {"val_size": n}} for n in (100, 1000)},
        "batch": {n: {"optim": {"batch_size": n}} for n in (32, 64, 128, 256, 512, 1024)},
    }


def main() -> None:
    """Measure every variant, write the table and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--only", default=",".join(variants()))
    parser.add_argument("--backbone", default="caffenet")
    args = parser.parse_args()
    rows = []
    for name in args.only.split(","):
        for value, options in variants()[name].items():
            config = merge(paper(), {"device": args.device, "model": {"backbone": args.backbone}, **options})
            rows.append({"grows": name, "value": value, **measure(config, args.iterations)})
            print(rows[-1], flush=True)
    write_table(f"growth_{args.device}", rows, args.device)
    draw(rows, RESULTS / f"growth_{args.device}.svg")


def measure(config: Config, iterations: int) -> dict[str, str]:
    """One variant."""
    data = made_up(config)
    reset_memory()
    trainer = build_trainer(config, data)
    step = bench.whole_iterations(trainer, iterations)
    step_memory = peak_memory(trainer.device)
    reset_memory()
    validation = sum(bench.validation_ms(trainer, task) for task in trainer.permutations)
    crops = sum(config.optim.batch_size * rows.shape[1] for rows in trainer.permutations.values())
    placed = sum(rows.numel() * len(data.validation[task]) for task, rows in trainer.permutations.items())
    return {
        "step_ms": f"{step['ms_per_iteration']:.3f}",
        "crops": str(crops),
        "step_memory_gb": f"{step_memory:.2f}",
        "validation_ms": f"{validation:.1f}",
        "parts_placed": str(placed),
        "validation_memory_gb": f"{peak_memory(trainer.device):.2f}",
    }


@lru_cache
def noise(items: int, frames: int, side: int) -> SyntheticSource:
    """Items of random bytes."""
    pixels = np.random.default_rng(0).integers(0, 256, (items, frames, side, side, 3), dtype=np.uint8)
    return SyntheticSource([str(item) for item in range(items)], np.zeros(items, np.int64), ("noise",), pixels)


def made_up(config: Config) -> Data:
    """Samples of each task, as many to train on as to validate on at most."""
    images, clips = noise(2000, 1, config.data.image_short_side), noise(2000, 16, config.data.frame_short_side)
    side = round(config.data.image_short_side * config.shuffle.image_share)
    samples = {
        "spatial": Samples(images, np.arange(2000), 1, side),
        "temporal": Samples(clips, np.arange(2000), config.shuffle.frames, config.data.frame_short_side),
    }
    wanted = {"S": ["spatial"], "T": ["temporal"]}.get(config.tasks, list(samples))
    held_back = config.data.val_size
    return Data(
        {task: replace(samples[task], items=np.arange(held_back, 2000)) for task in wanted},
        {task: replace(samples[task], items=np.arange(held_back)) for task in wanted},
    )


def reset_memory() -> None:
    """Let go of what an earlier variant has left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: torch.device) -> float:
    """GB; on a CPU of the whole process so far, which no later variant can lower."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Step and validation against their work, both relative to the first of their row; the diagonal is the work."""
    names = list(dict.fromkeys(row["grows"] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(3.2 * len(names), 3.4), layout="constrained", squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        mine = [row for row in rows if row["grows"] == name]
        for label, time, work in (("step", "step_ms", "crops"), ("validation", "validation_ms", "parts_placed")):
            relative = [float(row[time]) / float(mine[0][time]) for row in mine]
            axis.plot([row["value"] for row in mine], relative, "o-", label=f"time of a {label}")
            done = [float(row[work]) / float(mine[0][work]) for row in mine]
            axis.plot(
                [row["value"] for row in mine], done, ":", color=axis.lines[-1].get_color(), label=f"work ({work})"
            )
        axis.set(xscale="log", yscale="log", xlabel=name, ylabel="relative to the first")
        axis.set_xticks([row["value"] for row in mine], [str(row["value"]) for row in mine])
        axis.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        axis.minorticks_off()
    axes[0][0].legend(fontsize=7)
    figure.savefig(out)


if __name__ == "__main__":
    main()
