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

KERNEL = 12  # side of conv1's kernel, padded by one to a multiple of its stride
UNROLLED = {2: 80, 4: 144}  # channels of unrolled images for each stride of conv1; 80 are faster than the 72 needed


def fused_pool5(blocks: Sequence[nn.Sequential], images: Tensor, stride: int = 2) -> Tensor:
    """Return the pool5 map of (N, 3, S, S) images in training mode, in their dtype.

    The blocks are CaffeNet's `conv1` to `conv5`, each a convolution, a batch normalisation and a ReLU; `stride` is that
    of conv1.
    """
    conv1, conv2, conv3, conv4, conv5 = blocks
    with torch.no_grad():
        unrolled = unroll(images, stride)
    weight = unrolled_weight(_conv(conv1).weight, stride).to(images.dtype, memory_format=torch.channels_last)
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


def unroll(images: Tensor, stride: int = 2) -> Tensor:
    """Return (N, 3, S, S) images as maps on which conv1 with this stride is a convolution with stride 1.

    An 11 x 11 convolution on 3 channels uses the tensor cores poorly. Here as many rows of an image as the stride
    become one, and the pixels in them that lie under a row of the kernel become the channels: 2 x 12 pixels of 3 values
    and a kernel of 6 x 1 with stride 2, 4 x 12 pixels and 3 x 1 with stride 4.
    """
    count, side, channels = len(images), images.shape[-1], UNROLLED[stride]
    width = (side - 11) // stride + 1
    height = width + KERNEL // stride - 1
    images = images.contiguous(memory_format=torch.channels_last)
    maps = new_map(images, channels, (height, width))
    unroll_kernel[count * height,](
        images, maps, S=side, SIDE=height, OW=width, STRIDE=stride, ROW=3 * KERNEL, K=channels,
        B=triton.next_power_of_2(width * channels),
    )  # fmt: skip
    return maps


def unrolled_weight(weight: Tensor, stride: int = 2) -> Tensor:
    """Return conv1's (O, 3, 11, 11) weight for unrolled images, (O, channels, 12 / stride, 1); differentiable."""
    padded = F.pad(weight, (0, 1, 0, 1)).unflatten(2, (KERNEL // stride, stride))
    # from outputs, channel, row, row within the stride, column
    rows = padded.permute(0, 3, 4, 1, 2).flatten(1, 3)
    return F.pad(rows, (0, 0, 0, UNROLLED[stride] - rows.shape[1]))[..., None]


@triton.jit
def unroll_kernel(
    x, y, S: tl.constexpr, SIDE: tl.constexpr, OW: tl.constexpr, STRIDE: tl.constexpr, ROW: tl.constexpr,
    K: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Write one row of unrolled maps from as many rows of an image as the stride: see `unroll`."""
    row = tl.program_id(0).to(tl.int64)
    top = (row % SIDE) * STRIDE
    x += (row // SIDE * S + top) * (S * 3)
    index = tl.arange(0, B)
    channel = index % K
    lower = channel // ROW
    offset = index // K * (3 * STRIDE) + channel - ROW * lower
    valid = (channel < STRIDE * ROW) & (offset < S * 3) & (top + lower < S) & (index < OW * K)
    tl.store(y + row * (OW * K) + index, tl.load(x + lower * (S * 3) + offset, valid, 0.0), index < OW * K)
