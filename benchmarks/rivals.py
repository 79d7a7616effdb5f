"""Rotation prediction and SimCLR against our arms: same backbone, same data, same GPU seconds, start included.

    python benchmarks/rivals.py train --images DATA [--videos DATA] [--sibling_pattern PATTERN] [--arms rotation SimCLR
                                S+T I S+T+I S+T+I+P ... ARMS.yaml] [--seconds 120] [--seeds 3]
                                [--shared FILE.yaml] [--out runs/rivals] [--device cuda]
    python benchmarks/rivals.py evaluate --out runs/rivals --train CLASSES --test CLASSES
                                [--frames_train CLASSES --frames_test CLASSES] [--inside]

`train` trains all runs one after another in this process, so that only the first one copies the data to the GPU. Each
run has the iterations that fit into --seconds: the start of a run (a process of its own that trains two iterations,
measured once with images and once with images and videos) and the iterations with their part of the validations and
rollouts (a short run of each arm). The folders are packed before. Finished runs are not repeated; other --seconds need
another --out. Run it alone on the GPU.

All arms begin with the preset `small` with the changes in --shared. `rotation` is our task R alone. `SimCLR` has the
loss and the projection head of the package `lightly`, and the parameters of its augmentations, which our batched code
applies on the device; data, backbone, kernels and precision are those of our arms. Its loss reads from the GPU in every
step, so it is not recorded as a CUDA graph. It has AdamW at 1e-3 with a cosine, 512 images a step, views as large as
ours, and a temperature of 0.2; `SimCLR, temperature 0.5` has the default of lightly. Others are our arms, as `unshuffle
ablate` names them, or a file of them.

`evaluate` measures the runs that are finished: top-1 retrieval and a linear probe on pool5 of --train and --test, top-1
retrieval of frames on --frames_train and --frames_test. With --inside it opens the training sides only, and measures
leave-one-out retrieval in them, without neighbours that match --sibling_pattern, and a cross-validated linear probe of
images; recipes are chosen by that. Results go to results/rivals_DEVICE.csv (results/rivals_inside_DEVICE.csv), or into
the folder --results.
"""

import argparse
import gc
import inspect
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from comparison import ORDERING, TIMED, time_of
from rich.console import Console
from table import RESULTS, write_table
from torch import Tensor, nn

from unshuffle.ablation.arms import build_evaluation, find_arms, plain
from unshuffle.accelerator import choose_device, wait_for
from unshuffle.config import FEATURE_BATCH, Config, check, small
from unshuffle.data.dataset import Square, open_dataset
from unshuffle.data.source import Source
from unshuffle.data.squares import Resident, make_resident
from unshuffle.evaluation.features import find_backbone, pool5
from unshuffle.evaluation.probes import C_GRID, logistic_regression, standardised
from unshuffle.evaluation.retrieval import top_k_accuracy
from unshuffle.models.weights import save_backbone
from unshuffle.options import merge, read_yaml, to_dict
from unshuffle.pretraining import run_pretraining
from unshuffle.randomness import seed_everything
from unshuffle.runs.run import WEIGHTS_NAME
from unshuffle.tasks.base import Outcome
from unshuffle.tasks.instance import InstanceTask
from unshuffle.tasks.prepare import prepare
from unshuffle.training import trainer as trainer_module
from unshuffle.training.step import Step
from unshuffle.training.trainer import Trainer, initial_backbone
from unshuffle.wording import plus_minus

Values = dict[str, Any]
SIMCLR = "SimCLR"
ARMS = ("rotation", SIMCLR, f"{SIMCLR}, temperature 0.5", "S+T", "I", "S+T+I", "S+T+I+P")
NEVER = 1_000_000_000
WARMUP = 500
FRAMES = 10  # of each video
FOLDS = 4  # of the cross-validated probe


