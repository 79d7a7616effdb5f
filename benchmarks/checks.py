"""Cost of the checks that make a run reliable: each operation with its check and without it, and a whole run.

    python benchmarks/checks.py [--device cuda] [--repeats 15] [--images 2000] [--megabytes 400]

Both forms take turns, and the figures are medians of the processor's time, so that other programs of the machine hardly
count; on a GPU, and where a file is written, it is the time that passes. A run is 400 iterations of the preset `demo`,
as `make demo` trains it. Results go to results/checks_DEVICE.csv.
"""

import argparse
import io
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from table import write_table
from torch import Tensor

from unshuffle.accelerator import wait_for
from unshuffle.config import Config, demo
from unshuffle.data import store
from unshuffle.data.pack import pack
from unshuffle.data.shard_files import ShardFile
from unshuffle.data.shards import ShardOptions, open_shards
from unshuffle.data.store import Store
from unshuffle.options import merge
from unshuffle.runs import checkpoints
from unshuffle.runs.checkpoints import load_checkpoint
from unshuffle.tasks.base import Inputs, Outcome
from unshuffle.tasks.prepare import prepare
from unshuffle.training.checkpoint import save_checkpoint
from unshuffle.training.optim import Optimisers
from unshuffle.training.step import GraphedStep, Step
from unshuffle.training.trainer import Trainer, build_trainer

Row = dict[str, str]


