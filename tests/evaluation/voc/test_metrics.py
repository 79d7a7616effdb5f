from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, jaccard_score
from sklearn.metrics import confusion_matrix as reference_matrix

from unshuffle.data.voc import VocImage, VocObject
from unshuffle.evaluation.voc.metrics import (
    Detections,
    GroundTruth,
    average_precision,
    class_ious,
    class_truths,
    confusion_matrix,
    count_positives,
    detection_average_precisions,
    match_curve,
    match_detections,
    pixel_accuracy,
    precision_recall_curve,
    voc2007_average_precision,
    voc2010_average_precision,
)

SCORED = st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=1, max_size=40)


@given(SCORED)
def test_average_precision_is_that_of_scikit_learn(items: list[tuple[int, bool]]) -> None:
    scores, positive = np.array([score for score, _ in items], float), np.array([truth for _, truth in items])
    precision = average_precision(precision_recall_curve(scores, positive), int(positive.sum()))
    if not positive.any():
        assert np.isnan(precision)
    else:
        assert precision == pytest.approx(average_precision_score(positive, scores))


def slow_curve(matches: list[bool], positives: int) -> list[tuple[int, float]]:
    """True positives and precision at each rank."""
    return [(sum(matches[: n + 1]), sum(matches[: n + 1]) / (n + 1)) for n in range(len(matches))]


def slow_voc2007(matches: list[bool], positives: int) -> float:
    points = slow_curve(matches, positives)
    return sum(max([p for found, p in points if 10 * found >= t * positives], default=0.0) for t in range(11)) / 11


def slow_voc2010(matches: list[bool], positives: int) -> float:
    points = slow_curve(matches, positives)
    best = [max([p for found, p in points if found >= n], default=0.0) for n in range(1, positives + 1)]
    return sum(best) / positives


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 20))
def test_both_voc_forms_against_loops(matches: list[bool], missed: int) -> None:
    positives = sum(matches) + missed
    curve = match_curve(np.array(matches, bool), positives)
    if positives == 0:
        assert np.isnan(voc2007_average_precision(curve, 0)) and np.isnan(voc2010_average_precision(curve, 0))
        return
    assert voc2007_average_precision(curve, positives) == pytest.approx(slow_voc2007(matches, positives))
    assert voc2010_average_precision(curve, positives) == pytest.approx(slow_voc2010(matches, positives))


def test_three_of_ten_reach_a_recall_of_three_tenths() -> None:
    curve = match_curve(np.ones(3, bool), 10)
    assert voc2007_average_precision(curve, 10) == pytest.approx(4 / 11)


def test_tied_scores_share_one_threshold() -> None:
    positive = np.array([True, False, False, False])
    assert average_precision(precision_recall_curve(np.zeros(4), positive), 1) == pytest.approx(0.25)


def test_no_scores_have_no_average_precision() -> None:
    assert np.isnan(average_precision(precision_recall_curve(np.zeros(0), np.zeros(0, bool)), 0))


# ---- detections


Box = tuple[int, int, int, int]


def inclusive_iou(box: Box, other: Box) -> float:
    """IoU as the devkit computes it: with right and bottom inclusive, which are one less than ours."""
    width = min(box[2], other[2]) - 1 - max(box[0], other[0]) + 1
    height = min(box[3], other[3]) - 1 - max(box[1], other[1]) + 1
    if width <= 0 or height <= 0:
        return 0.0
    areas = [(b[2] - 1 - b[0] + 1) * (b[3] - 1 - b[1] + 1) for b in (box, other)]
    return width * height / (sum(areas) - width * height)


def slow_matches(detections: list[tuple[int, Box, float]], truths: dict[int, list[tuple[Box, bool]]]) -> list[bool]:
    """Match detections by the devkit's loop."""
    matched: set[tuple[int, int]] = set()
    outcomes = []
    for image, box, _ in sorted(detections, key=lambda detection: -detection[2]):
        best, nearest = -1.0, None
        for number, (other, _difficult) in enumerate(truths.get(image, [])):
            if inclusive_iou(box, other) > best:
                best, nearest = inclusive_iou(box, other), number
        if best >= 0.5 and nearest is not None:
            if not truths[image][nearest][1]:
                outcomes.append((image, nearest) not in matched)
                matched.add((image, nearest))
        else:
            outcomes.append(False)
    return outcomes


