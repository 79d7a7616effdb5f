"""Which frames of a video, and which crops of them: the sampling of Temporal Segment Networks (TSN).

Crops and frames are drawn on the CPU, where only the wanted bytes are read; all arithmetic on pixels is batched tensor
code on the device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.data.media import scaled_size
from unshuffle.data.source import Items, Pixels
from unshuffle.evaluation.features import to_floats

SCALES = (1.0, 0.875, 0.75, 0.66)
"""Sides of a training crop as shares of the frame's short side."""
PLACES = np.array(
    [(0, 0), (0, 4), (4, 0), (4, 4), (2, 2), (2, 0), (2, 4), (4, 2), (0, 2), (1, 1), (1, 3), (3, 1), (3, 3)]
)
"""The 13 places of a training crop, top and left in quarters of the room that it has."""
TEST_PLACES = PLACES[:5]
"""Four corners and the centre."""

Normalise = Callable[[Tensor], Tensor]


def frame_side(size: int) -> int:
    """The short side of a frame from which crops of a size are cut: 259 for 227, as 256 for 224."""
    return size * 256 // 224


def segment_frames(available: Items, segments: int, rng: np.random.Generator) -> Items:
    """A random frame out of each of the equal segments of each video, (B, segments)."""
    edges = np.arange(segments + 1) * available[:, None] // segments
    first, end = edges[:, :-1], np.maximum(edges[:, 1:], edges[:, :-1] + 1)  # a short video has empty segments
    frames: Items = rng.integers(first, end)
    return frames


def middle_frames(available: int, count: int) -> Items:
    """The frame in the middle of each of `count` equal segments; a short video repeats some."""
    frames: Items = (2 * np.arange(count) + 1) * available // (2 * count)
    return frames


@dataclass(frozen=True)
class Boxes:
    """A crop for each of B videos, the same in all of its frames."""

    corners: Items
    """(B, 2) top and left."""
    sides: Items
    """(B, 2) height and width."""
    mirrored: Items
    """(B,) whether left and right change places."""

    def cut(self, row: int, frames: Pixels) -> Pixels:
        """The crop of a video out of its (F, height, width, 3) frames."""
        (top, left), (height, width) = self.corners[row], self.sides[row]
        return frames[:, top : top + height, left : left + width]

    def by_shape(self) -> list[Items]:
        """The videos whose crops have the same height and width, group by group."""
        shapes, which = np.unique(self.sides, axis=0, return_inverse=True)
        return [np.flatnonzero(which.reshape(-1) == shape) for shape in range(len(shapes))]


def draw_boxes(frame_sizes: Items, rng: np.random.Generator) -> Boxes:
    """Crops at random: one of the scales for each side, at most one step apart, one of the 13 places, mirrored or not.

    `frame_sizes` are (B, 2) heights and widths.
    """
    steps = np.arange(len(SCALES))
    pairs = np.argwhere(np.abs(steps[:, None] - steps) <= 1)
    scales = np.array(SCALES)[pairs[rng.integers(len(pairs), size=len(frame_sizes))]]
    sides = (frame_sizes.min(axis=1, keepdims=True) * scales).astype(np.int64)
    places = PLACES[rng.integers(len(PLACES), size=len(frame_sizes))]
    return Boxes((frame_sizes - sides) * places // 4, sides, rng.integers(2, size=len(frame_sizes)))


def resized(frames: Tensor, height: int, width: int) -> Tensor:
    """(N, H, W, 3) bytes as (N, 3, height, width) in [0, 1], smoothed where they shrink."""
    images = to_floats(frames)
    if images.shape[2:] == (height, width):
        return images
    return F.interpolate(images, (height, width), mode="bilinear", align_corners=False, antialias=True)


def training_crops(cuts: Sequence[Tensor], mirrored: Tensor, size: int, normalise: Normalise) -> Tensor:
    """Crops of several shapes, (n, F, h, w, 3) bytes each, as one (B · F, 3, size, size) batch for the backbone."""
    crops = torch.cat([resized(cut.flatten(0, 1), size, size) for cut in cuts])
    flips = mirrored.repeat_interleave(len(crops) // len(mirrored))
    return normalise(torch.where(flips[:, None, None, None], crops.flip(3), crops))


def evaluation_crops(frames: Tensor, size: int, count: int, normalise: Normalise) -> Tensor:
    """Of (F, H, W, 3) bytes the corners and the centre, then their mirror images, (count · F, 3, size, size).

    `count` is 10, or 1 for the centre alone.
    """
    width, height = scaled_size((frames.shape[2], frames.shape[1]), frame_side(size))
    images = resized(frames, height, width)
    room = np.array([height - size, width - size])
    corners = [tuple((room * place // 4).tolist()) for place in (TEST_PLACES if count > 1 else TEST_PLACES[-1:])]
    crops = torch.cat([images[:, :, top : top + size, left : left + size] for top, left in corners])
    return normalise(torch.cat([crops, crops.flip(3)]) if count > 1 else crops)
