"""Triton kernels of `norm_pool`: batch normalisation, ReLU and max-pooling of channels-last maps.

Names: x the map, g the gradient of the result, xs and gs (ys, ps) the channels from one of their pixels to the next,
`column` a channel, `total` the number of channels of the whole map, of which a kernel may see a part. `saved` holds
mean, 1 / deviation, scale and shift of each channel. Capitals are constants of a compilation.
"""

import triton
import triton.language as tl

NOWHERE = tl.constexpr(255)  # place of the maximum of a window in which ReLU passes nothing


@triton.jit
def sums_kernel(
    x, sums, rows, channels, first, total, SPLIT: tl.constexpr, R: tl.constexpr, C: tl.constexpr, INT: tl.constexpr
):
    """Sum and sum of squares of each channel over a share of the pixels."""
    split, column = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C)
    inside = column < channels
    one = tl.zeros((R, C), tl.float32)
    two = tl.zeros((R, C), tl.float32)
    for start in range(split * R, rows, SPLIT * R):
        row = start + tl.arange(0, R)
        mask = (row < rows)[:, None] & inside[None, :]
        values = tl.load(x + row.to(INT)[:, None] * channels + column[None, :], mask, 0.0).to(tl.float32)
        one += values
        two += values * values
    tl.store(sums + split * total + first + column, tl.sum(one, 0), inside)
    tl.store(sums + (SPLIT + split) * total + first + column, tl.sum(two, 0), inside)


