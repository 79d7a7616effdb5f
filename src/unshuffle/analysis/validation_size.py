"""Appendix C: the size of X_val, by the error on several random sets of each size at each checkpoint."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor

from unshuffle.accelerator import choose_device
from unshuffle.analysis.analysis import Analysis, AnalysisResult, metrics_table
from unshuffle.analysis.figures import COLOURS, QUIET, name_axes, panels, styled, thousands
from unshuffle.console import progress
from unshuffle.data.squares import Squares
from unshuffle.errors import UserError
from unshuffle.models import build_backbone
from unshuffle.randomness import numpy_rng
from unshuffle.runs.checkpoints import fitting, load_checkpoint, usable_checkpoints
from unshuffle.runs.history import choose_tasks, open_run, stored_permutations, tasks_of
from unshuffle.runs.run import Run
from unshuffle.tasks import build_tasks
from unshuffle.tasks.base import Network
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.prepare import Data, prepare

TARGET_STD = 0.01  # of the error, for the recommended size


@dataclass(frozen=True)
class Spread:
    """The error over several random sets of one size."""

    size: int
    """|X_val|"""
    mean: float
    std: float
    """Standard deviation over the sets (ddof 1)."""
    expected_std: float
    """Expected standard deviation, by that of single samples: σ / √|X_val|."""


Spreads: TypeAlias = Mapping[str, Mapping[int, Sequence[Spread]]]
"""By task and iteration, one per size."""


def sample_sets(samples: int, sizes: Sequence[int], count: int, rng: np.random.Generator) -> dict[int, list[list[int]]]:
    """Return `count` random sets of each size, sampled without replacement."""
    return {size: [rng.permutation(samples)[:size].tolist() for _ in range(count)] for size in sizes}


def set_spreads(sample_errors: npt.NDArray[np.float64], sets: dict[int, list[list[int]]]) -> list[Spread]:
    """Return the spread of the error per size; E is a mean over samples, so their errors give that of any set."""
    sigma = float(np.std(sample_errors, ddof=1))
    spreads = []
    for size, same_size in sets.items():
        errors = [float(sample_errors[samples].mean()) for samples in same_size]
        spreads.append(Spread(size, float(np.mean(errors)), float(np.std(errors, ddof=1)), sigma / size**0.5))
    return spreads


def sample_errors(task: OrderingTask, network: Network, pixels: Tensor) -> npt.NDArray[np.float64]:
    """Return the validation error of each sample of (N, frames, side, side, 3) bytes in validation form."""
    crops = (task.crops(Squares.of(sample).to(task.device)) for sample in pixels.split(1))
    return np.array([task.validate(network, [sample]).error for sample in crops])


def samples_needed(spread: Spread, std: float = TARGET_STD) -> int:
    """Return the size of sets whose expected standard deviation is at most `std`."""
    return math.ceil(spread.size * (spread.expected_std / std) ** 2 - 1e-9)


# ---- the analysis


@dataclass(frozen=True)
class ValidationSize(Analysis):
    """Mean and std of the validation error for several sizes of X_val (appendix C)."""

    run: Path
    """A run folder; each of its checkpoints is validated (log.keep_checkpoints sets how many are kept)."""
    images: str | None = None
    """Images to sample the sets from, which the run has not trained on; by default the run's own data."""
    videos: str | None = None
    """Videos to sample the sets from."""
    sizes: tuple[int, ...] = (10, 20, 50, 100, 200)
    """Sizes |X_val| to compare."""
    sets: int = 5
    """Random sets of each size, 2 or more."""
    pool: int = 1000
    """Maximum number of samples that are validated, from which the sets are sampled."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: int = 0
    """Seed of the sampling."""

    def analyse(self, console: Console) -> AnalysisResult:
        """Validate all samples of the pool at each checkpoint, then sample the sets."""
        if not self.sizes or min(self.sizes) < 1 or self.sets < 2:
            raise UserError("sizes must be 1 or more, and sets 2 or more")
        run = open_run(self.run)
        checkpoints = usable_checkpoints(run.checkpoints, console)
        if not checkpoints:
            raise UserError(f"{run.folder} has no checkpoint")
        tasks = choose_tasks(run, None)
        data, origin = self._data(run)
        pools = {task: self._pool(task, data) for task in data.training if task in tasks}
        if not pools:
            raise UserError("there is no data for any ordering task of the run: give --images or --videos")
        device = choose_device(self.device)
        spreads = {}
        for task, pixels in pools.items():
            sets = sample_sets(len(pixels), self.sizes, self.sets, numpy_rng(self.seed, "sets", task))
            checkpoint_errors = self._errors(run, checkpoints, task, pixels, device, console)
            spreads[task] = {int(path.stem): set_spreads(errors, sets) for path, errors in checkpoint_errors}
        return self._result(spreads, {task: len(pixels) for task, pixels in pools.items()}, origin)

    def _data(self, run: Run) -> tuple[Data, str]:
        """Return the data to sample from, and its description."""
        config = run.config
        data_config = replace(config.data, val_size=1, test_size=0, test_images=None, test_videos=None)
        if self.images is not None or self.videos is not None:
            given = replace(config, images=self.images, videos=self.videos, tasks="auto")
            return prepare(replace(given, data=data_config)), "of the given data"
        if config.images is None and config.videos is None:
            world = replace(config.synthetic, images=self.pool + 1, clips=self.pool + 1)
            fresh = replace(config, seed=config.seed + 1, synthetic=world, data=data_config)
            return prepare(fresh), "of a synthetic world that the run has not seen"
        data = prepare(config)
        held_out = " and ".join(str(size) for size in sorted({len(samples) for samples in data.validation.values()}))
        return data, f"of the run's own data, of which only {held_out} were held out from training"

    def _pool(self, task: str, data: Data) -> Tensor:
        """Return samples in their validation form."""
        training, held_out = data.training[task], data.validation[task]
        same = held_out.source is training.source  # or X_val came from a folder of its own
        items = np.sort(np.concatenate([training.items, held_out.items])) if same else held_out.items
        chosen = np.sort(numpy_rng(self.seed, "pool", task).permutation(items)[: self.pool])
        if len(chosen) < max(self.sizes):
            raise UserError(
                f"there are only {len(chosen)} samples for the {task} task, too few for sets of {max(self.sizes)}: "
                "give smaller --sizes"
            )
        return replace(held_out, items=chosen).centres()

    def _errors(
        self, run: Run, checkpoints: Sequence[Path], task: str, pixels: Tensor, device: torch.device, console: Console
    ) -> Iterator[tuple[Path, npt.NDArray[np.float64]]]:
        config = replace(run.config, init=None)
        tasks = build_tasks(config, tasks_of(run), device, stored_permutations(run))
        network, ordering = Network(build_backbone(config.model.backbone), tasks).to(device), tasks[task]
        assert isinstance(ordering, OrderingTask)
        with progress(console, f"validating {task}", len(checkpoints)) as advance:
            for number, path in enumerate(checkpoints):
                with fitting(path):
                    network.load_state_dict(load_checkpoint(path)["network"])
                yield path, sample_errors(ordering, network, pixels)
                advance(number + 1)

    def _result(self, spreads: Spreads, pools: Mapping[str, int], origin: str) -> AnalysisResult:
        sizes = ", ".join(f"{count:,} {task}" for task, count in pools.items())
        statement = (
            f"validation error at {len(next(iter(spreads.values())))} checkpoints of {self.run}: mean and std over "
            f"{self.sets} sets of each size, sampled from data {origin} ({sizes})"
        )
        needed = {
            task: {iteration: samples_needed(by_size[0]) for iteration, by_size in by_iteration.items()}
            for task, by_iteration in spreads.items()
        }
        metrics = {
            task: {
                f"samples_for_{TARGET_STD}": needed[task],
                "spreads": {
                    iteration: [asdict(spread) for spread in by_size] for iteration, by_size in by_iteration.items()
                },
            }
            for task, by_iteration in spreads.items()
        }
        rows = [
            {"task": task, "iteration": iteration, **asdict(spread)}
            for task, by_iteration in spreads.items()
            for iteration, by_size in by_iteration.items()
            for spread in by_size
        ]
        iterations = sorted({iteration for by_iteration in needed.values() for iteration in by_iteration})
        names = {iteration: f"iteration {iteration:,}" for iteration in iterations}
        table = metrics_table(f"samples for a std of {TARGET_STD}", needed, names)
        return AnalysisResult("valset", statement, metrics, rows, lambda: draw(spreads), table)


@styled
def draw(spreads: Spreads) -> Figure:
    """Draw the errors by iteration, and below them the standard deviations by size."""
    figure, axes = panels(2, len(spreads), height=4.0)
    for column, (task, by_iteration) in enumerate(spreads.items()):
        above, below = axes[0][column], axes[1][column]
        iterations, sizes = sorted(by_iteration), [spread.size for spread in next(iter(by_iteration.values()))]
        gap = (max(iterations) - min(iterations) or 1) / 60  # side by side, so that the error bars do not overlap
        for number, size in enumerate(sizes):
            of_size = [by_iteration[iteration][number] for iteration in iterations]
            above.errorbar(
                [iteration + (number - (len(sizes) - 1) / 2) * gap for iteration in iterations],
                [spread.mean for spread in of_size],
                [spread.std for spread in of_size],
                color=COLOURS[number % len(COLOURS)],
                marker="o",
                capsize=3,
                label=f"{size}",
            )
        name_axes(above, f"{task}: mean ± std", "iteration", "validation error E [fraction]")
        thousands(above.xaxis)
        above.legend(title="|X_val|", ncols=2)
        last = by_iteration[iterations[-1]]
        below.plot(sizes, [spread.std for spread in last], "o", color=COLOURS[0], label="over the sets")
        below.plot(sizes, [spread.expected_std for spread in last], "--", color=QUIET, label="expected, σ / √|X_val|")
        name_axes(below, f"{task}: std at iteration {iterations[-1]:,}", "|X_val| [samples]", "std of E [fraction]")
        below.set_ylim(bottom=0)
        below.legend()
    return figure
