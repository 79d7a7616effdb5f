"""Batch normalisation, ReLU and max-pooling of a convolution's output, fused for training on a GPU.

The plain modules read or write these large maps a dozen times; here a map is read twice in the forward pass
(statistics, then the rest) and twice in the backward pass, and only the pooled map is written. All maps are
channels-last. Inputs and outputs may be split into equal parts along the channels, each a tensor of its own, which
feeds a grouped convolution without copies.

Names in the kernels: x the map, g the gradient of the result, xs and gs (ys, ms) the channels from one of their pixels
to the next, `column` a channel, `total` the number of channels of the whole map, of which a kernel may see a part.
`sum1` and `sum2` are the two sums of a reduction; `saved` holds mean, 1 / std, scale and shift of each channel.
Capitals are compile-time constants.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

ROWS = 32  # pixels that a reduction reads at once
SPLITS = 512  # programs among which a reduction's pixels are divided; one program adds up their sums
BLOCK = 512  # values per program of the other kernels
WARPS, SUM_WARPS = 2, 4
POOL, STRIDE = 3, 2
NO_MAXIMUM = tl.constexpr(255)  # argmax of a window without a positive value


@dataclass(frozen=True)
class _Segment:
    """A range of channels that lies within one part of the source and within one part of the target."""

    source: Tensor
    target: Tensor
    first: int
    width: int
    strides: tuple[int, int]
    """Channels from one pixel to the next in source and target; the stride of a one-pixel tensor may not tell."""


def norm_relu_pool(
    maps: Sequence[Tensor], norm: nn.BatchNorm2d, conv_bias: Tensor, *, pool: bool, parts: int = 1
) -> tuple[Tensor, ...]:
    """Return `pool(relu(norm(cat(maps) + conv_bias)))` in training mode, as equal parts of its channels.

    The maps are (N, C, H, W), channels-last and dense; the pool is 3 x 3 with stride 2.
    """
    assert norm.num_batches_tracked is not None
    norm.num_batches_tracked.add_(1)
    result: tuple[Tensor, ...] = _NormReluPool.apply(norm.weight, norm.bias, conv_bias, norm, pool, parts, *maps)  # type: ignore[no-untyped-call]
    return result


class _NormReluPool(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, bias: Tensor, conv_bias: Tensor, norm: nn.BatchNorm2d, pool: bool, parts: int,
        *maps: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        shape, total = maps[0].shape, len(weight)
        saved = _normalisation(maps, weight, bias, conv_bias, norm)
        side = [(length - POOL) // STRIDE + 1 for length in shape[2:]] if pool else list(shape[2:])
        outputs = tuple(new_map(maps[0], total // parts, side) for _ in range(parts))
        argmax = new_map(maps[0], total, side, torch.uint8) if pool else maps[0].new_empty(0)
        for part in _segments(maps, outputs):
            size = part.width * shape[0] * side[0] * side[1]
            part_saved = saved[:, part.first :]
            constants = {"C": part.width, "B": BLOCK, "INT": _index(maps), "num_warps": WARPS}
            if pool:
                activate_pool_kernel[triton.cdiv(size, BLOCK),](
                    part.source, part.target, argmax[:, part.first :], part_saved, size, *part.strides, total, total,
                    *shape[2:], *side, **constants,
                )  # fmt: skip
            else:
                activate_kernel[triton.cdiv(size, BLOCK),](
                    part.source, part.target, part_saved, size, *part.strides, total, **constants
                )
        ctx.save_for_backward(saved, argmax, *maps)
        ctx.pool = pool
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved, argmax, *maps = ctx.saved_tensors
        gradients = tuple(gradient.contiguous(memory_format=torch.channels_last) for gradient in gradients)
        dweight, dbias, affine = _channel_gradients(saved, argmax, maps, gradients, ctx.pool)
        inputs = tuple(torch.empty_like(part, memory_format=torch.preserve_format) for part in maps)
        (count, _, height, width), total = maps[0].shape, saved.shape[1]
        for part, target in zip(_segments(maps, gradients), _segments(inputs, gradients), strict=True):
            constants = {"C": part.width, "B": BLOCK, "INT": _index(maps), "num_warps": WARPS}
            part_affine = affine[:, part.first :]
            if ctx.pool:
                size = part.width * count * ((height + 1) // 2) * ((width + 1) // 2)
                backward_pool_kernel[triton.cdiv(size, BLOCK),](
                    part.source, part.target, argmax[:, part.first :], target.source, part_affine, size, *part.strides,
                    total, total, height, width, *gradients[0].shape[2:], **constants,
                )  # fmt: skip
            else:
                size = part.width * count * height * width
                backward_kernel[triton.cdiv(size, BLOCK),](
                    part.source, part.target, target.source, saved[:, part.first :], part_affine, size, *part.strides,
                    total, **constants,
                )  # fmt: skip
        return dweight, dbias, torch.zeros_like(dbias), None, None, None, *inputs


def _normalisation(
    maps: Sequence[Tensor], weight: Tensor, bias: Tensor, conv_bias: Tensor, norm: nn.BatchNorm2d
) -> Tensor:
    """Return (4, C): mean, 1 / std, scale and shift of each channel of this batch; updates the running statistics."""
    total, count = len(weight), maps[0].numel() // maps[0].shape[1]
    sums = torch.empty(2, SPLITS, total, device=weight.device)
    saved = torch.empty(4, total, device=weight.device)
    first = 0
    for part in maps:
        width = part.shape[1]
        grid, constants = _reduction(width, maps)
        sums_kernel[grid](part, sums, count, width, first, total, **constants)
        first += width
    statistics_kernel[triton.cdiv(total, 16),](
        sums, weight, bias, conv_bias, norm.running_mean, norm.running_var, saved, total, count,
        norm.momentum, norm.eps, SPLIT=SPLITS, C=16,
    )  # fmt: skip
    return saved


def _channel_gradients(
    saved: Tensor, argmax: Tensor, maps: Sequence[Tensor], gradients: Sequence[Tensor], pool: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the normalisation's weight and bias, and the coefficients for that of its input."""
    total, count = saved.shape[1], maps[0].numel() // maps[0].shape[1]
    sums = torch.empty(2, SPLITS, total, device=saved.device)
    rows = gradients[0].numel() // gradients[0].shape[1]
    for part in _segments(maps, gradients):
        grid, constants = _reduction(part.width, maps)
        part_saved = saved[:, part.first :]
        if pool:
            backward_sums_pool_kernel[grid](
                part.source, part.target, argmax[:, part.first :], part_saved, sums, rows, *part.strides, total,
                part.first, total, *maps[0].shape[2:], *gradients[0].shape[2:], K=part.width, **constants,
            )  # fmt: skip
        else:
            backward_sums_kernel[grid](
                part.source, part.target, part_saved, sums, rows, *part.strides, part.first, total, K=part.width,
                **constants,
            )  # fmt: skip
    dweight, dbias = torch.empty(2, total, device=saved.device)
    affine = torch.empty(3, total, device=saved.device)
    parameter_gradients_kernel[triton.cdiv(total, 16),](
        sums, saved, dweight, dbias, affine, total, count, SPLIT=SPLITS, C=16
    )  # fmt: skip
    return dweight, dbias, affine


