"""The Triton kernel of `rendering`."""

import triton
import triton.language as tl

RED, GREEN, BLUE = tl.constexpr(0.299), tl.constexpr(0.587), tl.constexpr(0.114)  # shares of a grey, as `shuffle.LUMA`


@triton.jit
def render_kernel(
    data, places, draws, first, weights, crops, squares, min_std, room, cell, grey, gamma, saturation, hue,
    S: tl.constexpr, TAPS: tl.constexpr, GRID: tl.constexpr, PARTS: tl.constexpr, REPEATS: tl.constexpr,
    RANDOM: tl.constexpr, COLOURED: tl.constexpr, MIRROR: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One program makes one crop, and keeps it in registers from the first byte to the last division."""
    crop = tl.program_id(0)
    CELLS: tl.constexpr = GRID * GRID
    square, inside = crop // CELLS, crop % CELLS
    WIDTH: tl.constexpr = 7 if MIRROR else 6
    mine = draws + crop // REPEATS * WIDTH
    whole = draws + crop // PARTS * PARTS // REPEATS * WIDTH  # what a sample does as a whole
    top, left = inside // GRID * cell, inside % GRID * cell
    if RANDOM:
        top += tl.minimum((tl.load(mine) * (room + 1)).to(tl.int32), room)
        left += tl.minimum((tl.load(mine + 1) * (room + 1)).to(tl.int32), room)
    else:
        top += room // 2
        left += room // 2
    pixel = tl.arange(0, B)
    mask = pixel < S * S
    row, column = pixel // S, pixel % S
    if MIRROR:
        mirrored = tl.load(whole + 6) < 0.5
        left = tl.where(mirrored, (GRID - 1) * cell + room - left, left)
        column = tl.where(mirrored, S - 1 - column, column)
    stride = tl.load(places + squares + square)
    corner = data + tl.load(places + square) + top * stride + left * 3
    from_row, from_column = tl.load(first + row, mask, 0), tl.load(first + column, mask, 0)
    red = tl.zeros((B,), tl.float32)
    green = tl.zeros((B,), tl.float32)
    blue = tl.zeros((B,), tl.float32)
    for y in tl.static_range(TAPS):
        for x in tl.static_range(TAPS):
            weight = tl.load(weights + row * TAPS + y, mask, 0.0) * tl.load(weights + column * TAPS + x, mask, 0.0)
            at = corner + (from_row + y) * stride + (from_column + x) * 3
            used = mask & (weight != 0)  # a tap without weight may lie outside
            red += weight * tl.load(at, used, 0).to(tl.float32)
            green += weight * tl.load(at + 1, used, 0).to(tl.float32)
            blue += weight * tl.load(at + 2, used, 0).to(tl.float32)
    red, green, blue = red / 255, green / 255, blue / 255
    if COLOURED:
        keep = (tl.load(whole + 2) >= grey).to(tl.float32)
        red, green, blue = _saturated(red, green, blue, keep)
        red, green, blue = _turned(red, green, blue, 6.283185307179586 * hue * (2 * tl.load(mine + 5) - 1))
        red, green, blue = _saturated(red, green, blue, 1 + saturation * (2 * tl.load(mine + 4) - 1))
        power = tl.exp(gamma * (2 * tl.load(mine + 3) - 1))
        red, green, blue = _raised(red, power), _raised(green, power), _raised(blue, power)
    target = crops + crop.to(tl.int64) * S * S * 3 + pixel * 3
    tl.store(target, _normalised(red, mask, min_std, S * S).to(crops.dtype.element_ty), mask)
    tl.store(target + 1, _normalised(green, mask, min_std, S * S).to(crops.dtype.element_ty), mask)
    tl.store(target + 2, _normalised(blue, mask, min_std, S * S).to(crops.dtype.element_ty), mask)


@triton.jit
def _saturated(red, green, blue, amount):
    """1 leaves the colours, 0 makes them grey."""
    grey = (1 - amount) * (RED * red + GREEN * green + BLUE * blue)
    return amount * red + grey, amount * green + grey, amount * blue + grey


@triton.jit
def _turned(red, green, blue, angle):
    """The hue turned by a rotation about the grey axis."""
    cos, sin = tl.cos(angle), tl.sin(angle) * 0.5773502691896258
    along = (1 - cos) / 3 * (red + green + blue)
    return (
        cos * red + sin * (blue - green) + along,
        cos * green + sin * (red - blue) + along,
        cos * blue + sin * (green - red) + along,
    )


@triton.jit
def _raised(values, power):
    return tl.exp2(power * tl.log2(tl.minimum(tl.maximum(values, 0.0), 1.0)))


@triton.jit
def _normalised(values, mask, min_std, count):
    rest = values - tl.sum(tl.where(mask, values, 0.0), 0) / count
    deviation = tl.sqrt(tl.sum(tl.where(mask, rest * rest, 0.0), 0) / count)
    return rest / tl.maximum(deviation, min_std)
