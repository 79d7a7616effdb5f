"""The cost of a run in forward passes and seconds, against hand counts and against the trainer."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.cost import PAPER_COST, derived_cost, draw, measured_cost, training_seconds
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


def test_the_cost_in_the_paper() -> None:
    assert pytest.approx(100 * 90 * 2 * 781.25 / 350_000) == PAPER_COST
    assert round(PAPER_COST) == 40


def test_derived_cost_of_two_tasks() -> None:
    tasks = [
        Validations([0, 10], samples=4, permutations=6, batch_size=2),
        Validations([0], samples=8, permutations=3, batch_size=2),
    ]
    # (2 · 4 · 6 + 8 · 3) / 2 batches of 2, beside 2 tasks · 10 iterations
    assert derived_cost(tasks, 20, 0, 10, shared_backbone=False) == pytest.approx(100 * 36 / 20)
    assert derived_cost(tasks, 20, 0, 10, shared_backbone=True) == pytest.approx(100 * 8 / 20)
    assert derived_cost(tasks, 20, 5, 10, shared_backbone=True) == pytest.approx(100 * (8 + 5) / 20), "with rollouts"


def test_measured_cost() -> None:
    config = demo()  # batches of 32
    lines = [
        {"iteration": 10, "loss": {"spatial": 1, "temporal": 1}, "samples_per_second": 64.0},  # 640 samples: 10 s
        {"iteration": 15, "loss": {"spatial": 1, "temporal": 1}, "samples_per_second": 32.0},  # 320 samples: 10 s
    ]
    costs = [{"iteration": iteration, "duration": 0.5} for iteration in (0, 5, 15)]
    seconds = training_seconds(config, lines)
    assert seconds == [(10, 10.0), (15, 20.0)]
    assert [row["cost_percent"] for row in measured_cost(seconds, costs)] == [10.0, 7.5]


def test_cost_of_a_run(run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    analysis = analyse("cost", run=run.folder)
    assert analysis.metrics["tasks"]["temporal"] == {"validations": 7, "samples": 6, "permutations": 5}
    costs = analysis.metrics["cost_percent"]
    assert costs["all_permutations"] == pytest.approx(100 * 7 * 6 * (6 + 5) / 4 / 24)
    assert costs["shared_backbone"] == pytest.approx(100 * 7 * 6 * 2 / 4 / 24)
    assert costs["measured"] > 0 and [row["iteration"] for row in analysis.rows] == [2, 4, 6, 8, 10, 12]
    assert "rollouts" not in analysis.statement and analysis.metrics["rollouts"] == {"count": 0, "iterations": 0}
    draw(costs)


def test_cost_of_a_run_with_rollouts(pair_run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    """Three rollouts of two iterations on both tasks at the end of five episodes, each with a validation."""
    analysis = analyse("cost", run=pair_run.folder)
    assert analysis.metrics["tasks"]["spatial"] == {"validations": 7 + 15, "samples": 6, "permutations": 6}
    assert analysis.metrics["rollouts"] == {"count": 15, "iterations": 30}
    costs = analysis.metrics["cost_percent"]
    assert costs["all_permutations"] == pytest.approx(100 * (60 + 22 * 6 * (6 + 5) / 4) / 24)
    assert costs["shared_backbone"] == pytest.approx(100 * (60 + 22 * 6 * 2 / 4) / 24)
    assert "cost of the validations and rollouts" in analysis.statement
    assert analysis.figure().axes[0].get_title(loc="left") == "Cost of the policy's validations and rollouts"


def test_what_is_derived_does_not_look_measured() -> None:
    (axes,) = draw({"paper": 40.0, "all_permutations": 1328.0, "measured": 3.0}).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [label.split(":")[0] for label in labels] == ["measured", "derived, not done", "derived"]
    assert "filled: measured, hollow: derived" in axes.get_xlabel()
    hollow = [line.get_markerfacecolor() == "white" for line in axes.lines]
    assert hollow == [False, True, True]


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
