"""Rotation prediction and SimCLR against our arms: same backbone, same data, same GPU seconds, start included.

    python benchmarks/rivals.py train --images DATA [--videos DATA] [--sibling_pattern PATTERN] [--arms rotation SimCLR
                                S+T I S+T+I S+T+I+P ... ARMS.yaml] [--seconds 120] [--seeds 3] [--first_seed 0]
                                [--timed 150 450] [--shared FILE.yaml] [--jobs 1] [--out runs/rivals] [--device cuda]
                                [EVALUATION]
    python benchmarks/rivals.py evaluate --out runs/rivals [--jobs 4] EVALUATION

    EVALUATION: --train CLASSES --test CLASSES [--frames_train CLASSES --frames_test CLASSES --frames 10]
                [--voc DEVKIT] [--inside]

DATA and CLASSES are folders or packed stores. `train` first measures what a run of each arm takes: its start (a process
of its own that trains two iterations, measured once for SimCLR, with images, and with images and videos) and an
iteration with its part of the validations and rollouts (the iterations --timed of a short run; all arms in turn, twice,
and the shorter time counts). A run has the iterations that fit into --seconds then, one after another in this process,
so that only the first one copies the data to the GPU. Folders are packed before. Run it alone on the GPU. With --jobs
several train at a time: their iterations stay the same, so the figures mean the same, but `trained` is no longer the
time of a run alone.

All arms begin with the preset `small` with the changes in --shared. `rotation` is our task R alone. `SimCLR` has the
loss and the projection head of the package `lightly`, and the parameters of its augmentations, which our batched code
applies on the device; data, backbone, kernels, precision and the captured step are those of our arms. It has AdamW at
1e-3 with a cosine, batches and views as large as ours (512 images a step in `small`), and a temperature of 0.2;
`SimCLR, temperature 0.5` has the default of lightly, and any other number works too. Others are our arms, as `unshuffle
ablate` names them, or a file of them.

`evaluate` measures the runs that are finished: top-1 retrieval and a linear probe on pool5 of --train and --test, top-1
retrieval of frames on --frames_train and --frames_test, and of the objects of a VOC 2012 devkit. `train` with these
options does so after each run. With --inside only the training sides are opened, for leave-one-out retrieval in them,
without neighbours that match --sibling_pattern, and a cross-validated linear probe of images; recipes are chosen by
that. After each run the results go to results/rivals_DEVICE.csv (results/rivals_inside_DEVICE.csv), or into the folder
--results.

Both steps can be stopped at any moment and given again: a run that was interrupted is trained again, a finished one is
not. Another machine needs nothing but the table, as --known: runs in it are not repeated, and its times count.
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
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from comparison import ORDERING, TIMED, read_rows, time_of
from rich.console import Console
from table import RESULTS, save_table
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from unshuffle.ablation.arms import build_evaluation, find_arms, plain
from unshuffle.accelerator import choose_device, wait_for
from unshuffle.config import FEATURE_BATCH, Config, check, merge_sections, small
from unshuffle.data.dataset import Square, open_dataset
from unshuffle.data.source import Source
from unshuffle.data.squares import Resident, make_resident
from unshuffle.evaluation.features import find_backbone, pool5
from unshuffle.evaluation.probes import C_GRID, logistic_regression, standardised
from unshuffle.evaluation.retrieval import top_k_accuracy
from unshuffle.files import atomic_write
from unshuffle.models.weights import save_backbone
from unshuffle.options import merge, read_yaml, to_dict
from unshuffle.pretraining import run_pretraining
from unshuffle.randomness import seed_everything
from unshuffle.runs.run import WEIGHTS_NAME
from unshuffle.tasks.base import Outcome
from unshuffle.tasks.instance import InstanceTask
from unshuffle.tasks.prepare import prepare
from unshuffle.training import trainer as trainer_module
from unshuffle.training.trainer import Trainer, initial_backbone
from unshuffle.wording import counted, plus_minus

Values = dict[str, Any]
Key = tuple[str, int, float]
"""Arm, seed and seconds: which run it is."""
Item = TypeVar("Item")
Result = TypeVar("Result")
SIMCLR = "SimCLR"
ARMS = ("rotation", SIMCLR, f"{SIMCLR}, temperature 0.5", "S+T", "I", "S+T+I", "S+T+I+P")
NEVER = 1_000_000_000
WARMUP = 500
ROUNDS = 2  # in which all arms are timed; the shorter time of an arm counts
ALONE = {
    "optim": {"batch_size": ORDERING["optim"]["batch_size"]},
    **{name: ORDERING[name] for name in ("spatial", "temporal")},
}
"""Full batches and weights of the ordering tasks, for arms without instance discrimination."""
FOLDS = 4  # of the cross-validated probe
TRAINING = ("arm", "seed", "samples", "iterations", "allowed", "start", "milliseconds", "trained")
"""Columns of the table about the training of a run; `allowed`, `start` and `trained` are seconds."""
FIGURES = ("images_top1", "images_linear", "frames_top1", "objects_top1")


def main() -> None:
    """Do the step that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("train", "evaluate", "job"))
    parser.add_argument("job_file", nargs="?", type=Path, help=argparse.SUPPRESS)  # what `train` starts
    for name in ("--images", "--videos"):
        parser.add_argument(name, nargs="+")
    for name in ("--train", "--test", "--frames_train", "--frames_test", "--voc"):
        parser.add_argument(name)
    parser.add_argument("--sibling_pattern", default="")
    parser.add_argument("--shared", type=Path, help="changes of all arms")
    parser.add_argument("--arms", nargs="+", default=list(ARMS))
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--timed", nargs=2, type=int, default=TIMED, help="iterations between which an arm is timed")
    parser.add_argument("--frames", type=int, default=10, help="frames of each video that are evaluated")
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="runs that are trained or evaluated at a time")
    parser.add_argument("--out", type=Path, default=Path("runs/rivals"))
    parser.add_argument("--known", type=Path, help="table of another machine, which is continued here")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    if args.step == "job":
        job = json.loads(args.job_file.read_text())
        train_one(job["arm"], merge_sections(small(), job["config"]))
    else:
        failed = {"train": train, "evaluate": evaluate}[args.step](args)
        if failed:
            sys.exit(f"{failed} of the runs failed: see above")


