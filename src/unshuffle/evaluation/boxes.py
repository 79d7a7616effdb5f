"""Boxes: (N, 4) tensors of left, top, right, bottom; right and bottom are the first pixels outside."""

import math

import torch
from torch import Tensor

DEVIATIONS = (0.1, 0.1, 0.2, 0.2)
"""What offsets are divided by, so that all four are of order 1."""
MOST_GROWTH = math.log(1000 / 16)
"""No box is decoded to more than e to this times its size: one wild output should not become infinite."""


def overlaps(boxes: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of each box with each other, (N, M)."""
    corner = torch.maximum(boxes[:, None, :2], others[None, :, :2])
    opposite = torch.minimum(boxes[:, None, 2:], others[None, :, 2:])
    shared = (opposite - corner).clamp(min=0).prod(dim=2)
    return shared / (_areas(boxes)[:, None] + _areas(others)[None] - shared)


def _areas(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).prod(dim=1)


def encode(boxes: Tensor, targets: Tensor) -> Tensor:
    """What moves each box onto its target: the shift of the centre in box sizes, and the log of the growth."""
    size, goal = boxes[:, 2:] - boxes[:, :2], targets[:, 2:] - targets[:, :2]
    shift = (targets[:, :2] + goal / 2 - boxes[:, :2] - size / 2) / size
    return torch.cat([shift, torch.log(goal / size)], dim=1) / boxes.new_tensor(DEVIATIONS)


def decode(boxes: Tensor, offsets: Tensor) -> Tensor:
    """The boxes moved by the offsets that `encode` gives."""
    offsets = offsets * boxes.new_tensor(DEVIATIONS)
    size = boxes[:, 2:] - boxes[:, :2]
    centre = boxes[:, :2] + size / 2 + offsets[:, :2] * size
    half = size * offsets[:, 2:].clamp(max=MOST_GROWTH).exp() / 2
    return torch.cat([centre - half, centre + half], dim=1)


def clip(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """The part of each box within an image of that height and width."""
    height, width = size
    return boxes.clamp(min=0).minimum(boxes.new_tensor([width, height, width, height]))


def mirror(boxes: Tensor, width: int) -> Tensor:
    """The boxes in the mirrored image."""
    left, top, right, bottom = boxes.unbind(dim=1)
    return torch.stack([width - right, top, width - left, bottom], dim=1)
