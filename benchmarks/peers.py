"""Training throughput against peers, in one run on one machine and the same images: spatial task, |Ψ| = 1000.

    python benchmarks/peers.py --images FOLDER [--device cuda] [--workers N] [--batch 128] [--seconds 20]
                               [--peers a,a-packed,b,b-packed,ours] [--no-compile] [--options JSON]

a is the public jigsaw of the paper's author, written from its description (`peer_networks.py`): Pillow in the workers
of a DataLoader, nine tiles in a loop, LRN, fp32. b is the same network as a good engineer would have it after an
afternoon: torchvision v2 on bytes, tiles in one batch, bf16, channels last, compiled. Both decode the files in every
epoch, or read the packed store (a-packed, b-packed). ours is unshuffle's own trainer with the preset `paper`, in bf16
on a GPU; --options changes its config, such as '{"optim": {"precision": "fp32"}}'.

The figures are images per second of whole training steps, data loading included, over a time window. A warm-up comes
first, so that workers and compilers have started and the batches loaded ahead of it are used up. Each arm has a process
of its own, and all find the files in the page cache. unshuffle decodes each file once, into the packed store; its rates
over the first epoch and the first ten, packing included, are computed from the measured seconds of packing and the
measured rate, and named so. Results go to results/peers_DEVICE.csv.
"""

import argparse
import csv
import itertools
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
import torchvision
from peer_networks import Forever, Pictures, PillowTiles, Sample, Step, TensorTiles, plain_step, tuned_step
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from unshuffle.assembly import build_trainer
from unshuffle.data.prepare import prepare

import unshuffle
from unshuffle.accelerator import wait_for
from unshuffle.config import Config, paper
from unshuffle.data.store import Store
from unshuffle.options import merge
from unshuffle.permutations import permutation_set
from unshuffle.runs.run import Run
from unshuffle.training.display import Display
from unshuffle.training.log import RunLog

ARMS = {
    "a": "a: public jigsaw, JPEG files",
    "a-packed": "a: public jigsaw, packed store",
    "b": "b: torchvision v2 pipeline, JPEG files",
    "b-packed": "b: torchvision v2 pipeline, packed store",
    "ours": "unshuffle, packed store",
}
CLASSES = 1000
EPOCHS = (1, 10)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """A line of the results."""

    arm: str
    images_per_second: float
    figure: str
    """Measured, or computed from what."""
    waiting_for_data: float | None = None
    """Share of the window that the training waited for its next batch."""
    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Setting:
    """What all arms have in common."""

    images: Path
    cache: Path
    device: str
    workers: int
    batch: int
    seconds: float
    warmup: int
    """Steps before the window begins."""
    compiled: bool
    options: dict[str, Any]
    """Changes to the config of unshuffle."""

    @property
    def gpu(self) -> bool:
        """Whether the network runs on one."""
        return self.device.startswith("cuda")

    def store(self) -> Store:
        """The packed images."""
        return Store(next(path for path in self.cache.iterdir() if Store.is_store(path)))


def main() -> None:
    """Pack, measure every arm, write and print."""
    args = arguments()
    names = args.peers.split(",")
    if unknown := [name for name in names if name not in ARMS]:
        sys.exit(f"there is no {unknown[0]}; there are {', '.join(ARMS)}")
    if Store.is_store(args.images):
        sys.exit(f"{args.images} is packed already: give the folder of its JPEG files")
    with tempfile.TemporaryDirectory(dir=args.cache) as cache:
        setting = setting_of(args, Path(cache))
        packing = alone(seconds_of_packing, setting)
        count = len(setting.store())
        print(f"packed {count} images in {packing:.2f} s", flush=True)
        rows, failed = measure_all(names, setting)
    ours = [row for row in rows if row.arm == ARMS["ours"]]
    rows += [with_packing(row, packing, count, epochs) for row in ours for epochs in EPOCHS]
    if rows:
        print(write(rows, setting, packing, count).read_text())
        print_ratios(rows)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of JPEG files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="of every arm; all cores unless given")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=20, help="length of the window")
    parser.add_argument("--warmup", type=int, help="steps before it: 100 on a GPU, 3 on a CPU")
    parser.add_argument("--peers", default=",".join(ARMS), help="which arms, with commas between them")
    parser.add_argument("--no-compile", action="store_true", help="do not compile b's network")
    parser.add_argument("--options", type=json.loads, default={}, help="changes to unshuffle's config, as JSON")
    parser.add_argument("--cache", type=Path, help="folder for the packed store, which is deleted at the end")
    return parser.parse_args()


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def setting_of(args: argparse.Namespace, cache: Path) -> Setting:
    gpu = args.device.startswith("cuda")
    return Setting(
        args.images.resolve(),
        cache,
        args.device,
        args.workers,
        args.batch,
        args.seconds,
        (100 if gpu else 3) if args.warmup is None else args.warmup,
        gpu and not args.no_compile,
        args.options,
    )


