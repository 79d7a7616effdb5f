"""How large X_val must be: the error over several drawn sets of each size, at each checkpoint (appendix C)."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor

from unshuffle.accelerator import choose_device
from unshuffle.analysis.figures import COLOURS, QUIET, name_axes, panels, styled, thousands
from unshuffle.analysis.history import open_run, tasks_of
from unshuffle.analysis.question import Question
from unshuffle.analysis.result import Analysis, Row
from unshuffle.assembly import build_network, stored_permutation_sets
from unshuffle.config import ShuffleConfig, Tasks
from unshuffle.console import progress
from unshuffle.data.crops import CUTS, render
from unshuffle.data.prepare import Data, prepare
from unshuffle.errors import UserError
from unshuffle.models.ordering import OrderingNetwork
from unshuffle.policy.state import validate
from unshuffle.randomness import numpy_rng
from unshuffle.run import Run
from unshuffle.training.checkpoint import list_checkpoints, load_checkpoint

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES = (10, 20, 50, 100, 200)
DRAWS = 5
WANTED = 0.01  # deviation of the error that one may want to come down to


@dataclass(frozen=True)
class Spread:
    """The error over some drawn sets of one size."""

    size: int
    """|X_val|"""
    mean: float
    deviation: float
    """Between the sets, with one degree of freedom taken off."""
    expected: float
    """What the deviation of such sets would be, by that of single samples: σ / √|X_val|."""


Found: TypeAlias = Mapping[str, Mapping[int, Sequence[Spread]]]
"""By task and by iteration."""


def draw_sets(samples: int, sizes: Sequence[int], draws: int, rng: np.random.Generator) -> dict[int, list[list[int]]]:
    """Several sets of each size; no sample is in a set twice."""
    return {size: [rng.permutation(samples)[:size].tolist() for _ in range(draws)] for size in sizes}


def spreads(sample_errors: npt.NDArray[np.float64], sets: dict[int, list[list[int]]]) -> list[Spread]:
    """E is a mean over samples, so the error of each sample tells that of any set."""
    sigma = float(np.std(sample_errors, ddof=1))
    found = []
    for size, chosen in sets.items():
        errors = [float(sample_errors[some].mean()) for some in chosen]
        found.append(Spread(size, float(np.mean(errors)), float(np.std(errors, ddof=1)), sigma / size**0.5))
    return found


def sample_errors(
    network: OrderingNetwork, task: str, pixels: Tensor, permutations: Tensor, config: ShuffleConfig
) -> npt.NDArray[np.float64]:
    """Share of Ψ that is not recognised, for each sample of (N, frames, side, side, 3) bytes in validation form."""
    errors = []
    for sample in pixels.split(1):
        squares = sample.flatten(0, 1).to(permutations.device)
        cuts = CUTS[task](1, squares.shape[1], config, squares.device)
        crops = render(squares, cuts, config.crop_size)
        errors.append(validate(network, task, [crops], permutations).error)
    return np.array(errors)


def samples_needed(spread: Spread, deviation: float = WANTED) -> int:
    """The size of sets that are expected to deviate by no more than that."""
    return math.ceil(spread.size * (spread.expected / deviation) ** 2 - 1e-9)


# ---- the analysis


@dataclass(frozen=True)
class ValidationSize(Question):
    """Mean and deviation of the validation error for sets X_val of several sizes (appendix C)."""

    run: Path
    """A run folder; each of its checkpoints is validated (`log.keep_checkpoints` says how many there are)."""
    images: str | None = None
    """Images to draw the sets from, that the run has not trained on; by default the run's own data."""
    videos: str | None = None
    """Videos to draw the sets from."""
    sizes: tuple[int, ...] = SIZES
    """Each |X_val|."""
    draws: int = DRAWS
    """Sets of each size."""
    pool: int = 1000
    """The sets are drawn out of so many samples at most, which are validated once."""
    device: str = "auto"
    """auto: the GPU if there is one; or cpu, cuda, cuda:1 ..."""
    seed: int = 0
    """Seed of the draws."""

    def answer(self, console: Console) -> Analysis:
        """Validate all samples of the pool at each checkpoint, then draw."""
        if not self.sizes or min(self.sizes) < 1 or self.draws < 2:
            raise UserError("sizes must be 1 or more, and a deviation needs two draws or more")
        run = open_run(self.run)
        checkpoints = list_checkpoints(run.checkpoints)
        if not checkpoints:
            raise UserError(f"{run.folder} has no checkpoint")
        data, origin = self._data(run)
        pools = {task: self._pool(task, data) for task in tasks_of(run) if task in data.training}
        if not pools:
            raise UserError("there is no data for any task of the run: give --images or --videos")
        device = choose_device(self.device)
        found = {
            task: {
                int(path.stem): spreads(errors, self._sets(len(errors), task))
                for path, errors in self._errors(run, checkpoints, task, pixels, device, console)
            }
            for task, pixels in pools.items()
        }
        return self._analysis(found, {task: len(pixels) for task, pixels in pools.items()}, origin)

    def _data(self, run: Run) -> tuple[Data, str]:
        """What the sets are drawn from, and that in words."""
        config = run.config
        if self.images is not None or self.videos is not None:
            tasks: Tasks = "S+T" if self.images and self.videos else "auto" if self.videos else "S"
            given = replace(config, images=self.images, videos=self.videos, tasks=tasks)
            return prepare(replace(given, data=replace(config.data, val_size=1))), "of the given data"
        if config.images is None and config.videos is None:
            world = replace(config.synthetic, images=self.pool + 1, clips=self.pool + 1)
            fresh = replace(config, seed=config.seed + 1, synthetic=world, data=replace(config.data, val_size=1))
            return prepare(fresh), "of a synthetic world that the run has not seen"
        data = prepare(config)
        held_back = " and ".join(str(size) for size in sorted({len(some) for some in data.validation.values()}))
        return data, f"of the run's own data, of which only {held_back} were held back from training"

    def _pool(self, task: str, data: Data) -> Tensor:
        """Samples in their validation form."""
        training, held_back = data.training[task], data.validation[task]
        same = held_back.source is training.source  # or X_val came from a folder of its own
        items = np.sort(np.concatenate([training.items, held_back.items])) if same else held_back.items
        chosen = np.sort(numpy_rng(self.seed, "pool", task).permutation(items)[: self.pool])
        if len(chosen) < max(self.sizes):
            raise UserError(
                f"there are only {len(chosen)} samples for the {task} task, too few for sets of {max(self.sizes)}: "
                "give smaller --sizes"
            )
        return replace(held_back, items=chosen).centres()

    def _sets(self, samples: int, task: str) -> dict[int, list[list[int]]]:
        return draw_sets(samples, self.sizes, self.draws, numpy_rng(self.seed, "sets", task))

    def _errors(
        self, run: Run, checkpoints: Sequence[Path], task: str, pixels: Tensor, device: torch.device, console: Console
    ) -> Iterator[tuple[Path, npt.NDArray[np.float64]]]:
        permutations = stored_permutation_sets(run, tasks_of(run))
        network = build_network(replace(run.config, init=None), permutations).to(device)
        with progress(console, f"validating {task}", len(checkpoints)) as advance:
            for number, path in enumerate(checkpoints):
                network.load_state_dict(load_checkpoint(path)["network"])
                rows = torch.from_numpy(permutations[task]).to(device)
                yield path, sample_errors(network, task, pixels, rows, run.config.shuffle)
                advance(number + 1)

    def _analysis(self, found: Found, pools: Mapping[str, int], origin: str) -> Analysis:
        sizes = ", ".join(f"{count:,} {task}" for task, count in pools.items())
        statement = (
            f"validation error at {len(next(iter(found.values())))} checkpoints of {self.run}: mean and deviation over "
            f"{self.draws} sets of each size, drawn out of samples {origin} ({sizes})"
        )
        metrics = {
            task: {
                f"samples_for_{WANTED}": {iteration: samples_needed(some[0]) for iteration, some in steps.items()},
                "spreads": {iteration: [asdict(one) for one in some] for iteration, some in steps.items()},
            }
            for task, steps in found.items()
        }
        return Analysis("valset", statement, metrics, rows(found), lambda: draw(found))


