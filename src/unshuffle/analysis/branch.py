"""Branches of a run: training that goes on from one of its checkpoints with another sampler."""

import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from unshuffle.assembly import PermutationSets, build_trainer, stored_permutation_sets
from unshuffle.config import Config, PolicyConfig
from unshuffle.data.prepare import Data, prepare
from unshuffle.errors import UserError
from unshuffle.options import differences, merge, write_config
from unshuffle.permutations import save_permutations
from unshuffle.run import Run
from unshuffle.stopping import Stopped
from unshuffle.training.checkpoint import checkpoint_path, list_checkpoints, load_checkpoint
from unshuffle.training.display import Display
from unshuffle.training.log import RunLog
from unshuffle.training.trainer import Trainer

Sampler = Literal["policy", "uniform", "inverse"]


def checkpoints_of(run: Run) -> list[int]:
    """Iterations that a run can be branched at."""
    return [int(path.stem) for path in list_checkpoints(run.checkpoints)]


@dataclass(frozen=True)
class Stem:
    """A run with its data open, to branch from."""

    run: Run
    config: Config

    @classmethod
    def open(cls, run: Run, device: str) -> "Stem":
        """Branches train on a device; the rest of the config is the run's."""
        return cls(run, replace(run.config, device=device, init=None))

    @cached_property
    def data(self) -> Data:
        """The run's data: opened when the first branch needs it."""
        return prepare(self.config)

    @cached_property
    def permutations(self) -> PermutationSets:
        """The run's permutations."""
        return stored_permutation_sets(self.run, list(self.data.training))

    def branch(
        self, checkpoint: int, sampler: Sampler, iterations: int, folder: Path, console: Console, *, keep_policy: bool
    ) -> Run:
        """Train so many iterations from a checkpoint, into a run folder of its own.

        `keep_policy` goes on with what the run's policy has learned; otherwise the sampler is new. A branch that is
        already there and whole is not trained again.
        """
        config = replace(self.config, out=folder, policy=_policy(self.config.policy, sampler))
        file, grown = self._checkpoint(checkpoint), Run(folder)
        origin = {"checkpoint": str(file), "written": file.stat().st_mtime, "keep_policy": keep_policy}
        if _is_whole(grown, config, origin, checkpoint + iterations):
            return grown
        trainer, state = build_trainer(config, self.data, self.permutations), load_checkpoint(file)
        if not keep_policy:
            fresh = trainer.state_dict()
            state |= {"samplers": fresh["samplers"], "sampled": fresh["sampled"]}
        trainer.load_state_dict(state)
        trainer.first, trainer.last = checkpoint, checkpoint + iterations
        _start_folder(grown, config, self.permutations)
        _train(trainer, grown, origin, console)
        return grown

    def _checkpoint(self, iteration: int) -> Path:
        path = checkpoint_path(self.run.checkpoints, iteration)
        if not path.is_file():
            there = ", ".join(str(one) for one in checkpoints_of(self.run)) or "none"
            raise UserError(f"{self.run.folder} has no checkpoint at iteration {iteration}; there are: {there}")
        return path


def _policy(policy: PolicyConfig, sampler: Sampler) -> PolicyConfig:
    """Return a run's policy, its inverse or uniform sampling; a run without a policy gets the paper's."""
    if sampler == "uniform":
        return replace(policy, sampler="uniform", inverse=False)
    learned = policy.sampler if policy.sampler in ("reinforce", "rollouts") else "reinforce"
    return replace(policy, sampler=learned, inverse=sampler == "inverse")


def _is_whole(grown: Run, config: Config, origin: dict[str, Any], last: int) -> bool:
    """Is this very branch there, up to its end?"""
    if not grown.config_file.is_file() or differences(grown.config, config):
        return False
    begun = any(origin.items() <= entry.items() for entry in grown.metrics("branch"))
    return begun and any(entry["iteration"] == last for entry in grown.metrics("cost"))


def _start_folder(grown: Run, config: Config, permutations: PermutationSets) -> None:
    """Only what an earlier branch may have left is deleted."""
    for folder in (grown.states, grown.tensorboard, grown.permutations):
        shutil.rmtree(folder, ignore_errors=True)
    grown.metrics_file.unlink(missing_ok=True)
    grown.permutations.mkdir(parents=True)
    for task, rows in permutations.items():
        save_permutations(grown.permutations / f"{task}.npy", rows)
    write_config(config, grown.config_file)


def _train(trainer: Trainer, grown: Run, origin: dict[str, Any], console: Console) -> None:
    try:
        with RunLog(grown) as log:
            log.write("branch", trainer.first, **origin)
            trainer.train(grown, log, Display(trainer.statuses(), trainer.last, trainer.first, console))
    except Stopped:
        raise KeyboardInterrupt from None  # its advice is for runs, and not for branches
    finally:
        shutil.rmtree(grown.checkpoints, ignore_errors=True)  # large, and nothing goes on from them
