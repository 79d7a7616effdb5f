"""What trials say against the formulas, and what must hold whatever they say."""

import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unshuffle.policy.trials import one_group_preferred, worths

errors_of_trials = st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8)
sizes_of_groups = st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any)


def slow_worths(errors: list[float], count: int, least: float) -> list[float]:
    mean = sum(errors) / len(errors)
    unit = max(statistics.stdev(errors) if len(errors) > 1 else 0.0, least)
    return [(mean - error) / unit for error in errors] + [0.0] * (count - len(errors))


@given(errors_of_trials, st.integers(0, 3), st.sampled_from([1e-3, 0.1, 1.0]))
@settings(max_examples=100, deadline=None)
def test_against_the_formula(errors: list[float], untried: int, least: float) -> None:
    count = len(errors) + untried
    found = worths(torch.tensor(errors), count, least)
    assert found.shape == (count,)
    np.testing.assert_allclose(found, slow_worths(errors, count, least), rtol=1e-3, atol=1e-3)


@given(errors_of_trials, st.sampled_from([1e-3, 0.1]))
@settings(max_examples=100, deadline=None)
def test_they_are_about_zero_and_in_the_order_of_the_errors(errors: list[float], least: float) -> None:
    found = worths(torch.tensor(errors), len(errors), least)
    assert float(found.sum()) == pytest.approx(0, abs=1e-2)
    for one, mine in zip(errors, found, strict=True):
        for other, theirs in zip(errors, found, strict=True):
            assert one >= other or mine >= theirs, "the lower error is worth at least as much"
    assert float(found.square().sum()) <= max(len(errors) - 1, 0) * 1.01, "the deviation is 1 at most"


def test_differences_below_the_least_deviation_count_as_noise() -> None:
    errors = torch.tensor([0.3, 0.3002, 0.2998])
    np.testing.assert_allclose(worths(errors, 3, 1e-3), [0, -0.2, 0.2], atol=1e-3)
    np.testing.assert_allclose(worths(errors, 3, 1e-6), [0, -1, 1], atol=1e-2)
    assert worths(torch.full((4,), 0.3), 4, 1e-3).tolist() == [0] * 4


def test_a_level_that_all_share_does_not_matter() -> None:
    errors = torch.tensor([0.25, 0.5, 0.375], dtype=torch.float64)
    torch.testing.assert_close(worths(errors, 3, 1e-3), worths(errors + 0.25, 3, 1e-3))


def test_what_was_not_tried_is_worth_the_average() -> None:
    assert worths(torch.tensor([0.4, 0.2]), 5, 1e-3)[2:].tolist() == [0, 0, 0]
    assert worths(torch.tensor([0.4]), 3, 1e-3).tolist() == [0, 0, 0], "one trial has nothing to compare with"


@given(sizes_of_groups, st.data())
@settings(max_examples=50, deadline=None)
def test_half_of_the_draws_are_of_one_group_and_half_of_all(counts: list[int], data: st.DataObject) -> None:
    group = data.draw(st.integers(0, len(counts) - 1))
    sizes = torch.tensor(counts) / sum(counts)
    preferred = one_group_preferred(sizes, group)
    expected = [0.5 * (place == group) + 0.5 * size / sum(counts) for place, size in enumerate(counts)]
    np.testing.assert_allclose(preferred, expected, atol=1e-6)
    assert float(preferred.sum()) == pytest.approx(1, abs=1e-6)