# ---- arms


def shared_config(args: argparse.Namespace, changes: Values | None = None) -> Config:
    """Return what all arms have in common: `small` with the given changes, data and device, and then --shared."""
    values: Values = {
        "device": args.device,
        "data": {"sibling_pattern": args.sibling_pattern, "test_size": 0},
        # nothing but training: no pictures, no checkpoint before the end
        "log": {"pictures": False, "monitor_every": NEVER, "checkpoint_every": NEVER},
    }
    values |= {name: getattr(args, name) for name in ("images", "videos") if getattr(args, name)}
    config = merge(merge(small(), changes or {}), values)
    return config if args.shared is None else merge(config, read_yaml(args.shared, "options"))


def arms(args: argparse.Namespace) -> dict[str, Config]:
    """Return the config of each arm."""
    shared, configs = shared_config(args), {}
    for name in args.arms:
        if name == "rotation":
            configs[name] = merge(shared, find_arms(["R"], shared)["R"])
        elif name.startswith(SIMCLR):
            temperature = float(name.rpartition(" ")[2]) if "temperature" in name else 0.2
            configs[name] = merge(shared, simclr_options(temperature))
        else:
            for arm, changes in find_arms([name], shared).items():
                alone = "instance" not in merge(shared, changes).task_names
                configs[arm] = merge(shared_config(args, ALONE) if alone else shared, changes)
    return configs


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
        "instance": {"views": views, "temperature": temperature, "optimiser": optimiser},
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
        with torch.autocast(features.device.type, enabled=False), OffDiagonal():
            loss: Tensor = NTXentLoss(temperature=self.settings.temperature)(first, second)
        return Outcome(loss, torch.zeros_like(loss))