def main() -> None:
    """Do the step that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("train", "evaluate", "job"))
    parser.add_argument("job_file", nargs="?", type=Path, help=argparse.SUPPRESS)  # what `train` starts
    for name in ("--images", "--videos"):
        parser.add_argument(name, nargs="+")
    for name in ("--train", "--test", "--frames_train", "--frames_test"):
        parser.add_argument(name)
    parser.add_argument("--sibling_pattern", default="")
    parser.add_argument("--shared", type=Path, help="changes of all arms")
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs/rivals"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.step == "job":
        job = json.loads(args.job_file.read_text())
        train_one(job["arm"], merge(small(), job["config"]))
    else:
        {"train": train, "evaluate": evaluate}[args.step](args)


# ---- arms


def shared_config(args: argparse.Namespace) -> Config:
    """Return what all arms have in common."""
    values: Values = {
        "device": args.device,
        "data": {"sibling_pattern": args.sibling_pattern, "test_size": 0},
        # nothing but training: no pictures, no checkpoint before the end
        "log": {"pictures": False, "monitor_every": NEVER, "checkpoint_every": NEVER},
    }
    values |= {name: getattr(args, name) for name in ("images", "videos") if getattr(args, name)}
    config = merge(small(), values)
    return config if args.shared is None else merge(config, read_yaml(args.shared, "options"))


def arms(args: argparse.Namespace) -> dict[str, Values]:
    """Return the changes of each arm."""
    chosen: dict[str, Values] = {}
    for name in args.arms:
        if name == "rotation":
            chosen[name] = find_arms(["R"], shared_config(args))["R"]
        elif name.startswith(SIMCLR):
            chosen[name] = simclr_options(float(name.rpartition(" ")[2]) if "temperature" in name else 0.2)
        else:
            chosen |= {
                arm: with_own_batches(changes) for arm, changes in find_arms([name], shared_config(args)).items()
            }
    return chosen


def with_own_batches(changes: Values) -> Values:
    """Return an arm with full batches and weights for its ordering tasks, if it is without instance discrimination."""
    if "instance" in merge(small(), changes).task_names:
        return changes
    alone = {name: ORDERING[name] for name in ("spatial", "temporal")}
    return {**alone, **changes, "optim": {"batch_size": ORDERING["optim"]["batch_size"], **changes.get("optim", {})}}


def simclr_options(temperature: float) -> Values:
    """Return the options of SimCLR: the augmentations of lightly's transform, by its own defaults."""
    from lightly.transforms.simclr_transform import SimCLRTransform  # lightly may be absent, and our arms need it not

    given = {name: value.default for name, value in inspect.signature(SimCLRTransform).parameters.items()}
    assert not given["vf_prob"] and not given["rr_prob"], "transforms that our views lack"
    views = {
        "scale": [given["min_scale"], 1.0],
        "hflip": given["hf_prob"],
        "jitter": given["cj_prob"],
        "brightness": given["cj_strength"] * given["cj_bright"],
        "contrast": given["cj_strength"] * given["cj_contrast"],
        "saturation": given["cj_strength"] * given["cj_sat"],
        "hue": given["cj_strength"] * given["cj_hue"],
        "grayscale": given["random_gray_scale"],
        "blur": given["gaussian_blur"],
        "sigma": [float(sigma) for sigma in given["sigmas"]],
    }
    optimiser = {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.05}
    return {
        "tasks": "I",
        "policy": {"sampler": "uniform"},
        "optim": {"schedule": "cosine", "backbone": optimiser},
        "instance": {"views": views, "temperature": temperature, "batch_size": 512, "optimiser": optimiser},
    }