def _reduction(width: int, maps: Sequence[Tensor]) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return the grid and the constants of a sum over all pixels for `width` channels."""
    block = min(64, triton.next_power_of_2(width))
    constants = {"SPLIT": SPLITS, "R": ROWS, "C": block, "INT": _index(maps), "num_warps": SUM_WARPS}
    return (SPLITS, triton.cdiv(width, block)), constants


def _segments(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> list[_Segment]:
    """Split the channels of both sides wherever either side is split."""
    pieces = max(len(sources), len(targets))
    source_parts = [part for tensor in sources for part in tensor.chunk(pieces // len(sources), dim=1)]
    target_parts = [part for tensor in targets for part in tensor.chunk(pieces // len(targets), dim=1)]
    width = source_parts[0].shape[1]
    return [
        _Segment(source, target, number * width, width, (sources[0].shape[1], targets[0].shape[1]))
        for number, (source, target) in enumerate(zip(source_parts, target_parts, strict=True))
    ]


def new_map(like: Tensor, channels: int, side: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """Return an uninitialised channels-last map of as many images."""
    shape = (len(like), channels, *side)
    return torch.empty(shape, dtype=dtype or like.dtype, device=like.device, memory_format=torch.channels_last)


def _index(maps: Sequence[Tensor]) -> Any:
    """Return the integer type that can index all values of a map; 64-bit divisions are slow."""
    total = sum(part.numel() for part in maps)
    return tl.int32 if total < 2**31 - BLOCK else tl.int64


@triton.jit
def sums_kernel(
    x, sums, rows, channels, first, total, SPLIT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, INT: tl.constexpr
):
    """Sum and sum of squares of each channel over a slice of the pixels."""
    split, column = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C)
    inside = column < channels
    sum1 = tl.zeros((R, C), tl.float32)
    sum2 = tl.zeros((R, C), tl.float32)
    for start in range(split * R, rows, SPLIT * R):
        row = start + tl.arange(0, R)
        mask = (row < rows)[:, None] & inside[None, :]
        values = tl.load(x + row.to(INT)[:, None] * channels + column[None, :], mask, 0.0).to(tl.float32)
        sum1 += values
        sum2 += values * values
    tl.store(sums + split * total + first + column, tl.sum(sum1, 0), inside)
    tl.store(sums + (SPLIT + split) * total + first + column, tl.sum(sum2, 0), inside)


@triton.jit
def statistics_kernel(
    sums, weight, bias, conv_bias, running_mean, running_var, saved, total, count, momentum, epsilon,
    SPLIT: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Mean, 1 / std, scale and shift of each channel from the sums; updates the running statistics."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    inside = column < total
    sum1, sum2 = _total(sums, column, inside, total, SPLIT, C)
    mean = sum1 / count
    variance = tl.maximum(sum2 / count - mean * mean, 0.0)
    inv_std = 1 / tl.sqrt(variance + epsilon)
    scale = tl.load(weight + column, inside, 0.0) * inv_std
    tl.store(saved + column, mean, inside)
    tl.store(saved + total + column, inv_std, inside)
    tl.store(saved + 2 * total + column, scale, inside)
    tl.store(saved + 3 * total + column, tl.load(bias + column, inside, 0.0) - mean * scale, inside)
    # the convolution omits its bias, which the normalisation cancels; in evaluation mode the bias is applied
    mean += tl.load(conv_bias + column, inside, 0.0)
    old_mean, old_var = tl.load(running_mean + column, inside), tl.load(running_var + column, inside)
    tl.store(running_mean + column, old_mean + momentum * (mean - old_mean), inside)
    tl.store(running_var + column, old_var + momentum * (variance * (count / (count - 1)) - old_var), inside)


@triton.jit
def _total(sums, column, inside, total, SPLIT: tl.constexpr, C: tl.constexpr):
    split = tl.arange(0, SPLIT)[:, None] * total + column[None, :]
    sum1 = tl.sum(tl.load(sums + split, inside[None, :], 0.0), 0)
    sum2 = tl.sum(tl.load(sums + SPLIT * total + split, inside[None, :], 0.0), 0)
    return sum1, sum2


@triton.jit
def activate_kernel(x, y, saved, size, xs, ys, total, C: tl.constexpr, B: tl.constexpr, INT: tl.constexpr):
    """ReLU of the normalised map."""
    index = tl.program_id(0).to(INT) * B + tl.arange(0, B)
    mask = index < size
    row, column = index // C, index % C
    value = tl.load(x + row * xs + column, mask).to(tl.float32)
    value = value * tl.load(saved + 2 * total + column) + tl.load(saved + 3 * total + column)
    value = tl.where(value <= 0, 0.0, value)  # NaN stays NaN
    tl.store(y + row * ys + column, value.to(y.dtype.element_ty), mask)


@triton.jit
def activate_pool_kernel(
    x, y, argmax, saved, size, xs, ys, ms, total,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    INT: tl.constexpr,
):  # fmt: skip
    """Maximum of each 3 x 3 window of activations, and its index within the window."""
    index = tl.program_id(0).to(INT) * B + tl.arange(0, B)
    mask = index < size
    row, column = index // C, index % C
    image, top, left = row // (OH * OW), (row // OW) % OH * 2, row % OW * 2
    scale, shift = tl.load(saved + 2 * total + column), tl.load(saved + 3 * total + column)
    corner = x + ((image * H + top) * W + left) * xs + column
    best = tl.full((B,), float("-inf"), tl.float32)
    best_index = tl.zeros((B,), tl.int32)
    for window in tl.static_range(9):
        value = tl.load(corner + ((window // 3) * W + window % 3) * xs, mask).to(tl.float32) * scale + shift
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        best_index = tl.where(better, window, best_index)
    tl.store(y + row * ys + column, tl.where(best <= 0, 0.0, best).to(y.dtype.element_ty), mask)
    tl.store(argmax + row * ms + column, tl.where(best <= 0, NO_MAXIMUM, best_index).to(tl.uint8), mask)


@triton.jit
def backward_sums_kernel(
    x, g, saved, sums, rows, xs, gs, first, total, SPLIT: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    C: tl.constexpr, INT: tl.constexpr,
):  # fmt: skip
    """Sums of each channel over a slice of the pixels: the gradient, and the gradient times the normalised map."""
    split, column = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C)
    inside = column < K
    mean, inv_std = tl.load(saved + column, inside, 0.0), tl.load(saved + total + column, inside, 0.0)
    scale = tl.load(saved + 2 * total + column, inside, 0.0)
    shift = tl.load(saved + 3 * total + column, inside, 0.0)
    sum1 = tl.zeros((R, C), tl.float32)
    sum2 = tl.zeros((R, C), tl.float32)
    for start in range(split * R, rows, SPLIT * R):
        row = (start + tl.arange(0, R)).to(INT)
        mask = (row < rows)[:, None] & inside[None, :]
        value = tl.load(x + row[:, None] * xs + column[None, :], mask, 0.0).to(tl.float32)
        gradient = tl.load(g + row[:, None] * gs + column[None, :], mask, 0.0).to(tl.float32)
        gradient = tl.where(value * scale[None, :] + shift[None, :] > 0, gradient, 0.0)
        sum1 += gradient
        sum2 += gradient * (value - mean[None, :]) * inv_std[None, :]
    tl.store(sums + split * total + first + column, tl.sum(sum1, 0), inside)
    tl.store(sums + (SPLIT + split) * total + first + column, tl.sum(sum2, 0), inside)


@triton.jit
def backward_sums_pool_kernel(
    x, g, argmax, saved, sums, rows, xs, gs, ms, first, total,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SPLIT: tl.constexpr, R: tl.constexpr, K: tl.constexpr, C: tl.constexpr, INT: tl.constexpr,
):  # fmt: skip
    """The same sums over the pooling windows, each of which passes its gradient to one pixel or to none."""
    split, column = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C)
    inside = column < K
    mean, inv_std = tl.load(saved + column, inside, 0.0), tl.load(saved + total + column, inside, 0.0)
    sum1 = tl.zeros((R, C), tl.float32)
    sum2 = tl.zeros((R, C), tl.float32)
    for start in range(split * R, rows, SPLIT * R):
        row = (start + tl.arange(0, R)).to(INT)
        mask = (row < rows)[:, None] & inside[None, :]
        best_index = tl.load(argmax + row[:, None] * ms + column[None, :], mask, NO_MAXIMUM).to(tl.int32)
        passed = mask & (best_index != NO_MAXIMUM)
        gradient = tl.load(g + row[:, None] * gs + column[None, :], passed, 0.0).to(tl.float32)
        image, top, left = row // (OH * OW), (row // OW) % OH * 2, row % OW * 2
        pixel = ((image * H + top) * W + left)[:, None] + best_index // 3 * W + best_index % 3
        value = tl.load(x + pixel * xs + column[None, :], passed, 0.0).to(tl.float32)
        sum1 += gradient
        sum2 += gradient * (value - mean[None, :]) * inv_std[None, :]
    tl.store(sums + split * total + first + column, tl.sum(sum1, 0), inside)
    tl.store(sums + (SPLIT + split) * total + first + column, tl.sum(sum2, 0), inside)


@triton.jit
def parameter_gradients_kernel(sums, saved, dweight, dbias, affine, total, count, SPLIT: tl.constexpr, C: tl.constexpr):
    """Gradients of weight and bias; that of the input is then affine[0] g + affine[1] x + affine[2]."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    inside = column < total
    sum1, sum2 = _total(sums, column, inside, total, SPLIT, C)
    tl.store(dbias + column, sum1, inside)
    tl.store(dweight + column, sum2, inside)
    mean, inv_std = tl.load(saved + column, inside, 0.0), tl.load(saved + total + column, inside, 0.0)
    scale = tl.load(saved + 2 * total + column, inside, 0.0)
    slope = -scale * inv_std * sum2 / count
    tl.store(affine + column, scale, inside)
    tl.store(affine + total + column, slope, inside)
    tl.store(affine + 2 * total + column, -scale * sum1 / count - slope * mean, inside)


