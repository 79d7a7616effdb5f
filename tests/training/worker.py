"""One process of several: `worker.py FOLDER` does everything below with the others and keeps what came of it.

Alone, the same file makes what the several are compared with. Everything is in double precision: in single, the kinks
of ReLU and pooling make differences of 1e-5 out of rounding errors.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from unshuffle.assembly import build_trainer
from unshuffle.data.prepare import prepare
from unshuffle.data.share import Share
from unshuffle.models.norm import synchronise
from unshuffle.models.ordering import OrderingNetwork
from unshuffle.run import Run

from conftest import small_config
from unshuffle.config import Config
from unshuffle.console import ResilientConsole
from unshuffle.data.batches import BatchStream
from unshuffle.errors import UserError
from unshuffle.policy import rollouts
from unshuffle.policy.sampler import Observation
from unshuffle.policy.state import Validation
from unshuffle.pretraining import run_pretraining
from unshuffle.stopping import Stopped
from unshuffle.training import distributed
from unshuffle.training.display import Display
from unshuffle.training.log import NoLog
from unshuffle.training.step import Step
from unshuffle.training.trainer import Trainer

SGD = {"optimiser": "sgd", "lr": 0.02}  # AdamW would make steps of the rounding errors in gradients that are zero

ROLLOUTS = {"sampler": "rollouts", "grouping": "pairs", "candidates": 3, "rollout_iterations": 3}
"""Three rollouts each at iterations 3 and 6."""


def config(out: Path, sync_bn: bool = True, dropout: float = 0.0, **changes: Any) -> Config:
    head = {"dropout": dropout}
    values: dict[str, Any] = {
        "synthetic": {"gallery": 6, "queries": 2},
        "model": {"sync_bn": sync_bn, "spatial": head, "temporal": head},
        "optim": {"backbone": SGD, "spatial": SGD, "temporal": SGD},
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
    rows = distributed.share().rows(6)
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
    build = OrderingNetwork.__init__

    def build_double(self: OrderingNetwork, *args: Any) -> None:
        build(self, *args)
        self.double()
        self.backbone.register_forward_pre_hook(lambda backbone, images: (images[0].double(),))

    with mock.patch.object(OrderingNetwork, "__init__", build_double):
        yield


@contextmanager
def recorded_steps() -> Iterator[list[dict[str, Tensor]]]:
    """What every step of all processes together was given, and what it was trained on."""
    steps: list[dict[str, Tensor]] = []
    call = Step.__call__

    def record(self: Step, crops: Any, proposals: Any, iteration: int) -> Any:
        outcomes = call(self, crops, proposals, iteration)
        steps.append(
            {f"{task} crops": all_rows(some) for task, some in crops.items()}
            | {f"{task} permutations": all_rows(some.permutations) for task, some in proposals.items()}
            | {f"{task} trained on": all_rows(outcome.permutations) for task, outcome in outcomes.items()}
            | {
                f"{task} groups": all_rows(outcome.groups)
                for task, outcome in outcomes.items()
                if outcome.groups is not None
            }
        )
        return outcomes

    with mock.patch.object(Step, "__call__", record):
        yield steps


@contextmanager
def one_network_validated() -> Iterator[None]:
    """All processes must have the same running statistics, also at the end of a rollout."""
    validate = Trainer.validate

    def checked(self: Trainer, task: str) -> Validation:
        own = torch.cat([buffer.double().flatten() for buffer in self.network.buffers()])
        assert all(torch.equal(own, other) for other in distributed.gather(own)), "they differ"
        return validate(self, task)

    with mock.patch.object(Trainer, "validate", checked):
        yield


class Kept(NoLog):
    """A log in memory, on every process."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def write(self, kind: str, iteration: int, **values: Any) -> None:
        if kind == "rollouts":
            self.entries.append({"iteration": iteration, **values})

    def write_validation(self, iteration: int, task: str, validation: Validation, observation: Observation) -> None:
        sampled = torch.from_numpy(observation.arrays["sampled"])
        self.entries.append({"iteration": iteration, "task": task, "sampled": sampled, "episode": observation.episode})


def trained(config: Config, frozen: bool = False) -> dict[str, Any]:
    """A whole training, with its own evaluation and samplers on every process."""
    assert config.out is not None
    trainer = build_trainer(config, prepare(config))
    trainer.network.train(not frozen)
    for sampler in trainer.samplers.values():
        sampler.load_state_dict(
            {**sampler.state_dict(), "episodes": 7 * distributed.rank()}
        )  # only the main one's counts
    with recorded_steps() as steps, one_network_validated():
        quiet = Display(trainer.statuses(), config.optim.iterations, console=ResilientConsole(quiet=True))
        trainer.train(Run(config.out), log := Kept(), quiet)
    state = trainer.state_dict()
    validations = {task: vars(trainer.validate(task)) for task in trainer.permutations}
    return {
        "network": state["network"],
        "samplers": state["samplers"],
        "sampled": state["sampled"],
        "steps": steps,
        "validations": validations,
        "log": log.entries,
    }


def stopped(config: Config) -> int:
    """A run that only the last process is asked to leave."""
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
    raise AssertionError("the run went on")


def ends(config: Config) -> list[str]:
    """A run that fails: what it ends with on each process."""
    try:
        run_pretraining(config)
    except UserError as error:
        return distributed.gather(f"{type(error).__name__}: {error}")
    raise AssertionError("the run went on")


def unreadable(config: Config, bad: int) -> list[str]:
    """A run in which the last process cannot read a batch."""
    batch = BatchStream.batch

    def failing(self: BatchStream, step: int, share: Share) -> Tensor:
        if step == bad and share.index == share.of - 1:
            raise UserError("the disk is gone")
        return batch(self, step, share)

    with mock.patch.object(BatchStream, "batch", failing):
        return ends(config)


def reliable(config: Config) -> dict[str, Any]:
    """A training with fully reliable rollouts: the few samples would leave no advantage."""
    with mock.patch.object(rollouts, "reliability", return_value=1.0):
        return trained(config)


def everything(folder: Path) -> None:
    count = distributed.size()
    own = folder / f"by-{count}"
    results = {
        "normalised": normalised(),
        "frozen": trained(config(own / "frozen", sync_bn=False), frozen=True),
        "synchronised": trained(config(own / "synchronised")),
        "in turn": trained(config(own / "in-turn", tasks="S&T")),
        "rollouts": reliable(config(own / "rollouts", policy=ROLLOUTS)),
        "as it comes": trained(config(own / "as-it-comes", sync_bn=False, dropout=0.2, policy=ROLLOUTS)),
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
    with distributed.started(), in_double():
        everything(Path(sys.argv[1]))
