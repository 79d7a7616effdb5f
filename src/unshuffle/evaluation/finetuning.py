"""Training of a network on top of a backbone by SGD as in Caffe, resumable to the bit, and the result on disk."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor, nn

from unshuffle.console import progress, say
from unshuffle.data.batches import Prefetcher
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import OtherEvaluation
from unshuffle.models import Backbone
from unshuffle.models.weights import load_backbone, read_weights, write_weights
from unshuffle.randomness import numpy_rng
from unshuffle.runs.checkpoints import DamagedCheckpoint, fitting, newest_checkpoint
from unshuffle.stopping import Stopped, stop_requests
from unshuffle.training.checkpoint import random_state, restore_random_state, save_checkpoint

T = TypeVar("T")
BIAS_LR_FACTOR = 2
"""Biases have twice the learning rate, and no weight decay."""
SHOW_EVERY = 20
CLASSIFIER_NAME = "classifier.safetensors"


@dataclass(frozen=True)
class Recipe:
    """A schedule of SGD."""

    iterations: int
    lr: float
    momentum: float = 0.9
    weight_decay: float = 5e-4
    milestones: tuple[int, ...] = ()
    """Iterations at which the learning rate drops."""
    decay: float = 0.1
    """Factor of each drop."""
    lrs: tuple[float, ...] = ()
    """Learning rate of each phase between the milestones, instead of `lr` and `decay`."""
    clip: float | None = None
    """Maximum norm of the gradient."""
    accumulate: int = 1
    """Batches whose mean gradient makes one step."""

    def changed(self, iterations: int | None = None, lr: float | None = None) -> "Recipe":
        """Return a recipe of another length, with the drops at the same fractions of it, or another learning rate."""
        steps, first_lr = iterations or self.iterations, lr or self.lr
        milestones = tuple(round(at * steps / self.iterations) for at in self.milestones)
        lrs = tuple(phase * (first_lr / self.lr) for phase in self.lrs)
        return replace(self, iterations=steps, lr=first_lr, milestones=milestones, lrs=lrs)

    def learning_rate(self, iteration: int) -> float:
        """Return the learning rate of a step; iterations count from 0."""
        drops = sum(iteration >= at for at in self.milestones)
        return self.lrs[drops] if self.lrs else self.lr * self.decay**drops


@dataclass(frozen=True)
class TrainingSetup:
    """Everything that training needs besides a network, a recipe and data."""

    console: Console
    seed: int
    workers: int
    """Threads that make batches."""
    folder: Path | None = None
    """Folder of the checkpoints; None writes none."""
    identity: str = ""
    """Digest of options, weights and data; a checkpoint with another one is refused."""
    save_every: int = 1000
    """Iterations between checkpoints."""
    title: str = "fine-tuning"
    """Title of the progress bar."""


def fine_tune(
    network: nn.Module, recipe: Recipe, batch: Callable[[int], T], loss: Callable[[T], Tensor], setup: TrainingSetup
) -> float:
    """Train on `loss(batch(0))`, `loss(batch(1))`, ...; batches are made by threads, ahead of their use.

    Returns the loss of the last step, NaN if none was left to do. A signal ends it after the current step, saved.
    """
    optimiser = build_sgd(network, recipe)
    start = _resume(network, optimiser, setup)
    network.train()
    accumulate = recipe.accumulate
    batches = iter(Prefetcher(batch, start * accumulate, recipe.iterations * accumulate, setup.workers))
    bar = progress(setup.console, setup.title, recipe.iterations, start)
    last_loss = torch.tensor(math.nan)
    with closing(batches), bar as advance, stop_requests() as request:
        for iteration in range(start, recipe.iterations):
            last_loss = _step(network, optimiser, recipe, iteration, (loss(next(batches)) for _ in range(accumulate)))
            done = iteration + 1
            if done % SHOW_EVERY == 0 or done == recipe.iterations or request.signum is not None:
                advance(done, f"loss {_finite(float(last_loss), done):.4f}")
            if done % setup.save_every == 0 or done == recipe.iterations or request.signum is not None:
                _save(network, optimiser, setup, done)
            if request.signum is not None:
                raise Stopped(request.signum, f"at iteration {done} of {recipe.iterations}", done)
    return float(last_loss)


def build_sgd(network: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    """Return SGD over all parameters that require gradients."""
    trained = [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]
    weights = [parameter for name, parameter in trained if not name.endswith("bias")]
    biases = [parameter for name, parameter in trained if name.endswith("bias")]
    groups = [{"params": weights, "factor": 1}, {"params": biases, "factor": BIAS_LR_FACTOR, "weight_decay": 0.0}]
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
        group["lr"] = group["factor"] * recipe.learning_rate(iteration)
    optimiser.step()
    return total


def _finite(loss: float, iteration: int) -> float:
    if not math.isfinite(loss):
        raise UserError(f"the loss is {loss} at iteration {iteration}: lower the learning rate")
    return loss


def _save(network: nn.Module, optimiser: torch.optim.SGD, setup: TrainingSetup, done: int) -> None:
    if setup.folder is None:
        return
    state = {
        "identity": setup.identity,
        "network": network.state_dict(),
        "optimiser": optimiser.state_dict(),
        "random": random_state(),
    }
    save_checkpoint(setup.folder, done, state, keep=1)


def _resume(network: nn.Module, optimiser: torch.optim.SGD, setup: TrainingSetup) -> int:
    """Resume from the newest checkpoint; return the number of iterations already done."""
    try:
        checkpoint = newest_checkpoint(setup.folder) if setup.folder is not None else None
    except DamagedCheckpoint as problem:  # the evaluation can repeat what was lost
        say(setup.console, f"{problem}: starting from the beginning")
        return 0
    if checkpoint is None:
        return 0
    if checkpoint.warning is not None:
        say(setup.console, checkpoint.warning)
    with fitting(checkpoint.path):
        state = checkpoint.state
        if state["identity"] != setup.identity:
            raise OtherEvaluation(
                f"{setup.folder} belongs to an evaluation with other options, weights or files: choose another --out"
            )
        network.load_state_dict(state["network"])
        optimiser.load_state_dict(state["optimiser"])
        restore_random_state(state["random"])
    say(setup.console, f"resuming after iteration {checkpoint.iteration}")
    return checkpoint.iteration


def batch_items(seed: int, items: int, batch: int, size: int) -> npt.NDArray[np.int64]:
    """Return the items of a batch: every item once in each epoch, in an order that only the seed decides."""
    positions = np.arange(batch * size, (batch + 1) * size)
    epochs, offsets = np.divmod(positions, items)
    orders = {epoch: numpy_rng(seed, "epoch", epoch).permutation(items) for epoch in np.unique(epochs).tolist()}
    return np.array([orders[epoch][offset] for epoch, offset in zip(epochs.tolist(), offsets.tolist(), strict=True)])


# ---- new layers


def init_layer(layer: nn.Linear | nn.Conv2d, std: float, bias: float) -> nn.Linear | nn.Conv2d:
    """Initialise a new layer with normal weights and constant biases, and return it."""
    nn.init.normal_(layer.weight, std=std)
    assert layer.bias is not None
    nn.init.constant_(layer.bias, bias)
    return layer


def fc6_and_fc7(inputs: int, hidden: int, init_std: float) -> list[nn.Module]:
    """Return the new layers fc6 and fc7 with the layers around them, as in CaffeNet."""
    layers: list[nn.Module] = []
    for width in (inputs, hidden):
        layers += [init_layer(nn.Linear(width, hidden), init_std, 0.1), nn.ReLU(inplace=True), nn.Dropout()]
    return layers


# ---- the result on disk


class Classifier(nn.Module):
    """A backbone, a head of fully connected layers, and the names of the classes."""

    def __init__(self, backbone: Backbone, head: Iterable[nn.Module], classes: Sequence[str]) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(nn.Flatten(), *head)
        self.classes = tuple(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, classes) logits of images that are normalised for the backbone."""
        logits: Tensor = self.head(self.backbone(images))
        return logits

    def save(self, folder: Path) -> Path:
        """Write the classifier into a folder; the file also serves as the weights of its backbone."""
        folder.mkdir(parents=True, exist_ok=True)
        metadata = {
            "architecture": self.backbone.architecture,
            "input_size": str(self.backbone.eval_size),
            "normalisation": self.backbone.normalisation.to_json(),
            "classes": json.dumps(self.classes),
        }
        write_weights(self, metadata, folder / CLASSIFIER_NAME)
        return folder / CLASSIFIER_NAME

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a classifier from its file, or from the --out folder of an evaluation."""
        file = path.expanduser()
        file = file / CLASSIFIER_NAME if file.is_dir() else file
        if not file.is_file():
            raise UserError(
                f"there is no classifier at {file}: evaluate finetune and voc-classification write one into --out"
            )
        weights, metadata = read_weights(file)
        if "classes" not in metadata:
            raise UserError(f"{file} holds no classifier")
        return cls(load_backbone(file), _head(weights), json.loads(metadata["classes"])).eval()


def _head(weights: dict[str, Tensor]) -> list[nn.Module]:
    """Build the layers by the shapes of their weights, in the order of their numbers."""
    numbers = sorted(int(match[1]) for key in weights if (match := re.fullmatch(r"head\.(\d+)\.weight", key)))
    layers: list[nn.Module] = []
    for number in numbers:
        weight, bias = weights[f"head.{number}.weight"], weights[f"head.{number}.bias"]
        layer = nn.Linear(weight.shape[1], weight.shape[0])
        layer.load_state_dict({"weight": weight, "bias": bias})
        layers += [nn.ReLU(), layer] if layers else [layer]
    return layers
