"""Which detections are right, as the VOC devkit counts them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unshuffle.evaluation.boxes import overlaps

LEAST_OVERLAP = 0.5


class Truth(NamedTuple):
    """The objects of one class in one image."""

    boxes: Tensor
    difficult: Sequence[bool]


def mark_hits(
    images: Sequence[int], boxes: Tensor, scores: npt.NDArray[np.floating], truths: Mapping[int, Truth]
) -> npt.NDArray[np.bool_]:
    """Right or wrong for the detections of one class, the surest first.

    A detection belongs to the object it overlaps most, if by half or more; an object has one right detection, and
    further ones are wrong. Detections of difficult objects are neither: they are left out.
    """
    hits: list[bool] = []
    taken: set[tuple[int, int]] = set()
    closest = _closest(images, boxes, truths)
    for row in np.argsort(-scores, kind="stable").tolist():
        owner = closest[row]
        if owner is None:
            hits.append(False)
        elif not truths[owner[0]].difficult[owner[1]]:
            hits.append(owner not in taken)
            taken.add(owner)
    return np.array(hits, bool)


def _closest(images: Sequence[int], boxes: Tensor, truths: Mapping[int, Truth]) -> list[tuple[int, int] | None]:
    """The image and the number of the object that each detection belongs to."""
    found: list[tuple[int, int] | None] = [None] * len(images)
    at = np.asarray(images)
    for image, truth in truths.items():
        rows = np.flatnonzero(at == image)
        if len(rows) == 0:
            continue
        best, owner = overlaps(boxes[torch.from_numpy(rows)], truth.boxes).max(dim=1)
        for row, overlap, number in zip(rows.tolist(), best.tolist(), owner.tolist(), strict=True):
            if overlap >= LEAST_OVERLAP:
                found[row] = (image, number)
    return found


def count_objects(truths: Mapping[int, Truth]) -> int:
    """Objects that are to be found: those that are not difficult."""
    return sum(not difficult for truth in truths.values() for difficult in truth.difficult)