@triton.jit
def statistics_kernel(
    sums, weight, bias, conv_bias, running_mean, running_var, saved, total, count, momentum, epsilon,
    SPLIT: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Mean, 1 / deviation, scale and shift of each channel from the sums; moves the running statistics."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    inside = column < total
    one, two = _total(sums, column, inside, total, SPLIT, C)
    mean = one / count
    variance = tl.maximum(two / count - mean * mean, 0.0)
    rate = 1 / tl.sqrt(variance + epsilon)
    scale = tl.load(weight + column, inside, 0.0) * rate
    tl.store(saved + column, mean, inside)
    tl.store(saved + total + column, rate, inside)
    tl.store(saved + 2 * total + column, scale, inside)
    tl.store(saved + 3 * total + column, tl.load(bias + column, inside, 0.0) - mean * scale, inside)
    # the convolution left its bias out, for the normalisation takes it away again; at evaluation it is there
    mean += tl.load(conv_bias + column, inside, 0.0)
    old_mean, old_var = tl.load(running_mean + column, inside), tl.load(running_var + column, inside)
    tl.store(running_mean + column, old_mean + momentum * (mean - old_mean), inside)
    tl.store(running_var + column, old_var + momentum * (variance * (count / (count - 1)) - old_var), inside)


@triton.jit
def _total(sums, column, inside, total, SPLIT: tl.constexpr, C: tl.constexpr):
    split = tl.arange(0, SPLIT)[:, None] * total + column[None, :]
    one = tl.sum(tl.load(sums + split, inside[None, :], 0.0), 0)
    two = tl.sum(tl.load(sums + SPLIT * total + split, inside[None, :], 0.0), 0)
    return one, two


@triton.jit
def activate_kernel(x, y, saved, size, xs, ys, total, C: tl.constexpr, B: tl.constexpr, INT: tl.constexpr):
    """ReLU of the normalised map; xs and ys are the channels from one pixel to the next."""
    place = tl.program_id(0).to(INT) * B + tl.arange(0, B)
    mask = place < size
    row, column = place // C, place % C
    value = tl.load(x + row * xs + column, mask).to(tl.float32)
    value = value * tl.load(saved + 2 * total + column) + tl.load(saved + 3 * total + column)
    value = tl.where(value <= 0, 0.0, value)  # keeps what is not a number
    tl.store(y + row * ys + column, value.to(y.dtype.element_ty), mask)


@triton.jit
def activate_pool_kernel(
    x, y, places, saved, size, xs, ys, ps, total,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    INT: tl.constexpr,
):  # fmt: skip
    """The largest activation of each 3 x 3 window and its place in it; `places` has ps channels a pixel."""
    place = tl.program_id(0).to(INT) * B + tl.arange(0, B)
    mask = place < size
    row, column = place // C, place % C
    image, top, left = row // (OH * OW), (row // OW) % OH * 2, row % OW * 2
    scale, shift = tl.load(saved + 2 * total + column), tl.load(saved + 3 * total + column)
    corner = x + ((image * H + top) * W + left) * xs + column
    best = tl.full((B,), float("-inf"), tl.float32)
    where = tl.zeros((B,), tl.int32)
    for window in tl.static_range(9):
        value = tl.load(corner + ((window // 3) * W + window % 3) * xs, mask).to(tl.float32) * scale + shift
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        where = tl.where(better, window, where)
    tl.store(y + row * ys + column, tl.where(best <= 0, 0.0, best).to(y.dtype.element_ty), mask)
    tl.store(places + row * ps + column, tl.where(best <= 0, NOWHERE, where).to(tl.uint8), mask)


@triton.jit
def backward_sums_kernel(
    x, g, saved, sums, rows, xs, gs, first, total, SPLIT: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
    C: tl.constexpr, INT: tl.constexpr,
):  # fmt: skip
    """Of each channel over a share of the pixels: the gradient, and the gradient times the normalised map."""
    split, column = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C)
    inside = column < K
    mean, rate = tl.load(saved + column, inside, 0.0), tl.load(saved + total + column, inside, 0.0)
    scale = tl.load(saved + 2 * total + column, inside, 0.0)
    shift = tl.load(saved + 3 * total + column, inside, 0.0)
    one = tl.zeros((R, C), tl.float32)
    two = tl.zeros((R, C), tl.float32)
    for start in range(split * R, rows, SPLIT * R):
        row = (start + tl.arange(0, R)).to(INT)
        mask = (row < rows)[:, None] & inside[None, :]
        value = tl.load(x + row[:, None] * xs + column[None, :], mask, 0.0).to(tl.float32)
        gradient = tl.load(g + row[:, None] * gs + column[None, :], mask, 0.0).to(tl.float32)
        gradient = tl.where(value * scale[None, :] + shift[None, :] > 0, gradient, 0.0)
        one += gradient
        two += gradient * (value - mean[None, :]) * rate[None, :]
    tl.store(sums + split * total + first + column, tl.sum(one, 0), inside)
    tl.store(sums + (SPLIT + split) * total + first + column, tl.sum(two, 0), inside)


@triton.jit
def backward_sums_pool_kernel(
    x, g, places, saved, sums, rows, xs, gs, ps, first, total,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    SPLIT: tl.constexpr, R: tl.constexpr, K: tl.constexpr, C: tl.constexpr, INT: tl.constexpr,
):  # fmt: skip
    """The same over the windows: each has one pixel that its gradient goes to, or none."""
    split, column = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C)
    inside = column < K
    mean, rate = tl.load(saved + column, inside, 0.0), tl.load(saved + total + column, inside, 0.0)
    one = tl.zeros((R, C), tl.float32)
    two = tl.zeros((R, C), tl.float32)
    for start in range(split * R, rows, SPLIT * R):
        row = (start + tl.arange(0, R)).to(INT)
        mask = (row < rows)[:, None] & inside[None, :]
        where = tl.load(places + row[:, None] * ps + column[None, :], mask, NOWHERE).to(tl.int32)
        passed = mask & (where != NOWHERE)
        gradient = tl.load(g + row[:, None] * gs + column[None, :], passed, 0.0).to(tl.float32)
        image, top, left = row // (OH * OW), (row // OW) % OH * 2, row % OW * 2
        pixel = ((image * H + top) * W + left)[:, None] + where // 3 * W + where % 3
        value = tl.load(x + pixel * xs + column[None, :], passed, 0.0).to(tl.float32)
        one += gradient
        two += gradient * (value - mean[None, :]) * rate[None, :]
    tl.store(sums + split * total + first + column, tl.sum(one, 0), inside)
    tl.store(sums + (SPLIT + split) * total + first + column, tl.sum(two, 0), inside)


@triton.jit
def parameter_gradients_kernel(sums, saved, dweight, dbias, line, total, count, SPLIT: tl.constexpr, C: tl.constexpr):
    """Gradients of weight and bias; and with them that of the input is line[0] g + line[1] x + line[2]."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    inside = column < total
    one, two = _total(sums, column, inside, total, SPLIT, C)
    tl.store(dbias + column, one, inside)
    tl.store(dweight + column, two, inside)
    mean, rate = tl.load(saved + column, inside, 0.0), tl.load(saved + total + column, inside, 0.0)
    scale = tl.load(saved + 2 * total + column, inside, 0.0)
    slope = -scale * rate * two / count
    tl.store(line + column, scale, inside)
    tl.store(line + total + column, slope, inside)
    tl.store(line + 2 * total + column, -scale * one / count - slope * mean, inside)


@triton.jit
def backward_kernel(x, g, dx, saved, line, size, xs, gs, total, C: tl.constexpr, B: tl.constexpr, INT: tl.constexpr):
    """The gradient of the map where nothing is pooled."""
    place = tl.program_id(0).to(INT) * B + tl.arange(0, B)
    mask = place < size
    row, column = place // C, place % C
    value = tl.load(x + row * xs + column, mask).to(tl.float32)
    gradient = tl.load(g + row * gs + column, mask).to(tl.float32)
    active = value * tl.load(saved + 2 * total + column) + tl.load(saved + 3 * total + column) > 0
    gradient = tl.where(active, gradient, 0.0) * tl.load(line + column)
    result = gradient + value * tl.load(line + total + column) + tl.load(line + 2 * total + column)
    tl.store(dx + row * xs + column, result.to(dx.dtype.element_ty), mask)


@triton.jit
def backward_pool_kernel(
    x, g, places, dx, line, size, xs, gs, ps, total,
    H: tl.constexpr, W: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr, C: tl.constexpr, B: tl.constexpr,
    INT: tl.constexpr,
):  # fmt: skip
    """Two by two pixels lie in the same four windows; each takes the gradients of those whose maximum it is."""
    place = tl.program_id(0).to(INT) * B + tl.arange(0, B)
    mask = place < size
    block, column = place // C, place % C
    BH: tl.constexpr = (H + 1) // 2
    BW: tl.constexpr = (W + 1) // 2
    image, i, j = block // (BH * BW), (block // BW) % BH, block % BW
    window = (image * OH + i) * OW + j
    right, below = mask & (2 * j + 1 < W), mask & (2 * i + 1 < H)
    source = x + ((image * H + 2 * i) * W + 2 * j) * xs + column
    target = dx + ((image * H + 2 * i) * W + 2 * j) * xs + column
    # all that is read comes first: a value could not be kept over a store, which might have changed it
    value0 = tl.load(source, mask, 0.0).to(tl.float32)
    value1 = tl.load(source + xs, right, 0.0).to(tl.float32)
    value2 = tl.load(source + W * xs, below, 0.0).to(tl.float32)
    value3 = tl.load(source + (W + 1) * xs, right & below, 0.0).to(tl.float32)
    scale, slope = tl.load(line + column), tl.load(line + total + column)
    shift = tl.load(line + 2 * total + column)
    here, at_here = _window(places, g, window, ps, gs, column, mask & (i < OH) & (j < OW))
    above, at_above = _window(places, g, window - OW, ps, gs, column, mask & (i > 0) & (i <= OH) & (j < OW))
    before, at_before = _window(places, g, window - 1, ps, gs, column, mask & (j > 0) & (j <= OW) & (i < OH))
    corner, at_corner = _window(
        places, g, window - OW - 1, ps, gs, column, mask & (i > 0) & (i <= OH) & (j > 0) & (j <= OW)
    )
    gradient0 = (
        tl.where(at_here == 0, here, 0.0) + tl.where(at_above == 6, above, 0.0)
        + tl.where(at_before == 2, before, 0.0) + tl.where(at_corner == 8, corner, 0.0)
    )  # fmt: skip
    gradient1 = tl.where(at_here == 1, here, 0.0) + tl.where(at_above == 7, above, 0.0)
    gradient2 = tl.where(at_here == 3, here, 0.0) + tl.where(at_before == 5, before, 0.0)
    gradient3 = tl.where(at_here == 4, here, 0.0)
    kind = dx.dtype.element_ty
    tl.store(target, (gradient0 * scale + value0 * slope + shift).to(kind), mask)
    tl.store(target + xs, (gradient1 * scale + value1 * slope + shift).to(kind), right)
    tl.store(target + W * xs, (gradient2 * scale + value2 * slope + shift).to(kind), below)
    tl.store(target + (W + 1) * xs, (gradient3 * scale + value3 * slope + shift).to(kind), right & below)


@triton.jit
def _window(places, g, window, ps, gs, column, valid):
    """A window's gradient and the place it goes to."""
    where = tl.load(places + window * ps + column, valid, NOWHERE).to(tl.int32)
    return tl.load(g + window * gs + column, valid, 0.0).to(tl.float32), where


@triton.jit
def unroll_kernel(x, y, S: tl.constexpr, SIDE: tl.constexpr, OW: tl.constexpr, K: tl.constexpr, B: tl.constexpr):
    """One program makes one row of maps out of two rows of an image: see `unroll`."""
    row = tl.program_id(0).to(tl.int64)
    top = (row % SIDE) * 2
    x += (row // SIDE * S + top) * (S * 3)
    place = tl.arange(0, B)
    channel = place % K
    lower = (channel >= 36).to(tl.int32)
    inside = place // K * 6 + channel - 36 * lower
    known = (channel < 72) & (inside < S * 3) & (top + lower < S) & (place < OW * K)
    tl.store(y + row * (OW * K) + place, tl.load(x + lower * (S * 3) + inside, known, 0.0), place < OW * K)
