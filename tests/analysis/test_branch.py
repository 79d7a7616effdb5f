"""Branches of a run, against the run itself."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from unshuffle.analysis.branch import BranchTrainer
from unshuffle.errors import UserError
from unshuffle.runs.run import Run

QUIET = Console(quiet=True)


def errors(run: Run, first: int, last: int) -> list[tuple[int, str, float]]:
    entries = run.metrics("validation")
    return [(e["iteration"], e["task"], e["error"]) for e in entries if first <= e["iteration"] <= last]


def test_the_policys_branch_is_the_run_itself(run: Run, tmp_path: Path) -> None:
    branch = BranchTrainer.open(run, "cpu").train(4, "policy", 6, tmp_path / "branch", QUIET, keep_policy=True)
    assert errors(branch, 0, 99) == errors(run, 4, 10)
    rewards = [
        [e["reward"] for e in trained.metrics("episode") if 4 < e["iteration"] <= 10] for trained in (branch, run)
    ]
    assert rewards[0] == rewards[1] and rewards[0]


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
