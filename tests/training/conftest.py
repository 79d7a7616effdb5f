"""A run so small that a test can have several."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from unshuffle.config import Config, demo
from unshuffle.data.batches import Batch
from unshuffle.options import merge
from unshuffle.tasks.base import Inputs
from unshuffle.training.trainer import Trainer


def small_config(out: Path, **changes: Any) -> Config:
    """Return a config with two tiny ordering tasks, and rotation and instance, whose crops are larger."""
    values: dict[str, Any] = {
        "out": str(out),
        "device": "cpu",
        "data": {"val_size": 6, "workers": 1},
        "synthetic": {
            "gallery": 24,
            "queries": 12,
            "images": 24,
            "clips": 18,
            "clip_frames": 8,
            "image_size": 48,
            "frame_size": 16,
        },
        "spatial": {"permutations": 6, "crop_size": 16, "head": {"fc6": 8, "hidden": 12, "dropout": 0.2}},
        "temporal": {
            "permutations": 5,
            "crop_size": 16,
            "frames": 4,
            "head": {"kind": "lstm", "fc6": 8, "hidden": 12, "dropout": 0.2},
        },
        "rotation": {"crop_size": 24, "hidden": 12},
        "instance": {"crop_size": 24, "hidden": 12, "output": 6},
        "permutations": {"per_sample": 2},
        "optim": {"iterations": 9, "batch_size": 4, "warmup": 2, "milestones": [6]},
        "policy": {"interval": 3, "batches": 2, "num_groups": 3, "start_below": 2.0},
        "log": {"train_every": 2, "monitor_every": 9, "checkpoint_every": 4, "pictures": False},
    }
    return merge(merge(demo(), values), changes)


@contextmanager
def nan_in_a_sample(*iterations: int, at_rank: int = 0) -> Iterator[None]:
    """Training in which the first crop of one process is NaN in the steps of these iterations."""
    inputs = Trainer.inputs

    def poisoned(self: Trainer, batch: Batch) -> dict[str, Inputs]:
        result = inputs(self, batch)
        if self.iteration in iterations and self.part.rank == at_rank:
            next(iter(result.values())).crops[0, 0] = torch.nan
        return result

    with mock.patch.object(Trainer, "inputs", poisoned):
        yield


@pytest.fixture(scope="session")
def poisoned() -> Any:
    return nan_in_a_sample


@pytest.fixture(scope="session")
def small() -> Any:
    return small_config
