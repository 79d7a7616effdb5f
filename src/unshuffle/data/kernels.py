"""The Triton kernel of `rendering`."""

import triton
import triton.language as tl


@triton.jit
def render_kernel(
    data, places, owner, top, left, first, weights, colour, exponent, crops, squares, min_std,
    S: tl.constexpr, TAPS: tl.constexpr, COLOURED: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One program makes one crop, and keeps it in registers from the first byte to the last division."""
    crop = tl.program_id(0)
    square = tl.load(owner + crop)
    stride = tl.load(places + squares + square)
    corner = data + tl.load(places + square) + tl.load(top + crop) * stride + tl.load(left + crop) * 3
    pixel = tl.arange(0, B)
    mask = pixel < S * S
    row, column = pixel // S, pixel % S
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
        power = tl.load(exponent + crop)
        matrix = colour + crop * 9
        mixed_red = _mix(matrix, red, green, blue, power)
        mixed_green = _mix(matrix + 3, red, green, blue, power)
        blue = _mix(matrix + 6, red, green, blue, power)
        red, green = mixed_red, mixed_green
    target = crops + crop.to(tl.int64) * S * S * 3 + pixel * 3
    tl.store(target, _normalised(red, mask, min_std, S * S).to(crops.dtype.element_ty), mask)
    tl.store(target + 1, _normalised(green, mask, min_std, S * S).to(crops.dtype.element_ty), mask)
    tl.store(target + 2, _normalised(blue, mask, min_std, S * S).to(crops.dtype.element_ty), mask)


@triton.jit
def _mix(matrix, red, green, blue, power):
    mixed = tl.load(matrix) * red + tl.load(matrix + 1) * green + tl.load(matrix + 2) * blue
    return tl.exp2(power * tl.log2(tl.minimum(tl.maximum(mixed, 0.0), 1.0)))


@triton.jit
def _normalised(values, mask, min_std, count):
    rest = values - tl.sum(tl.where(mask, values, 0.0), 0) / count
    deviation = tl.sqrt(tl.sum(tl.where(mask, rest * rest, 0.0), 0) / count)
    return rest / tl.maximum(deviation, min_std)
