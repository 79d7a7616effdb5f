"""The pretext tasks, one module each."""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from unshuffle.config import Config
from unshuffle.tasks.base import Task
from unshuffle.tasks.instance import InstanceTask
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.rotation import RotationTask
from unshuffle.tasks.spatial import SpatialTask
from unshuffle.tasks.temporal import TemporalTask

TASKS: dict[str, type[Task]] = {task.name: task for task in (SpatialTask, TemporalTask, RotationTask, InstanceTask)}
PermutationSets = Mapping[str, npt.NDArray[np.int64]]


def build_tasks(
    config: Config,
    names: Iterable[str],
    device: torch.device | None = None,
    permutations: PermutationSets | None = None,
) -> dict[str, Task]:
    """Return the named tasks; `permutations` are the sets to use instead of choosing new ones."""
    tasks: dict[str, Task] = {}
    for name in names:
        kind = TASKS[name]
        if issubclass(kind, OrderingTask):
            tasks[name] = kind(config, device, None if permutations is None else permutations[name])
        else:
            tasks[name] = kind(config, device)
    return tasks