class OffDiagonal(TorchFunctionMode):
    """Select what lies off the diagonal of a square as slices instead of by a mask: the same numbers in the same order.

    How many numbers a mask selects is read from the GPU, which a CUDA graph cannot record. The two masks of lightly's
    loss are its only reads, and they leave out the diagonal.
    """

    def __torch_function__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), options: Values | None = None
    ) -> Any:
        """Call a function of torch, or take its place if it selects by a mask."""
        if function is Tensor.__getitem__ and isinstance(arguments[1], Tensor) and arguments[1].dtype == torch.bool:
            return off_diagonal(arguments[0])
        return function(*arguments, **(options or {}))


def off_diagonal(square: Tensor) -> Tensor:
    """Return the n (n - 1) numbers off the diagonal of an (n, n) tensor, row by row."""
    side = len(square)
    return square.flatten()[1:].view(side - 1, side + 1)[:, :-1].flatten()


def simclr_trainer(config: Config) -> Trainer:
    """Return a trainer of SimCLR with lightly's parts and our data."""
    device = choose_device(config.device)
    seed_everything(config.seed)
    task = LightlySimCLR(config, device)
    return Trainer(config, prepare(config), {task.name: task}, initial_backbone(config), device)


def train_simclr(config: Config) -> None:
    """Train SimCLR, and write its backbone."""
    assert config.out is not None
    trainer = simclr_trainer(config)
    trainer.train_iterations(config.optim.iterations)
    config.out.mkdir(parents=True)
    crop_sizes = {"instance": config.instance.crop_size}
    save_backbone(trainer.network.backbone, config.out / WEIGHTS_NAME, crop_sizes=crop_sizes, permutations={})


def time_of_simclr(config: Config, timed: tuple[int, int]) -> dict[str, float]:
    """Return the milliseconds of an iteration of SimCLR, which has no validations."""
    begin, end = timed
    trainer = simclr_trainer(config)
    trainer.train_iterations(begin)
    wait_for(trainer.device)
    started = time.perf_counter()
    trainer.train_iterations(end - begin)
    wait_for(trainer.device)
    milliseconds = 1e3 * (time.perf_counter() - started) / (end - begin)
    return {"step": milliseconds, "milliseconds": milliseconds}


# ---- training


class Times(NamedTuple):
    """What a run of an arm takes."""

    start: float
    """Seconds."""
    milliseconds: float
    """Of an iteration, with its part of validations and rollouts."""


@dataclass(frozen=True)
class Rival:
    """A run to train."""

    arm: str
    seed: int
    config: Config
    """Without seed, folder and schedule."""
    allowed: float
    """Seconds, start included."""
    out: Path
    """The folder of all runs."""
    times: Times

    @property
    def folder(self) -> Path:
        """The run folder."""
        return run_folder(self.out, self.allowed, self.arm, self.seed)

    @property
    def iterations(self) -> int:
        """The iterations that fit into the time."""
        return max(2, int(1e3 * (self.allowed - self.times.start) / self.times.milliseconds))


def train(args: argparse.Namespace) -> int:
    """Time the arms, then train what is missing, the first seed of all arms first, and measure it if there is data.

    Return how many runs failed.
    """
    rows, configs = table_rows(args), arms(args)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    missing = [(arm, seed) for seed in seeds for arm in configs if not is_done(arm, seed, args)]
    share_resident_data()
    times = times_of({arm: configs[arm] for arm, _ in missing}, list(rows.values()), args)
    for arm, measured in times.items():
        print(f"{arm}: start {measured.start:.1f} s, {measured.milliseconds:.2f} ms", flush=True)
    rivals = [
        Rival(arm, seed, configs[arm], args.seconds, args.out, times[arm]) for arm, seed in missing if arm in times
    ]
    failed = len(missing) - len(rivals)
    for rival, training in each(partial(train_rival, args=args), rivals, args.jobs):
        if training is None:
            failed += 1
            continue
        seconds = f"{training['trained']:.1f} s"
        print(f"{rival.arm}, seed {rival.seed}: {training['iterations']} iterations in {seconds}", flush=True)
        if wanted(args):
            add_row(rows, result_file(rival.folder), args)
    return failed


