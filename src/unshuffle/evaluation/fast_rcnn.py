"""Fast R-CNN on a plain backbone: RoI pooling on the conv5 map, two new layers, a class and a box for each proposal."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import batched_nms, roi_pool

from unshuffle.evaluation.boxes import clip, decode, encode, overlaps
from unshuffle.evaluation.features import to_floats
from unshuffle.evaluation.voc import CLASSES
from unshuffle.evaluation.voc_task import new_layer
from unshuffle.models import Backbone
from unshuffle.models.chain import chain_of, first_convolution, geometry, side_of

BACKGROUND = len(CLASSES)
POOLED = 6
FOREGROUND_SHARE = 0.25
FOREGROUND_OVERLAP = 0.5
BACKGROUND_OVERLAP = 0.1
NMS_OVERLAP = 0.3
MOST_DETECTIONS = 100
"""Proposals of each class in an image that are considered, those of the highest scores."""


class Targets(NamedTuple):
    """Regions of an image to learn from."""

    boxes: Tensor
    """(R, 4)"""
    labels: Tensor
    """(R,) class or BACKGROUND."""
    offsets: Tensor
    """(R, 4) to the object's box; of no meaning for the background."""


class Detections(NamedTuple):
    """Found objects of one image, or of several."""

    boxes: Tensor
    scores: Tensor
    labels: Tensor


class FastRcnn(nn.Module):
    """From images and proposals to logits and offsets."""

    def __init__(self, backbone: Backbone, hidden: int, deviation: float, *, freeze_conv1: bool) -> None:
        super().__init__()
        self.normalise = backbone.normalise
        self.layers = centred_layers(backbone)
        self.stride = geometry(self.layers).stride
        if freeze_conv1:
            first_convolution(self.layers).requires_grad_(False)
        self.head = nn.Sequential(
            nn.Flatten(),
            new_layer(nn.Linear(backbone.channels * POOLED * POOLED, hidden), deviation, 0.1),
            nn.ReLU(inplace=True),
            nn.Dropout(),
            new_layer(nn.Linear(hidden, hidden), deviation, 0.1),
            nn.ReLU(inplace=True),
            nn.Dropout(),
        )
        self.score = new_layer(nn.Linear(hidden, len(CLASSES) + 1), 0.01, 0.0)
        self.offsets = new_layer(nn.Linear(hidden, 4 * len(CLASSES)), 0.001, 0.0)

    def forward(self, images: Sequence[Tensor], boxes: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(R, 21) logits and (R, 20, 4) offsets of all boxes of some (H, W, 3) images of bytes."""
        pooled = [self._pool(image, some) for image, some in zip(images, boxes, strict=True)]
        hidden = self.head(torch.cat(pooled))
        return self.score(hidden), self.offsets(hidden).unflatten(1, (-1, 4))

    def _pool(self, image: Tensor, boxes: Tensor) -> Tensor:
        maps = self.layers(self.normalise(to_floats(image[None])))
        # RoI pooling takes the last pixel inside, where our boxes have the first outside
        inclusive = torch.cat([boxes[:, :2], boxes[:, 2:] - 1], dim=1)
        pooled: Tensor = roi_pool(maps, [inclusive], POOLED, 1 / self.stride)
        return pooled


def centred_layers(backbone: Backbone) -> nn.Sequential:
    """A backbone's layers to its last convolution, padded so that cell i looks at pixel `stride` x i, or next to it."""
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


def sample_regions(proposals: Tensor, objects: Tensor, labels: Tensor, count: int, rng: np.random.Generator) -> Targets:
    """Regions of one image: at most a quarter on objects, the others near them; the objects are proposals too."""
    candidates = torch.cat([objects, proposals])
    best, owner = overlaps(candidates, objects).max(dim=1)
    on_objects = torch.nonzero(best >= FOREGROUND_OVERLAP)[:, 0].numpy()
    near = torch.nonzero((best >= BACKGROUND_OVERLAP) & (best < FOREGROUND_OVERLAP))[:, 0].numpy()
    foreground = rng.permutation(on_objects)[: round(FOREGROUND_SHARE * count)]
    background = rng.permutation(near)[: count - len(foreground)]
    chosen = torch.from_numpy(np.concatenate([foreground, background]))
    boxes, targets = candidates[chosen], owner[chosen]
    classes = torch.where(best[chosen] >= FOREGROUND_OVERLAP, labels[targets], BACKGROUND)
    return Targets(boxes, classes, encode(boxes, objects[targets]))


def detection_loss(logits: Tensor, offsets: Tensor, targets: Targets) -> Tensor:
    """Cross-entropy of the classes, and smooth L1 of the offsets of regions on objects, both per region."""
    classes = F.cross_entropy(logits, targets.labels)
    rows = torch.nonzero(targets.labels != BACKGROUND)[:, 0]
    ours = offsets[rows, targets.labels[rows]]
    return classes + F.smooth_l1_loss(ours, targets.offsets[rows], reduction="sum") / len(logits)


def detect(logits: Tensor, offsets: Tensor, proposals: Tensor, size: tuple[int, int]) -> Detections:
    """The objects of one image of that height and width; each class moves boxes its own way and suppresses its own."""
    most = min(MOST_DETECTIONS, len(proposals))
    scores, rows = logits.softmax(dim=1)[:, :BACKGROUND].topk(most, dim=0)
    labels = torch.arange(BACKGROUND, device=logits.device).expand_as(rows).flatten()
    scores, rows = scores.flatten(), rows.flatten()
    boxes = clip(decode(proposals[rows], offsets[rows, labels]), size)
    kept = batched_nms(boxes, scores, labels, NMS_OVERLAP)
    return Detections(boxes[kept], scores[kept], labels[kept])