def schedule(iterations: int) -> Values:
    """Return the preset's schedule for so many iterations."""
    milestones = [round(0.7 * iterations), round(0.9 * iterations)]
    return {"iterations": iterations, "warmup": min(WARMUP, iterations // 20), "milestones": milestones}


# ---- SimCLR by lightly


class LightlySimCLR(InstanceTask):
    """Our views, with the projection head and the loss of lightly."""

    def build_head(self, features: int) -> nn.Module:
        """Return lightly's projection head."""
        from lightly.models.modules.heads import SimCLRProjectionHead

        head: nn.Module = SimCLRProjectionHead(features, self.settings.hidden, self.settings.output)
        return head

    def outcome(self, head: nn.Module, features: Tensor, targets: Mapping[str, Tensor]) -> Outcome:
        """Return lightly's loss; the accuracy is not needed."""
        from lightly.loss import NTXentLoss

        first, second = head(features.flatten(0, 1)).float().unflatten(0, features.shape[:2]).unbind(1)
        with torch.autocast(features.device.type, enabled=False):
            loss: Tensor = NTXentLoss(temperature=self.settings.temperature)(first, second)
        return Outcome(loss, torch.zeros_like(loss))


def simclr_trainer(config: Config) -> Trainer:
    """Return a trainer of SimCLR with lightly's parts and our data."""
    device = choose_device(config.device)
    seed_everything(config.seed)
    task = LightlySimCLR(config, device)
    trainer = Trainer(config, prepare(config), {task.name: task}, initial_backbone(config), device)
    # the loss of lightly reads from the GPU, which a CUDA graph cannot record
    weights = {task.name: config.instance.loss_weight}
    trainer.__dict__["learn"] = Step(trainer.network.train(), weights, trainer.optimisers, trainer.precision)
    return trainer


def train_simclr(config: Config) -> None:
    """Train SimCLR, and write its backbone."""
    assert config.out is not None
    trainer = simclr_trainer(config)
    trainer.train_iterations(config.optim.iterations)
    config.out.mkdir(parents=True)
    crop_sizes = {"instance": config.instance.crop_size}
    save_backbone(trainer.network.backbone, config.out / WEIGHTS_NAME, crop_sizes=crop_sizes, permutations={})


def time_of_simclr(config: Config) -> dict[str, float]:
    """Return the milliseconds of an iteration of SimCLR, which has no validations."""
    begin, end = TIMED
    trainer = simclr_trainer(config)
    trainer.train_iterations(begin)
    wait_for(trainer.device)
    started = time.perf_counter()
    trainer.train_iterations(end - begin)
    wait_for(trainer.device)
    milliseconds = 1e3 * (time.perf_counter() - started) / (end - begin)
    return {"step": milliseconds, "milliseconds": milliseconds}


# ---- training


def train(args: argparse.Namespace) -> None:
    """Time all arms, then train all arms and seeds: the first seed of all arms first."""
    shared = shared_config(args)
    share_resident_data()
    configs = {arm: merge(shared, changes) for arm, changes in arms(args).items()}
    for config in configs.values():
        check(config)
        prepare(config)  # packs folders, once
    times = {arm: calibrate(arm, config, args.out) for arm, config in configs.items()}
    for seed in range(args.seeds):
        for arm, config in configs.items():
            out, seconds = args.out / arm / f"seed-{seed}", times[arm]
            if result_file(out).is_file():
                continue
            if out.exists():  # interrupted
                shutil.rmtree(out)
            iterations = max(2, int((args.seconds - seconds["start"]) / seconds["iteration"]))
            begin = time.perf_counter()
            train_one(arm, merge(config, {"out": str(out), "seed": seed, "optim": schedule(iterations)}))
            figures = {
                "arm": arm,
                "seed": seed,
                "samples": {task: config.batch_size(task) for task in config.task_names},
                "iterations": iterations,
                "allowed": args.seconds,
                "start": seconds["start"],
                "trained": time.perf_counter() - begin,
            }
            result_file(out).write_text(json.dumps(figures))
            print(f"{arm}, seed {seed}: {iterations} iterations in {figures['trained']:.1f} s", flush=True)


def train_one(arm: str, config: Config) -> None:
    """Train one run."""
    if arm.startswith(SIMCLR):
        train_simclr(config)
    else:
        run_pretraining(config, console=Console(quiet=True))
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the graphs of this run have memory of their own


def share_resident_data() -> None:
    """Keep the data on the GPU from one run to the next."""
    copies: dict[tuple[str, ...], Resident | None] = {}

    def resident(source: Source, device: torch.device, memory_fraction: float) -> Resident | None:
        names = tuple(source.names)
        if names not in copies:
            copies[names] = make_resident(source, device, memory_fraction)
        return copies[names]

    trainer_module.make_resident = resident  # type: ignore[attr-defined]


def calibrate(arm: str, config: Config, out: Path) -> dict[str, float]:
    """Return the seconds of an arm's start and of an iteration, from short runs."""
    file = out / arm / "calibration.json"
    if not file.is_file():
        timed = merge(config, {"out": str(out / arm / "timed"), "optim": schedule(TIMED[1])})
        times = time_of_simclr(timed) if arm.startswith(SIMCLR) else time_of(timed, out / arm / "timed")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"start": start_of(config, out), "iteration": times["milliseconds"] / 1e3}))
    figures: dict[str, float] = json.loads(file.read_text())
    print(f"{arm}: start {figures['start']:.1f} s, {1e3 * figures['iteration']:.2f} ms", flush=True)
    return figures