def is_done(arm: str, seed: int, args: argparse.Namespace) -> bool:
    """Return whether a run is finished, here or in the table that is continued, and measured as far as asked for."""
    if (arm, seed, args.seconds) in known_rows(args):
        return True
    file = result_file(run_folder(args.out, args.seconds, arm, seed))
    return file.is_file() and wanted(args) <= read_figures(file, args).keys()


def train_rival(rival: Rival, args: argparse.Namespace) -> Values:
    """Train a run, unless it is finished, and measure it if there is data; return its columns about the training."""
    file = result_file(rival.folder)
    if not file.is_file():
        shutil.rmtree(rival.folder, ignore_errors=True)  # interrupted
        own = {"out": str(rival.folder), "seed": rival.seed, "optim": schedule(rival.iterations)}
        begin = time.perf_counter()
        train_one(rival.arm, merge(rival.config, own))
        training = {
            "arm": rival.arm,
            "seed": rival.seed,
            "samples": " + ".join(f"{rival.config.batch_size(task)} {task}" for task in rival.config.task_names),
            "iterations": rival.iterations,
            "allowed": rival.allowed,
            "start": round(rival.times.start, 1),
            "milliseconds": round(rival.times.milliseconds, 3),
            "trained": round(time.perf_counter() - begin, 1),
        }
        write_json(file, training)
    measure(file, args)
    columns: Values = json.loads(file.read_text())
    return columns


def train_one(arm: str, config: Config) -> None:
    """Train one run."""
    try:
        if arm.startswith(SIMCLR):
            train_simclr(config)
        else:
            run_pretraining(config, console=Console(quiet=True))
    finally:
        free_memory()


def free_memory() -> None:
    """Give back the GPU memory of a training that is over: its graphs have memory of their own."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def share_resident_data() -> None:
    """Keep the data on the GPU from one run of a process to the next."""
    copies: dict[tuple[str, ...], Resident | None] = {}

    def resident(source: Source, device: torch.device, memory_fraction: float) -> Resident | None:
        names = tuple(source.names)
        if names not in copies:
            copies[names] = make_resident(source, device, memory_fraction)
        return copies[names]

    trainer_module.make_resident = resident  # type: ignore[attr-defined]


def times_of(configs: Mapping[str, Config], rows: Sequence[Values], args: argparse.Namespace) -> dict[str, Times]:
    """Return what a run of each arm takes: as in a row of it, otherwise by short runs of all arms in turn.

    Arms that fail are left out.
    """
    times = {row["arm"]: Times(float(row["start"]), float(row["milliseconds"])) for row in rows}
    unknown = [arm for arm in configs if arm not in times]
    for number in range(ROUNDS):
        for arm in [*unknown]:
            measured = attempt(partial(time_of_arm, config=configs[arm], number=number, args=args), arm)
            if measured is None:
                unknown.remove(arm)
                times.pop(arm, None)
            elif arm not in times or measured.milliseconds < times[arm].milliseconds:
                times[arm] = measured
    return {arm: times[arm] for arm in configs if arm in times}


def time_of_arm(arm: str, config: Config, number: int, args: argparse.Namespace) -> Times:
    """Return what a run of an arm takes by the short run of that number, unless it was made before."""
    check(config)
    prepare(config)  # packs folders, once
    file, folder = args.out / "times" / f"{arm}-{number}.json", args.out / "timed" / arm
    if not file.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        short, timed = merge(config, {"out": str(folder), "optim": schedule(args.timed[1])}), tuple(args.timed)
        figures = time_of_simclr(short, timed) if arm.startswith(SIMCLR) else time_of(short, folder, timed)
        free_memory()
        write_json(file, Times(start_of(arm, config, args.out), figures["milliseconds"])._asdict())
    return Times(**json.loads(file.read_text()))


def start_of(arm: str, config: Config, out: Path) -> float:
    """Return the seconds of a process that trains two iterations: of SimCLR, of I, or of S+T+I with videos."""
    kind = SIMCLR if arm.startswith(SIMCLR) else "S+T+I" if "temporal" in config.task_names else "I"
    file, folder = out / "times" / f"start-{kind}.json", out / "timed" / f"start-{kind}"
    if not file.is_file():
        shutil.rmtree(folder, ignore_errors=True)  # interrupted
        tasks = "I" if kind == SIMCLR else kind
        started = merge(config, {"tasks": tasks, "out": str(folder), "optim": schedule(2)})
        job = out / "times" / "job.json"
        write_json(job, {"arm": kind, "config": plain(to_dict(started))})
        begin = time.perf_counter()
        subprocess.run([sys.executable, __file__, "job", str(job)], check=True)
        write_json(file, time.perf_counter() - begin)
    return float(json.loads(file.read_text()))


def run_folder(out: Path, seconds: float, arm: str, seed: int) -> Path:
    """Return the folder of a run."""
    return out / f"{seconds:g}s" / arm / f"seed-{seed}"


def result_file(folder: Path) -> Path:
    """Return the file that says that a run is finished, and what it took."""
    return folder / "rival.json"


def write_json(file: Path, value: Any) -> None:
    """Write a file as a whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as draft:
        draft.write_text(json.dumps(value))


