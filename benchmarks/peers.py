"""Training throughput against peers, in one run on one machine and the same images: spatial task, |Ψ| = 1000.

    python benchmarks/peers.py --images FOLDER [--device cuda] [--workers N] [--batch 128] [--seconds 20]
                               [--peers a,a-packed,b,b-packed,ours] [--no-compile] [--options JSON]

a is the public jigsaw of the paper's author, written from its description (`peer_networks.py`): Pillow in the workers
of a DataLoader, nine tiles in a loop, LRN, fp32. b is the same network after a common optimisation: torchvision v2 on
bytes, tiles in one batch, bf16, channels last, compiled. Both decode the files in every epoch, or read the packed store
(a-packed, b-packed). ours is unshuffle's own trainer with the preset `paper`, in bf16 on a GPU; --options changes its
config, such as '{"optim": {"precision": "fp32"}}'.

The figures are images/s of whole training steps, including data loading, over a time window. A warm-up comes first, so
that workers and compilers have started and prefetched batches are used up. Each arm has a process of its own, and all
find the files in the page cache. unshuffle decodes each file once, into the packed store; its throughput over the first
epoch and the first ten, including packing, is computed from the measured seconds of packing and the measured
throughput, and marked as computed. Results go to results/peers_DEVICE.csv.
"""

import argparse
import itertools
import json
import multiprocessing
import os
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
from peer_networks import EndlessSampler, ImageReader, PillowTiles, Sample, Step, TensorTiles, plain_step, tuned_step
from rich.console import Console
from table import processor, write_table
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import unshuffle
from unshuffle.accelerator import wait_for
from unshuffle.config import Config, paper
from unshuffle.data.store import Store
from unshuffle.options import merge
from unshuffle.permutations import permutation_set
from unshuffle.runs.run import Run
from unshuffle.tasks.prepare import prepare
from unshuffle.training.display import Display
from unshuffle.training.log import RunLog
from unshuffle.training.trainer import build_trainer

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
    """A row of the results."""

    arm: str
    images_per_second: float
    figure: str
    """measured, or computed for how many images."""
    waiting_for_data: float | None = None
    """Fraction of the window in which the training waited for its next batch."""
    steps: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Setting:
    """The settings that all arms have in common."""

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
        """Whether the network runs on a GPU."""
        return self.device.startswith("cuda")

    def store(self) -> Store:
        """Open the packed images."""
        return Store(next(path for path in self.cache.iterdir() if Store.is_store(path)))


def main() -> None:
    """Pack the images, measure every arm, and write and print the results."""
    args = arguments()
    names = args.peers.split(",")
    if unknown := [name for name in names if name not in ARMS]:
        sys.exit(f"there is no peer {unknown[0]}; choose from {', '.join(ARMS)}")
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
        table = [{key: shown(value) for key, value in asdict(row).items()} for row in rows]
        write_table(f"peers_{torch.device(args.device).type}", table, args.device, note(setting, packing, count))
        print_ratios(rows)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of JPEG files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=usable_cores(), help="workers of every arm; default all cores")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=20, help="length of the time window")
    parser.add_argument("--warmup", type=int, help="steps before the window; default 100 on a GPU, 3 on a CPU")
    parser.add_argument("--peers", default=",".join(ARMS), help="arms to measure, separated by commas")
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
    """Return the seconds to decode all images into the store, with all cores, as the first run on a folder does."""
    for path in setting.images.rglob("*"):
        if path.is_file():
            path.read_bytes()  # so that all arms find the files in the page cache
    begin = time.perf_counter()
    prepare(our_config(setting), progress=False)
    return time.perf_counter() - begin


