"""The network of a run at some iteration and held-out samples: what the pictures are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unshuffle.assembly import build_network, stored_permutation_sets
from unshuffle.config import Config
from unshuffle.data import shuffle
from unshuffle.data.held_out import HeldOut, load_held_out
from unshuffle.models.ordering import OrderingNetwork
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.history import permutation_file
from unshuffle.runs.run import Run
from unshuffle.training.trainer import Trainer


@dataclass(frozen=True)
class Snapshot:
    """The network of a run at an iteration, with its permutation sets and held-out samples."""

    config: Config
    iteration: int
    network: OrderingNetwork
    permutations: Mapping[str, Tensor]
    """(|Ψ|, P) of each ordering task, on the device."""
    held_out: Mapping[str, HeldOut]
    device: torch.device

    @classmethod
    def of(cls, trainer: Trainer, held_out: Mapping[str, HeldOut]) -> "Snapshot":
        """Return the snapshot of a trainer."""
        return cls(trainer.config, trainer.iteration, trainer.network, trainer.permutations, held_out, trainer.device)

    @classmethod
    def newest(cls, run: Run) -> "Snapshot | None":
        """Return the newest checkpoint of a run, if it has one; on the CPU, as the run may be using the GPU."""
        checkpoints = list_checkpoints(run.checkpoints)
        if not checkpoints:
            return None
        state = load_checkpoint(checkpoints[-1])
        tasks = [task for task in state["data"] if permutation_file(run, task).is_file()]
        permutations = stored_permutation_sets(run, tasks)
        network = build_network(replace(run.config, init=None), permutations)
        network.load_state_dict(state["network"])
        sets = {task: torch.from_numpy(rows) for task, rows in permutations.items()}
        held_out = load_held_out(run.held_out)
        return cls(run.config, state["iteration"], network, sets, held_out, torch.device("cpu"))

    def crops(self, task: str, pixels: Tensor) -> Tensor:
        """Return the (N, P, 3, S, S) crops for a validation of (N, frames, side, side, 3) bytes."""
        squares = pixels.flatten(0, 1).to(self.device)
        cuts = shuffle.CUTS[task](len(pixels), squares.shape[1], self.config.shuffle, self.device)
        return shuffle.render(squares, cuts, self.config.shuffle.crop_size)

    def parts(self, task: str, pixels: Tensor, side: int) -> Tensor:
        """Return the same crops without normalisation, (N, P, 3, side, side) in [0, 1]."""
        squares = pixels.flatten(0, 1)
        cuts = shuffle.CUTS[task](len(pixels), squares.shape[1], self.config.shuffle, squares.device)
        crops: Tensor = shuffle.cut(squares, cuts, side).unflatten(0, (-1, cuts.parts))
        return crops


def hold_out(trainer: Trainer, counts: Mapping[str, int]) -> dict[str, HeldOut]:
    """Return some of the validation samples of each task in `counts`."""
    return {
        task: HeldOut.of(trainer.data.validation[task], pixels, counts[task])
        for task, pixels in trainer.validation_pixels.items()
        if task in counts
    }
