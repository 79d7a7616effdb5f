"""CaffeNet's training pass for a GPU: the same weights and the same map, by fused kernels.

Its grouped convolutions run as two ordinary ones on halves of the channels, which the kernels between them read and
write in place; the convolutions' biases are left out, since the batch normalisation takes them away again.
"""

from collections.abc import Sequence
from typing import cast

import torch
import triton
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.models.caffenet import CaffeNet
from unshuffle.models.kernels import unroll_kernel
from unshuffle.models.norm_pool import norm_relu_pool

UNROLLED = 80


def fused_pool5(backbone: CaffeNet, images: Tensor) -> Tensor:
    """`backbone(images)` in training mode, in the type of the images, (N, 3, S, S)."""
    with torch.no_grad():
        unrolled = unroll(images)
    weight = unrolled_weight(_conv(backbone.conv1).weight).to(images.dtype, memory_format=torch.channels_last)
    maps = _normalised(backbone.conv1, [F.conv2d(unrolled, weight)], pool=True, parts=2)
    maps = _normalised(backbone.conv2, _convolved(backbone.conv2, maps), pool=True)
    maps = _normalised(backbone.conv3, _convolved(backbone.conv3, maps), parts=2)
    maps = _normalised(backbone.conv4, _convolved(backbone.conv4, maps), parts=2)
    return _normalised(backbone.conv5, _convolved(backbone.conv5, maps), pool=True)[0]


def _conv(block: nn.Sequential) -> nn.Conv2d:
    return cast(nn.Conv2d, block[0])


def _convolved(block: nn.Sequential, maps: Sequence[Tensor]) -> list[Tensor]:
    """A block's convolution without its bias: one output for each group."""
    conv = _conv(block)
    weights = conv.weight.to(maps[0].dtype, memory_format=torch.channels_last).chunk(conv.groups)
    return [F.conv2d(part, weight, padding=conv.padding) for part, weight in zip(maps, weights, strict=True)]


def _normalised(block: nn.Sequential, maps: Sequence[Tensor], *, pool: bool = False, parts: int = 1) -> list[Tensor]:
    bias = _conv(block).bias
    assert bias is not None
    return list(norm_relu_pool(maps, cast(nn.BatchNorm2d, block[1]), bias, pool=pool, parts=parts))


def unroll(images: Tensor) -> Tensor:
    """For conv1: (N, 3, S, S) images as (N, 80, S / 2, S') maps, on which its convolution is 6 x 1 with stride 1.

    An 11 x 11 convolution with stride 2 on 3 channels is hard on the tensor cores. Two rows of an image become one,
    and what lies under a row of the kernel there, 2 x 12 pixels of 3 values, becomes the channels; 80 of them are
    faster than 72.
    """
    count, side = len(images), images.shape[-1]
    half, width = (side + 1) // 2, (side - 11) // 2 + 1
    images = images.contiguous(memory_format=torch.channels_last)
    maps = torch.empty(
        (count, UNROLLED, half, width), dtype=images.dtype, device=images.device, memory_format=torch.channels_last
    )
    unroll_kernel[count * half,](
        images, maps, S=side, SIDE=half, OW=width, K=UNROLLED, B=triton.next_power_of_2(width * UNROLLED)
    )
    return maps


def unrolled_weight(weight: Tensor) -> Tensor:
    """Conv1's (O, 3, 11, 11) weight for unrolled images, (O, 80, 6, 1); differentiable."""
    padded = F.pad(weight, (0, 1, 0, 1)).unflatten(2, (6, 2))  # outputs, channel, row, lower, column
    rows = padded.permute(0, 3, 4, 1, 2).flatten(1, 3)  # outputs, (lower, column, channel), row
    return F.pad(rows, (0, 0, 0, UNROLLED - rows.shape[1]))[..., None]
