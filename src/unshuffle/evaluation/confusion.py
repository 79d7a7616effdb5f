"""Segmentation metrics from one confusion matrix over all pixels."""

import torch
from torch import Tensor


def confusion_matrix(predicted: Tensor, truth: Tensor, classes: int, ignored: int = 255) -> Tensor:
    """(classes, classes) pixel counts, a row for each true class; pixels of the ignored label do not count."""
    counted = truth != ignored
    cells = truth[counted].long() * classes + predicted[counted].long()
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes)


def class_ious(confusion: Tensor) -> Tensor:
    """Intersection over union of each class; NaN for a class that is neither there nor predicted."""
    shared = confusion.diagonal().double()
    return shared / (confusion.sum(dim=0) + confusion.sum(dim=1) - shared)


def pixel_accuracy(confusion: Tensor) -> float:
    """The share of the pixels that are right."""
    return float(confusion.diagonal().sum() / confusion.sum())
