"""Branches of a run: training that continues from one of its checkpoints with another sampler."""

import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from unshuffle.config import Config, PolicyConfig
from unshuffle.errors import UserError
from unshuffle.options import differences, write_config
from unshuffle.permutations import save_permutations
from unshuffle.runs.checkpoints import checkpoint_iterations, checkpoint_path, fitting, load_checkpoint
from unshuffle.runs.history import stored_permutations
from unshuffle.runs.run import Run
from unshuffle.stopping import Stopped
from unshuffle.tasks import PermutationSets
from unshuffle.tasks.prepare import Data, prepare
from unshuffle.training.display import Display
from unshuffle.training.log import RunLog
from unshuffle.training.trainer import Trainer, build_trainer

Sampler = Literal["policy", "uniform", "inverse"]
FIXED_SAMPLERS = ("uniform", "hard-first", "easy-first")
"""Samplers that are a policy: their checkpoints contain what it has learned."""


@dataclass(frozen=True)
class BranchTrainer:
    """Trains branches of a run; opens its data once for all of them."""

    run: Run
    config: Config

    @classmethod
    def open(cls, run: Run, device: str) -> "BranchTrainer":
        """Return the trainer for branches of a run on a device; the rest of the config is the run's."""
        return cls(run, replace(run.config, device=device, init=None))

    @cached_property
    def data(self) -> Data:
        """The run's data, opened when the first branch needs it."""
        return prepare(self.config)

    @cached_property
    def permutations(self) -> PermutationSets:
        """The run's permutation sets."""
        return stored_permutations(self.run)

    def train(
        self, checkpoint: int, sampler: Sampler, iterations: int, folder: Path, console: Console, *, keep_policy: bool
    ) -> Run:
        """Train so many iterations from a checkpoint, into a run folder of its own, and return that run.

        `keep_policy` continues with the run's trained policy, which has learned from what came before the checkpoint;
        otherwise the sampler is new, and learns from the validation at the checkpoint. A finished branch that exists
        already is not trained again.
        """
        config = replace(self.config, out=folder, policy=_policy(self.config.policy, sampler))
        file, branch = self._checkpoint_file(checkpoint), Run(folder)
        origin = {"checkpoint": str(file), "written": file.stat().st_mtime, "keep_policy": keep_policy}
        if _is_finished(branch, config, origin, checkpoint + iterations):
            return branch
        trainer, state = build_trainer(config, self.data, self.permutations), load_checkpoint(file)
        if not keep_policy:
            state["tasks"] = trainer.state_dict()["tasks"]
        with fitting(file):
            trainer.load_state_dict(state)
        trainer.first, trainer.last = checkpoint, checkpoint + iterations
        trainer.keeps_samplers = keep_policy
        _start_folder(branch, config, self.permutations)
        _train(trainer, branch, origin, console)
        return branch

    def _checkpoint_file(self, iteration: int) -> Path:
        path = checkpoint_path(self.run.checkpoints, iteration)
        if not path.is_file():
            existing = ", ".join(map(str, checkpoint_iterations(self.run.checkpoints))) or "none"
            raise UserError(f"{self.run.folder} has no checkpoint at iteration {iteration}; there are: {existing}")
        return path


def _policy(policy: PolicyConfig, sampler: Sampler) -> PolicyConfig:
    """Return a run's policy, its inverse or uniform sampling; a run without a policy gets the paper's."""
    if sampler == "uniform":
        return replace(policy, sampler="uniform", inverse=False)
    learned = "reinforce" if policy.sampler in FIXED_SAMPLERS else policy.sampler
    return replace(policy, sampler=learned, inverse=sampler == "inverse")


def _is_finished(branch: Run, config: Config, origin: dict[str, Any], last: int) -> bool:
    """Return whether this branch exists, up to its last iteration."""
    if not branch.config_file.is_file() or differences(branch.config, config):
        return False
    same_origin = any(origin.items() <= entry.items() for entry in branch.metrics("branch"))
    return same_origin and any(entry["iteration"] == last for entry in branch.metrics("cost"))


def _start_folder(branch: Run, config: Config, permutations: PermutationSets) -> None:
    """Prepare the run folder; only the files of an earlier branch are deleted."""
    for folder in (branch.states, branch.tensorboard, branch.permutations):
        shutil.rmtree(folder, ignore_errors=True)
    branch.metrics_file.unlink(missing_ok=True)
    branch.permutations.mkdir(parents=True)
    for task, rows in permutations.items():
        save_permutations(branch.permutations / f"{task}.npy", rows)
    write_config(config, branch.config_file)


def _train(trainer: Trainer, branch: Run, origin: dict[str, Any], console: Console) -> None:
    try:
        with RunLog(branch) as log:
            log.write("branch", trainer.first, **origin)
            trainer.train(branch, log, Display(trainer.statuses(), trainer.last, trainer.first, console))
    except Stopped:
        raise KeyboardInterrupt from None  # its message is about resuming runs, which branches cannot do
    finally:
        shutil.rmtree(branch.checkpoints, ignore_errors=True)  # large, and nothing continues from them
