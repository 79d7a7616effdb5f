"""Average precision, in the forms that the literature reports under one name.

`step_area` is what scikit-learn's `average_precision_score` computes, `eleven_point` the form of VOC 2007 and
`envelope_area` that of VOC 2010 and later. A class without positives has none of them: they are then NaN.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Curve(NamedTuple):
    """Precision and recall at each threshold, the strictest first."""

    precision: Floats
    recall: Floats


def ranked_curve(scores: npt.NDArray[np.floating], positive: npt.NDArray[np.bool_]) -> Curve:
    """The curve of scored items; items of equal score are accepted together, so their order cannot flatter."""
    order = np.argsort(-scores, kind="stable")
    is_last = np.append(np.diff(scores[order]) != 0, True)
    curve = hit_curve(positive[order], int(positive.sum()))
    return Curve(curve.precision[is_last], curve.recall[is_last]) if len(scores) else curve


def hit_curve(hits: npt.NDArray[np.bool_], positives: int) -> Curve:
    """The curve of a ranked list of right and wrong answers, the surest first, to so many that there are."""
    right = np.cumsum(hits, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Curve(right / np.arange(1, len(hits) + 1), right / np.float64(positives))


def step_area(curve: Curve, positives: int) -> float:
    """Each threshold's precision, weighted by the recall it adds."""
    if positives == 0:
        return float("nan")
    return float(np.sum(np.diff(curve.recall, prepend=0.0) * curve.precision))


def eleven_point(curve: Curve, positives: int) -> float:
    """The mean over recalls 0, 0.1, ... 1 of the best precision at that recall or a higher one."""
    if positives == 0:
        return float("nan")
    # whole numbers: 3 of 10 reach the recall 0.3, which as floats they might not
    found = np.rint(curve.recall * positives)
    best = [np.max(curve.precision, where=10 * found >= tenth * positives, initial=0.0) for tenth in range(11)]
    return float(np.mean(best))


def envelope_area(curve: Curve, positives: int) -> float:
    """As `step_area`, of the curve whose precision is the best at that recall or a higher one."""
    highest = np.maximum.accumulate(curve.precision[::-1])[::-1]
    return step_area(Curve(highest, curve.recall), positives)