def measure_all(names: list[str], setting: Setting) -> tuple[list[Row], list[str]]:
    """Return the rows of the arms that ran, and the names of those that failed."""
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
    """Run in a new process, so that no arm inherits memory, threads or settings of another."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *given, **named).result()


def measure(setting: Setting, name: str) -> Row:
    torch.manual_seed(0)
    if name == "ours":
        return measure_ours(setting)
    torch.backends.cudnn.benchmark = True
    device = torch.device(setting.device)
    images = ImageReader(setting.store(), None if name.endswith("packed") else setting.images)
    permutations = torch.from_numpy(permutation_set(9, CLASSES))
    plain = name.startswith("a")
    data: Dataset[Sample] = (PillowTiles if plain else TensorTiles)(images, permutations)
    batches = loaded(
        data, len(images), setting
    )  # before the network, so that the workers do not inherit the state of a GPU
    step = plain_step(device, CLASSES) if plain else tuned_step(device, CLASSES, setting.compiled)
    return measure_peer(ARMS[name], batches, step, setting)


def loaded(data: Dataset[Sample], count: int, setting: Setting) -> Iterator[tuple[Tensor, Tensor]]:
    """Return endless batches from the workers, in pinned memory."""
    return iter(
        DataLoader(
            data,
            setting.batch,
            sampler=EndlessSampler(count),
            num_workers=setting.workers,
            pin_memory=setting.gpu,
            drop_last=True,
        )
    )


def measure_peer(arm: str, batches: Iterator[tuple[Tensor, Tensor]], step: Step, setting: Setting) -> Row:
    """Time whole steps over the window, waiting for the device only at its ends."""
    device = torch.device(setting.device)
    begin = waited = 0.0
    for done in itertools.count(-setting.warmup):
        if done == 0:
            wait_for(device)
            begin, waited = time.perf_counter(), 0.0
        if done > 0 and time.perf_counter() - begin > setting.seconds:
            break
        requested = time.perf_counter()
        pixels, labels = next(batches)
        waited += time.perf_counter() - requested
        loss = step(pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True))
    wait_for(device)
    seconds = time.perf_counter() - begin
    if not loss.isfinite():
        raise RuntimeError("the loss is not finite, so the steps are not representative")
    return Row(arm, done * setting.batch / seconds, "measured", waited / seconds, done, seconds)


def our_config(setting: Setting) -> Config:
    """Return the preset `paper` on the spatial task, with as many workers as the peers and without checkpoints."""
    base = merge(
        paper(),
        {
            "images": str(setting.images),
            "tasks": "S",
            "device": setting.device,
            "data": {"cache": str(setting.cache), "workers": setting.workers, "test_size": 0},
            "optim": {"batch_size": setting.batch, "precision": "bf16" if setting.gpu else "fp32"},
            "log": {"train_every": 50 if setting.gpu else 1, "checkpoint_every": 10**9, "pictures": False},
        },
    )
    return merge(base, setting.options)


class WindowOver(Exception):
    """The time window has ended."""


class TimingLog(RunLog):
    """Times the trainer's log entries instead of writing them, and ends the run after the window."""

    def __init__(self, warmup: int, seconds: float) -> None:
        self.warmup, self.seconds = warmup, seconds
        self.entries: list[tuple[float, int, float]] = []
        """Time, iteration, and fraction of waiting since the last entry."""

    def write(self, kind: str, iteration: int, **values: Any) -> None:
        """Record a training entry after the warm-up; the trainer waits for the device before it writes one."""
        if kind != "train" or iteration < self.warmup:
            return
        self.entries.append((time.perf_counter(), iteration, values["waiting_for_data"]))
        if self.entries[-1][0] - self.entries[0][0] > self.seconds:
            raise WindowOver

    def write_observation(self, *arguments: Any) -> None:
        """Keep nothing; the time of validations counts."""

    def row(self, batch: int) -> Row:
        """Return the figures of the whole window, including everything between the steps."""
        (begin, first, _), (end, last, _) = self.entries[0], self.entries[-1]
        windows = itertools.pairwise(self.entries)
        waited = sum(fraction * (after - before) for (before, _, _), (after, _, fraction) in windows)
        steps, seconds = last - first, end - begin
        return Row(ARMS["ours"], steps * batch / seconds, "measured", waited / seconds, steps, seconds)


def measure_ours(setting: Setting) -> Row:
    """Measure unshuffle's own trainer on the packed store."""
    config = our_config(setting)
    trainer = build_trainer(config, prepare(config, progress=False))
    log = TimingLog(setting.warmup, setting.seconds)
    display = Display(trainer.statuses(), config.optim.iterations, console=Console(quiet=True))
    try:
        trainer.train(Run(setting.cache / "run"), log, display)
    except WindowOver:
        return log.row(config.optim.batch_size)
    raise RuntimeError("the training ended before the window did")


def with_packing(steady: Row, packing: float, count: int, epochs: int) -> Row:
    """Return the throughput over the first epochs on a folder that has not been packed yet."""
    throughput = epochs * count / (packing + epochs * count / steady.images_per_second)
    title = "first epoch" if epochs == 1 else f"first {epochs} epochs"
    return Row(f"unshuffle, JPEG files ({title}, packing included)", throughput, f"computed for {count} images")


def note(setting: Setting, packing: float, count: int) -> str:
    """Return the settings that the figures depend on."""
    cores = f"{usable_cores()} cores ({processor()}), {setting.workers} workers"
    precision = "a: fp32 as torch has it by default; b and unshuffle: bf16" if setting.gpu else "all in fp32"
    return "; ".join(
        [
            f"torchvision {torchvision.__version__}, unshuffle {unshuffle.__version__}",
            f"{cores}, batch {setting.batch}, {CLASSES} permutations, {setting.warmup} warm-up steps",
            f"{precision}; b {'compiled' if setting.compiled else 'not compiled'}",
            f"{count} images, packed once in {packing:.2f} s ({count / packing:.0f} images/s)",
        ]
    )


def shown(value: str | float | None) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if value < 1 else f"{value:.1f}"
    return "" if value is None else str(value)


def print_ratios(rows: list[Row]) -> None:
    """Print how many times faster unshuffle is than each peer."""
    ours = [row for row in rows if row.arm.startswith("unshuffle")]
    for row in ours:
        print(f"{row.arm}: {row.images_per_second:.0f} images/s")
        for peer in (peer for peer in rows if peer not in ours):
            print(f"  {row.images_per_second / peer.images_per_second:6.2f} × {peer.arm}")


if __name__ == "__main__":
    main()
