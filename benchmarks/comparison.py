"""The comparison of samplers and tasks on real images and videos: errors on samples that no sampler sees, and features.

    python benchmarks/comparison.py time --images DATA --videos DATA [--arms S+T ...] [--device cuda]
    python benchmarks/comparison.py train --images DATA --videos DATA --test_videos DATA [--sibling_pattern PATTERN]
                                    [--monitor_gallery DATA --monitor_queries DATA]
                                    [--arms S+T ...] [--iterations 6000] [--seeds 3] [--jobs 1] [--device cuda]
    python benchmarks/comparison.py evaluate ... [--held_out_images DATA --held_out_videos DATA]
                                    [--train FOLDER --test FOLDER] [--gallery FOLDER --queries FOLDER]
                                    [--action_train FOLDER --action_test FOLDER] [--voc DEVKIT]
    python benchmarks/comparison.py table ...

All arms train from scratch with the network and the optimisers of the preset `small`, batches of 64 + 64, 1000
permutations of tiles and 100 of frames; only tasks and policy differ (`arms`). X_val is held out of the training data
with its siblings. The pretext test set is --test_videos for clips, and 500 images held out of --images; nothing is
chosen by it. The default of `small` is chosen by the error on --held_out_images and --held_out_videos, which are no
part of --images and --videos, and by retrieval of --queries from --gallery, both from the training side.

`time` trains each arm alone for a while, and writes its time per iteration with validations and rollouts to
results/comparison_time_DEVICE.csv, where the arms that it does not time keep their rows. `train` trains the arms into
--out; runs that are finished are not repeated. S+P, T+P and S+T+P train for as many iterations as fit into the time of
the same tasks without a policy; all others have --iterations. `evaluate` takes the options of `train` too, and
evaluates the runs that are finished so far, on the data that is given. `table` takes the options of both, writes
results/comparison_DEVICE.csv (a row for each figure), comparison_curves_DEVICE.csv (figures over iterations and
seconds) and two pictures, and prints means and differences from uniform sampling with the same seed, and the ablation's
table.
"""

import argparse
import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from rich.console import Console
from table import RESULTS, write_table

from unshuffle.ablation.ablation import HEADLINES, PAPER_ARMS, make_plan, run_ablation
from unshuffle.ablation.arms import KIND, POLICY, find_arms, plain
from unshuffle.ablation.job import run_job
from unshuffle.ablation.plan import Job, Plan
from unshuffle.analysis.analysis import flat_numbers
from unshuffle.analysis.figures import COLOURS, legend_below, name_axes, panels, save_figure, styled, thousands
from unshuffle.config import Config, PolicyConfig, paper, paper_literal, preset_config, small
from unshuffle.options import merge, to_dict
from unshuffle.pretraining import run_pretraining
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.history import stored_permutations
from unshuffle.runs.run import Run
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training.trainer import build_trainer

OFTEN = 50
"""Iterations of an episode: the signal-to-noise ratio of its reward is about that of 200 (reward_noise.py)."""
EPISODES_OF_THE_PAPER = 90
TIMED = (150, 450)
"""Iterations between which an arm is timed."""
TIMED_INTERVAL = 100
"""Iterations between the validations that are timed, at most."""
BASELINE = "S+T"
SAMPLERS = ("S+T", "S+T+P", "paper", "paper-literal", "pairs", "inverse")
"""Arms with both tasks, which differ by their policies."""
RETRIEVAL = "VOC objects, top 1 [%]"


ORDERING: dict[str, Any] = {
    "tasks": "S+T",
    "optim": {"batch_size": 128, "schedule": "steps", "milestones": [14_000, 18_000]},
    "spatial": {"batch_size": 0, "loss_weight": 1.0},
    "temporal": {"batch_size": 0, "loss_weight": 1.0},
}
"""Changes of `small` for the ordering tasks alone, with which all comparisons of them are made."""


def ordering_preset(name: str) -> Config:
    """Return a preset with the ordering tasks alone."""
    return merge(small(), ORDERING) if name == "small" else preset_config(name)


