"""CaffeNet's training pass with fused kernels for a GPU: same weights, same pool5 map.

A grouped convolution runs as two ordinary ones, each on half of the channels; the kernels before it write the halves as
separate tensors. The biases of the convolutions are omitted, since the batch normalisation cancels them.
"""

from collections.abc import Sequence
from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional as F

from unshuffle.kernels.norm_pool import new_map, norm_relu_pool

UNROLLED = 80  # channels of unrolled images; faster than the 72 that are needed


def fused_pool5(blocks: Sequence[nn.Sequential], images: Tensor) -> Tensor:
    """Return the pool5 map of (N, 3, S, S) images in training mode, in their dtype.

    The blocks are CaffeNet's `conv1` to `conv5`, each a convolution, a batch normalisation and a ReLU.
    """
    conv1, conv2, conv3, conv4, conv5 = blocks
    with torch.no_grad():
        unrolled = unroll(images)
    weight = unrolled_weight(_conv(conv1).weight).to(images.dtype, memory_format=torch.channels_last)
    maps = _normalised(conv1, [F.conv2d(unrolled, weight)], pool=True, parts=2)
    maps = _normalised(conv2, _convolved(conv2, maps), pool=True)
    maps = _normalised(conv3, _convolved(conv3, maps), parts=2)
    maps = _normalised(conv4, _convolved(conv4, maps), parts=2)
    return _normalised(conv5, _convolved(conv5, maps), pool=True)[0]


def _conv(block: nn.Sequential) -> nn.Conv2d:
    return cast(nn.Conv2d, block[0])


def _convolved(block: nn.Sequential, maps: Sequence[Tensor]) -> list[Tensor]:
    """Apply a block's convolution without its bias; returns one output for each group."""
    conv = _conv(block)
    weights = conv.weight.to(maps[0].dtype, memory_format=torch.channels_last).chunk(conv.groups)
    return [F.conv2d(part, weight, padding=conv.padding) for part, weight in zip(maps, weights, strict=True)]


def _normalised(block: nn.Sequential, maps: Sequence[Tensor], *, pool: bool = False, parts: int = 1) -> list[Tensor]:
    bias = _conv(block).bias
    assert bias is not None
    return list(norm_relu_pool(maps, cast(nn.BatchNorm2d, block[1]), bias, pool=pool, parts=parts))


def unroll(images: Tensor) -> Tensor:
    """Return (N, 3, S, S) images as (N, 80, S / 2, S') maps, on which conv1 is a 6 x 1 convolution with stride 1.

    An 11 x 11 convolution with stride 2 on 3 channels uses the tensor cores poorly. Here two rows of an image become
    one, and the 2 x 12 pixels of 3 values that lie under a row of the kernel become the channels, padded to 80.
    """
    count, side = len(images), images.shape[-1]
    half, width = (side + 1) // 2, (side - 11) // 2 + 1
    images = images.contiguous(memory_format=torch.channels_last)
    maps = new_map(images, UNROLLED, (half, width))
    unroll_kernel[count * half,](
        images, maps, S=side, SIDE=half, OW=width, K=UNROLLED, B=triton.next_power_of_2(width * UNROLLED)
    )
    return maps


def unrolled_weight(weight: Tensor) -> Tensor:
    """Return conv1's (O, 3, 11, 11) weight for unrolled images, (O, 80, 6, 1); differentiable."""
    padded = F.pad(weight, (0, 1, 0, 1)).unflatten(2, (6, 2))  # outputs, channel, row, lower, column
    rows = padded.permute(0, 3, 4, 1, 2).flatten(1, 3)  # outputs, (lower, column, channel), row
    return F.pad(rows, (0, 0, 0, UNROLLED - rows.shape[1]))[..., None]


@triton.jit
def unroll_kernel(x, y, S: tl.constexpr, SIDE: tl.constexpr, OW: tl.constexpr, K: tl.constexpr, B: tl.constexpr):
    """Write one row of unrolled maps from two rows of an image: see `unroll`."""
    row = tl.program_id(0).to(tl.int64)
    top = (row % SIDE) * 2
    x += (row // SIDE * S + top) * (S * 3)
    index = tl.arange(0, B)
    channel = index % K
    lower = (channel >= 36).to(tl.int32)
    offset = index // K * 6 + channel - 36 * lower
    valid = (channel < 72) & (offset < S * 3) & (top + lower < S) & (index < OW * K)
    tl.store(y + row * (OW * K) + index, tl.load(x + lower * (S * 3) + offset, valid, 0.0), index < OW * K)
