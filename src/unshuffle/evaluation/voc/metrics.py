"""The metrics of VOC: average precision of scores and of detections, and IoU of segmentations.

The literature reports three definitions as average precision: `average_precision` is scikit-learn's,
`voc2007_average_precision` the 11-point one and `voc2010_average_precision` the area under the interpolated curve.
For a class without positives each of them is NaN.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.ops import box_iou

from unshuffle.data.voc import CLASSES, VocImage

Floats = npt.NDArray[np.float64]
MIN_IOU = 0.5
"""A detection matches an object from this intersection over union on."""


class Curve(NamedTuple):
    """Precision and recall at each threshold, the highest threshold first."""

    precision: Floats
    recall: Floats


def precision_recall_curve(scores: npt.NDArray[np.floating], positive: npt.NDArray[np.bool_]) -> Curve:
    """Return the curve of scored items; tied scores share one threshold, so their order does not matter."""
    ranking = np.argsort(-scores, kind="stable")
    is_last_of_tie = np.append(np.diff(scores[ranking]) != 0, True)
    curve = match_curve(positive[ranking], int(positive.sum()))
    return Curve(curve.precision[is_last_of_tie], curve.recall[is_last_of_tie]) if len(scores) else curve


def match_curve(matches: npt.NDArray[np.bool_], positives: int) -> Curve:
    """Return the curve of true and false positives, ranked by falling score, given the number of positives."""
    true_positives = np.cumsum(matches, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return Curve(true_positives / np.arange(1, len(matches) + 1), true_positives / np.float64(positives))


def average_precision(curve: Curve, positives: int) -> float:
    """Return the sum of each threshold's precision, weighted by the recall it adds (scikit-learn's definition)."""
    if positives == 0:
        return float("nan")
    return float(np.sum(np.diff(curve.recall, prepend=0.0) * curve.precision))


def voc2007_average_precision(curve: Curve, positives: int) -> float:
    """Return the mean over the recalls 0, 0.1, ... 1 of the best precision at that recall or a higher one."""
    if positives == 0:
        return float("nan")
    # compare whole numbers: 3 of 10 reach a recall of 0.3, which rounding of floats could deny
    true_positives = np.rint(curve.recall * positives)
    best = [np.max(curve.precision, where=10 * true_positives >= tenth * positives, initial=0.0) for tenth in range(11)]
    return float(np.mean(best))


def voc2010_average_precision(curve: Curve, positives: int) -> float:
    """Return `average_precision` after raising each precision to the best at that recall or a higher one."""
    interpolated = np.maximum.accumulate(curve.precision[::-1])[::-1]
    return average_precision(Curve(interpolated, curve.recall), positives)


class Detections(NamedTuple):
    """Detected objects of one image, or of several."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


class GroundTruth(NamedTuple):
    """The objects of one class in one image."""

    boxes: Tensor
    difficult: Sequence[bool]


def detection_average_precisions(
    detections: Sequence[Detections], images: Sequence[VocImage]
) -> tuple[list[float], list[float]]:
    """Return the average precision of each class: by area, and by 11 points."""
    boxes, scores, labels = (torch.cat(field) for field in zip(*detections, strict=True))
    image_of_row = torch.repeat_interleave(torch.tensor([len(detected.scores) for detected in detections]))
    area, eleven_point = [], []
    for label in range(len(CLASSES)):
        truths = class_truths(images, label)
        rows = torch.nonzero(labels == label)[:, 0]
        matches = match_detections(image_of_row[rows].tolist(), boxes[rows], scores[rows].numpy(), truths)
        positives = count_positives(truths)
        curve = match_curve(matches, positives)
        area.append(voc2010_average_precision(curve, positives))
        eleven_point.append(voc2007_average_precision(curve, positives))
    return area, eleven_point


def class_truths(images: Sequence[VocImage], label: int) -> dict[int, GroundTruth]:
    """Return the objects of a class, by the index of their image."""
    truths = {}
    for number, image in enumerate(images):
        objects = [annotated for annotated in image.objects if annotated.label == label]
        if objects:
            boxes = torch.tensor([annotated.box for annotated in objects], dtype=torch.float32)
            truths[number] = GroundTruth(boxes, [annotated.difficult for annotated in objects])
    return truths


def match_detections(
    images: Sequence[int], boxes: Tensor, scores: npt.NDArray[np.floating], truths: Mapping[int, GroundTruth]
) -> npt.NDArray[np.bool_]:
    """Return whether each detection of one class is a true positive, ranked by falling score, as the devkit counts.

    A detection belongs to the object of highest IoU, if that is at least MIN_IOU; further detections of the same object
    are false positives. Detections of difficult objects are left out.
    """
    matches: list[bool] = []
    matched: set[tuple[int, int]] = set()
    nearest = _nearest_objects(images, boxes, truths)
    for row in np.argsort(-scores, kind="stable").tolist():
        target = nearest[row]
        if target is None:
            matches.append(False)
        elif not truths[target[0]].difficult[target[1]]:
            matches.append(target not in matched)
            matched.add(target)
    return np.array(matches, bool)


def _nearest_objects(
    images: Sequence[int], boxes: Tensor, truths: Mapping[int, GroundTruth]
) -> list[tuple[int, int] | None]:
    """Return the (image, object) that each detection belongs to."""
    nearest: list[tuple[int, int] | None] = [None] * len(images)
    image_of_row = np.asarray(images)
    for image, truth in truths.items():
        rows = np.flatnonzero(image_of_row == image)
        if len(rows) == 0:
            continue
        ious, objects = box_iou(boxes[torch.from_numpy(rows)], truth.boxes).max(dim=1)
        for row, iou, number in zip(rows.tolist(), ious.tolist(), objects.tolist(), strict=True):
            if iou >= MIN_IOU:
                nearest[row] = (image, number)
    return nearest


def count_positives(truths: Mapping[int, GroundTruth]) -> int:
    """Return the number of objects that are not difficult."""
    return sum(not difficult for truth in truths.values() for difficult in truth.difficult)


def confusion_matrix(predicted: Tensor, truth: Tensor, classes: int, ignore_index: int = 255) -> Tensor:
    """Return (classes, classes) pixel counts, one row per true class, without the ignored pixels."""
    counted = truth != ignore_index
    cells = truth[counted].long() * classes + predicted[counted].long()
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def class_ious(confusion: Tensor) -> Tensor:
    """Return the intersection over union of each class; NaN for a class neither present nor predicted."""
    intersection = confusion.diagonal().double()
    return intersection / (confusion.sum(dim=0) + confusion.sum(dim=1) - intersection)


def pixel_accuracy(confusion: Tensor) -> float:
    """Return the fraction of correctly labelled pixels."""
    return float(confusion.diagonal().sum() / confusion.sum())
