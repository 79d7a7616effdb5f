"""The comparison of samplers on real images and videos: errors on samples that no sampler sees, and features.

    python benchmarks/comparison.py train --images DATA --videos DATA --test_videos DATA
                                    [--held_out_images DATA --held_out_videos DATA] [--sibling_pattern PATTERN]
                                    [--arms uniform ...] [--iterations 6000] [--seeds 3] [--jobs 1] [--device cuda]
    python benchmarks/comparison.py time ...
    python benchmarks/comparison.py evaluate --train FOLDER --test FOLDER [--gallery FOLDER --queries FOLDER]
    python benchmarks/comparison.py table

All arms train S+T from scratch with the network and the optimisers of the preset `small`, batches of 64 + 64, 1000
permutations of tiles and 100 of frames; only the policy differs (`arms`). X_val is held out of the training data with
its siblings. The pretext test set is --test_videos for clips, and 500 images held out of --images; nothing is chosen by
it. The default of `small` is chosen by the error on --held_out_images and --held_out_videos, which are no part of
--images and --videos, and by retrieval of --queries from --gallery, both from the training side.

`train` trains the arms into --out; jobs that are finished are not repeated, and --jobs of them share the GPU. `time`
trains each arm alone for a while, for its time per iteration with validations and rollouts. `evaluate` evaluates the
backbones. `table` writes results/comparison_DEVICE.csv (a row for each figure), comparison_curves_DEVICE.csv (test
errors over iterations and seconds), comparison_DEVICE.svg, and prints means and differences from uniform sampling with
the same seed.
"""

import argparse
import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from table import RESULTS, write_table

from unshuffle.ablation.ablation import ablate
from unshuffle.analysis.analysis import flat_numbers
from unshuffle.analysis.figures import COLOURS, legend_below, name_axes, panels, save_figure, styled, thousands
from unshuffle.config import PolicyConfig, paper, paper_literal, small
from unshuffle.evaluation.protocol import Evaluation, find_evaluation
from unshuffle.options import merge, to_dict
from unshuffle.pretraining import pretrain
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.history import stored_permutations
from unshuffle.runs.run import Run
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training.trainer import build_trainer

OFTEN = 50
"""Iterations of an episode: the signal-to-noise ratio of its reward is about that of 200 (reward_noise.py)."""
EPISODES_OF_THE_PAPER = 90
TIMED = (200, 1200)
"""Iterations between which an arm is timed."""
BASELINE = "uniform"
FIGURES = {
    "held_out": "held-out error",
    "retrieval": "retrieval",
    "linear": "linear probe",
    "chosen_by": "retrieval inside the training side",
}
"""Files with the figures of a run, and what these are called."""


