"""A single-frame Temporal Segment Network: each frame is classified by itself, the video by the mean of its logits."""

import math
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.data.batches import Prefetcher
from unshuffle.errors import UserError
from unshuffle.evaluation.clips import ClipBatch, Clips, ClipStream
from unshuffle.evaluation.video_crops import evaluation_crops, training_crops
from unshuffle.models import Backbone
from unshuffle.models.ordering import trunk_features
from unshuffle.training.checkpoint import (
    list_checkpoints,
    load_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
)

Advance = Callable[[], None]
Say = Callable[[str], None]


class ActionNetwork(nn.Module):
    """A trunk, and a new classifier of its pool5 map: fc6, fc7, classes."""

    def __init__(self, trunk: Backbone, classes: int, hidden: int, dropout: tuple[float, float]) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Sequential(
            nn.Linear(trunk_features(trunk, trunk.eval_size), hidden),
            nn.ReLU(),
            nn.Dropout(dropout[0]),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Dropout(dropout[1]),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of each frame."""
        logits: Tensor = self.head(self.trunk(images).flatten(1))
        return logits


def consensus(logits: Tensor, segments: int) -> Tensor:
    """Logits of the videos: the mean over the frames of each, which follow one another."""
    return logits.view(-1, segments, logits.shape[1]).mean(dim=1)


@dataclass(frozen=True)
class Recipe:
    """How the network is fine-tuned."""

    epochs: int
    lr: float
    milestones: tuple[int, ...]
    """Epochs after which the rate is divided by ten."""
    momentum: float
    weight_decay: float
    clip: float
    """Largest norm of the gradient."""

    def rate(self, epoch: int) -> float:
        """The learning rate in an epoch; epochs count from 0."""
        return self.lr * 0.1 ** sum(epoch >= milestone for milestone in self.milestones)


@dataclass
class ActionTraining:
    """Training of all weights, resumed from the last whole epoch that `folder` holds."""

    network: ActionNetwork
    stream: ClipStream
    recipe: Recipe
    device: torch.device
    folder: Path | None
    identity: str
    """Fingerprint of all that decides the result; a checkpoint with another one is refused."""

    def __post_init__(self) -> None:
        self.network.to(self.device)
        self._optimiser = torch.optim.SGD(
            self.network.parameters(),
            lr=self.recipe.lr,
            momentum=self.recipe.momentum,
            weight_decay=self.recipe.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.epoch = self._restore()
        """Epochs that are done."""

    def run(self, workers: int, advance: Advance, say: Say) -> None:
        """Train to the end of the recipe; `advance` is called after each step, `say` after each epoch."""
        steps = self.stream.steps
        prefetcher = Prefetcher(self.stream.batch, self.epoch * steps, self.recipe.epochs * steps, workers)
        with closing(iter(prefetcher)) as batches:  # its threads end with it, whatever happens
            while self.epoch < self.recipe.epochs:
                loss = self._train_epoch(islice(batches, steps), advance)
                self.epoch += 1
                say(f"epoch {self.epoch}, loss {loss:.3f}")
                if not math.isfinite(loss):
                    raise UserError(f"the training diverged in epoch {self.epoch}: choose a lower --lr")
                self._save()

    def _train_epoch(self, batches: Iterable[ClipBatch], advance: Advance) -> float:
        """The mean loss."""
        self.network.train()
        for group in self._optimiser.param_groups:
            group["lr"] = self.recipe.rate(self.epoch)
        total = torch.zeros((), device=self.device)
        for batch in batches:
            total += self._step(batch.to(self.device))  # not a number yet: the device need not be waited for
            advance()
        return float(total) / self.stream.steps

    def _step(self, batch: ClipBatch) -> Tensor:
        images = training_crops(batch.cuts, batch.mirrored, self.network.trunk.eval_size, self.network.trunk.normalise)
        loss = F.cross_entropy(consensus(self.network(images), self.stream.segments), batch.labels)
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)
        self._optimiser.step()
        return loss.detach()

    def _save(self) -> None:
        if self.folder is None:
            return
        state: dict[str, Any] = {
            "identity": self.identity,
            "network": self.network.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "random": random_state(),
        }
        save_checkpoint(self.folder, self.epoch, state, keep=1)

    def _restore(self) -> int:
        found = list_checkpoints(self.folder) if self.folder is not None else []
        if not found:
            return 0
        state = load_checkpoint(found[-1])
        if state.get("identity") != self.identity:
            raise UserError(
                f"{found[-1].parent} holds an evaluation of other weights, videos or options: "
                "choose another --out, or delete it"
            )
        self.network.load_state_dict(state["network"])
        self._optimiser.load_state_dict(state["optimiser"])
        restore_random_state(state["random"])
        return int(found[-1].stem)


@torch.no_grad()
def predict(
    network: ActionNetwork,
    clips: Clips,
    *,
    frames: int,
    crops: int,
    device: torch.device,
    workers: int,
    advance: Advance,
) -> Tensor:
    """Mean logits of each video over evenly spaced frames and their crops, (N, classes) on the CPU."""
    network.eval()
    logits = []
    for pixels in Prefetcher(lambda row: clips.evenly(row, frames), 0, len(clips), workers):
        images = evaluation_crops(pixels.to(device), network.trunk.eval_size, crops, network.trunk.normalise)
        logits.append(network(images).double().mean(dim=0).cpu())
        advance()
    return torch.stack(logits)


def class_accuracies(predictions: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Percent of the videos of each class that are recognised."""
    hits = torch.bincount(labels[predictions == labels], minlength=classes)
    return 100 * hits.double() / torch.bincount(labels, minlength=classes)
