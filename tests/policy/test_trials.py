"""What trials say against the formulas, and what must hold whatever they say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from unshuffle.policy.trials import belief, one_group_preferred, worths

sizes_of_groups = st.lists(st.integers(0, 50), min_size=1, max_size=8).filter(any)


def errors_of_trials(trials: int, samples: int, differences: float, scatter: float, seed: int = 0) -> Tensor:
    """Some samples are harder than others; each trial has its own level, and its luck with each sample."""
    rng = np.random.default_rng(seed)
    levels, samples_own = differences * rng.normal(size=(trials, 1)), rng.normal(size=(1, samples))
    return torch.from_numpy(0.5 + levels + samples_own + scatter * rng.normal(size=(trials, samples)))


some_errors = st.builds(
    errors_of_trials,
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.sampled_from([0.0, 0.01, 0.3]),
    st.integers(0, 9),
)


def slow_worths(errors: Tensor, count: int) -> list[float]:
    """Two-way analysis of variance, cell by cell."""
    rows = errors.tolist()
    trials, samples = len(rows), len(rows[0])
    grand = sum(map(sum, rows)) / (trials * samples)
    by_trial = [sum(row) / samples for row in rows]
    by_sample = [sum(row[place] for row in rows) / trials for place in range(samples)]
    if trials < 2 or samples < 2:
        return [0.0] * count
    between = samples * sum((mean - grand) ** 2 for mean in by_trial) / (trials - 1)
    if between < 1e-20:
        return [0.0] * count
    rest = 0.0
    for trial in range(trials):
        for place in range(samples):
            rest += (rows[trial][place] - by_trial[trial] - by_sample[place] + grand) ** 2
    within = rest / ((trials - 1) * (samples - 1))
    believed = max(0.0, 1 - within / between)
    unit = (between / samples) ** 0.5
    return [believed * (grand - mean) / unit for mean in by_trial] + [0.0] * (count - trials)


@given(some_errors, st.integers(0, 3))
@settings(max_examples=100, deadline=None)
def test_against_the_analysis_of_variance(errors: Tensor, untried: int) -> None:
    count = len(errors) + untried
    found = worths(errors, count)
    assert found.shape == (count,)
    np.testing.assert_allclose(found, slow_worths(errors, count), rtol=1e-3, atol=1e-3)


@given(some_errors)
@settings(max_examples=100, deadline=None)
def test_they_are_about_zero_and_in_the_order_of_the_errors(errors: Tensor) -> None:
    found = worths(errors, len(errors))
    assert float(found.sum()) == pytest.approx(0, abs=1e-2)
    means = errors.mean(dim=1)
    for one, mine in zip(means, found, strict=True):
        for other, theirs in zip(means, found, strict=True):
            assert one >= other or mine >= theirs, "the lower error is worth at least as much"
    assert float(found.square().sum()) <= max(len(errors) - 1, 0) * 1.01, "the deviation is 1 at most"


def test_differences_that_all_samples_show_are_believed_however_small() -> None:
    errors = errors_of_trials(4, 50, differences=1e-5, scatter=1e-7)
    assert float(worths(errors, 4).std()) == pytest.approx(1, abs=0.01)


def test_differences_that_chance_makes_are_not_believed() -> None:
    """Trials that differ in nothing but luck: of most nothing is left; of real differences most is."""

    def beliefs(differences: float) -> np.ndarray:
        return np.array([belief(errors_of_trials(4, 50, differences, 0.1, seed)) for seed in range(400)])

    of_luck, of_differences = beliefs(0.0), beliefs(0.1)
    assert np.mean(of_luck == 0) > 0.5 and np.mean(of_luck > 0.5) < 0.15
    assert np.mean(of_differences > 0.9) > 0.9
    assert 0.75 * np.mean(of_luck**2) < 0.1 < 0.6 < 0.75 * np.mean(of_differences**2), "the mean square of the worths"


def test_one_sample_tells_nothing() -> None:
    assert worths(errors_of_trials(3, 1, 0.1, 0.0), 3).tolist() == [0, 0, 0]


def test_what_is_not_believed_is_worth_zero_without_a_sign() -> None:
    """ "−0.00" would be read as a small loss."""
    found = [worths(errors_of_trials(4, 50, 0.0, 0.1, seed), 4) for seed in range(50)]
    nothing = [worth for worth in found if not worth.any()]
    assert nothing and not any(worth.signbit().any() for worth in nothing)


def test_a_level_that_all_share_does_not_matter() -> None:
    errors = errors_of_trials(3, 7, differences=0.1, scatter=0.1)
    each_sample_its_own = torch.linspace(0, 1, 7, dtype=torch.float64)
    torch.testing.assert_close(worths(errors, 3), worths(errors + each_sample_its_own, 3))


def test_what_was_not_tried_is_worth_the_average() -> None:
    assert worths(errors_of_trials(2, 5, 0.1, 0.0), 5)[2:].tolist() == [0, 0, 0]
    assert worths(errors_of_trials(1, 5, 0.1, 0.1), 3).tolist() == [0, 0, 0], "one trial has nothing to compare with"
    assert worths(torch.full((4, 5), 0.3), 4).tolist() == [0] * 4


@given(sizes_of_groups, st.data())
@settings(max_examples=50, deadline=None)
def test_half_of_the_draws_are_of_one_group_and_half_of_all(counts: list[int], data: st.DataObject) -> None:
    group = data.draw(st.integers(0, len(counts) - 1))
    sizes = torch.tensor(counts) / sum(counts)
    preferred = one_group_preferred(sizes, group)
    expected = [0.5 * (place == group) + 0.5 * size / sum(counts) for place, size in enumerate(counts)]
    np.testing.assert_allclose(preferred, expected, atol=1e-6)
    assert float(preferred.sum()) == pytest.approx(1, abs=1e-6)