def arms(iterations: int) -> dict[str, PolicyConfig]:
    """Return the policy of each arm."""
    few = max(1, iterations // EPISODES_OF_THE_PAPER)
    pairs = replace(
        small().policy,
        sampler="reinforce",
        interval=OFTEN,
        batches=OFTEN,
        lr=0.005,  # a run has only some hundred episodes
    )
    return {
        BASELINE: PolicyConfig(sampler="uniform"),
        "paper-literal": replace(paper_literal().policy, interval=few, batches=few),
        "paper": replace(paper().policy, interval=OFTEN, batches=OFTEN),
        "pairs": pairs,
        "inverse": replace(pairs, inverse=True),
        "rollouts": replace(small().policy, interval=1000, batches=1000, rollout_iterations=8),
    }


def shared(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options that all arms share."""
    return {
        "images": args.images,
        "videos": args.videos,
        "device": args.device,
        "data": {
            "val_size": 200,
            "test_size": 500,
            "test_videos": args.test_videos,
            "sibling_pattern": args.sibling_pattern,
        },
        "spatial": {"permutations": 1000},
        "temporal": {"permutations": 100},
        "permutations": {"per_sample": 8},
        "log": {"monitor_every": 500, "checkpoint_every": args.iterations, "keep_checkpoints": 1, "pictures": False},
    }


def schedule(iterations: int) -> dict[str, Any]:
    """Return a schedule with two learning-rate drops, as in the preset `small`."""
    milestones = [round(0.7 * iterations), round(0.9 * iterations)]
    return {"iterations": iterations, "batch_size": 64, "warmup": 200, "milestones": milestones}


def main() -> None:
    """Do one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["train", "time", "evaluate", "table"])
    for name in ("images", "videos", "test_videos", "held_out_images", "held_out_videos"):
        parser.add_argument(f"--{name}")
    for name in ("train", "test", "gallery", "queries"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--sibling_pattern", default="")
    parser.add_argument("--arms", nargs="+", help="arms to train; default all")
    parser.add_argument("--iterations", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/comparison"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the tables")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    {"train": train, "time": measure_times, "evaluate": evaluate, "table": write_tables}[args.step](args)


def train(args: argparse.Namespace) -> None:
    """Train the arms, and measure their errors on held-out data."""
    chosen = {name: policy for name, policy in arms(args.iterations).items() if name in (args.arms or [name])}
    ablation = ablate(
        args.out,
        arms={name: {"policy": to_dict(policy)} for name, policy in chosen.items()},
        seeds=args.seeds,
        preset="small",
        jobs=args.jobs,
        optim=schedule(args.iterations),
        **shared(args),
    )
    for job, sentence in ablation.failures.items():
        print(f"{job}: {sentence}")
    if args.held_out_images and args.held_out_videos:
        opened: dict[int, Data] = {}
        for run in all_runs(args.out).values():
            write_figures(run, "held_out", partial(held_out_errors, run, args, opened))


def all_runs(out: Path) -> dict[tuple[str, int], Run]:
    """Return the finished runs by arm and seed."""
    return {
        (arm, run.config.seed): run
        for arm in arms(iterations=1)
        for run in (Run(weights.parent) for weights in sorted(out.glob(f"{arm}/*/backbone.safetensors")))
    }


def write_figures(run: Run, name: str, measure: Callable[[], dict[str, float]]) -> None:
    """Measure figures of a run and keep them in its folder, unless they are there."""
    file = run.folder / f"{name}.json"
    if not file.exists():
        figures = measure()
        file.write_text(json.dumps(figures))
        print(run.folder, figures, flush=True)


def held_out_errors(run: Run, args: argparse.Namespace, opened: dict[int, Data]) -> dict[str, float]:
    """Return the errors of a run's last checkpoint on the held-out images and videos; `opened` is by seed."""
    given = {"test_images": args.held_out_images, "test_videos": args.held_out_videos, "gpu_memory_fraction": 0.0}
    config = merge(run.config, {"data": given})
    if config.seed not in opened:
        opened[config.seed] = prepare(config, progress=False)
    trainer = build_trainer(config, opened[config.seed], stored_permutations(run))
    trainer.network.load_state_dict(load_checkpoint(list_checkpoints(run.checkpoints)[-1])["network"])
    return {name: trainer.test(name).error for name in trainer.tasks}


def measure_times(args: argparse.Namespace) -> None:
    """Train each arm alone, and write its time per iteration with all validations and rollouts."""
    begin, end = TIMED
    rows = []
    for name, policy in arms(args.iterations).items():
        if name not in (args.arms or [name]):
            continue
        options: dict[str, Any] = {
            "preset": "small",
            "out": args.out / f"time-{name}",
            "optim": schedule(end) | {"milestones": []},
            "log": {"monitor_every": end, "checkpoint_every": end, "pictures": False},  # no test before the end
            # groups are formed from the beginning, as in most of a long training
            "policy": to_dict(replace(policy, start_below=2.0)),
        }
        run = pretrain(**(shared(args) | options))
        timed = [entry for entry in run.metrics() if entry["kind"] in ("train", "cost")]
        seconds = {entry["iteration"]: entry["seconds"] for entry in timed}
        elapsed = seconds[end] - seconds[begin]
        validating = sum(entry["duration"] for entry in run.metrics("cost") if begin < entry["iteration"] <= end)
        per_iteration = {"milliseconds": elapsed, "validating_and_rollouts": validating}
        rows.append(
            {"arm": name} | {key: round(1e3 * value / (end - begin), 3) for key, value in per_iteration.items()}
        )
        print(rows[-1], flush=True)
    write_table("", rows, args.device, out=args.results / f"comparison_time_{args.device}.csv")


def evaluate(args: argparse.Namespace) -> None:
    """Evaluate all backbones; what has been evaluated is not repeated."""
    console = Console(quiet=True)
    sides = {"retrieval": (args.train, args.test), "linear": (args.train, args.test)}
    sides["chosen_by"] = (args.gallery, args.queries)
    for run in all_runs(args.out).values():
        for name, (gallery, queries) in sides.items():
            if gallery is None:
                continue
            kind = find_evaluation("linear" if name == "linear" else "retrieval").quick()
            options: dict[str, Any] = {"layers": ["pool5"]} if name == "linear" else {"limit": 0}
            options |= {"weights": str(run.weights), "train": str(gallery), "test": str(queries)}
            evaluation = merge(kind, {**options, "device": args.device})
            write_figures(run, name, partial(metrics, evaluation, console))


def metrics(evaluation: Evaluation, console: Console) -> dict[str, Any]:
    """Return the top-k accuracies of an evaluation."""
    numbers = flat_numbers(evaluation.run(console).metrics)
    return {name: value for name, value in numbers.items() if "top" in name}


def figures(run: Run) -> dict[str, float]:
    """Return all figures of a run."""
    numbers = {f"test error, {entry['task']}": entry["error"] for entry in run.metrics("test")}
    numbers |= {f"X_val error, {entry['task']}": entry["error"] for entry in run.metrics("validation")}
    for name in FIGURES:
        file = run.folder / f"{name}.json"
        if file.exists():
            prefix = FIGURES[name]
            numbers |= {f"{prefix}, {key}": value for key, value in json.loads(file.read_text()).items()}
    return numbers


def write_tables(args: argparse.Namespace) -> None:
    """Write all figures and the curves, and print means and differences from the baseline."""
    runs = all_runs(args.out)
    rows = [
        {"arm": arm, "seed": seed, "figure": name, "value": round(value, 4)}
        for (arm, seed), run in runs.items()
        for name, value in figures(run).items()
        if isinstance(value, int | float)
    ]
    write_table("", rows, args.device, out=args.results / f"comparison_{args.device}.csv")
    points = list(curves(runs, read_times(args.results / f"comparison_time_{args.device}.csv")))
    write_table("", points, args.device, out=args.results / f"comparison_curves_{args.device}.csv")
    save_figure(draw(points), [args.results / f"comparison_{args.device}.svg"])
    print_means(rows)


def read_times(file: Path) -> dict[str, float]:
    """Return the milliseconds per iteration of each arm; none without a measurement."""
    if not file.is_file():
        return {}
    lines = (line for line in file.read_text().splitlines() if not line.startswith("#"))
    return {row["arm"]: float(row["milliseconds"]) for row in csv.DictReader(lines)}


def curves(runs: Mapping[tuple[str, int], Run], times: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Yield the test errors of all runs, with the seconds that the arm takes until then alone on the GPU."""
    for (arm, seed), run in runs.items():
        for entry in run.metrics("test"):
            seconds = round(entry["iteration"] * times[arm] / 1000, 2) if arm in times else ""
            yield {
                "arm": arm,
                "seed": seed,
                "task": entry["task"],
                "iteration": entry["iteration"],
                "seconds": seconds,
                "error": round(entry["error"], 4),
            }


def print_means(rows: Sequence[dict[str, Any]]) -> None:
    """Print mean ± std of each figure, and mean ± standard error of its differences from the baseline, as Markdown."""
    values = {(row["figure"], row["arm"], row["seed"]): float(row["value"]) for row in rows}
    names, kinds = (list(dict.fromkeys(row[key] for row in rows)) for key in ("figure", "arm"))
    print(f"| | {' | '.join(kinds)} |\n|---|{'---|' * len(kinds)}")
    for name in names:
        cells = []
        for arm in kinds:
            own = {seed: value for (figure, kind, seed), value in values.items() if (figure, kind) == (name, arm)}
            pairs = [
                value - values[name, BASELINE, seed] for seed, value in own.items() if (name, BASELINE, seed) in values
            ]
            cell = f"{fmean(own.values()):.3f} ± {spread(own.values()):.3f}" if own else ""
            if arm != BASELINE and len(pairs) > 1:
                cell += f" ({fmean(pairs):+.3f} ± {spread(pairs) / len(pairs) ** 0.5:.3f})"
            cells.append(cell)
        print(f"| {name} | {' | '.join(cells)} |")


def spread(values: Any) -> float:
    """Return the standard deviation (ddof 1); 0 for one value."""
    numbers = list(values)
    return stdev(numbers) if len(numbers) > 1 else 0.0


@styled
def draw(points: Sequence[dict[str, Any]]) -> Figure:
    """Draw a row for each task, over iterations and seconds: lines are means, areas span the seeds."""
    tasks, names = (list(dict.fromkeys(point[key] for point in points)) for key in ("task", "arm"))
    trained = [point for point in points if point["iteration"]]  # the error at iteration 0 would dominate the scale
    over = {"iteration": "iterations"} | (
        {"seconds": "seconds on one GPU, validations and rollouts included"} if points[0]["seconds"] != "" else {}
    )
    figure, axes = panels(len(tasks), len(over), width=5.6, height=3.8)
    for row, task in zip(axes, tasks, strict=True):
        for axis, (key, label) in zip(row, over.items(), strict=True):
            for arm, colour in zip(names, COLOURS, strict=False):
                plot(
                    axis, [point for point in trained if (point["task"], point["arm"]) == (task, arm)], key, colour, arm
                )
            name_axes(axis, f"{task} task", label, "test error")
            thousands(axis.xaxis)
    legend_below(axes[-1][0])
    return figure


def plot(axis: Any, points: Sequence[dict[str, Any]], over: str, colour: str, label: str) -> None:
    """Plot the errors of one arm; all seeds are tested at the same iterations."""
    by_iteration: dict[int, list[dict[str, Any]]] = {}
    for point in points:
        by_iteration.setdefault(point["iteration"], []).append(point)
    x = [fmean(point[over] for point in seeds) for seeds in by_iteration.values()]
    errors = [[point["error"] for point in seeds] for seeds in by_iteration.values()]
    axis.plot(x, [fmean(values) for values in errors], color=colour, label=label)
    axis.fill_between(x, list(map(min, errors)), list(map(max, errors)), color=colour, alpha=0.2, linewidth=0)


if __name__ == "__main__":
    main()
