"""What a run costs in forward passes, against hand and against the trainer."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unshuffle.analysis.forward_passes import (
    Validations,
    total_passes,
    training_passes,
    trial_passes,
    validations_of,
)
from unshuffle.analysis.trials import Trials
from unshuffle.config import demo
from unshuffle.data.batches import Batch
from unshuffle.policy.state import Validation
from unshuffle.run import Run
from unshuffle.training.trainer import Tally, Trainer


def test_passes_of_validations() -> None:
    some = Validations([0, 10, 20], samples=100, permutations=50)
    assert [some.passes(25, iteration) for iteration in (0, 9, 10, 99)] == [200, 200, 400, 600]
    assert some.passes(25, 10, shared_backbone=True) == 8


def test_training_passes_of_tasks_that_take_turns() -> None:
    assert training_passes(demo(), 2, 10) == 20
    assert training_passes(replace(demo(), tasks="S&T"), 2, 10) == 10


def test_passes_of_trials() -> None:
    """Four of 40 iterations at iteration 50, three at iteration 100."""
    trials = [Trials(50, 4, 40, ("spatial", "temporal")), Trials(100, 3, 40, ("spatial",))]
    assert [trial_passes(demo(), 2, trials, at) for at in (49, 50, 100)] == [0, 4 * 40 * 2, (4 + 3) * 40 * 2]
    assert trial_passes(replace(demo(), tasks="S&T"), 2, trials, 100) == (4 + 3) * 40


def test_total_of_runs(run: Run, uniform_run: Run) -> None:
    assert total_passes(run, [0, 12]) == [16.5, 24 + 115.5]
    assert total_passes(run, [12], shared_backbone=True) == [24 + 21]
    assert total_passes(uniform_run, [0, 12]) == [0, 24]


@pytest.mark.parametrize("tasks", ["S+T", "S&T"])
def test_total_against_what_the_trainer_did(
    tiny_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: str
) -> None:
    """Every batch that it steps on, and every sample that it validates in every order."""
    passes = 0.0
    step, validate = Trainer.step, Trainer.validate

    def counted_step(self: Trainer, batch: Batch, tally: Tally) -> None:
        nonlocal passes
        passes += len(batch)
        step(self, batch, tally)

    def counted_validate(self: Trainer, task: str) -> Validation:
        nonlocal passes
        found = validate(self, task)
        passes += found.state.numel() / self.config.optim.batch_size
        return found

    monkeypatch.setattr(Trainer, "step", counted_step)
    monkeypatch.setattr(Trainer, "validate", counted_validate)
    policy: dict[str, Any] = {"sampler": "rollouts", "rollout_iterations": 3}
    run = tiny_run(tmp_path / "run", tasks=tasks, policy=policy, optim={"iterations": 6, "milestones": []})
    assert list(run.metrics("rollouts"))
    assert total_passes(run, [6]) == pytest.approx([passes])


def test_without_states(copied: Run) -> None:
    for file in copied.states.iterdir():
        file.unlink()
    assert validations_of(copied, "spatial").samples == 6


def test_a_task_with_fewer_groups_is_validated_as_often(copied: Run) -> None:
    """Trials go on for the task with more groups, and both are validated after each."""
    with copied.metrics_file.open("a") as file:
        for task, errors in (("spatial", [0.5, 0.4, 0.3]), ("temporal", [0.5, 0.4])):
            entry = {"iteration": 12, "kind": "rollouts", "task": task, "iterations": 5, "errors": errors}
            file.write(json.dumps(entry) + "\n")
    assert [len(validations_of(copied, task).iterations) for task in ("spatial", "temporal")] == [7 + 3, 7 + 3]
    assert total_passes(copied, [12]) == [24 + 3 * 5 * 2 + 10 * 6 * (6 + 5) / 4]