def policies(iterations: int) -> dict[str, PolicyConfig]:
    """Return the policies that are compared with uniform sampling and with rollouts."""
    few = max(1, iterations // EPISODES_OF_THE_PAPER)
    pairs = replace(
        small().policy,  # with the groups of pairs that rollouts use
        sampler="reinforce",
        interval=OFTEN,
        batches=OFTEN,
        lr=0.005,  # a run has only a few hundred episodes
    )
    return {
        "paper": replace(paper().policy, interval=OFTEN, batches=OFTEN),
        "paper-literal": replace(paper_literal().policy, interval=few, batches=few),
        "pairs": pairs,
        "inverse": replace(pairs, inverse=True),
    }


def arms(iterations: int) -> dict[str, dict[str, Any]]:
    """Return the changes of each arm: the paper's, with rollouts for +P, and both tasks with each of the policies."""
    others = policies(iterations).items()
    return find_arms(PAPER_ARMS, small()) | {
        name: {"tasks": BASELINE, "policy": to_dict(policy)} for name, policy in others
    }


def schedule(iterations: int) -> dict[str, Any]:
    """Return a schedule with two learning-rate drops, as in the preset `small`."""
    milestones = [round(0.7 * iterations), round(0.9 * iterations)]
    return {"iterations": iterations, "batch_size": 64, "warmup": 200, "milestones": milestones}


def shared_config(args: argparse.Namespace) -> Config:
    """Return the config that all arms share."""
    changes = {
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
        "monitor": {"gallery": args.monitor_gallery, "queries": args.monitor_queries},
        "optim": schedule(args.iterations),
        "log": {"monitor_every": 1000, "checkpoint_every": args.iterations, "keep_checkpoints": 1, "pictures": False},
    }
    return merge(ordering_preset("small"), plain(changes))


def main() -> None:
    """Do one of the steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["time", "train", "evaluate", "table"])
    for name in ("images", "videos", "test_videos", "held_out_images", "held_out_videos"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--monitor_gallery", help="labelled images that the runs retrieve from, such as objects of VOC")
    parser.add_argument("--monitor_queries")
    for name in ("train", "test", "gallery", "queries", "action_train", "action_test", "voc"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--sibling_pattern", default="")
    parser.add_argument("--arms", nargs="+", help="the arms of this step; default all")
    parser.add_argument("--iterations", type=int, default=6000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time; the times come from the step `time`")
    parser.add_argument("--out", type=Path, default=Path("runs/comparison"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the tables")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    {"time": measure_times, "train": train, "evaluate": evaluate, "table": write_tables}[args.step](args)


def chosen_arms(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the changes of the arms of this step."""
    return {name: changes for name, changes in arms(args.iterations).items() if name in (args.arms or [name])}


# ---- time


def measure_times(args: argparse.Namespace) -> None:
    """Train each arm alone, and write its time per iteration with all validations and rollouts."""
    shared = shared_config(args)
    configs = {name: merge(shared, changes) for name, changes in arms(args.iterations).items() if name != "S&T"}
    own = merge(ordering_preset("small"), {key: to_dict(shared)[key] for key in ("images", "videos", "device", "data")})
    configs |= {"small": own, "small, rollouts": merge(own, {"policy": {"sampler": "rollouts"}})}
    rows = {row["arm"]: row for row in read_rows(times_file(args))}
    for name, config in configs.items():
        if name in (args.arms or configs):
            rows[name] = {"arm": name} | time_of(config, args.out.with_name(f"{args.out.name}-time") / name)
            print(rows[name], flush=True)
    write_table("", list(rows.values()), args.device, out=times_file(args))


def time_of(config: Config, out: Path, timed: tuple[int, int] = TIMED) -> dict[str, Any]:
    """Return the milliseconds of a step, of a validation with its rollouts, and of an iteration with both."""
    begin, end = timed
    every = math.gcd(begin, end)
    interval = min(TIMED_INTERVAL, (end - begin) // 2)  # one at least lies between
    options = {
        "out": out,
        "optim": {"iterations": end, "milestones": []},
        "log": {
            "train_every": min(config.log.train_every, every),
            "monitor_every": end,  # no test before the end
            "checkpoint_every": end,
            "pictures": False,
        },
        # groups are formed from the beginning, as in most of a long training
        "policy": {"interval": interval, "batches": interval, "start_below": 2.0},
        "monitor": {"gallery": None, "queries": None},
    }
    run = run_pretraining(merge(config, plain(options)), console=Console(quiet=True))
    samples = sum(config.batch_size(task) for task in config.task_names)
    lines = [entry for entry in run.metrics("train") if begin < entry["iteration"] <= end]
    step = 1e3 * samples * fmean(1 / entry["samples_per_second"] for entry in lines)
    # at the end there are no rollouts
    validations = [entry["duration"] for entry in run.metrics("cost") if begin < entry["iteration"] < end]
    episode, interval = 1e3 * fmean(validations), config.policy.interval
    figures = {"step": step, "validation_and_rollouts": episode, "interval": interval}
    figures["milliseconds"] = step + episode / interval
    return {name: round(value, 3) for name, value in figures.items()}


def times_file(args: argparse.Namespace) -> Path:
    """Return the table that `time` writes."""
    return Path(args.results / f"comparison_time_{args.device}.csv")


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a table; none if it does not exist."""
    if not file.is_file():
        return []
    return list(csv.DictReader(line for line in file.read_text().splitlines() if not line.startswith("#")))


def read_times(file: Path) -> dict[str, float]:
    """Return the milliseconds per iteration of each arm; none without a measurement."""
    times = {row["arm"]: float(row["milliseconds"]) for row in read_rows(file)}
    if {"S", "T"} <= times.keys():
        times["S&T"] = (times["S"] + times["T"]) / 2
    return times


# ---- training and evaluation


def comparison_plan(args: argparse.Namespace) -> Plan:
    """Return the ablation of the arms of this step; rollouts have fewer iterations, as each takes longer."""
    chosen, times = chosen_arms(args), read_times(times_file(args))
    for name, changes in chosen.items():
        tasks = name.removesuffix(POLICY)
        if tasks != name:
            if not {name, tasks} <= times.keys():
                raise SystemExit(f"how long does {name} take? Run the step `time` for {tasks} and {name} first")
            iterations = math.floor(args.iterations * times[tasks] / times[name])
            chosen[name] = {**changes, "optim": schedule(iterations)}
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    return make_plan(args.out, shared_config(args), chosen, seeds, evaluations(args))


def evaluations(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the evaluations for which data is given."""
    caltech = {"train": args.train, "test": args.test}
    inside = {"evaluation": "retrieval", "train": args.gallery, "test": args.queries}
    actions = {"train": args.action_train, "test": args.action_test, "classes": 31, "per_class": 36, "workers": 4}
    objects = {"voc": args.voc, "year": 2012, "train_set": "train", "test_set": "val", "workers": 4}
    possible = {
        "retrieval": {**caltech, "limit": 0},
        "linear": {**caltech, "layers": ["pool5"]},
        "inside": {**inside, "limit": 0},
        "action": actions,
        "voc-classification": objects,
    }
    return {name: {"preset": "quick", **options} for name, options in possible.items() if None not in options.values()}


def train(args: argparse.Namespace) -> None:
    """Train the arms."""
    ablation = run_ablation(replace(comparison_plan(args), evaluations={}), jobs=args.jobs)
    for job, sentence in ablation.failures.items():
        print(f"{job}: {sentence}")


def evaluate(args: argparse.Namespace) -> None:
    """Measure what is missing of the runs that are finished: errors on held-out data, and the evaluations."""
    plan = comparison_plan(args)
    plan.write()
    opened: dict[tuple[str, int], Data] = {}
    for job in plan.jobs:
        if not job.is_trained:
            continue
        if args.held_out_images and args.held_out_videos and not held_out_file(job.run).exists():
            errors = held_out_errors(job.run, args, opened)
            held_out_file(job.run).write_text(json.dumps(errors))
            print(job, errors, flush=True)
        if not job.is_done:
            print(job, run_job(job) or "evaluated", flush=True)


def held_out_file(run: Run) -> Path:
    """Return the file of the held-out errors."""
    return run.folder / "held_out.json"


def held_out_errors(run: Run, args: argparse.Namespace, opened: dict[tuple[str, int], Data]) -> dict[str, float]:
    """Return the errors of a run's last checkpoint on the held-out images and videos."""
    given = {"test_images": args.held_out_images, "test_videos": args.held_out_videos, "gpu_memory_fraction": 0.0}
    config = merge(run.config, {"data": given})
    key = config.tasks, config.seed
    if key not in opened:
        opened[key] = prepare(config, progress=False)
    trainer = build_trainer(config, opened[key], stored_permutations(run))
    trainer.network.load_state_dict(load_checkpoint(list_checkpoints(run.checkpoints)[-1])["network"])
    return {name: trainer.test(name).error for name in trainer.tasks}


# ---- tables


def figures(job: Job) -> dict[str, float]:
    """Return all figures of a run."""
    numbers = {f"X_val error, {entry['task']}": entry["error"] for entry in job.run.metrics("validation")}
    numbers |= {f"test error, {entry['task']}": entry["error"] for entry in job.run.metrics("test")}
    for entry in job.run.metrics("monitor"):
        if "top1" in entry:
            numbers[RETRIEVAL] = entry["top1"]
    if held_out_file(job.run).exists():
        errors = json.loads(held_out_file(job.run).read_text())
        numbers |= {f"held-out error, {task}": error for task, error in errors.items()}
    for name, options in job.plan.evaluations.items():
        document = job.read_evaluation(name)
        if document is not None:
            measured = flat_numbers(document["metrics"])
            numbers |= {f"{name}, {metric}": measured[metric] for metric in HEADLINES[options.get(KIND, name)]}
    return numbers


def write_tables(args: argparse.Namespace) -> None:
    """Write all figures and the curves, and print means, differences from the baseline and the ablation's table."""
    plan, times = comparison_plan(args), read_times(times_file(args))
    jobs = [job for job in plan.jobs if job.is_trained]
    rows = [
        {
            "arm": job.arm,
            "seed": job.seed,
            "iterations": job.config.optim.iterations,
            "figure": name,
            "value": round(value, 4),
        }
        for job in jobs
        for name, value in figures(job).items()
    ]
    write_table("", rows, args.device, out=args.results / f"comparison_{args.device}.csv")
    points = [point for job in jobs for point in curves(job, times)]
    write_table("", points, args.device, out=args.results / f"comparison_curves_{args.device}.csv")
    for name, compared in {"samplers": SAMPLERS, "table5": PAPER_ARMS}.items():
        picture = draw([point for point in points if point["arm"] in compared])
        save_figure(picture, [args.results / f"comparison_{name}_{args.device}.svg"])
    print_means(rows)
    finished = [job for job in jobs if job.arm in PAPER_ARMS]
    common = [seed for seed in plan.seeds if [job.arm for job in finished if job.seed == seed] == list(PAPER_ARMS)]
    if common:
        table5 = {arm: changes for arm, changes in plan.arms.items() if arm in PAPER_ARMS}
        run_ablation(replace(plan, arms=table5, seeds=tuple(common)), jobs=1)


def curves(job: Job, times: Mapping[str, float]) -> Iterator[dict[str, Any]]:
    """Yield test errors and retrieval of a run, with the seconds that the arm takes until then alone on the GPU."""
    logged = [(f"test error, {entry['task']}", entry, entry["error"]) for entry in job.run.metrics("test")]
    logged += [(RETRIEVAL, entry, entry["top1"]) for entry in job.run.metrics("monitor") if "top1" in entry]
    for name, entry, value in logged:
        seconds = round(entry["iteration"] * times[job.arm] / 1000, 2) if job.arm in times else ""
        point = {"arm": job.arm, "seed": job.seed, "figure": name, "iteration": entry["iteration"]}
        yield point | {"seconds": seconds, "value": round(value, 4)}


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
    """Draw a row for each figure, over iterations and seconds: lines are means, areas span the seeds."""
    names, chosen = (list(dict.fromkeys(point[key] for point in points)) for key in ("figure", "arm"))
    over = {"iteration": "iterations"} | (
        {"seconds": "seconds on one GPU, validations and rollouts included"}
        if all(point["seconds"] != "" for point in points)
        else {}
    )
    figure, axes = panels(len(names), len(over), width=5.6, height=3.8)
    for row, name in zip(axes, names, strict=True):
        # an error at iteration 0 would dominate the scale
        shown = [point for point in points if point["figure"] == name and (point["iteration"] or "error" not in name)]
        for axis, (key, label) in zip(row, over.items(), strict=True):
            for arm, colour in zip(chosen, COLOURS, strict=False):
                plot(axis, [point for point in shown if point["arm"] == arm], key, colour, arm)
            name_axes(axis, name, label, "top 1 [%]" if name == RETRIEVAL else "test error")
            thousands(axis.xaxis)
    legend_below(axes[-1][0])
    return figure


def plot(axis: Any, points: Sequence[dict[str, Any]], over: str, colour: str, label: str) -> None:
    """Plot the values of one arm; all seeds are measured at the same iterations."""
    by_iteration: dict[int, list[dict[str, Any]]] = {}
    for point in points:
        by_iteration.setdefault(point["iteration"], []).append(point)
    x = [fmean(point[over] for point in seeds) for seeds in by_iteration.values()]
    values = [[point["value"] for point in seeds] for seeds in by_iteration.values()]
    axis.plot(x, [fmean(seeds) for seeds in values], color=colour, label=label)
    axis.fill_between(x, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.2, linewidth=0)


if __name__ == "__main__":
    main()
