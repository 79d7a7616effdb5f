"""How time and memory grow with the work: permutations, grid, frames, validation samples, batch size.

    python benchmarks/growth.py [--device cuda] [--iterations 20] [--only permutations,grid]

The preset `paper` with one number changed at a time, on noise of the size of real data. Each row has the step time, the
time of a validation, the peak memory of each, and the work: crops that pass the backbone in a step (`crops`), and parts
that are permuted in a validation (`parts_placed`). Results go to results/growth_DEVICE.csv and .svg.
"""

import argparse
import gc
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from table import RESULTS, peak_memory_gb, write_table

from unshuffle import bench
from unshuffle.config import Config, paper
from unshuffle.data.synthetic import SyntheticSource
from unshuffle.options import merge
from unshuffle.tasks import build_tasks
from unshuffle.tasks.prepare import Data
from unshuffle.training.trainer import build_trainer

ITEMS = 2000  # images, and clips


def variants() -> dict[str, dict[int, dict[str, Any]]]:
    """Return what grows, its values, and the options of each value."""
    return {
        "permutations": {
            n: {"spatial": {"permutations": n}, "temporal": {"permutations": n}} for n in (100, 1000, 10000)
        },
        "grid": {n: {"spatial": {"grid": n}, "tasks": "S"} for n in (3, 4, 5)},
        "frames": {n: {"temporal": {"frames": n, "permutations": 20}, "tasks": "T"} for n in (4, 8, 16)},
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
    """Return the figures of one variant."""
    data = noise_data(config)
    reset_memory()
    trainer = build_trainer(config, data)
    step = bench.whole_iterations(trainer, iterations)
    step_memory = peak_memory_gb(trainer.device)
    reset_memory()
    validation = sum(bench.validation_ms(trainer, task) for task in trainer.tasks)
    crops = sum(task.batch_size * task.parts for task in trainer.tasks.values())
    placed = sum(rows.numel() * len(data.validation[task]) for task, rows in trainer.permutations.items())
    return {
        "step_ms": f"{step['ms_per_iteration']:.3f}",
        "crops": str(crops),
        "step_memory_gb": f"{step_memory:.2f}",
        "validation_ms": f"{validation:.1f}",
        "parts_placed": str(placed),
        "validation_memory_gb": f"{peak_memory_gb(trainer.device):.2f}",
    }


@lru_cache
def noise(items: int, frames: int, side: int) -> SyntheticSource:
    """Return items of random bytes."""
    pixels = np.random.default_rng(0).integers(0, 256, (items, frames, side, side, 3), dtype=np.uint8)
    return SyntheticSource([str(item) for item in range(items)], np.zeros(items, np.int64), ("noise",), pixels)


def noise_data(config: Config) -> Data:
    """Return samples of each task, the first of them held out."""
    sources = {
        "images": noise(ITEMS, 1, config.data.image_short_side),
        "videos": noise(ITEMS, 16, config.data.frame_short_side),
    }
    tasks = build_tasks(config, config.task_names)
    samples = {name: task.samples_of(sources[task.medium], np.arange(ITEMS)) for name, task in tasks.items()}
    held_out = config.data.val_size
    return Data(
        {name: replace(task_samples, items=np.arange(held_out, ITEMS)) for name, task_samples in samples.items()},
        {name: replace(task_samples, items=np.arange(held_out)) for name, task_samples in samples.items()},
    )


def reset_memory() -> None:
    """Free the memory of earlier variants and restart the count of the peak."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Draw the times of a step and of a validation and their work, all relative to the first value."""
    names = list(dict.fromkeys(row["grows"] for row in rows))
    figure, axes = plt.subplots(1, len(names), figsize=(3.2 * len(names), 3.4), layout="constrained", squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        variant_rows = [row for row in rows if row["grows"] == name]
        for label, time, work in (("step", "step_ms", "crops"), ("validation", "validation_ms", "parts_placed")):
            relative = [float(row[time]) / float(variant_rows[0][time]) for row in variant_rows]
            axis.plot([row["value"] for row in variant_rows], relative, "o-", label=f"time of a {label}")
            relative_work = [float(row[work]) / float(variant_rows[0][work]) for row in variant_rows]
            colour = axis.lines[-1].get_color()
            axis.plot([row["value"] for row in variant_rows], relative_work, ":", color=colour, label=f"work ({work})")
        axis.set(xscale="log", yscale="log", xlabel=name, ylabel="relative to the first")
        axis.set_xticks([row["value"] for row in variant_rows], [str(row["value"]) for row in variant_rows])
        axis.set_yticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        axis.minorticks_off()
    axes[0][0].legend(fontsize=7)
    figure.savefig(out)


if __name__ == "__main__":
    main()
