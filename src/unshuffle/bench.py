"""How fast this machine trains: the whole iteration, its parts, and how near it comes to what the chip can do."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from unshuffle.accelerator import wait_for
from unshuffle.assembly import build_trainer
from unshuffle.config import Config, OptimConfig, check
from unshuffle.config_file import merge
from unshuffle.console import ResilientConsole, say
from unshuffle.data.batches import Batch, Prefetcher, ahead
from unshuffle.data.prepare import ONE_HELD_BACK_IN, prepare
from unshuffle.errors import UserError
from unshuffle.training.step import ForwardPass, Step
from unshuffle.training.trainer import Tally, Trainer

WORLD = {"images": 400, "clips": 240, "clip_frames": 12}
"""Items of the synthetic world that stands in when no data is given: enough to hold X_val back."""
WARMUP = 5
FLOP_SAMPLES = 2  # the arithmetic is proportional to the batch, so a small one is counted
REPEATS = 5
SLEEP_CYCLES = 100_000_000  # about 50 ms, longer than it takes to launch an iteration


def bench(config: Config, *, iterations: int = 50, console: Console | None = None) -> dict[str, Any]:
    """Train for some iterations without keeping anything, and say where the time went."""
    console = console or ResilientConsole()
    check(config)
    if iterations < 1:
        raise UserError(f"iterations is {iterations}, but must be 1 or more")
    config = with_world(config)
    data = prepare(config)
    for sentence in data.found + data.remarks:
        say(console, sentence)
    trainer = build_trainer(config, data)
    figures = measure(trainer, iterations)
    console.print(_table(trainer, figures))
    return figures


def with_world(config: Config) -> Config:
    """Without data, a small world of the size that real data would have; with data, nothing changes."""
    if config.images is not None or config.videos is not None:
        return config
    sizes = {"image_size": config.data.image_short_side, "frame_size": config.data.frame_short_side}
    frames = max(WORLD["clip_frames"], config.shuffle.frames)
    enough = ONE_HELD_BACK_IN * config.data.val_size  # for all of X_val to be held back
    world = {**WORLD, **sizes, "clip_frames": frames}
    world |= {name: max(world[name], enough) for name in ("images", "clips")}
    return merge(config, {"synthetic": world})


def measure(trainer: Trainer, iterations: int) -> dict[str, Any]:
    """All figures, with names that say their unit."""
    device, config = trainer.device, trainer.config
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    whole = whole_iterations(trainer, iterations)
    memory = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None
    seconds = whole["ms_per_iteration"] / 1e3
    tflop = _tflop_per_iteration(trainer)
    traffic = _crop_bytes(trainer) / seconds / 1e12
    matmul, copy = _matmul_tflops(trainer), _copy_tbytes(device)
    validation = {task: validation_ms(trainer, task) for task in trainer.permutations}
    times = 1 if config.policy.batches == config.policy.interval else 2
    return {
        **whole,
        "iterations_per_second": 1 / seconds,
        "tflop_per_iteration": tflop,
        "tflops": tflop / seconds,
        "matmul_tflops": matmul,
        "share_of_matmul": tflop / seconds / matmul,
        "copy_tbytes_per_second": copy,
        "backbone_tbytes_per_second": traffic,
        "share_of_copy": traffic / copy,
        "parts_ms": _parts(trainer, iterations),
        "validation_ms": validation,
        "validation_share": times * sum(validation.values()) / 1e3 / (config.policy.interval * seconds),
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
    """The training loop as it is, from reading the data to the moved weights."""
    with _batches(trainer, iterations + WARMUP) as (coming, prefetcher):
        for _ in range(WARMUP):
            trainer.step(next(coming), Tally())
        tally = Tally()
        wait_for(trainer.device)
        begin, waited = time.perf_counter(), prefetcher.seconds_waited
        for batch in coming:
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
    """The next batches of a trainer, as its own loop sees them."""
    start = trainer.iteration
    prefetcher = Prefetcher(trainer.load, start, start + count, trainer.config.data.workers)
    with closing(ahead(prefetcher, trainer.device)) as coming:
        yield coming, prefetcher


class Stopwatch:
    """Milliseconds of named parts: of the device's own work on a GPU, of the clock elsewhere."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._marks: list[tuple[str | None, Any]] = []

    def begin(self) -> None:
        """The first part begins. A GPU sleeps until all parts are launched, so that it never waits for a launch."""
        if self.device.type == "cuda":
            torch.cuda._sleep(SLEEP_CYCLES)  # type: ignore[no-untyped-call]
        self._mark(None)

    def mark(self, name: str) -> None:
        """A part ends here, and the next one begins."""
        self._mark(name)

    def _mark(self, name: str | None) -> None:
        if self.device.type != "cuda":
            self._marks.append((name, time.perf_counter()))
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((name, event))

    def totals(self) -> dict[str, float]:
        """Sum of each part."""
        wait_for(self.device)
        sums: dict[str, float] = {}
        for (_, before), (name, after) in pairwise(self._marks):
            if name is not None:
                passed = before.elapsed_time(after) if self.device.type == "cuda" else 1e3 * (after - before)
                sums[name] = sums.get(name, 0.0) + passed
        return sums


