"""The policy's story, against a slow and obvious count."""

import numpy as np
import pytest

from unshuffle.report.story import Moment, read_moments, tell
from unshuffle.run import Run


def moment(groups: list[int], probabilities: list[float], errors: list[float]) -> Moment:
    return Moment(0, np.array(errors), np.array(groups), np.array(probabilities))


def test_preferences_against_the_chance_of_each_permutation() -> None:
    groups, probabilities = [0, 1, 1, 2, 2, 2, 2, 2], [0.5, 0.25, 0.25]
    found = moment(groups, probabilities, [0.0] * 8)
    for permutation, group in enumerate(groups):
        members = [other for other in groups if other == group]
        chance = probabilities[group] / len(members)  # a group first, then one of its members
        assert found.preferences[groups[permutation]] == pytest.approx(chance * len(groups))
    assert found.sizes == pytest.approx([1 / 8, 2 / 8, 5 / 8])


def test_a_group_without_members_is_not_preferred() -> None:
    assert moment([0, 0, 2], [0.5, 0.2, 0.3], [0, 0, 0]).preferences[1] == 0


def test_lean_is_hardest_third_over_easiest_third() -> None:
    errors = [0.9, 0.1, 0.5, 0.8, 0.2, 0.5]
    found = moment([0, 1, 1, 0, 1, 1], [0.6, 0.4], errors)
    hardest, easiest = [0, 3], [1, 4]
    weight = {0: 0.6 / 2 * 6, 1: 0.4 / 4 * 6}
    by_hand = np.mean([weight[[0, 1, 1, 0, 1, 1][p]] for p in hardest]) / np.mean(
        [weight[[0, 1, 1, 0, 1, 1][p]] for p in easiest]
    )
    assert found.lean == pytest.approx(by_hand) == pytest.approx(3.0)


def test_nothing_leans_before_the_policy_begins() -> None:
    assert Moment(0, np.zeros(3), None, None).lean is None


def test_moments_are_the_validations_of_the_run(run: Run) -> None:
    moments = read_moments(run, "spatial")
    assert [one.iteration for one in moments] == [0, 2, 4, 6]
    assert moments[0].groups is not None and len(moments[0].errors) == 5
    with np.load(run.states / "spatial-00000006.npz") as state:
        assert moments[-1].errors == pytest.approx(state["permutation_errors"])
        assert moments[-1].probabilities == pytest.approx(state["probabilities"])


def test_many_moments_are_thinned_evenly_and_the_last_one_stays(run: Run) -> None:
    assert [one.iteration for one in read_moments(run, "spatial", most=2)] == [0, 6]


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
