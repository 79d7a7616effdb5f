import io
import math
from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import ks_2samp

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.group_count import (
    GroupComparison,
    advice,
    compare_groups,
    nearest_iterations,
    ratio_histogram,
    recommend,
    rows,
    variance_percent,
)
from unshuffle.runs.run import Run

Analyse = Callable[..., AnalysisResult]


def kolmogorov(first: np.ndarray, second: np.ndarray) -> float:
    """Limit of the p-value for many samples, by the largest distance of the two cumulative distributions."""
    points = np.concatenate([first, second])
    distance = max(abs((first <= point).mean() - (second <= point).mean()) for point in points)
    scaled = distance * math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    return 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 100))


def test_p_values_of_three_levels() -> None:
    rng = np.random.default_rng(0)
    levels = np.repeat([0.7, 0.72, 1.9], 20)[:, None]
    state = levels + rng.normal(0, 0.03, (60, 25))
    state[:40] = rng.permutation(state[:40])
    compared = compare_groups(state, 3)
    assert compared.p_values.shape == (3, 3) and np.array_equal(compared.p_values, compared.p_values.T)
    assert (np.diag(compared.p_values) == 1).all() and (compared.pairs, compared.empty_groups) == (3, 0)
    assert (compared.p_values[:2, 2] < 1e-100).all()


def test_p_value_against_its_limit() -> None:
    rng = np.random.default_rng(1)
    low, high = rng.normal(1.0, 0.01, (30, 20)), rng.normal(1.0005, 0.01, (20, 20))
    state = np.concatenate([low, high])
    state[:, 0] = [0.5] * 30 + [2.0] * 20  # so that k-means finds these two, the harder one first
    compared = compare_groups(state, 2).p_values[0, 1]
    first, second = state[:30].ravel(), state[30:].ravel()
    assert 1e-4 < compared == pytest.approx(kolmogorov(first, second), rel=0.2)
    assert compared == pytest.approx(ks_2samp(first, second, method="exact").pvalue, rel=0.05)


def test_groups_of_equal_rows_stay_empty() -> None:
    state = np.tile([[1.0, 1.2]], (6, 1))
    state[3:] = [0.6, 0.8]
    compared = compare_groups(state, 4)
    assert (compared.empty_groups, compared.pairs) == (2, 1)
    assert np.isnan(compared.p_values[2:]).all()


def comparison(count: int, equal: int = 0, empty: int = 0) -> GroupComparison:
    p_values = np.zeros((count, count))
    np.fill_diagonal(p_values, 1.0)
    for first, second in list(combinations(range(count), 2))[:equal]:
        p_values[first, second] = p_values[second, first] = 0.01
    if empty:
        p_values[-empty:] = p_values[:, -empty:] = np.nan
    return GroupComparison(count, p_values)


def test_counting_pairs() -> None:
    assert (comparison(4, 2).equal_pairs, comparison(4, 2).pairs, comparison(4, 2).empty_groups) == (2, 6, 0)
    assert (comparison(4, 0, 1).pairs, comparison(4, 0, 1).empty_groups) == (3, 1)


def test_the_recommended_number_differs_everywhere() -> None:
    good = [comparison(2), comparison(3), comparison(4), comparison(5, 1)]
    assert recommend({10: good}) == 4
    assert recommend({10: good, 20: [comparison(2), comparison(3), comparison(4, 1), comparison(5)]}) == 3
    assert recommend({10: good, 20: [comparison(2), comparison(3, 0, 1), comparison(4, 1), comparison(5)]}) == 2
    assert recommend({10: [comparison(2), comparison(3, 1), comparison(4)]}) == 2, "4 is chance"
    assert recommend({10: [comparison(2, 1), comparison(3)]}) is None
    assert "not even two" in advice(None, 20) and advice(4, 20) == "up to |C| = 4 all groups differ"
    assert "more were not tried" in advice(20, 20)


def test_histogram_counts_fractions() -> None:
    heights, edges = ratio_histogram(np.array([[0.5, 0.6], [1.0, 2.0]]), bins=3)
    assert heights.tolist() == [0.5, 0.25, 0.25] and edges.tolist() == [0.5, 1.0, 1.5, 2.0]


def test_variance_of_parts_that_add_up() -> None:
    rows, columns = np.array([0.0, 2.0])[:, None], np.array([0.0, 4.0, 8.0, 4.0])
    pairs = np.array([[1.0, -1.0, 1.0, -1.0], [-1.0, 1.0, -1.0, 1.0]])  # no mean in any row or column
    percent = variance_percent(1 + rows + columns + pairs)
    assert percent == pytest.approx({"permutations": 100 * 1 / 10, "samples": 100 * 8 / 10, "pairs": 100 * 1 / 10})


def test_iterations_as_in_the_paper() -> None:
    assert nearest_iterations([*range(0, 350_001, 50_000)]) == [150_000, 250_000, 350_000]
    assert nearest_iterations([0, 40, 100]) == [40, 100] and nearest_iterations([0]) == [0]


def test_rows_of_the_shown_divisions() -> None:
    comparisons = {5: [comparison(2), comparison(3, 1)]}
    assert rows(comparisons, (3,)) == [
        {"iteration": 5, "groups": 3, "first": 0, "second": 1, "p_value": 0.01},
        {"iteration": 5, "groups": 3, "first": 0, "second": 2, "p_value": 0.0},
        {"iteration": 5, "groups": 3, "first": 1, "second": 2, "p_value": 0.0},
    ]


def test_groups_of_a_run(run: Run, analyse: Analyse) -> None:
    analysis = analyse("groups", run=run.folder, counts=(2, 3))
    assert "spatial task" in analysis.statement and "iterations 6, 8, 12" in analysis.statement
    assert len(analysis.rows) == 3 * (1 + 3)
    assert sum(analysis.metrics["histogram"]["fraction"]) == pytest.approx(1)
    counts = analysis.metrics["equal_pairs"].values()
    distinct = [not any(entry[count]["equal"] or entry[count]["empty_groups"] for entry in counts) for count in (2, 3)]
    assert analysis.metrics["recommended"] == {(True, True): 3, (True, False): 2}.get(tuple(distinct))
    temporal = analyse("groups", run=run.folder, task="temporal", counts=(5,), iterations=(4, 2))
    assert [*temporal.metrics["equal_pairs"]] == [2, 4] and [*temporal.metrics["equal_pairs"][2]] == [2, 3, 4, 5]
    assert [*analysis.metrics["variance_percent"]] == [6, 8, 12]
    assert len(analysis.figure().axes) == 2 + 6 + 1
    assert "grouped (sample" not in analysis.statement
    console = Console(width=64, file=io.StringIO())
    console.print(analysis.table)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in printed and "12" in printed, "headings are whole"


def test_groups_of_a_run_that_grouped_pairs(pair_run: Run, analyse: Analyse) -> None:
    analysis = analyse("groups", run=pair_run.folder, counts=(2, 3))
    assert (
        "These are groups of permutations, while the run itself grouped (sample, permutation) pairs"
        in analysis.statement
    )


def test_user_errors(run: Run, analyse: Analyse) -> None:
    with pytest.raises(ValueError, match="6 permutations can be divided into 2 to 6 groups"):
        analyse("groups", run=run.folder)
    with pytest.raises(ValueError, match="no validation at iteration 5; there are 0, 2, 4"):
        analyse("groups", run=run.folder, iterations=(5,))
