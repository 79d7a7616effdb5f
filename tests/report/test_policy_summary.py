"""The sentences about the policy, against a slow and obvious count."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from unshuffle.report.policy_summary import summarise_policy
from unshuffle.runs.history import read_sampling_states
from unshuffle.runs.run import Run


def test_the_summary_counts_rewards(run: Run) -> None:
    summary = " ".join(summarise_policy(run, "temporal", read_sampling_states(run, "temporal")))
    rewards = [
        entry["reward"]
        for entry in run.metrics("episode")
        if entry["task"] == "temporal" and entry["reward"] is not None
    ]
    assert f"The reward was positive in {sum(reward > 0 for reward in rewards)} of {len(rewards)} episodes" in summary
    assert "2 groups" in summary


def test_without_policy_the_summary_is_short(uniform_run: Run) -> None:
    (summary,) = summarise_policy(uniform_run, "spatial", read_sampling_states(uniform_run, "spatial"))
    assert summary.startswith("No policy")


def test_a_policy_that_learns_from_rollouts(run: Run, rollout_run: Run) -> None:
    advantages = [entry["advantage"] for entry in rollout_run.metrics("rollouts") if entry["task"] == "spatial"]
    assert len(advantages) == 2
    hard, easy = ((first + second) / 2 for first, second in zip(*advantages, strict=True))
    summary = " ".join(summarise_policy(rollout_run, "spatial", read_sampling_states(rollout_run, "spatial")))
    assert "learned from rollouts, not from rewards: 2 times each group was preferred for 2 iterations" in summary
    assert f"the hardest group was {hard:+.2f} and that of the easiest {easy:+.2f}".replace("-", "−") in summary
    assert "2 groups of equally hard permutations" in summary
    by_rewards = " ".join(summarise_policy(run, "spatial", read_sampling_states(run, "spatial")))
    assert "rollouts" not in by_rewards and "random variation" not in summary
    assert "Each episode sampled a random variation of this preference" in by_rewards


def test_a_group_without_a_rollout_is_not_the_easiest(run: Run, tmp_path: Path) -> None:
    copied = Run(shutil.copytree(run.folder, tmp_path / "copied"))
    entry = {"iteration": 4, "kind": "rollouts", "task": "spatial", "iterations": 2, "errors": [0.3, 0.5]}
    with copied.metrics_file.open("a") as file:
        file.write(json.dumps({**entry, "advantage": [0.7, -0.7, 0.0], "probability": [0.6, 0.4, 0.0]}) + "\n")
    summary = " ".join(summarise_policy(copied, "spatial", read_sampling_states(copied, "spatial")))
    assert "once each group" in summary and "was +0.70 and that of the easiest −0.70" in summary


def test_a_policy_that_groups_pairs(pair_run: Run) -> None:
    states = read_sampling_states(pair_run, "spatial")
    summary = " ".join(summarise_policy(pair_run, "spatial", states))
    assert "From iteration 0 on the policy chose among 5 groups of (sample, permutation) pairs" in summary
    assert "No permutation belongs to a group" in summary and "third" not in summary
    hard, easy = np.array([state.preferences[[0, -1]] for state in states[1:3]]).T  # the second half of that time
    times = hard.mean() / easy.mean()
    assert f"and {times:.2f} times as likely as the easiest group in the second half of that time" in summary
    assert times != pytest.approx(1, abs=0.05)


def test_a_policy_that_has_sampled_nothing_has_not_started(run: Run) -> None:
    states = read_sampling_states(run, "spatial")
    first = next(index for index, state in enumerate(states) if state.is_active)
    assert "has not started" in summarise_policy(run, "spatial", states[: first + 1])[0]
    assert "From iteration" in summarise_policy(run, "spatial", states[: first + 2])[0]
