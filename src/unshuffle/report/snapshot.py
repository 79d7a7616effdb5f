"""The network of a run at some iteration and held-out samples: what the pictures are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from unshuffle.config import Config
from unshuffle.data.held_out import HeldOut, load_held_out
from unshuffle.models import build_backbone
from unshuffle.runs.checkpoints import fitting, newest_checkpoint
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
    warning: str | None = None
    """One sentence if newer checkpoints are damaged."""

    @classmethod
    def of(cls, trainer: Trainer, held_out: Mapping[str, HeldOut]) -> "Snapshot":
        """Return the snapshot of a trainer."""
        return cls(trainer.config, trainer.iteration, trainer.network, held_out, trainer.device)

    @classmethod
    def newest(cls, run: Run, until: int | None = None) -> "Snapshot | None":
        """Return the newest checkpoint of a run that is not damaged, up to an iteration, if it has one.

        On the CPU, as the run may be using the GPU.
        """
        checkpoint = newest_checkpoint(run.checkpoints, until)
        if checkpoint is None:
            return None
        config = replace(run.config, init=None)
        with fitting(checkpoint.path):
            tasks = build_tasks(config, checkpoint.state["data"], permutations=stored_permutations(run))
            network = Network(build_backbone(config.model.backbone), tasks)
            network.load_state_dict(checkpoint.state["network"])
        held_out = load_held_out(run.held_out)
        return cls(config, checkpoint.iteration, network, held_out, torch.device("cpu"), checkpoint.warning)

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
