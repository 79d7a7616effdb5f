import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from unshuffle.evaluation.average_precision import eleven_point, envelope_area, hit_curve, ranked_curve, step_area

RANKED = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)


@given(RANKED)
def test_step_area_is_scikit_learns(items: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([score for score, _ in items], float), np.array([truth for _, truth in items])
    ours = step_area(ranked_curve(scores, positive), int(positive.sum()))
    if not positive.any():
        assert np.isnan(ours)
    else:
        assert ours == pytest.approx(average_precision_score(positive, scores))


def slow_curve(hits: list[bool], positives: int) -> list[tuple[int, float]]:
    """Right answers and precision after each answer."""
    return [(sum(hits[: n + 1]), sum(hits[: n + 1]) / (n + 1)) for n in range(len(hits))]


def slow_eleven_point(hits: list[bool], positives: int) -> float:
    points = slow_curve(hits, positives)
    return sum(max([p for right, p in points if 10 * right >= t * positives], default=0.0) for t in range(11)) / 11


def slow_envelope_area(hits: list[bool], positives: int) -> float:
    points = slow_curve(hits, positives)
    best = [max([p for right, p in points if right >= n], default=0.0) for n in range(1, positives + 1)]
    return sum(best) / positives


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 20))
def test_devkit_forms_against_loops(hits: list[bool], missed: int) -> None:
    positives = sum(hits) + missed
    curve = hit_curve(np.array(hits, bool), positives)
    if positives == 0:
        assert np.isnan(eleven_point(curve, 0)) and np.isnan(envelope_area(curve, 0))
        return
    assert eleven_point(curve, positives) == pytest.approx(slow_eleven_point(hits, positives))
    assert envelope_area(curve, positives) == pytest.approx(slow_envelope_area(hits, positives))


def test_three_of_ten_reach_the_recall_of_three_tenths() -> None:
    curve = hit_curve(np.ones(3, bool), 10)
    assert eleven_point(curve, 10) == pytest.approx(4 / 11)


def test_equal_scores_do_not_flatter() -> None:
    positive = np.array([True, False, False, False])
    assert step_area(ranked_curve(np.zeros(4), positive), 1) == pytest.approx(0.25)


def test_no_items() -> None:
    assert np.isnan(step_area(ranked_curve(np.zeros(0), np.zeros(0, bool)), 0))