def random_box(rng: np.random.Generator) -> Box:
    left, top = rng.integers(0, 8, 2).tolist()
    width, height = rng.integers(4, 10, 2).tolist()
    return left, top, left + width, top + height


@pytest.mark.parametrize("seed", range(20))
def test_matches_against_the_loops_of_the_devkit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truths = {
        image: [(random_box(rng), bool(rng.random() < 0.4)) for _ in range(rng.integers(1, 4))] for image in (0, 2, 3)
    }
    detections = [(int(rng.integers(0, 4)), random_box(rng), float(rng.random())) for _ in range(40)]
    matches = match_detections(
        [image for image, _, _ in detections],
        torch.tensor([box for _, box, _ in detections]).float(),
        np.array([score for _, _, score in detections]),
        {
            image: GroundTruth(
                torch.tensor([box for box, _ in objects]).float(), [difficult for _, difficult in objects]
            )
            for image, objects in truths.items()
        },
    )
    expected = slow_matches(detections, truths)
    assert matches.tolist() == expected
    assert sum(expected) > 0 or seed != 0, "the test would prove nothing without matches"


def test_difficult_objects_count_neither_as_detected_nor_as_missed() -> None:
    truth = {0: GroundTruth(torch.tensor([[0.0, 0, 10, 10], [20, 20, 30, 30]]), [True, False])}
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [20, 20, 30, 29]])
    matches = match_detections([0, 0, 0, 0], boxes, np.array([0.9, 0.8, 0.7, 0.6]), truth)
    assert matches.tolist() == [True, False] and count_positives(truth) == 1


def test_perfect_and_empty_detections() -> None:
    objects = (
        VocObject(3, (0, 0, 20, 20), False),
        VocObject(3, (30, 30, 60, 60), True),
        VocObject(5, (5, 5, 9, 9), False),
    )
    images = [VocImage("a", Path(), (80, 80), objects), VocImage("b", Path(), (80, 80), objects[:1])]
    boxes = torch.tensor([annotated.box for annotated in objects[:2]]).float()
    first = Detections(boxes, torch.tensor([0.9, 0.99]), torch.tensor([3, 3]))
    second = Detections(boxes[:1], torch.tensor([0.8]), torch.tensor([3]))
    area, eleven_point = detection_average_precisions([first, second], images)
    assert area[3] == pytest.approx(1) and eleven_point[3] == pytest.approx(1)
    assert area[5] == eleven_point[5] == 0, "nothing was detected"
    assert all(np.isnan(area[label]) for label in range(20) if label not in (3, 5))
    assert sorted(class_truths(images, 3)) == [0, 1]


def test_no_detections_have_no_matches() -> None:
    assert (
        match_detections([], torch.zeros(0, 4), np.zeros(0), {0: GroundTruth(torch.ones(1, 4), [False])}).tolist() == []
    )


# ---- segmentations


@pytest.mark.parametrize("seed", range(3))
def test_segmentation_metrics_against_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, predicted = rng.integers(0, 5, (9, 11)), rng.integers(0, 5, (9, 11))
    truth[rng.random(truth.shape) < 0.2] = 255
    confusion = confusion_matrix(torch.from_numpy(predicted), torch.from_numpy(truth.astype(np.uint8)), 5)
    known = truth != 255
    assert confusion.tolist() == reference_matrix(truth[known], predicted[known], labels=range(5)).tolist()
    expected = jaccard_score(truth[known], predicted[known], labels=range(5), average=None)
    np.testing.assert_allclose(class_ious(confusion), expected)
    assert pixel_accuracy(confusion) == pytest.approx((truth == predicted)[known].mean())


def test_confusion_matrices_of_images_add_up() -> None:
    truth, predicted = torch.randint(0, 3, (2, 50)), torch.randint(0, 3, (2, 50))
    summed = confusion_matrix(predicted[0], truth[0], 3) + confusion_matrix(predicted[1], truth[1], 3)
    assert torch.equal(summed, confusion_matrix(predicted, truth, 3))


def test_an_absent_class_has_no_iou_unless_it_is_predicted_which_makes_it_zero() -> None:
    ious = class_ious(confusion_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]), 3))
    assert ious[0] == pytest.approx(2 / 3) and ious[1] == 0 and torch.isnan(ious[2])
