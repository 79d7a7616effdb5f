"""The sentences about the policy, against a slow and obvious count."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from unshuffle.analysis.difficulty import CLASSES, difficulty_classes, sampled_fractions
from unshuffle.options import merge, write_config
from unshuffle.report.policy_summary import summarise_policy
from unshuffle.runs.history import read_history, read_sampling_states
from unshuffle.runs.run import Run


def details(run: Run, task: str) -> str:
    return " ".join(summarise_policy(run, task, read_sampling_states(run, task)).details)


def test_the_summary_counts_rewards(run: Run) -> None:
    summary = details(run, "temporal")
    rewards = [
        entry["reward"]
        for entry in run.metrics("episode")
        if entry["task"] == "temporal" and entry["reward"] is not None
    ]
    assert f"The reward was positive in {sum(reward > 0 for reward in rewards)} of {len(rewards)} episodes" in summary
    assert "2 groups" in summary


def test_without_policy_the_summary_is_short(uniform_run: Run) -> None:
    summary = summarise_policy(uniform_run, "spatial", read_sampling_states(uniform_run, "spatial"))
    assert summary.conclusion.startswith("No policy") and not summary.is_drawn and not summary.is_clear


def test_a_policy_that_learns_from_rollouts(run: Run, rollout_run: Run) -> None:
    advantages = [entry["advantage"] for entry in rollout_run.metrics("rollouts") if entry["task"] == "spatial"]
    assert len(advantages) == 2
    hard, easy = ((first + second) / 2 for first, second in zip(*advantages, strict=True))
    summary = details(rollout_run, "spatial")
    assert "learned from rollouts, not from rewards: 2 times each group was preferred for 2 iterations" in summary
    assert f"the hardest group was {hard:+.2f} and that of the easiest {easy:+.2f}".replace("-", "−") in summary
    assert "2 groups of equally hard permutations" in summary
    by_rewards = details(run, "spatial")
    assert "rollouts" not in by_rewards and "random variation" not in summary
    assert "Each episode sampled a random variation of this preference" in by_rewards


def test_a_group_without_a_rollout_is_not_the_easiest(run: Run, tmp_path: Path) -> None:
    copied = Run(shutil.copytree(run.folder, tmp_path / "copied"))
    entry = {"iteration": 4, "kind": "rollouts", "task": "spatial", "iterations": 2, "errors": [0.3, 0.5]}
    with copied.metrics_file.open("a") as file:
        file.write(json.dumps({**entry, "advantage": [0.7, -0.7, 0.0], "probability": [0.6, 0.4, 0.0]}) + "\n")
    summary = details(copied, "spatial")
    assert "once each group" in summary and "was +0.70 and that of the easiest −0.70" in summary


def test_a_policy_that_groups_pairs(pair_run: Run) -> None:
    states = read_sampling_states(pair_run, "spatial")
    summary = details(pair_run, "spatial")
    assert "From iteration 0 on the policy chose among 5 groups of (sample, permutation) pairs" in summary
    assert "No permutation belongs to a group" in summary and "third" not in summary
    hard, easy = np.array([state.preferences[[0, -1]] for state in states[1:3]]).T  # the second half of that time
    times = hard.mean() / easy.mean()
    assert f"and {times:.2f} times as likely as the easiest group in the second half of that time" in summary
    assert times != pytest.approx(1, abs=0.05)


def with_entries(run: Run, folder: Path, **changes: object) -> Run:
    """Return a copy of a run with other options."""
    copied = Run(shutil.copytree(run.folder, folder))
    write_config(merge(run.config, changes), copied.config_file)
    return copied


def test_a_policy_that_has_sampled_nothing_has_not_started(run: Run, tmp_path: Path) -> None:
    states = read_sampling_states(run, "spatial")
    first = next(index for index, state in enumerate(states) if state.is_active)
    started = summarise_policy(run, "spatial", states[: first + 1])
    assert started.conclusion.startswith("The policy started at the last validation") and not started.is_drawn
    assert summarise_policy(run, "spatial", states[: first + 2]).is_drawn
    idle = [replace(state, probabilities=None) for state in states]
    never = with_entries(run, tmp_path / "never", policy={"start_below": 0.01})
    lowest = min(entry["error"] for entry in run.metrics("validation", "spatial"))
    reason = f"as the lowest validation error, {lowest:.3f}, is not below 0.008 (policy.start_below)"
    assert summarise_policy(never, "spatial", idle).conclusion == (
        f"The policy never started, {reason}: every permutation was equally likely."
    )
    longer = with_entries(run, tmp_path / "longer", policy={"start_below": 0.01}, optim={"iterations": 60})
    assert summarise_policy(longer, "spatial", idle).conclusion.startswith("The policy has not started yet, as")


def test_the_conclusion_is_in_proportion(run: Run) -> None:
    states = read_sampling_states(run, "spatial")
    groups = np.array([0, 0, 0, 1, 1])
    expected = {
        (0.6, 0.4): "hardly changed the sampling:",
        (0.7, 0.3): "a little: ",
        (0.95, 0.05): "changed the sampling: ",
    }
    for probabilities, words in expected.items():
        preferring = [replace(state, groups=groups, probabilities=np.array(probabilities)) for state in states]
        summary = summarise_policy(run, "spatial", preferring)
        moved = probabilities[0] - 0.6  # to the first group, which has three permutations of five
        assert words in summary.conclusion and f"moved {100 * moved:.1f} % of the samples" in summary.conclusion
        assert summary.is_clear == (moved > 0.2)


def test_what_was_sampled_against_a_count(run: Run) -> None:
    history = read_history(run, "spatial")
    fractions = np.array(
        [
            sampled_fractions(history.sampled[period], difficulty_classes(history.errors[period - 1]))
            for period in (1, 2, 3)
        ]
    ).mean(axis=0)
    highest = CLASSES[int(fractions.argmax())]
    summary = details(run, "spatial")
    assert f"{100 * fractions.max():.1f} % were of the {highest} by difficulty" in summary
    assert (
        f"{100 * fractions.min():.1f} % of the {CLASSES[int(fractions.argmin())]}; uniform sampling gives 25.0 %"
        in summary
    )


@pytest.mark.parametrize("reward", [-0.01, 0.01])
def test_a_negative_mean_of_the_rewards_is_explained(run: Run, tmp_path: Path, reward: float) -> None:
    copied = with_entries(run, tmp_path / "copied")
    lines = [json.loads(line) for line in copied.metrics_file.read_text().splitlines()]
    changed = [{**line, "reward": reward} if line["kind"] == "episode" else line for line in lines]
    copied.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in changed))
    summary = details(copied, "spatial")
    assert f"its mean is {reward:+.4f}.".replace("-", "−") in summary
    assert ("a mean below 0 is normal" in summary) == (reward < 0)
