"""Branches of a run, against the run itself."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from unshuffle.analysis.branch import BranchTrainer, Sampler
from unshuffle.errors import UserError
from unshuffle.runs.run import Run

QUIET = Console(quiet=True)
Reliable = Callable[[], AbstractContextManager[object]]


def errors(run: Run, first: int, last: int) -> list[tuple[int, str, float]]:
    entries = run.metrics("validation")
    return [(e["iteration"], e["task"], e["error"]) for e in entries if first <= e["iteration"] <= last]


def learned(run: Run, first: int, last: int) -> list[dict[str, Any]]:
    """What the samplers learned from after an iteration and before another."""
    entries = [e for e in run.metrics() if e["kind"] in ("episode", "rollouts") and first < e["iteration"] < last]
    return [{name: value for name, value in entry.items() if name not in ("seconds", "time")} for entry in entries]


def sampled(run: Run, task: str, iteration: int) -> dict[str, list[Any]]:
    with np.load(run.states / f"{task}-{iteration:08d}.npz") as arrays:
        return {name: arrays[name].tolist() for name in arrays}


@pytest.mark.parametrize("name", ["run", "pair_run", "uniform_run"])
def test_the_policys_branch_is_the_run_itself(
    name: str, request: pytest.FixtureRequest, reliable: Reliable, tmp_path: Path
) -> None:
    run: Run = request.getfixturevalue(name)
    sampler: Sampler = "uniform" if name == "uniform_run" else "policy"
    with reliable():
        branch = BranchTrainer.open(run, "cpu").train(4, sampler, 6, tmp_path / "branch", QUIET, keep_policy=True)
    assert errors(branch, 0, 99) == errors(run, 4, 10)
    assert learned(branch, 0, 10) == learned(run, 4, 10)
    assert bool(learned(run, 4, 10)) == (sampler == "policy")
    for task in ("spatial", "temporal"):
        assert sampled(branch, task, 8) == sampled(run, task, 8)
        assert sum(sampled(branch, task, 4)["sampled"]) == 0


@pytest.mark.parametrize(
    "policy",
    [
        {"sampler": "reinforce", "action": "mixture"},
        {"sampler": "reinforce", "action": "mixture", "inverse": True},
        {"sampler": "reinforce", "action": "batch"},
        {"sampler": "rollouts", "rollout_iterations": 2},
        {"sampler": "exp3", "inverse": True},
    ],
    ids=["mixture", "inverse mixture", "batch", "rollouts", "inverse exp3"],
)
def test_a_branch_between_validations_is_the_run_itself(
    policy: dict[str, Any], tiny_run: Callable[..., Run], reliable: Reliable, tmp_path: Path
) -> None:
    """Validations at 2, 4, 6, ... and checkpoints at 3, in an episode, at 6, where one begins, and at 9, in none."""
    policy = {**policy, "interval": 4, "batches": 2}
    sampler: Sampler = "inverse" if policy.get("inverse") else "policy"
    with reliable():
        run = tiny_run(tmp_path / "run", policy=policy, log={"checkpoint_every": 3})
        trainer = BranchTrainer.open(run, "cpu")
        for checkpoint in (3, 6, 9):
            folder = tmp_path / str(checkpoint)
            branch = trainer.train(checkpoint, sampler, 12 - checkpoint, folder, QUIET, keep_policy=True)
            assert errors(branch, checkpoint + 1, 12) == errors(run, checkpoint + 1, 12)
            assert {iteration for iteration, _, _ in errors(branch, 0, checkpoint)} == {checkpoint}
            assert learned(branch, 0, 13) == learned(run, checkpoint, 13) != []
            for task in ("spatial", "temporal"):  # what the policy preferred and sampled until the end
                assert sampled(branch, task, 12) == sampled(run, task, 12)


def test_a_branch_beyond_the_end_is_the_longer_run(
    tiny_run: Callable[..., Run], reliable: Reliable, tmp_path: Path
) -> None:
    """A run does not end with rollouts, which the branch makes up for."""
    policy = {"sampler": "rollouts", "rollout_iterations": 2}
    with reliable():
        longer, run = (
            tiny_run(tmp_path / str(end), tasks="S", policy=policy, optim={"iterations": end}) for end in (12, 8)
        )
        branch = BranchTrainer.open(run, "cpu").train(8, "policy", 4, tmp_path / "branch", QUIET, keep_policy=True)
    assert errors(branch, 0, 99) == errors(longer, 8, 12)
    assert learned(branch, 7, 9) == [e for e in learned(longer, 7, 9) if e["kind"] == "rollouts"]
    assert learned(branch, 8, 13) == learned(longer, 8, 13)


def test_a_new_policy_learns_from_the_validation_at_its_checkpoint(
    pair_run: Run, reliable: Reliable, tmp_path: Path
) -> None:
    with reliable():
        branch = BranchTrainer.open(pair_run, "cpu").train(
            4, "policy", 4, tmp_path / "branch", QUIET, keep_policy=False
        )
    assert {e["iteration"] for e in branch.metrics("rollouts")} == {4, 6}
    assert [e["episode"] for e in branch.metrics("episode", "spatial")] == [1, 2]


def test_the_inverse_of_an_inverse_run_is_the_run_and_its_policy_is_not(
    tiny_run: Callable[..., Run], tmp_path: Path
) -> None:
    """Though the checkpoint holds the inverse probabilities; those of an untrained policy would be the policy's."""
    run = tiny_run(tmp_path / "run", policy={"inverse": True}, optim={"iterations": 10})
    trainer = BranchTrainer.open(run, "cpu")
    policy = trainer.train(8, "policy", 2, tmp_path / "policy", QUIET, keep_policy=True)
    inverse = trainer.train(8, "inverse", 2, tmp_path / "inverse", QUIET, keep_policy=True)
    at_once = [np.array(sampled(branch, "spatial", 8)["probabilities"]) for branch in (run, policy, inverse)]
    assert np.array_equal(at_once[0], at_once[2]) and not np.allclose(at_once[0], at_once[1])