def start_of(config: Config, out: Path) -> float:
    """Return the seconds of a process that trains two iterations of I, or of S+T+I if the arm uses videos."""
    tasks = "S+T+I" if "temporal" in config.task_names else "I"
    file = out / f"start-{tasks}.json"
    if not file.is_file():
        started = merge(config, {"tasks": tasks, "out": str(out / f"start-{tasks}"), "optim": schedule(2)})
        job = out / "start.json"
        job.write_text(json.dumps({"arm": tasks, "config": plain(to_dict(started))}))
        begin = time.perf_counter()
        subprocess.run([sys.executable, __file__, "job", str(job)], check=True)
        file.write_text(json.dumps(time.perf_counter() - begin))
    return float(json.loads(file.read_text()))


def result_file(out: Path) -> Path:
    """Return the file that says that a run is finished, and what it took."""
    return out / "rival.json"


# ---- evaluation


def evaluate(args: argparse.Namespace) -> None:
    """Evaluate all finished runs, and write the table."""
    kind = "inside" if args.inside else "test"
    rows = []
    for file in sorted(args.out.glob("*/seed-*/rival.json")):
        run, cached = json.loads(file.read_text()), file.with_name(f"{kind}.json")
        if run["arm"] not in args.arms and args.arms != list(ARMS):
            continue
        if not cached.is_file():
            weights = str(file.with_name(WEIGHTS_NAME))
            cached.write_text(json.dumps(inside(weights, args) if args.inside else on_test_sides(weights, args)))
        rows.append(row(run) | {name: round(value, 2) for name, value in json.loads(cached.read_text()).items()})
        print(rows[-1], flush=True)
    if not rows:
        sys.exit(f"there are no finished runs in {args.out}")
    name = "rivals_inside" if args.inside else "rivals"
    write_table(name, rows, args.device, out=args.results / f"{name}_{args.device}.csv")
    summarise(rows)


def row(run: Values) -> Values:
    """Return the columns about the training of a run."""
    samples = " + ".join(f"{count} {task}" for task, count in run["samples"].items())
    times = {name: round(run[name], 1) for name in ("allowed", "start", "trained")}
    return {"arm": run["arm"], "seed": run["seed"], "samples": samples, "iterations": run["iterations"], **times}


def on_test_sides(weights: str, args: argparse.Namespace) -> dict[str, float]:
    """Return retrieval and linear probe of images, and retrieval of frames."""
    images = {"train": args.train, "test": args.test}
    frames = {"train": args.frames_train, "test": args.frames_test, "frames": FRAMES}
    chosen = {
        "images_top1": ("retrieval", {**images, "limit": 0}, ("top1",)),
        "images_linear": ("linear", {**images, "limit": 0, "layers": ["pool5"]}, ("pool5", "top1")),
        "frames_top1": ("retrieval", {**frames, "limit": 0}, ("top1",)),
    }
    figures = {}
    for name, (evaluation, options, keys) in chosen.items():
        if None in options.values():
            continue
        values = {"preset": "quick", "weights": weights, "device": args.device, **options}
        metrics: Any = build_evaluation(evaluation, values).run(Console(quiet=True)).metrics
        for key in keys:
            metrics = metrics[key]
        figures[name] = float(metrics)
    return figures


