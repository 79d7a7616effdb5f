"""The comparison of tasks and of samplers, on real images and videos.

    python benchmarks/comparison.py tasks --images FOLDER --videos FOLDER --val_videos FOLDER [--out runs/comparison]
                                    [--train FOLDER --test FOLDER] [--arms S T ...] [--iterations 6000] [--seeds 3]
                                    [--evaluate retrieval linear ...] [--jobs 1] [--device cuda]
    python benchmarks/comparison.py features ...
    python benchmarks/comparison.py samplers --init WEIGHTS ...
    python benchmarks/comparison.py orders --init WEIGHTS ...

`tasks`: spatial task, temporal task and both, from scratch; the preset `small` with batch size 64 and uniform sampling.
`features`: as `tasks`, with one crop for all frames of a clip, with larger crops of frames, with SGD for the backbone.
`samplers`: all arms start from one backbone, --init (such as a run of `tasks`), with 1000 permutations of tiles and 100
of frames.
`orders`: as `samplers`, with 1000 permutations of frames too, and one crop for all frames of a clip.

Jobs that are finished in --out are not repeated. With --train and --test, class folders, the backbones are evaluated:
retrieval, a linear probe on pool5 and RankMe there, retrieval of single frames and action recognition on the videos.
--jobs trainings share the GPU: one starts or evaluates while another computes.

Results: results/comparison_STUDY_DEVICE.csv (a row for each figure), comparison_STUDY_curves_DEVICE.csv (errors on
X_val and on the pretext test set, over iterations and over forward passes, including validations and rollouts, counted
as in the paper and with a shared backbone) and a figure of the curves on X_val, comparison_STUDY_DEVICE.svg.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from matplotlib.figure import Figure
from table import RESULTS, write_table

from unshuffle.ablation.ablation import Ablation, ablate
from unshuffle.analysis.cost import total_passes
from unshuffle.analysis.figures import COLOURS, legend_below, name_axes, panels, save_figure, styled, thousands
from unshuffle.config import PolicyConfig

PAPERS = {**vars(PolicyConfig()), "interval": 100, "batches": 100}
"""The paper's policy, with more episodes than in the paper: validation is nearly free."""
TASKS: dict[str, dict[str, Any]] = {"S+T": {}, "S": {"tasks": "S"}, "T": {"tasks": "T"}}
ONE_CROP = {"temporal": {"shared_crop": True}}
LARGE_CROPS = {"temporal": {"crop_fraction": 0.875}}
SGD = {"optim": {"backbone": {"kind": "sgd", "lr": 0.01, "weight_decay": 5e-4}}}
FEATURES: dict[str, dict[str, Any]] = {
    "S+T, one crop": ONE_CROP,
    "T, one crop": {"tasks": "T", **ONE_CROP},
    "S+T, crops of 0.875": LARGE_CROPS,
    "T, crops of 0.875": {"tasks": "T", **LARGE_CROPS},
    "S+T, SGD": SGD,
}
SAMPLERS: dict[str, dict[str, Any]] = {
    "uniform": {"policy": {"sampler": "uniform"}},
    "policy": {},
    "inverse": {"policy": {"inverse": True}},
    "hard first": {"policy": {"sampler": "hard-first"}},
    "paper's policy": {"policy": PAPERS},
    "paper's inverse": {"policy": {**PAPERS, "inverse": True}},
    "bandit": {"policy": {**PAPERS, "sampler": "exp3"}},
}
EVALUATIONS = ("retrieval", "linear", "rankme", "frames", "action")
OVER = {
    "iteration": "iterations",
    "forward_passes_shared_backbone": "forward passes, including validations and rollouts [batches]",
}
OFTEN = {"interval": 500, "batches": 500}
MANY_TILES = {"spatial": {"permutations": 1000}}
UNIFORM = {"policy": {"sampler": "uniform", **OFTEN}}
STUDIES: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {
    "tasks": (TASKS, UNIFORM),
    "features": (FEATURES, UNIFORM),
    "samplers": (SAMPLERS, {**MANY_TILES, "policy": OFTEN}),
    "orders": (SAMPLERS, {**MANY_TILES, "temporal": {"permutations": 1000, "shared_crop": True}, "policy": OFTEN}),
}
"""The arms of each study, and what they share."""


