"""`unshuffle bench`: throughput of this machine, step time in parts, and how close it comes to the chip's limits."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table
from torch.utils.flop_counter import FlopCounterMode

from unshuffle.accelerator import wait_for
from unshuffle.config import Config, check, merge_sections, with_epochs
from unshuffle.console import ResilientConsole, say
from unshuffle.data.batches import Batch, Prefetcher, on_device
from unshuffle.errors import UserError
from unshuffle.options import merge
from unshuffle.tasks import TASKS
from unshuffle.tasks.prepare import MAX_HELD_OUT, prepare
from unshuffle.training.step import Step, are_finite
from unshuffle.training.trainer import Tally, Trainer, build_trainer, fit_crop_sizes
from unshuffle.wording import duration

WORLD = {"images": 400, "clips": 240, "clip_frames": 12}
"""Size of the synthetic world that stands in when no data is given: enough to hold out X_val."""
WARMUP = 5
FLOP_SAMPLES = 2  # FLOPs are proportional to the batch, so a small one is counted
REPEATS = 5
SLEEP_CYCLES = 100_000_000  # about 50 ms, longer than it takes to launch an iteration


def bench(config: Config, *, iterations: int = 50, console: Console | None = None) -> dict[str, Any]:
    """Train for some iterations without keeping anything, and report where the time goes."""
    console = console or ResilientConsole()
    check(config)
    if iterations < 1:
        raise UserError(f"iterations is {iterations}, but must be 1 or more")
    config, remarks = fit_crop_sizes(with_world(without_test(config)))
    data = prepare(config)
    config, epochs = with_epochs(config, {name: len(samples) for name, samples in data.training.items()})
    for sentence in (*remarks, *data.sentences(), *epochs):
        say(console, sentence)
    trainer = build_trainer(config, data)
    figures = measure(trainer, iterations)
    table = Table("", Column(justify="right"), title_justify="left", box=None, show_header=False)
    table.title = f"{config.model.backbone} on {figures['device']}, {figures['precision']}"
    for row in _rows(figures, trainer):
        table.add_row(*row)
    console.print(table)
    return figures


def without_test(config: Config) -> Config:
    """Return the config without a pretext test set, which takes no part in what is timed."""
    return merge(config, {"data": {"test_size": 0, "test_images": None, "test_videos": None}})


def with_world(config: Config) -> Config:
    """Return the config with a small synthetic world at the size of real data, unless data is given."""
    if config.images is not None or config.videos is not None:
        return config
    sizes = {"image_size": config.data.image_short_side, "frame_size": config.data.frame_short_side}
    frames = max(WORLD["clip_frames"], *(TASKS[name](config).min_frames for name in config.task_names))
    enough = MAX_HELD_OUT * config.data.val_size  # for all of X_val to be held out
    world = {**WORLD, **sizes, "clip_frames": frames}
    world |= {name: max(world[name], enough) for name in ("images", "clips")}
    return merge(config, {"synthetic": world})


def measure(trainer: Trainer, iterations: int) -> dict[str, Any]:
    """Return all figures; their names include the unit."""
    device, config = trainer.device, trainer.config
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    whole = whole_iterations(trainer, iterations)
    memory = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None
    seconds = whole["ms_per_iteration"] / 1e3
    tflop = _tflop_per_iteration(trainer)
    matmul = _matmul_tflops(trainer)
    validation = {task: validation_ms(trainer, task) for task in trainer.tasks}
    times = 1 if config.policy.batches == config.policy.interval else 2
    return {
        **whole,
        "iterations_per_second": 1 / seconds,
        "tflop_per_iteration": tflop,
        "tflops": tflop / seconds,
        "matmul_tflops": matmul,
        "matmul_fraction": tflop / seconds / matmul,
        "parts_ms": _parts(trainer, iterations),
        "validation_ms": validation,
        "validation_fraction": times * sum(validation.values()) / 1e3 / (config.policy.interval * seconds),
        "hours_for_all_iterations": seconds * config.optim.iterations / 3600,
        "peak_memory_gb": memory,
        "precision": trainer.precision,
        "device": _name(device),
        "torch": torch.__version__,
    }


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return "one CPU thread" if torch.get_num_threads() == 1 else f"{torch.get_num_threads()} CPU threads"


def whole_iterations(trainer: Trainer, iterations: int) -> dict[str, float]:
    """Time the training loop as it is, from reading the data to the updated weights."""
    with _batches(trainer, iterations + WARMUP) as (upcoming, prefetcher):
        for _ in range(WARMUP):
            trainer.step(next(upcoming), Tally())
        tally = Tally()
        wait_for(trainer.device)
        begin, waited = time.perf_counter(), prefetcher.seconds_waited
        for batch in upcoming:
            trainer.step(batch, tally)
        wait_for(trainer.device)
        seconds = time.perf_counter() - begin
    return {
        "ms_per_iteration": 1e3 * seconds / iterations,
        "samples_per_second": tally.samples / seconds,
        "crops_per_second": tally.crops / seconds,
        "waiting_for_data": (prefetcher.seconds_waited - waited) / seconds,
    }


@contextmanager
def _batches(trainer: Trainer, count: int) -> Iterator[tuple[Iterator[Batch], Prefetcher[Batch]]]:
    """Yield the next batches of a trainer, as its own loop gets them."""
    start = trainer.iteration
    prefetcher = Prefetcher(trainer.load, start, start + count, trainer.config.data.workers)
    with closing(on_device(prefetcher, trainer.device)) as upcoming:
        yield upcoming, prefetcher


class Stopwatch:
    """Milliseconds of named parts, measured by events on a GPU and by the clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._marks: list[tuple[str | None, Any]] = []

    def begin(self) -> None:
        """Begin the first part. A GPU sleeps until all parts are launched, so that it never waits for a launch."""
        if self.device.type == "cuda":
            torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        self.mark(None)

    def mark(self, name: str | None) -> None:
        """End a part and begin the next one; without a name, what has passed belongs to no part."""
        if self.device.type != "cuda":
            self._marks.append((name, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((name, event))

    def totals(self) -> dict[str, float]:
        """Return the sum of each part."""
        wait_for(self.device)
        sums: dict[str, float] = {}
        for (_, before), (name, after) in pairwise(self._marks):
            if name is not None:
                passed = before.elapsed_time(after) if self.device.type == "cuda" else 1e3 * (after - before)
                sums[name] = sums.get(name, 0.0) + passed
        return sums


def _parts(trainer: Trainer, iterations: int) -> dict[str, float]:
    """Time each part of an iteration by itself; kernels are launched one by one here, not as a CUDA graph."""
    step = Step(trainer.network, trainer.learn.loss_weights, trainer.optimisers, trainer.precision)
    watch = Stopwatch(trainer.device)
    with _batches(trainer, iterations + 1) as (upcoming, _):
        for number in range(iterations + 1):
            if number == 1:  # in the first one libraries choose their algorithms
                watch = Stopwatch(trainer.device)
            watch.begin()
            batch = next(upcoming)
            watch.mark("data")
            inputs = trainer.inputs(batch)
            watch.mark("crops")
            outcomes = step.forward(inputs)
            watch.mark("forward")
            trainer.optimisers.zero_grad()
            step.backward(outcomes)
            watch.mark("backward")
            trainer.optimisers.step(
                trainer.iteration, ~are_finite(weight.grad for weight in trainer.network.parameters())
            )
            trainer.iteration += 1
            watch.mark("optimiser")
    return {name: total / iterations for name, total in watch.totals().items()}


def _tflop_per_iteration(trainer: Trainer) -> float:
    """Count the FLOPs of one forward and backward pass, on the plain network with a few samples of each task."""
    few = {name: {"batch_size": FLOP_SAMPLES} for name in trainer.tasks}
    config = merge_sections(trainer.config, {"device": "cpu", "optim": {"precision": "fp32"}, **few})
    small = build_trainer(config, trainer.data)
    flops = 0.0
    for name, batch in small.load(trainer.iteration).items():
        with _without_onednn(), FlopCounterMode(display=False) as counter:
            small.step({name: batch}, Tally())
        flops += float(counter.get_total_flops()) * trainer.tasks[name].batch_size / FLOP_SAMPLES
    return flops / 1e12


@contextmanager
def _without_onednn() -> Iterator[None]:
    """Compute without oneDNN, which runs an LSTM as one operation whose FLOPs torch does not count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # to restore its flags warns about Intel GPUs
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _matmul_tflops(trainer: Trainer) -> float:
    """Measure a large matrix product in the precision of the training."""
    side = 8192 if trainer.device.type == "cuda" else 1024
    kind = torch.bfloat16 if trainer.precision == "bf16" else torch.float32
    left, right = torch.randn(2, side, side, device=trainer.device).to(kind)
    return 2 * side**3 / _seconds(lambda: left @ right, trainer.device) / 1e12


def validation_ms(trainer: Trainer, task: str) -> float:
    """Time one validation of a task."""
    return 1e3 * _seconds(lambda: trainer.validate(task), trainer.device, 2)


def _seconds(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Return the shortest of some runs, after a warm-up run."""
    seconds = []
    for _ in range(repeats + 1):
        wait_for(device)
        begin = time.perf_counter()
        work()
        wait_for(device)
        seconds.append(time.perf_counter() - begin)
    return min(seconds[1:])


def _rows(figures: dict[str, Any], trainer: Trainer) -> list[tuple[str, str]]:
    memory, iterations = figures["peak_memory_gb"], trainer.config.optim.iterations
    samples = [f"{task.batch_size} {name}" for name, task in trainer.tasks.items()]
    return [
        (f"step time with {' and '.join(samples)} samples", _ms(figures["ms_per_iteration"])),
        ("iterations/s", f"{figures['iterations_per_second']:,.1f}"),
        ("samples/s (images and clips)", f"{figures['samples_per_second']:,.0f}"),
        ("crops/s", f"{figures['crops_per_second']:,.0f}"),
        ("waiting for data", _percent(figures["waiting_for_data"])),
        ("throughput", f"{figures['tflops']:.3g} TFLOP/s"),
        (f"  as a fraction of a matrix product ({figures['matmul_tflops']:.3g})", _percent(figures["matmul_fraction"])),
        *((f"{name}, alone", _ms(value)) for name, value in figures["parts_ms"].items()),
        *((f"validation, {task}", _ms(value)) for task, value in figures["validation_ms"].items()),
        ("validations, fraction of the run", _percent(figures["validation_fraction"])),
        ("GPU memory", "no GPU" if memory is None else f"{memory:.1f} GB"),
        (f"all {iterations:,} iterations of a run", duration(3600 * figures["hours_for_all_iterations"])),
    ]


def _ms(value: float) -> str:
    return f"{value:,.2f} ms"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2g} %"
