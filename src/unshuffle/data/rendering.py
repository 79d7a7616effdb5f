"""Crops by one kernel, cut, resized, coloured and normalised straight from the bytes; the same as `shuffle.render`."""

from functools import lru_cache

import torch
import triton
from torch import Tensor

from unshuffle.data.kernels import render_kernel
from unshuffle.data.shuffle import MIN_STD, Cuts, resize
from unshuffle.data.squares import Squares

WARPS = 16


def render(squares: Squares, cuts: Cuts, crop_size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Cut, resize, colour and normalise, (B, P, 3, S, S); each crop is channels-last."""
    device = squares.data.device
    first, weights = _taps(cuts.side, crop_size, device)
    crops = torch.empty(
        (cuts.count, 3, crop_size, crop_size), dtype=dtype, device=device, memory_format=torch.channels_last
    )
    # a kernel wants a pointer, also one that it never reads
    draws = weights if cuts.draws is None else cuts.draws.contiguous()
    render_kernel[cuts.count,](
        squares.data, squares.places, draws, first, weights, crops, squares.places.shape[1], MIN_STD, cuts.room,
        cuts.cell, *cuts.jitter, S=crop_size, TAPS=weights.shape[1], GRID=cuts.grid, PARTS=cuts.parts,
        REPEATS=cuts.repeats, RANDOM=cuts.draws is not None, COLOURED=cuts.coloured,
        MIRROR=cuts.mirror and cuts.draws is not None, B=triton.next_power_of_2(crop_size**2), num_warps=WARPS,
    )  # fmt: skip
    return crops.view(-1, cuts.parts, 3, crop_size, crop_size)


@lru_cache(maxsize=16)
def _taps(side: int, crop_size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """How a row of `side` pixels becomes one of `crop_size`: of each new pixel the first old one, and the weights.

    Read off the resizing itself, so that there is one definition of it.
    """
    impulses = torch.eye(side).view(1, side, side, 1).expand(1, side, side, side)
    matrix = resize(impulses, crop_size)[0, :, :, 0].T  # new pixels, old pixels
    first = (matrix != 0).int().argmax(dim=1)
    taps = int((matrix != 0).sum(dim=1).max())
    index = (first[:, None] + torch.arange(taps)).clamp(max=side - 1)
    weights = matrix.gather(1, index)
    beyond = first[:, None] + torch.arange(taps) >= side
    return first.to(device), weights.masked_fill(beyond, 0.0).contiguous().to(device)