def each(work: Callable[[Item], Result], items: Sequence[Item], jobs: int) -> Iterator[tuple[Item, Result | None]]:
    """Yield each item with its result, None where the work failed; several at a time in processes of their own."""
    if jobs == 1:
        yield from ((item, attempt(work, item)) for item in items)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), share_resident_data) as pool:
        started = {pool.submit(attempt, work, item): item for item in items}
        for future in as_completed(started):
            yield started[future], future.result()


def attempt(work: Callable[[Item], Result], item: Item) -> Result | None:
    """Return the result; None if there is an error, which is printed, so that other runs go on."""
    try:
        return work(item)
    except Exception:
        traceback.print_exc()
        return None


# ---- evaluation


def evaluate(args: argparse.Namespace) -> int:
    """Measure all finished runs; return how many failed."""
    rows, failed = table_rows(args), 0
    files = finished(args)
    for file, figures in each(partial(measure, args=args), files, args.jobs):
        if figures is None:
            failed += 1
        else:
            add_row(rows, file, args)
    if not rows:
        sys.exit(f"there are no finished runs in {args.out}")
    summarise(list(rows.values()))
    return failed


def finished(args: argparse.Namespace) -> list[Path]:
    """Return the result files of the finished runs."""
    return sorted(args.out.glob("*/*/seed-*/rival.json"))


def known_rows(args: argparse.Namespace) -> dict[Key, Values]:
    """Return the rows of the table that is continued, if any."""
    rows = [] if args.known is None else read_rows(args.known)
    return {key_of(row): row for row in rows}


def table_rows(args: argparse.Namespace) -> dict[Key, Values]:
    """Return all rows so far: those of the table that is continued, and those of the runs that were measured here."""
    rows = known_rows(args)
    for file in finished(args):
        if figures := read_figures(file, args):
            row = json.loads(file.read_text()) | figures
            rows[key_of(row)] = row
    return rows


def add_row(rows: dict[Key, Values], file: Path, args: argparse.Namespace) -> None:
    """Print the figures of a run, add its row, and write the table: runs of equal length together, by arms."""
    figures = read_figures(file, args)
    row = json.loads(file.read_text()) | figures
    print(f"{row['arm']}, seed {row['seed']}:", figures, flush=True)
    rows[key_of(row)] = row
    columns = [*TRAINING, *(name for name in FIGURES if any(row.get(name, "") != "" for row in rows.values()))]
    ordered = sorted(rows.values(), key=lambda row: (float(row["allowed"]), row["arm"], int(row["seed"])))
    name = f"rivals{'_inside' if args.inside else ''}_{torch.device(args.device).type}.csv"
    save_table([{name: row.get(name, "") for name in columns} for row in ordered], args.results / name, args.device)


def key_of(row: Mapping[str, Any]) -> Key:
    """Return which run a row is of."""
    return row["arm"], int(row["seed"]), float(row["allowed"])


