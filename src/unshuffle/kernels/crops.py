"""Rendering of crops by one kernel: cut, resize, jitter and normalise the stored bytes as `data.crops.render` does."""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from unshuffle.data.crops import MIN_STD, CropPlan, resize
from unshuffle.data.squares import Squares

WARPS = 16
RED, GREEN, BLUE = tl.constexpr(0.299), tl.constexpr(0.587), tl.constexpr(0.114)  # `data.crops.LUMA`


def render(squares: Squares, plan: CropPlan, crop_size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the cut, resized, colour-jittered and normalised crops, (B, P, 3, S, S); each is channels-last."""
    device = squares.data.device
    first, weights = _taps(plan.side, crop_size, device)
    crops = torch.empty(
        (plan.count, 3, crop_size, crop_size), dtype=dtype, device=device, memory_format=torch.channels_last
    )
    # the kernel needs a pointer even where it never reads from it
    uniform = weights if plan.uniforms is None else plan.uniforms.contiguous()
    render_kernel[plan.count,](
        squares.data, squares.offsets, uniform, first, weights, crops, squares.offsets.shape[1], MIN_STD, plan.room,
        plan.cell, *plan.jitter, plan.hflip, S=crop_size, TAPS=weights.shape[1], GRID=plan.grid, PARTS=plan.parts,
        REPEATS=plan.repeats, RANDOM=plan.uniforms is not None, COLOURED=plan.coloured,
        HFLIP=plan.flipped, B=triton.next_power_of_2(crop_size**2), num_warps=WARPS,
    )  # fmt: skip
    return crops.view(-1, plan.parts, 3, crop_size, crop_size)


@lru_cache(maxsize=16)
def _taps(side: int, crop_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return how a row of `side` pixels is resized to `crop_size`: each new pixel's first source pixel and its weights.

    Both are read off the output of `resize` for unit impulses, so that there is one definition of the resizing.
    """
    impulses = torch.eye(side).view(1, side, side, 1).expand(1, side, side, side)
    matrix = resize(impulses, crop_size)[0, :, :, 0].T  # new pixels, old pixels
    first = (matrix != 0).int().argmax(dim=1)
    taps = int((matrix != 0).sum(dim=1).max())
    index = first[:, None] + torch.arange(taps)
    weights = matrix.gather(1, index.clamp(max=side - 1)).masked_fill(index >= side, 0.0)
    return first.to(device), weights.contiguous().to(device)


@triton.jit
def render_kernel(
    data, offsets, uniform, first, weights, crops, squares, min_std, room, cell, grayscale, gamma, saturation, hue,
    hflip, S: tl.constexpr, TAPS: tl.constexpr, GRID: tl.constexpr, PARTS: tl.constexpr, REPEATS: tl.constexpr,
    RANDOM: tl.constexpr, COLOURED: tl.constexpr, HFLIP: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Render one crop per program, in registers from the first load to the last division.

    `uniform` holds random numbers in [0, 1), a row for each crop or group of crops that share them, with the columns
    down, right, grayscale, gamma, saturation, hue and, with HFLIP, flip.
    """
    crop = tl.program_id(0)
    CELLS: tl.constexpr = GRID * GRID
    square, index = crop // CELLS, crop % CELLS
    WIDTH: tl.constexpr = 7 if HFLIP else 6
    own = uniform + crop // REPEATS * WIDTH
    shared = uniform + crop // PARTS * PARTS // REPEATS * WIDTH  # row of the sample's first crop
    top, left = index // GRID * cell, index % GRID * cell
    if RANDOM:
        top += tl.minimum((tl.load(own) * (room + 1)).to(tl.int32), room)
        left += tl.minimum((tl.load(own + 1) * (room + 1)).to(tl.int32), room)
    else:
        top += room // 2
        left += room // 2
    pixel = tl.arange(0, B)
    mask = pixel < S * S
    row, column = pixel // S, pixel % S
    if HFLIP:
        flipped = tl.load(shared + 6) < hflip
        left = tl.where(flipped, (GRID - 1) * cell + room - left, left)
        column = tl.where(flipped, S - 1 - column, column)
    stride = tl.load(offsets + squares + square)
    corner = data + tl.load(offsets + square) + top * stride + left * 3
    from_row, from_column = tl.load(first + row, mask, 0), tl.load(first + column, mask, 0)
    red = tl.zeros((B,), tl.float32)
    green = tl.zeros((B,), tl.float32)
    blue = tl.zeros((B,), tl.float32)
    for y in tl.static_range(TAPS):
        for x in tl.static_range(TAPS):
            weight = tl.load(weights + row * TAPS + y, mask, 0.0) * tl.load(weights + column * TAPS + x, mask, 0.0)
            source = corner + (from_row + y) * stride + (from_column + x) * 3
            used = mask & (weight != 0)  # a tap of weight 0 may lie outside the square
            red += weight * tl.load(source, used, 0).to(tl.float32)
            green += weight * tl.load(source + 1, used, 0).to(tl.float32)
            blue += weight * tl.load(source + 2, used, 0).to(tl.float32)
    red, green, blue = red / 255, green / 255, blue / 255
    if COLOURED:
        keep = (tl.load(shared + 2) >= grayscale).to(tl.float32)
        red, green, blue = _saturated(red, green, blue, keep)
        red, green, blue = _hue_rotated(red, green, blue, 6.283185307179586 * hue * (2 * tl.load(own + 5) - 1))
        red, green, blue = _saturated(red, green, blue, 1 + saturation * (2 * tl.load(own + 4) - 1))
        power = tl.exp(gamma * (2 * tl.load(own + 3) - 1))
        red, green, blue = _gamma_corrected(red, power), _gamma_corrected(green, power), _gamma_corrected(blue, power)
    target = crops + crop.to(tl.int64) * S * S * 3 + pixel * 3
    tl.store(target, _normalised(red, mask, min_std, S * S).to(crops.dtype.element_ty), mask)
    tl.store(target + 1, _normalised(green, mask, min_std, S * S).to(crops.dtype.element_ty), mask)
    tl.store(target + 2, _normalised(blue, mask, min_std, S * S).to(crops.dtype.element_ty), mask)


@triton.jit
def _saturated(red, green, blue, amount):
    """Blend with grey: 1 leaves the colours unchanged, 0 makes them grey."""
    grey = (1 - amount) * (RED * red + GREEN * green + BLUE * blue)
    return amount * red + grey, amount * green + grey, amount * blue + grey


@triton.jit
def _hue_rotated(red, green, blue, angle):
    """Rotate the hue about the grey axis."""
    cos, sin = tl.cos(angle), tl.sin(angle) * 0.5773502691896258
    along = (1 - cos) / 3 * (red + green + blue)
    return (
        cos * red + sin * (blue - green) + along,
        cos * green + sin * (red - blue) + along,
        cos * blue + sin * (green - red) + along,
    )


@triton.jit
def _gamma_corrected(values, power):
    return tl.exp2(power * tl.log2(tl.minimum(tl.maximum(values, 0.0), 1.0)))


@triton.jit
def _normalised(values, mask, min_std, count):
    centred = values - tl.sum(tl.where(mask, values, 0.0), 0) / count
    std = tl.sqrt(tl.sum(tl.where(mask, centred * centred, 0.0), 0) / count)
    return centred / tl.maximum(std, min_std)
