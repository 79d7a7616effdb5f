"""The policy's story, against a slow and obvious count."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from unshuffle.analysis.moments import read_moments
from unshuffle.report.story import tell
from unshuffle.run import Run


def test_the_story_counts_rewards(run: Run) -> None:
    told = " ".join(tell(run, "temporal", read_moments(run, "temporal")))
    rewards = [
        entry["reward"]
        for entry in run.metrics("episode")
        if entry["task"] == "temporal" and entry["reward"] is not None
    ]
    assert f"In {sum(reward > 0 for reward in rewards)} of {len(rewards)} episodes" in told
    assert "2 groups" in told


def test_without_policy_the_story_is_short(uniform_run: Run) -> None:
    (told,) = tell(uniform_run, "spatial", read_moments(uniform_run, "spatial"))
    assert told.startswith("No policy")


def test_a_policy_that_learns_from_trials(run: Run, trial_run: Run) -> None:
    worths = [entry["advantage"] for entry in trial_run.metrics("rollouts") if entry["task"] == "spatial"]
    assert len(worths) == 2
    hard, easy = ((one + other) / 2 for one, other in zip(*worths, strict=True))
    told = " ".join(tell(trial_run, "spatial", read_moments(trial_run, "spatial")))
    assert "It learned from trials, not from rewards: 2 times each group was preferred for 2 iterations" in told
    assert f"the hardest group was worth {hard:+.2f} and one of the easiest {easy:+.2f}".replace("-", "−") in told
    assert "2 groups of equally hard permutations" in told
    assert "trials" not in " ".join(tell(run, "spatial", read_moments(run, "spatial")))


def test_a_group_that_was_not_tried_is_not_the_easiest(run: Run, tmp_path: Path) -> None:
    copied = Run(shutil.copytree(run.folder, tmp_path / "copied"))
    entry = {"iteration": 4, "kind": "rollouts", "task": "spatial", "iterations": 2, "errors": [0.3, 0.5]}
    with copied.metrics_file.open("a") as file:
        file.write(json.dumps({**entry, "advantage": [0.7, -0.7, 0.0], "probability": [0.6, 0.4, 0.0]}) + "\n")
    told = " ".join(tell(copied, "spatial", read_moments(copied, "spatial")))
    assert "once each group" in told and "worth +0.70 and one of the easiest −0.70" in told


def test_a_policy_that_chooses_among_pairs(pair_run: Run) -> None:
    moments = read_moments(pair_run, "spatial")
    told = " ".join(tell(pair_run, "spatial", moments))
    assert "From iteration 0 on the policy chose among 5 groups of pairs of a sample and a permutation" in told
    assert "no permutation belongs to a group" in told and "third" not in told
    hard, easy = np.array([one.preferences[[0, -1]] for one in moments[1:3]]).T  # the second half of its time
    times = hard.mean() / easy.mean()
    assert f"and {times:.2f} times as often as the easiest group in the second half of its time" in told
    assert times != pytest.approx(1, abs=0.05)


def test_a_policy_that_has_drawn_nothing_has_not_begun(run: Run) -> None:
    moments = read_moments(run, "spatial")
    first = next(place for place, moment in enumerate(moments) if moment.acts)
    assert "has not begun" in tell(run, "spatial", moments[: first + 1])[0]
    assert "From iteration" in tell(run, "spatial", moments[: first + 2])[0]
