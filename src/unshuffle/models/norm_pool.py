"""Batch normalisation, ReLU and max-pooling of a convolution's output in one go, for training on a GPU.

The plain modules pass over these large maps a dozen times; here a map is read twice on the way forward (statistics,
then the rest) and twice on the way back, and only the pooled map is written. All maps are channels-last. A map may come
or go as equal parts along its channels, each a tensor of its own: that is how a grouped convolution is fed without
copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from unshuffle.models.kernels import (
    activate_kernel,
    activate_pool_kernel,
    backward_kernel,
    backward_pool_kernel,
    backward_sums_kernel,
    backward_sums_pool_kernel,
    parameter_gradients_kernel,
    statistics_kernel,
    sums_kernel,
)

ROWS = 32  # pixels that a reduction takes at once
SPLITS = 512  # programs that share the pixels of a reduction; their sums are added up by one
BLOCK = 512  # values that a program of the other kernels takes
WARPS, SUM_WARPS = 2, 4
POOL, STRIDE = 3, 2


@dataclass(frozen=True)
class _Segment:
    """A range of channels that lies in one part on either side."""

    source: Tensor
    target: Tensor
    first: int
    width: int
    strides: tuple[int, int]
    """Channels from one pixel to the next in source and target; tensors of one pixel may not know theirs."""


def norm_relu_pool(
    maps: Sequence[Tensor], norm: nn.BatchNorm2d, conv_bias: Tensor, *, pool: bool, parts: int = 1
) -> tuple[Tensor, ...]:
    """`pool(relu(norm(cat(maps) + conv_bias)))` in training mode, given out as equal parts of its channels.

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
        outputs = tuple(_new_map(maps[0], total // parts, side) for _ in range(parts))
        places = _new_map(maps[0], total, side, torch.uint8) if pool else maps[0].new_empty(0)
        for part in _segments(maps, outputs):
            size = part.width * shape[0] * side[0] * side[1]
            here = saved[:, part.first :]
            fixed = {"C": part.width, "B": BLOCK, "INT": _index(maps), "num_warps": WARPS}
            if pool:
                activate_pool_kernel[_blocks(size)](
                    part.source, part.target, places[:, part.first :], here, size, *part.strides, total, total,
                    *shape[2:], *side, **fixed,
                )  # fmt: skip
            else:
                activate_kernel[_blocks(size)](part.source, part.target, here, size, *part.strides, total, **fixed)
        ctx.save_for_backward(saved, places, *maps)
        ctx.pool = pool
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved, places, *maps = ctx.saved_tensors
        gradients = tuple(each.contiguous(memory_format=torch.channels_last) for each in gradients)
        dweight, dbias, line = _channel_gradients(saved, places, maps, gradients, ctx.pool)
        inputs = tuple(torch.empty_like(each, memory_format=torch.preserve_format) for each in maps)
        (count, _, height, width), total = maps[0].shape, saved.shape[1]
        for part, target in zip(_segments(maps, gradients), _segments(inputs, gradients), strict=True):
            fixed = {"C": part.width, "B": BLOCK, "INT": _index(maps), "num_warps": WARPS}
            lines = line[:, part.first :]
            if ctx.pool:
                size = part.width * count * ((height + 1) // 2) * ((width + 1) // 2)
                backward_pool_kernel[_blocks(size)](
                    part.source, part.target, places[:, part.first :], target.source, lines, size, *part.strides, total,
                    total, height, width, *gradients[0].shape[2:], **fixed,
                )  # fmt: skip
            else:
                size = part.width * count * height * width
                backward_kernel[_blocks(size)](
                    part.source, part.target, target.source, saved[:, part.first :], lines, size, *part.strides, total,
                    **fixed,
                )  # fmt: skip
        return dweight, dbias, torch.zeros_like(dbias), None, None, None, *inputs


def _normalisation(
    maps: Sequence[Tensor], weight: Tensor, bias: Tensor, conv_bias: Tensor, norm: nn.BatchNorm2d
) -> Tensor:
    """(4, C): mean, 1 / deviation, scale and shift of each channel of this batch."""
    total, count = len(weight), maps[0].numel() // maps[0].shape[1]
    sums = torch.empty(2, SPLITS, total, device=weight.device)
    saved = torch.empty(4, total, device=weight.device)
    first = 0
    for part in maps:
        width = part.shape[1]
        grid, fixed = _reduction(width, maps)
        sums_kernel[grid](part, sums, count, width, first, total, **fixed)
        first += width
    statistics_kernel[triton.cdiv(total, 16),](
        sums, weight, bias, conv_bias, norm.running_mean, norm.running_var, saved, total, count,
        norm.momentum, norm.eps, SPLIT=SPLITS, C=16,
    )  # fmt: skip
    return saved


def _channel_gradients(
    saved: Tensor, places: Tensor, maps: Sequence[Tensor], gradients: Sequence[Tensor], pool: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the normalisation's weight and bias, and the line for that of its input."""
    total, count = saved.shape[1], maps[0].numel() // maps[0].shape[1]
    sums = torch.empty(2, SPLITS, total, device=saved.device)
    rows = gradients[0].numel() // gradients[0].shape[1]
    for part in _segments(maps, gradients):
        grid, fixed = _reduction(part.width, maps)
        here = saved[:, part.first :]
        if pool:
            backward_sums_pool_kernel[grid](
                part.source, part.target, places[:, part.first :], here, sums, rows, *part.strides, total, part.first,
                total, *maps[0].shape[2:], *gradients[0].shape[2:], K=part.width, **fixed,
            )  # fmt: skip
        else:
            backward_sums_kernel[grid](
                part.source, part.target, here, sums, rows, *part.strides, part.first, total, K=part.width, **fixed
            )  # fmt: skip
    dweight, dbias = torch.empty(2, total, device=saved.device)
    line = torch.empty(3, total, device=saved.device)
    parameter_gradients_kernel[triton.cdiv(total, 16),](
        sums, saved, dweight, dbias, line, total, count, SPLIT=SPLITS, C=16
    )  # fmt: skip
    return dweight, dbias, line


def _reduction(width: int, maps: Sequence[Tensor]) -> tuple[tuple[int, int], dict[str, Any]]:
    """Grid and constants of a sum over all pixels of so many channels."""
    block = min(64, triton.next_power_of_2(width))
    fixed = {"SPLIT": SPLITS, "R": ROWS, "C": block, "INT": _index(maps), "num_warps": SUM_WARPS}
    return (SPLITS, triton.cdiv(width, block)), fixed


def _segments(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> list[_Segment]:
    """Cut both sides' channels where either side is cut."""
    pieces = max(len(sources), len(targets))
    cut = [part for one in sources for part in one.chunk(pieces // len(sources), dim=1)]
    other = [part for one in targets for part in one.chunk(pieces // len(targets), dim=1)]
    width = cut[0].shape[1]
    return [
        _Segment(source, target, number * width, width, (sources[0].shape[1], targets[0].shape[1]))
        for number, (source, target) in enumerate(zip(cut, other, strict=True))
    ]


def _new_map(like: Tensor, channels: int, side: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    return torch.empty(
        (like.shape[0], channels, *side),
        dtype=dtype or like.dtype,
        device=like.device,
        memory_format=torch.channels_last,
    )


def _index(maps: Sequence[Tensor]) -> Any:
    """The type that counts all values of a map; divisions of the long one are slow."""
    total = sum(part.numel() for part in maps)
    return tl.int32 if total < 2**31 - BLOCK else tl.int64


def _blocks(size: int) -> tuple[int]:
    return (triton.cdiv(size, BLOCK),)