def main() -> None:
    args = arguments()
    config = merge(demo(), {"device": args.device, "log": {"pictures": False}})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trainer = build_trainer(config, prepare(config, progress=False))
        trainer.train_iterations(1)
        steps = measure_step(trainer, 10 * args.repeats)
        rows = [row("training step, demo", *steps)]
        large = {"weights": torch.randn(args.megabytes * 10**6 // 4)}
        states = {"demo": trainer.state_dict(), f"{args.megabytes} MB": large}
        costs: dict[str, tuple[float, float]] = {}
        for size, state in states.items():
            for action, times in measure_checkpoint(folder / size, state, args.repeats).items():
                costs[f"{action}, {size}"] = times
                rows.append(row(f"{action}, {size}", *times))
        write_images(folder / "images", args.images)
        pack("images", folder / "images", folder / "store", short_side=96, progress=False)
        rows.append(row(f"open a store of {args.images} images", *measure_opening(folder / "store", args.repeats)))
        rows.append(row("first read of an image in a store", *measure_first_reads(folder / "store", args.repeats)))
        rows.append(row("read and decode an image in a shard", *measure_shard(folder, args.repeats)))
    rows.append(whole_run(config, steps, costs))
    write_table(f"checks_{args.device.partition(':')[0]}", rows, args.device, "medians in milliseconds")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--megabytes", type=int, default=400)
    return parser.parse_args()


def row(what: str, without: float, checked: float) -> Row:
    share = 100 * (checked - without) / without
    return {"what": what, "without": f"{1e3 * without:.3f}", "with": f"{1e3 * checked:.3f}", "percent": f"{share:+.1f}"}


def whole_run(config: Config, steps: tuple[float, float], costs: Mapping[str, tuple[float, float]]) -> Row:
    """Return the steps and checkpoints of a run; validations and the monitor, which have no checks, are left out."""
    saves = config.optim.iterations // config.log.checkpoint_every
    write, read = costs["write a checkpoint, demo"], costs["read a checkpoint, demo"]
    without, checked = (
        config.optim.iterations * steps[form] + saves * write[form] + read[form] for form in (False, True)
    )
    return row("all steps and checkpoints of a demo run, resumed once", without, checked)


def compare(
    without: Callable[[], Any],
    checked: Callable[[], Any],
    repeats: int,
    clock: Callable[[], float] = time.process_time,
) -> tuple[float, float]:
    """Return the median seconds of both forms, which take turns."""
    times: dict[Callable[[], Any], list[float]] = {without: [], checked: []}
    for repeat in range(repeats + 1):
        for form in (without, checked) if repeat % 2 else (checked, without):
            begin = clock()
            form()
            times[form].append(clock() - begin)
    # the first of each is slower: files come into memory, libraries set themselves up
    return statistics.median(times[without][1:]), statistics.median(times[checked][1:])


# ---- training step


class PlainOptimisers(Optimisers):
    """Optimisers that update the weights whatever the gradients are."""

    def step(self, iteration: int, skipped: Tensor | None = None) -> None:
        """Update all parameters."""
        super().step(iteration)


class Ungated:
    """A step without the check for finite numbers."""

    def _gradients(self: Any, inputs: Mapping[str, Inputs]) -> tuple[dict[str, Outcome], Tensor]:
        outcomes: dict[str, Outcome] = self.forward(inputs)
        torch.stack([self.loss_weights[task] * outcome.loss for task, outcome in outcomes.items()]).sum().backward()
        device = next(iter(inputs.values())).crops.device
        detached = {task: replace(outcome, loss=outcome.loss.detach()) for task, outcome in outcomes.items()}
        return detached, torch.zeros((), dtype=torch.bool, device=device)


class UngatedStep(Ungated, Step):
    """The plain step."""


class UngatedGraphedStep(Ungated, GraphedStep):
    """The captured step."""


def measure_step(trainer: Trainer, repeats: int) -> tuple[float, float]:
    gated = trainer.learn
    kind = UngatedGraphedStep if isinstance(gated, GraphedStep) else UngatedStep
    plain = PlainOptimisers(trainer.network, trainer.config)
    ungated = kind(gated.network, gated.loss_weights, plain, gated.precision)
    inputs = trainer.inputs({name: squares.to(trainer.device) for name, squares in trainer.load(0).items()})

    def form(step: Step) -> Callable[[], None]:
        def run() -> None:
            step(inputs, 0)
            wait_for(trainer.device)

        return run

    clock = time.perf_counter if trainer.device.type == "cuda" else time.process_time
    return compare(form(ungated), form(gated), repeats, clock)


# ---- files


def measure_checkpoint(folder: Path, state: dict[str, Any], repeats: int) -> dict[str, tuple[float, float]]:
    path = save_checkpoint(folder, 1, state, keep=1)
    return {
        "write a checkpoint": compare(
            within(without_checksums, lambda: save_checkpoint(folder, 1, state, keep=1)),
            lambda: save_checkpoint(folder, 1, state, keep=1),
            repeats,
            time.perf_counter,
        ),
        "read a checkpoint": compare(
            within(lambda: mock.patch.object(checkpoints, "check_zip"), lambda: load_checkpoint(path)),
            lambda: load_checkpoint(path),
            repeats,
        ),
    }


@contextmanager
def without_checksums() -> Iterator[None]:
    """Let torch write zeros in place of checksums; it computes them by default."""
    torch.serialization.set_crc32_options(False)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(True)


def within(
    context: Callable[[], AbstractContextManager[Any]] = nullcontext, run: Callable[[], Any] = lambda: None
) -> Callable[[], Any]:
    def form() -> None:
        with context():
            run()

    return form


def write_images(folder: Path, count: int) -> None:
    folder.mkdir()
    generator = np.random.default_rng(0)
    for number in range(count):
        coarse = Image.fromarray(generator.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        coarse.resize((320, 240), Image.Resampling.BICUBIC).save(folder / f"{number:05}.jpg", quality=90)


def measure_opening(path: Path, repeats: int) -> tuple[float, float]:
    unchecked = within(lambda: mock.patch.object(store, "_check_files"), lambda: Store(path))
    return compare(unchecked, lambda: Store(path), repeats)


def measure_first_reads(path: Path, repeats: int) -> tuple[float, float]:
    """Return the seconds for one image; every opening reads all images for the first time."""

    def read_all() -> None:
        opened = Store(path)
        for item in range(len(opened)):
            opened.read(item, [0])

    count = len(Store(path))
    unchecked = within(lambda: mock.patch.object(Store, "_verify"), read_all)
    without, checked = compare(unchecked, read_all, repeats)
    return without / count, checked / count


def measure_shard(folder: Path, repeats: int) -> tuple[float, float]:
    images = sorted((folder / "images").iterdir())[:200]
    with tarfile.open(folder / "0.tar", "w") as tar:
        for image in images:
            info = tarfile.TarInfo(image.name)
            info.size = image.stat().st_size
            tar.addfile(info, io.BytesIO(image.read_bytes()))
    source = open_shards(str(folder / "0.tar"), ShardOptions("images", 96), folder / "cache", progress=False)

    def read_all() -> None:
        for item in range(len(source)):
            source.read(item, [0])

    unchecked = within(lambda: mock.patch.object(ShardFile, "verified", lambda self, data, member: data), read_all)
    without, checked = compare(unchecked, read_all, repeats)
    return without / len(source), checked / len(source)


if __name__ == "__main__":
    main()