def _parts(trainer: Trainer, iterations: int) -> dict[str, float]:
    """Each part of an iteration on its own; kernels are launched one by one here, not as a recording."""
    step = Step(ForwardPass(trainer.network), trainer.permutations, trainer.optimisers, trainer.precision)
    watch = Stopwatch(trainer.device)
    with _batches(trainer, iterations + 1) as (coming, _):
        for number in range(iterations + 1):
            if number == 1:  # the first one chose algorithms
                watch = Stopwatch(trainer.device)
            watch.begin()
            batch = next(coming)
            watch.mark("data")
            crops, proposals = trainer.shuffle(batch)
            watch.mark("shuffle")
            answers = step.forward(crops, proposals)
            watch.mark("forward")
            trainer.optimisers.zero_grad()
            step.backward(answers)
            watch.mark("backward")
            trainer.optimisers.step(trainer.iteration)
            trainer.iteration += 1
            watch.mark("optimiser")
    return {name: total / iterations for name, total in watch.totals().items()}


def _tflop_per_iteration(trainer: Trainer) -> float:
    """Arithmetic of one forward and backward pass, counted on the plain network with a few samples."""
    counted = replace(
        trainer.config,
        device="cpu",
        optim=replace(trainer.config.optim, batch_size=FLOP_SAMPLES, precision="fp32"),
    )
    small = build_trainer(counted, trainer.data)
    batch = small.load(trainer.iteration)
    with FlopCounterMode(display=False) as counter:
        small.step(batch, Tally())
    return float(counter.get_total_flops()) * trainer.config.optim.batch_size / FLOP_SAMPLES / 1e12


def _crop_bytes(trainer: Trainer) -> float:
    """Bytes that the backbone's maps and weights move at the least: written once, read once, and again for gradients."""
    maps: list[int] = []
    hooks = [
        module.register_forward_hook(lambda module, inputs, output: maps.append(output.numel()))
        for module in trainer.network.backbone.modules()
        if isinstance(module, torch.nn.Conv2d)
    ]
    crop = torch.zeros(1, 3, trainer.config.shuffle.crop_size, trainer.config.shuffle.crop_size, device=trainer.device)
    was_training = trainer.network.training
    trainer.network.eval()
    with torch.no_grad():
        trainer.network.backbone(crop)
    trainer.network.train(was_training)
    for hook in hooks:
        hook.remove()
    crops = sum(trainer.config.optim.batch_size * rows.shape[1] for rows in trainer.permutations.values())
    return 4 * crops * sum(maps) * (2 if trainer.precision == "bf16" else 4)


def _matmul_tflops(trainer: Trainer) -> float:
    """What a large matrix product reaches in the precision of the training."""
    side = 8192 if trainer.device.type == "cuda" else 1024
    kind = torch.bfloat16 if trainer.precision == "bf16" else torch.float32
    one, two = torch.randn(2, side, side, device=trainer.device).to(kind)
    return 2 * side**3 / _seconds(lambda: one @ two, trainer.device) / 1e12


def _copy_tbytes(device: torch.device) -> float:
    """What a large copy within the memory reaches, bytes read and bytes written."""
    size = 1 << (30 if device.type == "cuda" else 26)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _seconds(lambda: target.copy_(source), device) / 1e12


def validation_ms(trainer: Trainer, task: str) -> float:
    """What one validation of a task takes."""
    return 1e3 * _seconds(lambda: trainer.validate(task), trainer.device, 2)


def _seconds(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """The shortest of some runs, after one that does not count."""
    found = []
    for _ in range(repeats + 1):
        wait_for(device)
        begin = time.perf_counter()
        work()
        wait_for(device)
        found.append(time.perf_counter() - begin)
    return min(found[1:])


def _table(trainer: Trainer, figures: dict[str, Any]) -> Table:
    config = trainer.config
    table = Table(
        title=f"{config.model.backbone} on {figures['device']}, {figures['precision']}", title_justify="left", box=None
    )
    table.show_header = False
    table.add_column()
    table.add_column(justify="right")
    for name, value in _rows(figures, config.optim, list(trainer.permutations)):
        table.add_row(name, value)
    return table


def _rows(figures: dict[str, Any], optim: OptimConfig, tasks: list[str]) -> list[tuple[str, str]]:
    memory, batch_size, iterations = figures["peak_memory_gb"], optim.batch_size, optim.iterations
    return [
        (
            f"iteration of {' and '.join(f'{batch_size} {task}' for task in tasks)} samples",
            _ms(figures["ms_per_iteration"]),
        ),
        ("iterations/s", f"{figures['iterations_per_second']:,.1f}"),
        ("images and clips/s", f"{figures['samples_per_second']:,.0f}"),
        ("crops/s", f"{figures['crops_per_second']:,.0f}"),
        ("waiting for data", _percent(figures["waiting_for_data"])),
        ("arithmetic", f"{figures['tflops']:.3g} TFLOP/s"),
        (
            f"  a large matrix product has {figures['matmul_tflops']:.3g} TFLOP/s, so this is",
            _percent(figures["share_of_matmul"]),
        ),
        ("reading and writing the backbone's maps, at the least", f"{figures['backbone_tbytes_per_second']:.3g} TB/s"),
        (
            f"  a large copy has {figures['copy_tbytes_per_second']:.3g} TB/s, so this is",
            _percent(figures["share_of_copy"]),
        ),
        *((f"{name}, alone", _ms(value)) for name, value in figures["parts_ms"].items()),
        *((f"validation, {task}", _ms(value)) for task, value in figures["validation_ms"].items()),
        ("validations' share of the run", _percent(figures["validation_share"])),
        ("GPU memory", "no GPU" if memory is None else f"{memory:.1f} GB"),
        (f"all {iterations:,} iterations of a run", f"{figures['hours_for_all_iterations']:.2f} h"),
    ]


def _ms(value: float) -> str:
    return f"{value:,.2f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
