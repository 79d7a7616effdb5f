"""Fast R-CNN on a plain backbone: RoI pooling of the conv5 map, then a class and a box for each proposal.

Boxes are (N, 4) tensors of left, top, right, bottom; right and bottom are exclusive.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image, roi_pool

from unshuffle.data.voc import CLASSES
from unshuffle.evaluation.features import to_floats
from unshuffle.evaluation.finetuning import fc6_and_fc7, init_layer
from unshuffle.evaluation.voc.metrics import Detections
from unshuffle.models import Backbone
from unshuffle.models.chain import chain_of, first_convolution, geometry, side_of

BACKGROUND = len(CLASSES)
POOLED_SIZE = 6
FOREGROUND_FRACTION = 0.25
FOREGROUND_IOU = 0.5
MIN_BACKGROUND_IOU = 0.1
NMS_IOU = 0.3
MAX_PROPOSALS_PER_CLASS = 100
"""Proposals that become detections of a class in an image before suppression: those of the highest scores."""
OFFSET_STDS = (0.1, 0.1, 0.2, 0.2)
"""Box offsets are divided by these, so that all four are of order 1."""
MAX_LOG_SCALE = math.log(1000 / 16)
"""Limit of a decoded box's growth, so that an extreme output does not become infinite."""


class RegionTargets(NamedTuple):
    """Regions of an image with their targets."""

    boxes: Tensor
    """(R, 4)"""
    labels: Tensor
    """(R,) class or BACKGROUND."""
    offsets: Tensor
    """(R, 4) offsets to the object's box; meaningless for the background."""


class FastRCNN(nn.Module):
    """Fast R-CNN: images and proposals to class logits and box offsets."""

    def __init__(self, backbone: Backbone, hidden: int, init_std: float, *, freeze_conv1: bool) -> None:
        super().__init__()
        self.normalise = backbone.normalise
        self.layers = centred_layers(backbone)
        self.stride = geometry(self.layers).stride
        if freeze_conv1:
            first_convolution(self.layers).requires_grad_(False)
        inputs = backbone.channels * POOLED_SIZE * POOLED_SIZE
        self.head = nn.Sequential(nn.Flatten(), *fc6_and_fc7(inputs, hidden, init_std))
        self.score = init_layer(nn.Linear(hidden, len(CLASSES) + 1), 0.01, 0.0)
        self.offsets = init_layer(nn.Linear(hidden, 4 * len(CLASSES)), 0.001, 0.0)

    def forward(self, images: Sequence[Tensor], boxes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return (R, 21) logits and (R, 20, 4) offsets of all boxes of several (H, W, 3) images of bytes."""
        pooled = [self._pool(image, image_boxes) for image, image_boxes in zip(images, boxes, strict=True)]
        hidden = self.head(torch.cat(pooled))
        return self.score(hidden), self.offsets(hidden).unflatten(1, (-1, 4))

    def _pool(self, image: Tensor, boxes: Tensor) -> Tensor:
        feature_map = self.layers(self.normalise(to_floats(image[None])))
        # right and bottom are inclusive in RoI pooling
        inclusive = torch.cat([boxes[:, :2], boxes[:, 2:] - 1], dim=1)
        pooled: Tensor = roi_pool(feature_map, [inclusive], POOLED_SIZE, 1 / self.stride)
        return pooled


def centred_layers(backbone: Backbone) -> nn.Sequential:
    """Return the backbone up to its last convolution, padded so that RoI pooling maps boxes to the right cells.

    Cell i is then centred at pixel `stride` x i, or next to it.
    """
    layers = chain_of(backbone)
    while not isinstance(layers[-1], nn.ReLU):
        layers = layers[:-1]
    for layer in layers:
        if isinstance(layer, nn.MaxPool2d):
            layer.ceil_mode = True  # as in Caffe
            layer.padding = (side_of(layer.kernel_size) - 1) // 2
    conv1 = first_convolution(layers)
    conv1.padding = (side_of(conv1.kernel_size) // 2,) * 2
    return layers


def encode_boxes(boxes: Tensor, targets: Tensor) -> Tensor:
    """Return the offsets from boxes to targets: shift of the centre in units of the box, and log of the scale."""
    size, target_size = boxes[:, 2:] - boxes[:, :2], targets[:, 2:] - targets[:, :2]
    shift = (targets[:, :2] + target_size / 2 - boxes[:, :2] - size / 2) / size
    return torch.cat([shift, torch.log(target_size / size)], dim=1) / boxes.new_tensor(OFFSET_STDS)


def decode_boxes(boxes: Tensor, offsets: Tensor) -> Tensor:
    """Return the boxes moved by offsets; the inverse of `encode_boxes`."""
    offsets = offsets * boxes.new_tensor(OFFSET_STDS)
    size = boxes[:, 2:] - boxes[:, :2]
    centre = boxes[:, :2] + size / 2 + offsets[:, :2] * size
    half = size * offsets[:, 2:].clamp(max=MAX_LOG_SCALE).exp() / 2
    return torch.cat([centre - half, centre + half], dim=1)


def sample_regions(
    proposals: Tensor, objects: Tensor, labels: Tensor, count: int, rng: np.random.Generator
) -> RegionTargets:
    """Sample regions of one image: up to a quarter foreground, the rest background that overlaps an object slightly.

    The objects' own boxes are candidates too.
    """
    candidates = torch.cat([objects, proposals])
    best_iou, best_object = box_iou(candidates, objects).max(dim=1)
    is_foreground = best_iou >= FOREGROUND_IOU
    is_background = (best_iou >= MIN_BACKGROUND_IOU) & ~is_foreground
    foreground = rng.permutation(torch.nonzero(is_foreground)[:, 0].numpy())[: round(FOREGROUND_FRACTION * count)]
    background = rng.permutation(torch.nonzero(is_background)[:, 0].numpy())[: count - len(foreground)]
    sampled = torch.from_numpy(np.concatenate([foreground, background]))
    boxes, targets = candidates[sampled], best_object[sampled]
    classes = torch.where(is_foreground[sampled], labels[targets], BACKGROUND)
    return RegionTargets(boxes, classes, encode_boxes(boxes, objects[targets]))


def detection_loss(logits: Tensor, offsets: Tensor, targets: RegionTargets) -> Tensor:
    """Return cross-entropy of the classes plus smooth L1 of the foreground's offsets, both averaged over regions."""
    classification_loss = F.cross_entropy(logits, targets.labels)
    foreground = torch.nonzero(targets.labels != BACKGROUND)[:, 0]
    predicted = offsets[foreground, targets.labels[foreground]]
    box_loss = F.smooth_l1_loss(predicted, targets.offsets[foreground], reduction="sum")
    return classification_loss + box_loss / len(logits)


def detect(logits: Tensor, offsets: Tensor, proposals: Tensor, size: tuple[int, int]) -> Detections:
    """Return the detections in one image of the given height and width, with box offsets and suppression per class."""
    per_class = min(MAX_PROPOSALS_PER_CLASS, len(proposals))
    scores, rows = logits.softmax(dim=1)[:, :BACKGROUND].topk(per_class, dim=0)
    labels = torch.arange(BACKGROUND, device=logits.device).expand_as(rows).flatten()
    scores, rows = scores.flatten(), rows.flatten()
    boxes = clip_boxes_to_image(decode_boxes(proposals[rows], offsets[rows, labels]), size)
    kept = batched_nms(boxes, scores, labels, NMS_IOU)
    return Detections(boxes[kept], scores[kept], labels[kept])