def rows(found: Found) -> list[Row]:
    """A line for each task, checkpoint and size."""
    return [
        {"task": task, "iteration": iteration, **asdict(one)}
        for task, steps in found.items()
        for iteration, some in steps.items()
        for one in some
    ]


@styled
def draw(found: Found) -> "Figure":
    """Above, the errors by iteration; below, the deviations by size."""
    figure, axes = panels(2, len(found), height=4.0)
    for column, (task, steps) in enumerate(found.items()):
        above, below = axes[0][column], axes[1][column]
        iterations, sizes = sorted(steps), [one.size for one in next(iter(steps.values()))]
        gap = (max(iterations) - min(iterations) or 1) / 60  # side by side, or the bars would hide one another
        for place, size in enumerate(sizes):
            some = [steps[iteration][place] for iteration in iterations]
            at = [iteration + (place - (len(sizes) - 1) / 2) * gap for iteration in iterations]
            above.errorbar(
                at,
                [one.mean for one in some],
                [one.deviation for one in some],
                color=COLOURS[place % len(COLOURS)],
                marker="o",
                capsize=3,
                label=f"{size}",
            )
        name_axes(above, f"{task}: mean ± deviation", "iteration", "validation error E [share]")
        thousands(above.xaxis)
        above.legend(title="|X_val|", ncols=2)
        last = steps[iterations[-1]]
        below.plot(sizes, [one.deviation for one in last], "o", color=COLOURS[0], label="between the drawn sets")
        below.plot(sizes, [one.expected for one in last], "--", color=QUIET, label="expected, σ / √|X_val|")
        name_axes(
            below, f"{task}: deviation at iteration {iterations[-1]:,}", "|X_val| [samples]", "deviation of E [share]"
        )
        below.set_ylim(bottom=0)
        below.legend()
    return figure
