"""One process of several: `worker.py FOLDER` runs every scenario below with the others and stores the results.

Run by a single process, it gives the reference. Everything is in double precision: in single precision, the kinks of
ReLU and pooling turn rounding errors into differences of 1e-5.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from conftest import nan_in_a_sample, small_config
from unshuffle.config import Config
from unshuffle.console import ResilientConsole
from unshuffle.data.batches import BatchStream
from unshuffle.data.squares import RankSlice
from unshuffle.errors import UserError
from unshuffle.models.batch_norm import synchronise
from unshuffle.policy import rollouts
from unshuffle.policy.sampler import Observation
from unshuffle.policy.state import PermutationValidation
from unshuffle.pretraining import run_pretraining
from unshuffle.runs.run import Run
from unshuffle.stopping import Stopped
from unshuffle.tasks.base import Inputs, Network, Outcome
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.prepare import prepare
from unshuffle.training import distributed
from unshuffle.training.display import Display
from unshuffle.training.log import NoLog
from unshuffle.training.step import Step
from unshuffle.training.trainer import Trainer, build_trainer

SGD = {"kind": "sgd", "lr": 0.02}  # AdamW would turn rounding errors in gradients of zero into steps

ROLLOUTS = {
    "sampler": "rollouts",
    "grouping": "pairs",
    "prior_correction": False,
    "candidates": 3,
    "rollout_iterations": 3,
}
"""Three rollouts each at iterations 3 and 6."""


def config(out: Path, sync_bn: bool = True, dropout: float = 0.0, **changes: Any) -> Config:
    ordering = {"head": {"dropout": dropout}, "optimiser": SGD}
    values: dict[str, Any] = {
        "synthetic": {"gallery": 6, "queries": 2},
        "model": {"sync_bn": sync_bn},
        "optim": {"backbone": SGD},
        "spatial": ordering,
        "temporal": ordering,
        "rotation": {"optimiser": SGD, "batch_size": 6, "loss_weight": 0.5},
        "instance": {"optimiser": SGD, "batch_size": 8},
        **changes,
    }
    return small_config(out, **values)


def all_rows(own: Tensor) -> Tensor:
    return torch.cat(distributed.gather(own.detach()))


def normalised() -> dict[str, Tensor]:
    """A batch of which every process has its rows, through a convolution and a normalisation."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5))
    synchronise(layers)
    layers.double()
    images, weights = torch.randn(6, 3, 8, 8).double() * 2 + 1, torch.randn(6, 5, 6, 6).double()
    rows = RankSlice(distributed.rank(), distributed.size()).rows(6)
    own = images[rows].requires_grad_()
    maps = layers(own)
    (maps * weights[rows]).sum().backward()
    assert own.grad is not None
    gradients = {f"gradient of {name}": value.grad for name, value in layers.named_parameters()}
    return {
        "kind": torch.tensor([ord(letter) for letter in type(layers[1]).__name__]),
        "maps": all_rows(maps),
        "gradient of the images": all_rows(own.grad),
        **{name: torch.stack(distributed.gather(value)).sum(0) for name, value in gradients.items()},
        **dict(layers[1].named_buffers()),
    }


@contextmanager
def in_double() -> Iterator[None]:
    build = Network.__init__

    def build_double(self: Network, *args: Any) -> None:
        build(self, *args)
        self.double()
        self.backbone.register_forward_pre_hook(lambda backbone, images: (images[0].double(),))

    with mock.patch.object(Network, "__init__", build_double):
        yield


@contextmanager
def recorded_steps() -> Iterator[list[dict[str, Tensor]]]:
    """The inputs of every step of all processes together, and what it was trained on."""
    steps: list[dict[str, Tensor]] = []
    call = Step.__call__

    def record(self: Step, inputs: dict[str, Inputs], iteration: int) -> Any:
        outcomes, skipped = call(self, inputs, iteration)
        tensors: dict[str, Tensor] = {}
        for task, batch in inputs.items():
            tensors[f"{task} crops"] = all_rows(batch.crops)
            if "permutations" in batch.targets:
                tensors[f"{task} permutations"] = all_rows(batch.targets["permutations"])
            for name, sampled in outcomes[task].sampled.items():
                tensors[f"{task} sampled {name}"] = all_rows(sampled)
        steps.append(tensors)
        return outcomes, skipped

    with mock.patch.object(Step, "__call__", record):
        yield steps


@contextmanager
def one_network_validated() -> Iterator[None]:
    """All processes must have the same running statistics, also at the end of a rollout."""
    validate = Trainer.validate

    def checked(self: Trainer, task: str) -> Any:
        own = torch.cat([buffer.double().flatten() for buffer in self.network.buffers()])
        assert all(torch.equal(own, other) for other in distributed.gather(own)), "the processes differ"
        return validate(self, task)

    with mock.patch.object(Trainer, "validate", checked):
        yield