def figures_file(file: Path, args: argparse.Namespace) -> Path:
    """Return the file of the figures of a run, beside its result file."""
    return file.with_name("inside.json" if args.inside else "test.json")


def read_figures(file: Path, args: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a run that were measured before."""
    measured = figures_file(file, args)
    figures: dict[str, float] = json.loads(measured.read_text()) if measured.is_file() else {}
    return figures


def measure(file: Path, args: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a finished run, all that there is data for; those that were measured before are read."""
    figures, weights = read_figures(file, args), str(file.with_name(WEIGHTS_NAME))
    if not wanted(args) <= figures.keys():
        new = inside(weights, args) if args.inside else on_test_sides(weights, args, figures)
        figures |= {name: round(value, 2) for name, value in new.items()}
        write_json(figures_file(file, args), figures)
    return figures


def wanted(args: argparse.Namespace) -> set[str]:
    """Return the figures that there is data for."""
    if args.inside:
        images, frames = ({"images_top1", "images_linear"} if args.train else set()), {"frames_top1"}
        return images | (frames if args.frames_train else set())
    return set(evaluations(args))


def evaluations(args: argparse.Namespace) -> dict[str, tuple[str, Values, tuple[str, ...]]]:
    """Return the evaluation of each figure that there is data for: its name, its options, where the figure stands."""
    images = {"train": args.train, "test": args.test}
    frames = {"train": args.frames_train, "test": args.frames_test, "frames": args.frames}
    objects = {"voc": args.voc, "year": 2012, "train_set": "train", "test_set": "val"}
    possible = {
        "images_top1": ("retrieval", images, ("top1",)),
        "images_linear": ("linear", {**images, "layers": ["pool5"]}, ("pool5", "top1")),
        "frames_top1": ("retrieval", frames, ("top1",)),
        "objects_top1": ("retrieval", objects, ("top1",)),
    }
    return {name: entry for name, entry in possible.items() if None not in entry[1].values()}


def on_test_sides(weights: str, args: argparse.Namespace, known: Mapping[str, float]) -> dict[str, float]:
    """Return the figures of the evaluations, but for those that are known."""
    figures = {}
    for name, (evaluation, options, keys) in evaluations(args).items():
        if name in known:
            continue
        values = {"preset": "quick", "limit": 0, "weights": weights, "device": args.device, **options}
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
        features, labels, families = labelled_features(weights, args.train, "", args.frames, device)
        figures["images_top1"] = nearest_other(features, labels, families)
        figures["images_linear"] = cross_validated(features, labels.to(device))
    if args.frames_train is not None:
        figures["frames_top1"] = nearest_other(
            *labelled_features(weights, args.frames_train, args.sibling_pattern, args.frames, device)
        )
    return figures


def labelled_features(
    weights: str, address: str, pattern: str, frames: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pool5 of images or frames, their classes, and a number that files with the same match share."""
    backbone = find_backbone(weights).to(device)
    pixels, labels, families = labelled_pixels(address, pattern, frames, backbone.eval_size)
    chunks = [pool5(backbone, chunk.to(device), backbone.eval_size) for chunk in pixels.split(FEATURE_BATCH)]
    return torch.cat(chunks), labels, families


@cache
def labelled_pixels(address: str, pattern: str, frames: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images or frames as bytes, their classes, and a number that files with the same match share."""
    dataset = open_dataset(address, square=Square(size), frames=frames)
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
    """Print mean and standard deviation over the seeds of each arm, for each length of the runs."""
    groups: dict[tuple[float, str], list[Values]] = {}
    for row in rows:
        groups.setdefault((float(row["allowed"]), row["arm"]), []).append(row)
    for (seconds, arm), own in sorted(groups.items()):
        figures = []
        for column in FIGURES:
            values = [float(row[column]) for row in own if row.get(column, "") != ""]
            if values:
                spread = stdev(values) if len(values) > 1 else None
                figures.append(f"{column} {plus_minus(fmean(values), spread, 2)}")
        print(f"{arm}, {seconds:g} s ({counted(len(own), 'seeds')}): {', '.join(figures)}")


if __name__ == "__main__":
    main()
