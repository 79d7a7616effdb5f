"""Fine-tuning by SGD as Caffe does it, resumable to the bit."""

import math
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor, nn

from unshuffle.console import progress
from unshuffle.data.batches import Prefetcher
from unshuffle.errors import UserError
from unshuffle.randomness import numpy_rng
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.stopping import Stopped, stop_requests
from unshuffle.training.checkpoint import random_state, restore_random_state, save_checkpoint

T = TypeVar("T")
BIAS_RATE = 2
"""Biases learn twice as fast, and do not decay."""
SHOW_EVERY = 20


@dataclass(frozen=True)
class Recipe:
    """A schedule of SGD."""

    iterations: int
    lr: float
    momentum: float = 0.9
    weight_decay: float = 5e-4
    milestones: tuple[int, ...] = ()
    """Iterations at which the rate drops."""
    decay: float = 0.1
    """What each drop multiplies the rate by."""
    clip: float | None = None
    """Largest norm of the gradient."""
    accumulate: int = 1
    """Batches whose mean gradient makes one step."""

    def changed(
        self, iterations: int | None = None, lr: float | None = None, accumulate: int | None = None
    ) -> "Recipe":
        """The same with another length, the drops at the same share of it, another rate, another accumulation."""
        iterations = iterations or self.iterations
        milestones = tuple(round(at * iterations / self.iterations) for at in self.milestones)
        return replace(
            self,
            iterations=iterations,
            lr=lr or self.lr,
            milestones=milestones,
            accumulate=accumulate or self.accumulate,
        )

    def rate(self, iteration: int) -> float:
        """The learning rate of a step; iterations count from 0."""
        return self.lr * self.decay ** sum(iteration >= at for at in self.milestones)


@dataclass(frozen=True)
class Workshop:
    """What a fine-tuning needs besides a network and data."""

    console: Console
    seed: int
    workers: int
    """Threads that make batches."""
    folder: Path | None = None
    """Where checkpoints go; None keeps none."""
    options: str = ""
    """What was asked for, of which weights and files, in any words: a checkpoint of something else is refused."""
    save_every: int = 1000
    title: str = "fine-tuning"
    """What it is called while it goes on."""


def fine_tune(
    network: nn.Module, recipe: Recipe, batch: Callable[[int], T], loss: Callable[[T], Tensor], workshop: Workshop
) -> float:
    """Train on `loss(batch(0))`, `loss(batch(1))`, ...; batches are made by threads, ahead of their use.

    Gives the loss of the last step, NaN if none was left to do. A signal ends it after the step in hand, saved.
    """
    optimiser = build_sgd(network, recipe)
    start = _resume(network, optimiser, workshop)
    network.train()
    each = recipe.accumulate
    batches = iter(Prefetcher(batch, start * each, recipe.iterations * each, workshop.workers))
    bar = progress(workshop.console, workshop.title, recipe.iterations)
    value = torch.tensor(math.nan)
    with closing(batches), bar as advance, stop_requests() as request:
        for iteration in range(start, recipe.iterations):
            value = _step(network, optimiser, recipe, iteration, (loss(next(batches)) for _ in range(each)))
            done = iteration + 1
            if done % SHOW_EVERY == 0 or done == recipe.iterations or request.signum is not None:
                advance(done, f"loss {_finite(float(value), done):.4f}")
            if done % workshop.save_every == 0 or done == recipe.iterations or request.signum is not None:
                _save(network, optimiser, workshop, done)
            if request.signum is not None:
                raise Stopped(request.signum, f"at iteration {done} of {recipe.iterations}", done)
    return float(value)


def build_sgd(network: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    """SGD over all parameters that are to be trained."""
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    weights = [parameter for name, parameter in trained if not name.endswith("bias")]
    biases = [parameter for name, parameter in trained if name.endswith("bias")]
    groups = [{"params": weights, "factor": 1}, {"params": biases, "factor": BIAS_RATE, "weight_decay": 0.0}]
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)


def _step(
    network: nn.Module, optimiser: torch.optim.SGD, recipe: Recipe, iteration: int, losses: Iterator[Tensor]
) -> Tensor:
    optimiser.zero_grad()
    total = torch.zeros(())
    for loss in losses:
        (loss / recipe.accumulate).backward()
        total = total.to(loss.device) + loss.detach() / recipe.accumulate
    if recipe.clip is not None:
        nn.utils.clip_grad_norm_(network.parameters(), recipe.clip)
    for group in optimiser.param_groups:
        group["lr"] = group["factor"] * recipe.rate(iteration)
    optimiser.step()
    return total


def _finite(loss: float, iteration: int) -> float:
    if not math.isfinite(loss):
        raise UserError(f"the loss is {loss} at iteration {iteration}: lower the learning rate")
    return loss


def _save(network: nn.Module, optimiser: torch.optim.SGD, workshop: Workshop, done: int) -> None:
    if workshop.folder is None:
        return
    state = {
        "options": workshop.options,
        "network": network.state_dict(),
        "optimiser": optimiser.state_dict(),
        "random": random_state(),
    }
    save_checkpoint(workshop.folder, done, state, keep=1)


def _resume(network: nn.Module, optimiser: torch.optim.SGD, workshop: Workshop) -> int:
    """Go on from the newest checkpoint; gives the number of iterations already done."""
    found = list_checkpoints(workshop.folder) if workshop.folder is not None else []
    if not found:
        return 0
    state = load_checkpoint(found[-1])
    if state["options"] != workshop.options:
        raise UserError(
            f"{found[-1].parent} belongs to an evaluation with other options, weights or files: choose another --out"
        )
    network.load_state_dict(state["network"])
    optimiser.load_state_dict(state["optimiser"])
    restore_random_state(state["random"])
    done = int(found[-1].stem)
    workshop.console.print(f"going on after iteration {done}", highlight=False)
    return done


def drawn(seed: int, items: int, batch: int, size: int) -> npt.NDArray[np.int64]:
    """The items of a batch: every item once in each epoch, in an order that only the seed decides."""
    positions = np.arange(batch * size, (batch + 1) * size)
    epochs, places = np.divmod(positions, items)
    orders = {epoch: numpy_rng(seed, "epoch", epoch).permutation(items) for epoch in np.unique(epochs).tolist()}
    return np.array([orders[epoch][place] for epoch, place in zip(epochs.tolist(), places.tolist(), strict=True)])