def seconds_of_packing(setting: Setting) -> float:
    """Decode all images once into the store, with all cores, as the first run on a folder does."""
    for path in setting.images.rglob("*"):
        if path.is_file():
            path.read_bytes()  # so that no arm finds colder files than another
    begin = time.perf_counter()
    prepare(our_config(setting), progress=False)
    return time.perf_counter() - begin


def measure_all(names: list[str], setting: Setting) -> tuple[list[Row], list[str]]:
    """The rows of the arms that ran, and the names of those that did not: one failure is no reason to lose the rest."""
    rows, failed = [], []
    for name in names:
        try:
            rows.append(alone(measure, setting, name))
            print(f"{rows[-1].arm}: {rows[-1].images_per_second:.0f} images/s", flush=True)
        except Exception as error:
            print(f"{ARMS[name]}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            failed.append(name)
    return rows, failed


def alone(work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """Run in a new process: no arm inherits memory, threads or switches of another."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *given, **named).result()


def measure(setting: Setting, name: str) -> Row:
    torch.manual_seed(0)
    if name == "ours":
        return measure_ours(setting)
    torch.backends.cudnn.benchmark = True
    device = torch.device(setting.device)
    pictures = Pictures(setting.store(), None if name.endswith("packed") else setting.images)
    permutations = torch.from_numpy(permutation_set(9, CLASSES))
    plain = name.startswith("a")
    data: Dataset[Sample] = (PillowTiles if plain else TensorTiles)(pictures, permutations)
    batches = loaded(data, len(pictures), setting)  # before the network: the workers are not to inherit a GPU's state
    step = plain_step(device, CLASSES) if plain else tuned_step(device, CLASSES, setting.compiled)
    return measure_peer(ARMS[name], batches, step, setting)


def loaded(data: Dataset[Sample], count: int, setting: Setting) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches from the workers, in pinned memory."""
    return iter(
        DataLoader(
            data,
            setting.batch,
            sampler=Forever(count),
            num_workers=setting.workers,
            pin_memory=setting.gpu,
            drop_last=True,
        )
    )


def measure_peer(arm: str, batches: Iterator[tuple[Tensor, Tensor]], step: Step, setting: Setting) -> Row:
    """Whole steps over the window; nothing but its ends waits for the device."""
    device = torch.device(setting.device)
    begin = waited = 0.0
    for done in itertools.count(-setting.warmup):
        if done == 0:
            wait_for(device)
            begin, waited = time.perf_counter(), 0.0
        if done > 0 and time.perf_counter() - begin > setting.seconds:
            break
        asked = time.perf_counter()
        pixels, labels = next(batches)
        waited += time.perf_counter() - asked
        loss = step(pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True))
    wait_for(device)
    seconds = time.perf_counter() - begin
    if not loss.isfinite():
        raise RuntimeError("the loss is not a number, and such steps prove nothing")
    return Row(arm, done * setting.batch / seconds, "measured", waited / seconds, done, seconds)


def our_config(setting: Setting) -> Config:
    """The paper's numbers on the spatial task, with as many workers as the peers; nothing is saved while it runs."""
    base = merge(
        paper(),
        {
            "images": str(setting.images),
            "tasks": "S",
            "device": setting.device,
            "data": {"cache": str(setting.cache), "workers": setting.workers},
            "optim": {"batch_size": setting.batch, "precision": "bf16" if setting.gpu else "fp32"},
            "log": {"train_every": 50 if setting.gpu else 1, "checkpoint_every": 10**9, "pictures": False},
        },
    )
    return merge(base, setting.options)


class WindowOver(Exception):
    """Enough steps have been seen."""


class Stopwatch(RunLog):
    """Takes the time of the trainer's log lines instead of writing them, and ends the run after the window."""

    def __init__(self, warmup: int, seconds: float) -> None:
        self.warmup, self.seconds = warmup, seconds
        self.lines: list[tuple[float, int, float]] = []
        """Time, iteration and share of waiting since the last line."""

    def write(self, kind: str, iteration: int, **values: Any) -> None:
        """Note a line about the training once it has warmed up; the trainer has waited for the device to write it."""
        if kind != "train" or iteration < self.warmup:
            return
        self.lines.append((time.perf_counter(), iteration, values["waiting_for_data"]))
        if self.lines[-1][0] - self.lines[0][0] > self.seconds:
            raise WindowOver

    def write_validation(self, *seen: Any) -> None:
        """Validations are not kept; their time counts."""

    def row(self, batch: int) -> Row:
        """The whole window by the clock, with all that the trainer does between its steps."""
        (begin, first, _), (end, last, _) = self.lines[0], self.lines[-1]
        windows = itertools.pairwise(self.lines)
        waited = sum(share * (after - before) for (before, _, _), (after, _, share) in windows)
        steps, seconds = last - first, end - begin
        return Row(ARMS["ours"], steps * batch / seconds, "measured", waited / seconds, steps, seconds)


def measure_ours(setting: Setting) -> Row:
    """The trainer itself, from the store that was packed before."""
    config = our_config(setting)
    trainer = build_trainer(config, prepare(config, progress=False))
    log = Stopwatch(setting.warmup, setting.seconds)
    display = Display(trainer.statuses(), config.optim.iterations, console=Console(quiet=True))
    try:
        trainer.train(Run(setting.cache / "run"), log, display)
    except WindowOver:
        return log.row(config.optim.batch_size)
    raise RuntimeError("the training ended before the window did")


def with_packing(steady: Row, packing: float, count: int, epochs: int) -> Row:
    """The rate over the first epochs on a folder that has not been packed yet."""
    rate = epochs * count / (packing + epochs * count / steady.images_per_second)
    title = "first epoch" if epochs == 1 else f"first {epochs} epochs"
    return Row(f"unshuffle, JPEG files ({title}, packing included)", rate, f"computed for {count} images")


def write(rows: list[Row], setting: Setting, packing: float, count: int) -> Path:
    out = Path(__file__).parent / "results" / f"peers_{torch.device(setting.device).type}.csv"
    with out.open("w", newline="") as file:
        for line in description(setting, packing, count):
            file.write(f"# {line}\n")
        writer = csv.DictWriter(file, asdict(rows[0]).keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: shown(value) for key, value in asdict(row).items()} for row in rows)
    return out


