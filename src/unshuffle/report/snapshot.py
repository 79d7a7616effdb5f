"""A network as it stands at some iteration, and samples that were held back from it: all that pictures are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unshuffle.assembly import build_network, stored_permutation_sets
from unshuffle.config import Config
from unshuffle.data import shuffle
from unshuffle.data.held_out import HeldOut, load_held_out
from unshuffle.models.ordering import OrderingNetwork
from unshuffle.run import Run
from unshuffle.training.checkpoint import list_checkpoints, load_checkpoint
from unshuffle.training.trainer import Trainer


@dataclass(frozen=True)
class Snapshot:
    """What a run had learned by an iteration."""

    config: Config
    iteration: int
    network: OrderingNetwork
    permutations: Mapping[str, Tensor]
    """(|Ψ|, P) of each task, on the device."""
    held_out: Mapping[str, HeldOut]
    device: torch.device

    @classmethod
    def of(cls, trainer: Trainer, held_out: Mapping[str, HeldOut]) -> "Snapshot":
        """Where a trainer stands."""
        return cls(trainer.config, trainer.iteration, trainer.network, trainer.permutations, held_out, trainer.device)

    @classmethod
    def newest(cls, run: Run) -> "Snapshot | None":
        """Where a run's newest checkpoint stands, if it has one; on the CPU, as the GPU may be busy with the run."""
        checkpoints = list_checkpoints(run.checkpoints)
        if not checkpoints:
            return None
        state = load_checkpoint(checkpoints[-1])
        tasks = list(state["data"])
        permutations = stored_permutation_sets(run, tasks)
        network = build_network(replace(run.config, init=None), permutations)
        network.load_state_dict(state["network"])
        sets = {task: torch.from_numpy(rows) for task, rows in permutations.items()}
        held_out = load_held_out(run.held_out)
        return cls(run.config, state["iteration"], network, sets, held_out, torch.device("cpu"))

    def crops(self, task: str, pixels: Tensor) -> Tensor:
        """(N, P, 3, S, S) crops of (N, frames, side, side, 3) bytes as the network sees them in a validation."""
        squares = pixels.flatten(0, 1).to(self.device)
        cuts = shuffle.CUTS[task](len(pixels), squares.shape[1], self.config.shuffle, self.device)
        return shuffle.render(squares, cuts, self.config.shuffle.crop_size)

    def parts(self, task: str, pixels: Tensor, side: int) -> Tensor:
        """The same crops in their true colours for a person to look at, (N, P, 3, side, side) in [0, 1]."""
        squares = pixels.flatten(0, 1)
        cuts = shuffle.CUTS[task](len(pixels), squares.shape[1], self.config.shuffle, squares.device)
        crops: Tensor = shuffle.cut(squares, cuts, side).unflatten(0, (-1, cuts.parts))
        return crops


def hold_out(trainer: Trainer, counts: Mapping[str, int]) -> dict[str, HeldOut]:
    """Some of the validation samples of each task."""
    return {
        task: HeldOut.of(trainer.data.validation[task], pixels, counts[task])
        for task, pixels in trainer.validation_pixels.items()
    }