class MemoryLog(NoLog):
    """A log in memory, on every process."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write(self, kind: str, iteration: int, **values: Any) -> None:
        if kind in ("rollouts", "test"):
            self.entries.append({"iteration": iteration, **values})

    def write_observation(
        self, iteration: int, task: str, validation: PermutationValidation, observation: Observation
    ) -> None:
        sampled = torch.from_numpy(observation.arrays["sampled"])
        self.entries.append({"iteration": iteration, "task": task, "sampled": sampled, "episode": observation.episode})


def trained(config: Config, frozen: bool = False) -> dict[str, Any]:
    """A whole training, with its own evaluation and samplers on every process."""
    assert config.out is not None
    trainer = build_trainer(config, prepare(config))
    trainer.network.train(not frozen)
    for task in trainer.ordering_tasks.values():
        # only the sampler of the main process counts
        task.sampler.load_state_dict({**task.sampler.state_dict(), "episodes": 7 * distributed.rank()})
    with recorded_steps() as steps, one_network_validated():
        quiet = Display(trainer.statuses(), config.optim.iterations, console=ResilientConsole(quiet=True))
        trainer.train(Run(config.out), log := MemoryLog(), quiet)
    state = trainer.state_dict()
    validations = {name: vars(trainer.validate(name)) for name in trainer.tasks}
    return {
        "network": state["network"],
        "tasks": state["tasks"],
        "steps": steps,
        "skipped": state["skipped"],
        "validations": validations,
        "tests": {name: vars(trainer.test(name)) for name in trainer.tasks},
        "log": log.entries,
    }


def stopped(config: Config) -> int:
    """Return the iteration at which a run ends whose last process alone gets a signal."""
    step = Trainer.step

    def interrupted(self: Trainer, *args: Any) -> None:
        if self.iteration == 4 and distributed.rank() == distributed.size() - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        step(self, *args)

    with mock.patch.object(Trainer, "step", interrupted):
        try:
            run_pretraining(config)
        except Stopped as stop:
            return stop.iteration
    raise AssertionError("the run did not stop")


def with_own_statistics(folder: Path) -> None:
    """Train with running statistics of each process: once as a whole, once stopped between checkpoints and resumed."""
    own = folder / f"by-{distributed.size()}"
    run_pretraining(config(own / "own-statistics", sync_bn=False))
    interrupted = config(own / "own-statistics-resumed", sync_bn=False)
    stopped(interrupted)
    run_pretraining(interrupted, resume=True)


def ends(config: Config) -> list[str]:
    """Return the error of each process of a run that fails."""
    try:
        run_pretraining(config)
    except UserError as error:
        return distributed.gather(f"{type(error).__name__}: {error}")
    raise AssertionError("the run did not stop")


def unreadable(config: Config, bad: int) -> list[str]:
    """Return the errors of a run whose last process cannot read a batch."""
    batch = BatchStream.batch

    def failing(self: BatchStream, step: int, part: RankSlice) -> Any:
        if step == bad and part.rank == part.world_size - 1:
            raise UserError("the disk is gone")
        return batch(self, step, part)

    with mock.patch.object(BatchStream, "batch", failing):
        return ends(config)


def reliable(config: Config) -> dict[str, Any]:
    """A training with fully reliable rollouts: the few samples would leave no advantage."""
    with mock.patch.object(rollouts, "reliability", return_value=1.0):
        return trained(config)


def not_finite(config: Config) -> dict[str, Any]:
    """A training in which the last process alone has NaN in a step, and in another an infinite loss.

    The gradients of that loss are finite.
    """
    last, outcome = distributed.size() - 1, OrderingTask.outcome
    calls = 0

    def infinite(self: OrderingTask, *args: Any) -> Outcome:
        nonlocal calls
        calls += self.name == "spatial"
        result = outcome(self, *args)
        is_bad = self.name == "spatial" and calls == 6 and distributed.rank() == last
        return replace(result, loss=result.loss + torch.inf) if is_bad else result

    with nan_in_a_sample(2, at_rank=last), mock.patch.object(OrderingTask, "outcome", infinite):
        return trained(config)


def often_not_finite(config: Config) -> list[str]:
    """Return the errors of a run whose last process has NaN in all steps."""
    with nan_in_a_sample(*range(9), at_rank=distributed.size() - 1):
        return ends(config)


def everything(folder: Path) -> None:
    count = distributed.size()
    own = folder / f"by-{count}"
    results = {
        "normalised": normalised(),
        "frozen": trained(config(own / "frozen", sync_bn=False), frozen=True),
        "synchronised": trained(config(own / "synchronised", tasks="S+T+R")),
        "instance": trained(config(own / "instance", tasks="S+I")),
        "in turn": trained(config(own / "in-turn", tasks="S+R&T")),
        "rollouts": reliable(config(own / "rollouts", policy=ROLLOUTS)),
        "plain batch norm": trained(config(own / "plain-batch-norm", sync_bn=False, dropout=0.2, policy=ROLLOUTS)),
        "not finite": not_finite(config(own / "not-finite", optim={"max_skipped_steps": 2, "backbone": SGD})),
        "often not finite": often_not_finite(config(own / "often", optim={"max_skipped_steps": 1, "backbone": SGD})),
        "stopped": stopped(config(own / "stopped")),
        "refused": ends(config(own / "refused", policy={"num_groups": 1})),
        "unreadable": unreadable(config(own / "unreadable"), 2),
        "unreadable in a rollout": unreadable(config(own / "unreadable-in-a-rollout", policy=ROLLOUTS), 5),
    }
    if count == 1:
        run_pretraining(config(own / "whole"))
    else:
        run_pretraining(config(folder / "by-1" / "stopped"), resume=True)
    torch.save(results, folder / f"{count}-{distributed.rank()}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    with distributed.started():
        with in_double():
            everything(Path(sys.argv[1]))
        with_own_statistics(Path(sys.argv[1]))  # in single precision, as users do