def description(setting: Setting, packing: float, count: int) -> list[str]:
    """The command, with names for the machine's own paths, and what the figures depend on."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, torchvision {torchvision.__version__}"
    precision = "a: fp32 as torch has it by default; b and unshuffle: bf16" if setting.gpu else "all in fp32"
    return [
        f"python {' '.join(words)}",
        f"{versions}, unshuffle {unshuffle.__version__}",
        machine(setting),
        f"{setting.workers} workers, batch {setting.batch}, {CLASSES} permutations, {setting.warmup} steps to warm up",
        f"{precision}; b {'compiled' if setting.compiled else 'not compiled'}",
        f"{count} images, packed once in {packing:.2f} s ({count / packing:.0f} images/s)",
    ]


def machine(setting: Setting) -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = f"{usable_cores()} cores ({models[0] if models else platform.machine()})"
    return f"{torch.cuda.get_device_name(setting.device)}, {cores}" if setting.gpu else cores


def shown(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if value < 1 else f"{value:.1f}"
    return "" if value is None else str(value)


def print_ratios(rows: list[Row]) -> None:
    """How many times faster each figure of unshuffle is than each peer."""
    ours = [row for row in rows if row.arm.startswith("unshuffle")]
    for row in ours:
        print(f"{row.arm}: {row.images_per_second:.0f} images/s")
        for peer in (peer for peer in rows if peer not in ours):
            print(f"  {row.images_per_second / peer.images_per_second:6.2f} × {peer.arm}")


if __name__ == "__main__":
    main()
