"""The pretext tasks, one module each."""

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch

from unshuffle.config import REGISTERED, TASK_SYMBOLS, ClassificationConfig, Config, TaskConfig
from unshuffle.errors import UserError
from unshuffle.tasks.base import Task
from unshuffle.tasks.instance import InstanceTask
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.rotation import RotationTask
from unshuffle.tasks.spatial import SpatialTask
from unshuffle.tasks.temporal import TemporalTask

TASKS: dict[str, type[Task]] = {task.name: task for task in (SpatialTask, TemporalTask, RotationTask, InstanceTask)}
PermutationSets = Mapping[str, npt.NDArray[np.int64]]
POLICY_SYMBOL = "P"  # in the names of arms


def register_task(symbol: str, task: type[Task], settings: TaskConfig | None = None) -> None:
    """Make a task of your own available to `tasks` under a capital letter, and to options under its name.

    `settings` are the defaults of its section; without them those of `ClassificationConfig`. Registering a name again
    replaces it. To use the task on the command line too, name the module that registers it in an entry point of the
    group `unshuffle.tasks`.
    """
    name = getattr(task, "name", "")
    if not (name.isidentifier() and name.islower()):
        raise UserError(f"the name of the task is '{name}', but must be a word in lower case")
    if name not in REGISTERED and name in Config.__dataclass_fields__:
        raise UserError(f"a task cannot be named '{name}': the config has a section of that name")
    if not (len(symbol) == 1 and symbol.isascii() and symbol.isupper()) or symbol == POLICY_SYMBOL:
        raise UserError(f"the symbol of the {name} task is '{symbol}', but must be a capital letter other than P")
    if TASK_SYMBOLS.get(symbol, name) != name:
        raise UserError(f"'{symbol}' is the {TASK_SYMBOLS[symbol]} task already: choose another letter for {name}")
    for earlier in [earlier for earlier, known in TASK_SYMBOLS.items() if known == name]:
        del TASK_SYMBOLS[earlier]
    TASK_SYMBOLS[symbol], TASKS[name] = name, task
    REGISTERED[name] = settings or ClassificationConfig()


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
