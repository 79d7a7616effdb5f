"""Forward passes of a run, against hand counts and against the trainer."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from unshuffle.analysis.passes import (
    Validations,
    rollout_passes,
    task_steps,
    total_passes,
    training_passes,
    validations_of,
)
from unshuffle.config import demo
from unshuffle.data.batches import Batch
from unshuffle.options import merge
from unshuffle.policy.state import PermutationValidation
from unshuffle.runs.history import Rollouts
from unshuffle.runs.run import Run
from unshuffle.training.trainer import Tally, Trainer


def test_passes_of_validations() -> None:
    validations = Validations([0, 10, 20], samples=100, permutations=50, batch_size=25)
    assert [validations.passes(iteration) for iteration in (0, 9, 10, 99)] == [200, 200, 400, 600]
    assert validations.passes(10, shared_backbone=True) == 8


def test_training_passes_of_tasks_that_take_turns() -> None:
    assert training_passes(demo(), 0, 10) == 20
    assert training_passes(replace(demo(), tasks="S&T"), 0, 10) == 10


def test_steps_of_stages_against_a_count_of_every_iteration() -> None:
    config = merge(demo(), {"tasks": "S+R&T", "optim": {"iterations": 7}})
    trained = [("spatial", "rotation") if iteration < 3 else ("temporal",) for iteration in range(9)]  # past the end
    for begin, end in combinations(range(10), 2):
        by_hand = Counter(task for tasks in trained[begin:end] for task in tasks)
        assert task_steps(config, begin, end) == {task: by_hand[task] for task in ("spatial", "rotation", "temporal")}
    assert training_passes(config, 0, 7) == 3 * 2 + 4


def test_passes_of_rollouts() -> None:
    """Four of 40 iterations at iteration 50, three at iteration 100."""
    rollouts = [Rollouts(50, 4, 40, ("spatial", "temporal")), Rollouts(100, 3, 40, ("spatial",))]
    assert [rollout_passes(demo(), rollouts, at) for at in (49, 50, 100)] == [0, 4 * 40 * 2, (4 + 3) * 40 * 2]
    assert rollout_passes(replace(demo(), tasks="S&T"), rollouts, 100) == (4 + 3) * 40


def test_total_of_runs(run: Run, uniform_run: Run) -> None:
    assert total_passes(run, [0, 12]) == [16.5, 24 + 115.5]
    assert total_passes(run, [12], shared_backbone=True) == [24 + 21]
    assert total_passes(uniform_run, [0, 12]) == [0, 24]


@pytest.mark.parametrize("tasks", ["S+T", "S&T"])
def test_total_passes_against_the_trainer(
    tiny_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: str
) -> None:
    """Every batch that it steps on, and every sample that it validates in every permutation."""
    passes = 0.0
    step, validate = Trainer.step, Trainer.validate

    def counted_step(self: Trainer, batch: Batch, tally: Tally) -> None:
        nonlocal passes
        passes += len(batch)
        step(self, batch, tally)

    def counted_validate(self: Trainer, task: str) -> PermutationValidation:
        nonlocal passes
        validation: PermutationValidation = validate(self, task)
        passes += validation.state.numel() / self.config.optim.batch_size
        return validation

    monkeypatch.setattr(Trainer, "step", counted_step)
    monkeypatch.setattr(Trainer, "validate", counted_validate)
    policy: dict[str, Any] = {"sampler": "rollouts", "rollout_iterations": 3}
    run = tiny_run(tmp_path / "run", tasks=tasks, policy=policy, optim={"iterations": 6, "milestones": []})
    assert list(run.metrics("rollouts"))
    assert total_passes(run, [6]) == pytest.approx([passes])


def test_validation_samples_without_states(copied: Run) -> None:
    for file in copied.states.iterdir():
        file.unlink()
    assert validations_of(copied, "spatial").samples == 6


def test_a_task_with_fewer_groups_is_validated_as_often(copied: Run) -> None:
    """Rollouts continue for the task with more groups, and both tasks are validated after each."""
    with copied.metrics_file.open("a") as file:
        for task, errors in (("spatial", [0.5, 0.4, 0.3]), ("temporal", [0.5, 0.4])):
            entry = {"iteration": 12, "kind": "rollouts", "task": task, "iterations": 5, "errors": errors}
            entry |= {"advantage": [0.0] * len(errors), "probability": [1 / len(errors)] * len(errors)}
            file.write(json.dumps(entry) + "\n")
    assert [len(validations_of(copied, task).iterations) for task in ("spatial", "temporal")] == [7 + 3, 7 + 3]
    assert total_passes(copied, [12]) == [24 + 3 * 5 * 2 + 10 * 6 * (6 + 5) / 4]
