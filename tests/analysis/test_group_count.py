import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import ks_2samp

from unshuffle.analysis.group_count import (
    Likeness,
    advice,
    compare_groups,
    ratio_histogram,
    recommend,
    rows,
    spread_out,
    variance_percent,
)
from unshuffle.analysis.result import Analysis
from unshuffle.run import Run

Ask = Callable[..., Analysis]


def kolmogorov(one: np.ndarray, other: np.ndarray) -> float:
    """Limit of the p-value for many samples, by the largest distance of the two shares of values up to any value."""
    points = np.concatenate([one, other])
    distance = max(abs((one <= point).mean() - (other <= point).mean()) for point in points)
    scaled = distance * math.sqrt(len(one) * len(other) / (len(one) + len(other)))
    return 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 100))


def test_p_values_of_three_levels() -> None:
    rng = np.random.default_rng(0)
    levels = np.repeat([0.7, 0.72, 1.9], 20)[:, None]
    state = levels + rng.normal(0, 0.03, (60, 25))
    state[:40] = rng.permutation(state[:40])
    found = compare_groups(state, 3)
    assert found.p_values.shape == (3, 3) and np.array_equal(found.p_values, found.p_values.T)
    assert (np.diag(found.p_values) == 1).all() and (found.pairs, found.empty) == (3, 0)
    assert (found.p_values[:2, 2] < 1e-100).all()


def test_p_value_against_its_limit() -> None:
    rng = np.random.default_rng(1)
    low, high = rng.normal(1.0, 0.01, (30, 20)), rng.normal(1.0005, 0.01, (20, 20))
    state = np.concatenate([low, high])
    state[:, 0] = [0.5] * 30 + [2.0] * 20  # so that k-means finds these two, the harder one first
    found = compare_groups(state, 2).p_values[0, 1]
    one, other = state[:30].ravel(), state[30:].ravel()
    assert 1e-4 < found == pytest.approx(kolmogorov(one, other), rel=0.2)
    assert found == pytest.approx(ks_2samp(one, other, method="exact").pvalue, rel=0.05)


def test_groups_of_equal_rows_stay_empty() -> None:
    state = np.tile([[1.0, 1.2]], (6, 1))
    state[3:] = [0.6, 0.8]
    found = compare_groups(state, 4)
    assert (found.empty, found.pairs) == (2, 1)
    assert np.isnan(found.p_values[2:]).all()


def likeness(count: int, alike: int = 0, empty: int = 0) -> Likeness:
    p_values = np.zeros((count, count))
    np.fill_diagonal(p_values, 1.0)
    for one, other in list(combinations(range(count), 2))[:alike]:
        p_values[one, other] = p_values[other, one] = 0.01
    if empty:
        p_values[-empty:] = p_values[:, -empty:] = np.nan
    return Likeness(count, p_values)


def test_counting_pairs() -> None:
    assert (likeness(4, 2).alike, likeness(4, 2).pairs, likeness(4, 2).empty) == (2, 6, 0)
    assert (likeness(4, 0, 1).pairs, likeness(4, 0, 1).empty) == (3, 1)


def test_the_recommended_number_differs_everywhere() -> None:
    good = [likeness(2), likeness(3), likeness(4), likeness(5, 1)]
    assert recommend({10: good}) == 4
    assert recommend({10: good, 20: [likeness(2), likeness(3), likeness(4, 1), likeness(5)]}) == 3
    assert recommend({10: good, 20: [likeness(2), likeness(3, 0, 1), likeness(4, 1), likeness(5)]}) == 2
    assert recommend({10: [likeness(2), likeness(3, 1), likeness(4)]}) == 2, "4 is luck"
    assert recommend({10: [likeness(2, 1), likeness(3)]}) is None
    assert "not even two" in advice(None, 20) and advice(4, 20) == "up to |C| = 4 all groups differ"
    assert "more were not tried" in advice(20, 20)


def test_histogram_counts_shares() -> None:
    heights, edges = ratio_histogram(np.array([[0.5, 0.6], [1.0, 2.0]]), bins=3)
    assert heights.tolist() == [0.5, 0.25, 0.25] and edges.tolist() == [0.5, 1.0, 1.5, 2.0]


def test_variance_of_parts_that_add_up() -> None:
    rows, columns = np.array([0.0, 2.0])[:, None], np.array([0.0, 4.0, 8.0, 4.0])
    pairs = np.array([[1.0, -1.0, 1.0, -1.0], [-1.0, 1.0, -1.0, 1.0]])  # no mean in any row or column
    found = variance_percent(1 + rows + columns + pairs)
    assert found == pytest.approx({"permutations": 100 * 1 / 10, "samples": 100 * 8 / 10, "pairs": 100 * 1 / 10})


def test_iterations_as_in_the_paper() -> None:
    assert spread_out([*range(0, 350_001, 50_000)]) == [150_000, 250_000, 350_000]
    assert spread_out([0, 40, 100]) == [40, 100] and spread_out([0]) == [0]


def test_rows_of_the_drawn_ones() -> None:
    found = {5: [likeness(2), likeness(3, 1)]}
    assert rows(found, (3,)) == [
        {"iteration": 5, "groups": 3, "one": 0, "other": 1, "p_value": 0.01},
        {"iteration": 5, "groups": 3, "one": 0, "other": 2, "p_value": 0.0},
        {"iteration": 5, "groups": 3, "one": 1, "other": 2, "p_value": 0.0},
    ]


def test_of_a_run(run: Run, ask: Ask) -> None:
    analysis = ask("groups", run=run.folder, counts=(2, 3))
    assert "spatial task" in analysis.statement and "iterations 6, 8, 12" in analysis.statement
    assert len(analysis.rows) == 3 * (1 + 3)
    assert sum(analysis.metrics["histogram"]["share"]) == pytest.approx(1)
    found = analysis.metrics["pairs_alike"].values()
    distinct = [not any(one[count]["alike"] or one[count]["empty"] for one in found) for count in (2, 3)]
    assert analysis.metrics["recommended"] == {(True, True): 3, (True, False): 2}.get(tuple(distinct))
    temporal = ask("groups", run=run.folder, task="temporal", counts=(5,), iterations=(4, 2))
    assert [*temporal.metrics["pairs_alike"]] == [2, 4] and [*temporal.metrics["pairs_alike"][2]] == [2, 3, 4, 5]
    assert [*analysis.metrics["variance_percent"]] == [6, 8, 12]
    assert len(analysis.figure().axes) == 2 + 6 + 1
    assert "pairs with" not in analysis.statement and "grouping pairs" not in analysis.statement


def test_of_a_run_that_chose_among_pairs(pair_run: Run, ask: Ask) -> None:
    analysis = ask("groups", run=pair_run.folder, counts=(2, 3))
    assert "These are groups of permutations; the run itself chose among equal parts" in analysis.statement


def test_what_cannot_be_done(run: Run, ask: Ask) -> None:
    with pytest.raises(ValueError, match="6 permutations can be divided into 2 to 6 groups"):
        ask("groups", run=run.folder)
    with pytest.raises(ValueError, match="no validation at iteration 5; there are 0, 2, 4"):
        ask("groups", run=run.folder, iterations=(5,))