@triton.jit
def backward_kernel(x, g, dx, saved, affine, size, xs, gs, total, C: tl.constexpr, B: tl.constexpr, INT: tl.constexpr):
    """Gradient of the map without pooling."""
    index = tl.program_id(0).to(INT) * B + tl.arange(0, B)
    mask = index < size
    row, column = index // C, index % C
    value = tl.load(x + row * xs + column, mask).to(tl.float32)
    gradient = tl.load(g + row * gs + column, mask).to(tl.float32)
    active = value * tl.load(saved + 2 * total + column) + tl.load(saved + 3 * total + column) > 0
    gradient = tl.where(active, gradient, 0.0) * tl.load(affine + column)
    result = gradient + value * tl.load(affine + total + column) + tl.load(affine + 2 * total + column)
    tl.store(dx + row * xs + column, result.to(dx.dtype.element_ty), mask)


@triton.jit
def backward_pool_kernel(
    x, g, argmax, dx, affine, size, xs, gs, ms, total,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    INT: tl.constexpr,
):  # fmt: skip
    """Gradient of 2 x 2 pixels, which lie in the same four windows: each adds up those of the windows it maximises."""
    index = tl.program_id(0).to(INT) * B + tl.arange(0, B)
    mask = index < size
    block, column = index // C, index % C
    BH: tl.constexpr = (H + 1) // 2
    BW: tl.constexpr = (W + 1) // 2
    image, i, j = block // (BH * BW), (block // BW) % BH, block % BW
    window = (image * OH + i) * OW + j
    right, below = mask & (2 * j + 1 < W), mask & (2 * i + 1 < H)
    source = x + ((image * H + 2 * i) * W + 2 * j) * xs + column
    target = dx + ((image * H + 2 * i) * W + 2 * j) * xs + column
    # all loads come before the stores: the compiler reloads a value after a store, which might have changed it
    value0 = tl.load(source, mask, 0.0).to(tl.float32)
    value1 = tl.load(source + xs, right, 0.0).to(tl.float32)
    value2 = tl.load(source + W * xs, below, 0.0).to(tl.float32)
    value3 = tl.load(source + (W + 1) * xs, right & below, 0.0).to(tl.float32)
    scale, slope = tl.load(affine + column), tl.load(affine + total + column)
    shift = tl.load(affine + 2 * total + column)
    here, at_here = _window(argmax, g, window, ms, gs, column, mask & (i < OH) & (j < OW))
    above, at_above = _window(argmax, g, window - OW, ms, gs, column, mask & (i > 0) & (i <= OH) & (j < OW))
    before, at_before = _window(argmax, g, window - 1, ms, gs, column, mask & (j > 0) & (j <= OW) & (i < OH))
    corner, at_corner = _window(
        argmax, g, window - OW - 1, ms, gs, column, mask & (i > 0) & (i <= OH) & (j > 0) & (j <= OW)
    )
    gradient0 = (
        tl.where(at_here == 0, here, 0.0) + tl.where(at_above == 6, above, 0.0)
        + tl.where(at_before == 2, before, 0.0) + tl.where(at_corner == 8, corner, 0.0)
    )  # fmt: skip
    gradient1 = tl.where(at_here == 1, here, 0.0) + tl.where(at_above == 7, above, 0.0)
    gradient2 = tl.where(at_here == 3, here, 0.0) + tl.where(at_before == 5, before, 0.0)
    gradient3 = tl.where(at_here == 4, here, 0.0)
    dtype = dx.dtype.element_ty
    tl.store(target, (gradient0 * scale + value0 * slope + shift).to(dtype), mask)
    tl.store(target + xs, (gradient1 * scale + value1 * slope + shift).to(dtype), right)
    tl.store(target + W * xs, (gradient2 * scale + value2 * slope + shift).to(dtype), below)
    tl.store(target + (W + 1) * xs, (gradient3 * scale + value3 * slope + shift).to(dtype), right & below)


@triton.jit
def _window(argmax, g, window, ms, gs, column, valid):
    """Gradient of a window, and the index of its maximum within the window."""
    best_index = tl.load(argmax + window * ms + column, valid, NO_MAXIMUM).to(tl.int32)
    return tl.load(g + window * gs + column, valid, 0.0).to(tl.float32), best_index
