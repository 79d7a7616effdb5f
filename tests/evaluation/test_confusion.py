import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix as reference_matrix
from sklearn.metrics import jaccard_score

from unshuffle.evaluation.confusion import class_ious, confusion_matrix, pixel_accuracy


@pytest.mark.parametrize("seed", range(3))
def test_against_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, predicted = rng.integers(0, 5, (9, 11)), rng.integers(0, 5, (9, 11))
    truth[rng.random(truth.shape) < 0.2] = 255
    ours = confusion_matrix(torch.from_numpy(predicted), torch.from_numpy(truth.astype(np.uint8)), 5)
    known = truth != 255
    assert ours.tolist() == reference_matrix(truth[known], predicted[known], labels=range(5)).tolist()
    expected = jaccard_score(truth[known], predicted[known], labels=range(5), average=None)
    np.testing.assert_allclose(class_ious(ours), expected)
    assert pixel_accuracy(ours) == pytest.approx((truth == predicted)[known].mean())


def test_matrices_of_images_add_up() -> None:
    truth, predicted = torch.randint(0, 3, (2, 50)), torch.randint(0, 3, (2, 50))
    parts = confusion_matrix(predicted[0], truth[0], 3) + confusion_matrix(predicted[1], truth[1], 3)
    assert torch.equal(parts, confusion_matrix(predicted, truth, 3))


def test_a_class_that_is_nowhere_has_no_iou_and_a_wrongly_predicted_one_has_zero() -> None:
    ious = class_ious(confusion_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 0, 0]), 3))
    assert ious[0] == pytest.approx(2 / 3) and ious[1] == 0 and torch.isnan(ious[2])