def test_a_branch_is_not_trained_twice(run: Run, copied: Run, tmp_path: Path) -> None:
    folder = tmp_path / "branch"
    first = BranchTrainer.open(run, "cpu").train(4, "inverse", 2, folder, QUIET, keep_policy=True)
    written = first.metrics_file.stat().st_mtime_ns
    again = BranchTrainer.open(run, "cpu").train(4, "inverse", 2, folder, QUIET, keep_policy=True)
    assert again.metrics_file.stat().st_mtime_ns == written
    another = BranchTrainer.open(copied, "cpu").train(4, "inverse", 2, folder, QUIET, keep_policy=True)
    assert another.metrics_file.stat().st_mtime_ns != written


def test_the_inverse_policy_samples_differently_at_once(run: Run, tmp_path: Path) -> None:
    trainer = BranchTrainer.open(run, "cpu")
    policy = trainer.train(8, "policy", 2, tmp_path / "policy", QUIET, keep_policy=True)
    inverse = trainer.train(8, "inverse", 2, tmp_path / "inverse", QUIET, keep_policy=True)
    first, second = ([e["probability"] for e in branch.metrics("episode")] for branch in (policy, inverse))
    assert len(first) == len(second) == 2 and first != second


@pytest.mark.parametrize("tasks", ["S+T+R", "R"])
def test_a_branch_trains_tasks_that_order_nothing_too(tasks: str, tiny_run: Callable[..., Run], tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", tasks=tasks, optim={"iterations": 6, "milestones": []})
    branch = BranchTrainer.open(run, "cpu").train(4, "policy", 2, tmp_path / "branch", QUIET, keep_policy=True)
    assert errors(branch, 0, 99) == errors(run, 4, 6)
    assert {task for _, task, _ in errors(branch, 6, 6)} == set(run.config.task_names)
    sets = sorted(file.name for file in branch.permutations.iterdir())
    assert sets == (["spatial.npy", "temporal.npy"] if tasks == "S+T+R" else [])


def test_a_branch_needs_a_checkpoint(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no checkpoint at iteration 5; there are: 4, 8, 12"):
        BranchTrainer.open(run, "cpu").train(5, "uniform", 2, tmp_path / "branch", QUIET, keep_policy=False)