def inside(weights: str, args: argparse.Namespace) -> dict[str, float]:
    """Return leave-one-out retrieval in the training sides, and a cross-validated linear probe of images."""
    device = choose_device(args.device)
    figures = {}
    if args.train is not None:
        features, labels, families = labelled_features(weights, args.train, "", device)
        figures["images_top1"] = nearest_other(features, labels, families)
        figures["images_linear"] = cross_validated(features, labels.to(device))
    if args.frames_train is not None:
        figures["frames_top1"] = nearest_other(
            *labelled_features(weights, args.frames_train, args.sibling_pattern, device)
        )
    return figures


def labelled_features(weights: str, address: str, pattern: str, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return pool5 of images or frames, their classes, and a number that files with the same match share."""
    backbone = find_backbone(weights).to(device)
    pixels, labels, families = labelled_pixels(address, pattern, backbone.eval_size)
    chunks = [pool5(backbone, chunk.to(device), backbone.eval_size) for chunk in pixels.split(FEATURE_BATCH)]
    return torch.cat(chunks), labels, families


@cache
def labelled_pixels(address: str, pattern: str, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images or frames as bytes, their classes, and a number that files with the same match share."""
    dataset = open_dataset(address, square=Square(size), frames=FRAMES)
    with ThreadPoolExecutor() as pool:
        loaded = list(pool.map(dataset.load, range(len(dataset))))
    items = np.repeat(np.arange(len(dataset)), [len(pixels) for pixels in loaded])
    names = [_family(str(path), pattern) for path in dataset.paths()]
    numbers = {name: number for number, name in enumerate(sorted(set(names)))}
    labels = torch.tensor([int(label) for label in dataset.labels])[items]
    return torch.from_numpy(np.concatenate(loaded)), labels, torch.tensor([numbers[name] for name in names])[items]


def cross_validated(features: Tensor, labels: Tensor) -> float:
    """Return the accuracy in percent of logistic regression on the folds that it was not fitted to, with the best C."""
    order = torch.argsort(labels, stable=True)
    fold = torch.empty_like(labels)
    fold[order] = torch.arange(len(labels), device=labels.device) % FOLDS  # equally many of each class
    hits = dict.fromkeys(C_GRID, 0)
    for number in range(FOLDS):
        kept, held_out = fold != number, fold == number
        training, testing = standardised(features[kept], features[held_out])
        for c in C_GRID:
            weight, bias = logistic_regression(training, labels[kept], int(labels.max()) + 1, c=c, tolerance=1e-4)
            hits[c] += int(((testing @ weight.T + bias).argmax(dim=1) == labels[held_out]).sum())
    return 100 * max(hits.values()) / len(labels)


def _family(name: str, pattern: str) -> str:
    match = re.search(pattern, name) if pattern else None
    return match[0] if match else name


def nearest_other(vectors: Tensor, labels: Tensor, families: Tensor) -> float:
    """Return the percentage of vectors whose nearest one of another family, by cosine, has their label."""
    unit = nn.functional.normalize(vectors, dim=1)
    nearest = []
    for rows, own in zip(unit.split(1024), families.to(unit.device).split(1024), strict=True):
        related = own[:, None] == families.to(unit.device)
        nearest.append((rows @ unit.T).masked_fill(related, -torch.inf).argmax(dim=1).cpu())
    return top_k_accuracy(torch.cat(nearest)[:, None], labels, labels, (1,))["top1"]


def summarise(rows: Sequence[Values]) -> None:
    """Print mean and standard deviation over the seeds of each arm."""
    columns = [name for name in rows[0] if name.endswith(("top1", "linear"))]
    for arm in dict.fromkeys(row["arm"] for row in rows):
        own = [row for row in rows if row["arm"] == arm]
        figures = []
        for column in columns:
            values = [row[column] for row in own]
            figures.append(f"{column} {plus_minus(fmean(values), stdev(values) if len(values) > 1 else None, 2)}")
        print(f"{arm} ({len(own)} seeds): {', '.join(figures)}")


if __name__ == "__main__":
    main()
