"""What the policy preferred, against a slow and obvious count."""

import numpy as np
import pytest

from unshuffle.analysis.moments import Moment, read_moments, spread
from unshuffle.run import Run


def moment(groups: list[int], probabilities: list[float], errors: list[float]) -> Moment:
    return Moment(0, np.array(errors), np.array(groups), np.array(probabilities))


def test_preferences_against_the_chance_of_each_permutation() -> None:
    groups, probabilities = [0, 1, 1, 2, 2, 2, 2, 2], [0.5, 0.25, 0.25]
    found = moment(groups, probabilities, [0.0] * 8)
    for permutation, group in enumerate(groups):
        members = [other for other in groups if other == group]
        chance = probabilities[group] / len(members)  # a group first, then one of its members
        assert found.preferences[group] == pytest.approx(chance * len(groups))
        assert found.likelihoods[permutation] == pytest.approx(chance * len(groups))
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


def test_moments_are_the_validations_of_the_run(run: Run, uniform_run: Run) -> None:
    moments = read_moments(run, "spatial")
    assert [one.iteration for one in moments] == [0, 2, 4, 6, 8, 10, 12]
    for one in moments:
        with np.load(run.states / f"spatial-{one.iteration:08d}.npz") as state:
            assert one.errors == pytest.approx(state["permutation_errors"])
            for group, probability in enumerate(state["probabilities"]):
                assert one.likelihoods[state["groups"] == group].sum() / 6 == pytest.approx(probability)
    assert all(one.groups is None for one in read_moments(uniform_run, "spatial"))


def test_spread() -> None:
    assert spread(range(3), 3) == [0, 1, 2] and spread(range(9), 3) == [0, 4, 8]
    assert spread([], 3) == []