def main() -> None:
    """Train and evaluate all arms, write the tables."""
    args = arguments()
    arms, shared = STUDIES[args.study]
    ablation = ablate(
        args.out / args.study,
        arms={name: arms[name] for name in args.arms or arms},
        seeds=args.seeds,
        evaluations=evaluations(args),
        preset="small",
        jobs=args.jobs,
        init=args.init,
        optim=schedule(args.iterations),
        **shared,
        **data(args),
    )
    for job, sentence in ablation.failures.items():
        print(f"{job}: {sentence}")
    write_table(f"comparison_{args.study}_{args.device}", ablation.rows, args.device)
    points = list(curves(ablation))
    write_table(f"comparison_{args.study}_curves_{args.device}", points, args.device)
    save_figure(draw(points), [RESULTS / f"comparison_{args.study}_{args.device}.svg"])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--images", required=True)
    parser.add_argument("--videos", required=True)
    parser.add_argument("--val_videos", required=True)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--evaluate", nargs="+", choices=EVALUATIONS, default=EVALUATIONS)
    parser.add_argument("--out", type=Path, default=Path("runs/comparison"))
    parser.add_argument("--arms", nargs="+", help="arms of the study to run; default all")
    parser.add_argument("--iterations", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--init", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if STUDIES[args.study][0] is SAMPLERS and args.init is None:
        parser.error("samplers are compared from one common backbone: give --init")
    if unknown := set(args.arms or ()) - set(STUDIES[args.study][0]):
        parser.error(
            f"{args.study} has no arms {', '.join(sorted(unknown))}; choose from {', '.join(STUDIES[args.study][0])}"
        )
    return args


def data(args: argparse.Namespace) -> dict[str, Any]:
    """Return the data and logging options of all runs; validation clips are of other scenes."""
    return {
        "images": args.images,
        "videos": args.videos,
        "device": args.device,
        "data": {"val_videos": args.val_videos, "val_size": 434},
        "log": {"monitor_every": args.iterations, "checkpoint_every": args.iterations, "pictures": False},
    }


def schedule(iterations: int) -> dict[str, Any]:
    """Return a schedule with two learning-rate drops, as in the preset `small`."""
    milestones = [round(0.7 * iterations), round(0.9 * iterations)]
    return {"iterations": iterations, "batch_size": 64, "warmup": 200, "milestones": milestones}


def evaluations(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the evaluations and their options; none without --train."""
    if args.train is None:
        return {}
    folders = {"preset": "quick", "train": str(args.train), "test": str(args.test)}
    videos = {"preset": "quick", "train": args.videos, "test": args.val_videos}
    options: dict[str, dict[str, Any]] = {
        "retrieval": {**folders, "limit": 0},
        "linear": {**folders, "layers": ["pool5"]},
        "rankme": {"preset": "quick", "images": str(args.train)},
        "frames": {**videos, "evaluation": "retrieval", "limit": 124},
        "action": videos,
    }
    return {name: options[name] for name in args.evaluate}


def curves(ablation: Ablation) -> Iterator[dict[str, Any]]:
    """Yield the errors of all runs, with iterations and forward passes until then (appendix H)."""
    for job in ablation.plan.jobs:
        if not job.is_trained:
            continue
        entries = [entry for kind in ("validation", "test") for entry in job.run.metrics(kind)]
        at = [entry["iteration"] for entry in entries]
        passes = zip(total_passes(job.run, at), total_passes(job.run, at, shared_backbone=True), strict=True)
        for entry, (full, shared) in zip(entries, passes, strict=True):
            yield {
                "arm": job.arm,
                "seed": job.seed,
                "task": entry["task"],
                "measured": entry["kind"],
                "iteration": entry["iteration"],
                "forward_passes": round(full),
                "forward_passes_shared_backbone": round(shared),
                "error": round(entry["error"], 4),
            }


@styled
def draw(points: Sequence[dict[str, Any]]) -> Figure:
    """Draw a row for each task, over iterations and forward passes: lines are means, areas span the seeds."""
    tasks, arms = (list(dict.fromkeys(point[key] for point in points)) for key in ("task", "arm"))
    validations = [point for point in points if point["measured"] == "validation"]  # the test set has few points
    trained = [point for point in validations if point["iteration"]]  # the first error would dominate the scale
    figure, axes = panels(len(tasks), 2, width=5.6, height=3.8)
    for row, task in zip(axes, tasks, strict=True):
        for axis, (over, name) in zip(row, OVER.items(), strict=True):
            for arm, colour in zip(arms, COLOURS, strict=False):
                arm_points = [point for point in trained if (point["task"], point["arm"]) == (task, arm)]
                plot(axis, arm_points, over, colour, arm)
            name_axes(axis, f"{task} task", name, "validation error")
            thousands(axis.xaxis)
    legend_below(axes[-1][0])
    return figure


def plot(axis: Any, points: Sequence[dict[str, Any]], over: str, colour: str, label: str) -> None:
    """Plot the errors of one arm; all seeds have validations at the same iterations."""
    by_iteration: dict[int, list[dict[str, Any]]] = {}
    for point in points:
        by_iteration.setdefault(point["iteration"], []).append(point)
    x = [fmean(point[over] for point in seeds) for seeds in by_iteration.values()]
    errors = [[point["error"] for point in seeds] for seeds in by_iteration.values()]
    axis.plot(x, [fmean(values) for values in errors], color=colour, label=label)
    axis.fill_between(x, list(map(min, errors)), list(map(max, errors)), color=colour, alpha=0.2, linewidth=0)


if __name__ == "__main__":
    main()
