"""Rendering of augmented views, as `data.views` and `data.crops.normalise` do it, in fewer passes over the pixels.

One kernel crops, resizes, flips and changes the colours; the blur, two matrix products, and the normalisation follow as
tensor code. In between, the axes of a view are row, channel, column, so that both products read it without a copy.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from unshuffle.data.crops import MIN_STD
from unshuffle.data.squares import Squares
from unshuffle.data.views import ViewPlan, blur_matrices

WARPS = 8
BLOCK = 1024  # pixels of a view in registers at a time
RED, GREEN, BLUE = tl.constexpr(0.2989), tl.constexpr(0.587), tl.constexpr(0.114)  # `data.views.LUMA`
CONTRAST, SATURATION, HUE = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)  # as in `data.views`
COLUMNS = 14  # of the table of changes: box 4, flip 1, factors 4, order 4, grayscale 1


def render(squares: Squares, plan: ViewPlan, crop_size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the normalised views, (B, 2, 3, S, S); each is channels-last."""
    plan = plan if plan.uniforms is not None else plan.fixed(squares.pixels())
    changes = plan.changes(squares.side)
    flags = torch.stack([changes.flip, changes.grayscale], dim=1).float()
    table = torch.cat([changes.boxes.T, flags[:, :1], changes.factors, changes.order.float(), flags[:, 1:]], dim=1)
    # fp16 has more digits than bf16 for numbers between 0 and 1
    precise = torch.float16 if dtype == torch.bfloat16 else dtype
    views = torch.empty(plan.count, crop_size, 3, crop_size, dtype=precise, device=squares.data.device)
    views_kernel[plan.count,](
        squares.data, squares.offsets, table.contiguous(), views, squares.offsets.shape[1], S=crop_size,
        VIEWS_OF_SQUARE=plan.count // squares.offsets.shape[1], COLUMNS=COLUMNS, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    matrices = blur_matrices(crop_size, changes.sigma).to(precise)
    blurred = torch.bmm(torch.bmm(matrices, views.flatten(2)).view(len(views), -1, crop_size), matrices.mT)
    return _normalised(blurred.view_as(views), dtype).view(-1, plan.parts, 3, crop_size, crop_size)


def _normalised(views: Tensor, dtype: torch.dtype) -> Tensor:
    """Return (N, S, 3, S) views as `data.crops.normalise` does, as (N, 3, S, S), channels-last."""
    std, mean = torch.std_mean(views.float(), dim=(1, 3), keepdim=True, correction=0)
    finished = torch.empty_like(views.permute(0, 2, 1, 3), dtype=dtype, memory_format=torch.channels_last)
    torch.div(views - mean, std.clamp(min=MIN_STD), out=finished.permute(0, 2, 1, 3))
    return finished


@triton.jit
def views_kernel(
    data, offsets, table, views, squares, S: tl.constexpr, VIEWS_OF_SQUARE: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Render one view per program, a block of pixels at a time: crop, resize, flip, jitter, grayscale.

    A change of contrast needs the mean of the whole view, so there are two passes: the first one crops and finds the
    mean, the second one changes the colours.
    """
    view = tl.program_id(0)
    changes = table + view * COLUMNS
    target = views + view.to(tl.int64) * (3 * S * S)
    total = 0.0
    for begin in range(0, S * S, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        mask = pixel < S * S
        red, green, blue = _resized(data, offsets, changes, squares, view // VIEWS_OF_SQUARE, pixel, mask, S)
        place = target + pixel // S * (3 * S) + pixel % S
        tl.store(place, red, mask)
        tl.store(place + S, green, mask)
        tl.store(place + 2 * S, blue, mask)
        red, green, blue = _jittered(red, green, blue, changes, 0.0, True)
        total += tl.sum(tl.where(mask, RED * red + GREEN * green + BLUE * blue, 0.0), 0)
    tl.debug_barrier()  # what other threads have stored is loaded again
    for begin in range(0, S * S, BLOCK):
        pixel = begin + tl.arange(0, BLOCK)
        mask = pixel < S * S
        place = target + pixel // S * (3 * S) + pixel % S
        red = tl.load(place, mask, 0.0).to(tl.float32)
        green = tl.load(place + S, mask, 0.0).to(tl.float32)
        blue = tl.load(place + 2 * S, mask, 0.0).to(tl.float32)
        red, green, blue = _jittered(red, green, blue, changes, total / (S * S), False)
        grey, is_grey = RED * red + GREEN * green + BLUE * blue, tl.load(changes + 13) > 0.5
        tl.store(place, tl.where(is_grey, grey, red), mask)
        tl.store(place + S, tl.where(is_grey, grey, green), mask)
        tl.store(place + 2 * S, tl.where(is_grey, grey, blue), mask)


@triton.jit
def _resized(data, offsets, changes, squares, square, pixel, mask, S: tl.constexpr):
    """Return the channels of some pixels of a view, cropped and resized with antialiasing, in [0, 1]."""
    top, left = tl.load(changes).to(tl.int64), tl.load(changes + 1).to(tl.int64)
    height, width = tl.load(changes + 2), tl.load(changes + 3)
    column = tl.where(tl.load(changes + 4) > 0.5, S - 1 - pixel % S, pixel % S)
    y_scale, x_scale = height / S, width / S
    y_width, x_width = tl.maximum(y_scale, 1.0), tl.maximum(x_scale, 1.0)
    # centres of the new pixels, in pixels of the box
    y_centre, x_centre = ((pixel // S).to(tl.float32) + 0.5) * y_scale, (column.to(tl.float32) + 0.5) * x_scale
    # a pixel whose centre lies within the width of the triangle has a weight above 0
    y_first, x_first = tl.ceil(y_centre - y_width - 0.5), tl.ceil(x_centre - x_width - 0.5)
    stride = tl.load(offsets + squares + square)
    corner = data + tl.load(offsets + square) + top * stride + left * 3
    red = tl.zeros_like(y_centre)
    green = tl.zeros_like(y_centre)
    blue = tl.zeros_like(y_centre)
    total = tl.zeros_like(y_centre)
    for y in range(0, tl.ceil(2 * y_width).to(tl.int32) + 1):
        y_source = y_first + y
        y_weight = _triangle(y_source, y_centre, y_width, height)
        y_offset = y_source.to(tl.int64) * stride
        for x in range(0, tl.ceil(2 * x_width).to(tl.int32) + 1):
            x_source = x_first + x
            weight = y_weight * _triangle(x_source, x_centre, x_width, width)
            source = corner + y_offset + x_source.to(tl.int64) * 3
            used = mask & (weight > 0)  # others may lie outside of the square
            red += weight * tl.load(source, used, 0).to(tl.float32)
            green += weight * tl.load(source + 1, used, 0).to(tl.float32)
            blue += weight * tl.load(source + 2, used, 0).to(tl.float32)
            total += weight
    total = tl.where(mask, total, 1.0) * 255
    return red / total, green / total, blue / total


@triton.jit
def _jittered(red, green, blue, changes, mean, BEFORE_CONTRAST: tl.constexpr):
    """Return the channels after colour jitter, or after what precedes the change of contrast, which needs the mean."""
    applies = True
    for position in tl.static_range(4):
        kind = tl.load(changes + 9 + position).to(tl.int32)
        factor = tl.load(changes + 5 + kind)
        if BEFORE_CONTRAST:
            applies = applies & (kind != CONTRAST)
        if kind == HUE:
            red, green, blue = _hue_shifted(red, green, blue, tl.where(applies, factor, 0.0))
        else:
            factor = tl.where(applies, factor, 1.0)
            grey = RED * red + GREEN * green + BLUE * blue
            base = tl.where(kind == SATURATION, grey, tl.where(kind == CONTRAST, mean, 0.0))
            red, green, blue = _blended(red, base, factor), _blended(green, base, factor), _blended(blue, base, factor)
    return red, green, blue


@triton.jit
def _triangle(source, centre, width, length):
    """Return the weights of source pixels for new ones: a triangle about their centres, inside of the box."""
    weight = tl.maximum(1 - tl.abs(source + 0.5 - centre) / width, 0.0)
    return tl.where((source >= 0) & (source < length), weight, 0.0)


@triton.jit
def _blended(channel, base, factor):
    return tl.minimum(tl.maximum(factor * channel + (1 - factor) * base, 0.0), 1.0)


@triton.jit
def _hue_shifted(red, green, blue, shift):
    value = tl.maximum(tl.maximum(red, green), blue)
    chroma = value - tl.minimum(tl.minimum(red, green), blue)
    divisor = tl.where(chroma > 0, chroma, 1.0)
    sector = tl.where(
        value == red,
        (green - blue) / divisor,
        tl.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sector += 6 * shift
    return (
        _hue_channel(value, chroma, sector + 5),
        _hue_channel(value, chroma, sector + 3),
        _hue_channel(value, chroma, sector + 1),
    )


@triton.jit
def _hue_channel(value, chroma, sector):
    distance = sector - 6 * tl.floor(sector / 6)
    return value - chroma * tl.minimum(tl.maximum(tl.minimum(distance, 4 - distance), 0.0), 1.0)
