"""The network of a run at some iteration and held-out samples: what the pictures are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from unshuffle.config import Config
from unshuffle.data.held_out import HeldOut, load_held_out
from unshuffle.models import build_backbone
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.history import stored_permutations
from unshuffle.runs.run import Run
from unshuffle.tasks import build_tasks
from unshuffle.tasks.base import Network
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.training.trainer import Trainer


@dataclass(frozen=True)
class Snapshot:
    """The network of a run at an iteration, with its tasks and held-out samples."""

    config: Config
    iteration: int
    network: Network
    held_out: Mapping[str, HeldOut]
    device: torch.device

    @classmethod
    def of(cls, trainer: Trainer, held_out: Mapping[str, HeldOut]) -> "Snapshot":
        """Return the snapshot of a trainer."""
        return cls(trainer.config, trainer.iteration, trainer.network, held_out, trainer.device)

    @classmethod
    def newest(cls, run: Run) -> "Snapshot | None":
        """Return the newest checkpoint of a run, if it has one; on the CPU, as the run may be using the GPU."""
        checkpoints = list_checkpoints(run.checkpoints)
        if not checkpoints:
            return None
        state, config = load_checkpoint(checkpoints[-1]), replace(run.config, init=None)
        tasks = build_tasks(config, state["data"], permutations=stored_permutations(run))
        network = Network(build_backbone(config.model.backbone), tasks)
        network.load_state_dict(state["network"])
        return cls(config, state["iteration"], network, load_held_out(run.held_out), torch.device("cpu"))

    @property
    def ordering_tasks(self) -> dict[str, OrderingTask]:
        """The tasks with a permutation set."""
        return {name: task for name, task in self.network.tasks.items() if isinstance(task, OrderingTask)}


def hold_out(trainer: Trainer) -> dict[str, HeldOut]:
    """Return some of the validation samples of each task, as many as a run folder keeps."""
    return {
        name: HeldOut.of(trainer.data.validation[name], trainer.validation_pixels[name], task.held_out_samples)
        for name, task in trainer.tasks.items()
    }
