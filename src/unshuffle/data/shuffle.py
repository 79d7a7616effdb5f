"""B: samples become crops, and crops are put in another order. Batched tensor code on any device.

What is cut is drawn first (`tile_cuts`, `frame_cuts`), then rendered: by the tensor code here, which is the reference,
or by one kernel of `rendering`. Axes: B samples, P parts of a sample (tiles or frames), N = B · P crops, M permutations
of a sample, S side of a crop. A generator makes the random crops and colours of training; without one, centre crops
and true colours, for validation.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import ShuffleConfig
from unshuffle.data.share import Share

LUMA = (0.299, 0.587, 0.114)
MIN_STD = 2 / 255  # a crop with hardly any contrast is not blown up into noise


@dataclass(frozen=True)
class Cuts:
    """The crops of a batch, one row each: where they are cut, and how they are coloured."""

    owner: Tensor
    """(N,) which square each is cut from."""
    top: Tensor
    left: Tensor
    side: int
    parts: int
    """P: crops of a sample, which follow one another."""
    colour: Tensor | None = None
    """(N, 3, 3) matrices that mix the channels; None: true colours."""
    exponent: Tensor | None = None
    """(N,) to which the mixed channels are raised."""

    def part(self, share: Share) -> "Cuts":
        """Those of one share of the samples, whose squares are then counted from 0."""
        if share.of == 1:
            return self
        rows = share.rows(len(self.owner))
        owner, top, left = self.owner[rows], self.top[rows], self.left[rows]
        colour, exponent = (None if one is None else one[rows] for one in (self.colour, self.exponent))
        return Cuts(owner - owner[0], top, left, self.side, self.parts, colour, exponent)


def tile_cuts(
    batch: int, size: int, config: ShuffleConfig, device: torch.device, generator: torch.Generator | None = None
) -> Cuts:
    """A crop in each cell of a grid over each of a batch of squares of a size."""
    cell = size // config.grid
    side = max(1, round(cell * config.tile_share))
    corner = torch.arange(config.grid, device=device) * cell
    top, left = (axis.flatten().repeat(batch) for axis in torch.meshgrid(corner, corner, indexing="ij"))
    shift = _offsets((len(top), 2), cell - side, device, generator)
    owner = torch.arange(batch, device=device).repeat_interleave(config.tiles)
    colour = exponent = None
    if generator is not None:
        grey = _uniform((batch,), generator) < config.grey
        colour, exponent = _jitter(len(top), config, generator)
        colour = colour @ _saturation_matrix(1 - grey.repeat_interleave(config.tiles).float())
    return Cuts(owner, top + shift[:, 0], left + shift[:, 1], side, config.tiles, colour, exponent)


def frame_cuts(
    batch: int, size: int, config: ShuffleConfig, device: torch.device, generator: torch.Generator | None = None
) -> Cuts:
    """A crop of each frame of a batch of clips; a clip's frames are squares that follow one another."""
    side = max(1, round(size * config.frame_share))
    repeats = config.frames if config.shared_crop else 1
    total = batch * config.frames
    shift = _offsets((total // repeats, 2), size - side, device, generator).repeat_interleave(repeats, 0)
    colour = exponent = None
    if generator is not None and config.frame_jitter:
        colour, exponent = (one.repeat_interleave(repeats, 0) for one in _jitter(total // repeats, config, generator))
    owner = torch.arange(total, device=device)
    return Cuts(owner, shift[:, 0], shift[:, 1], side, config.frames, colour, exponent)


CUTS = {"spatial": tile_cuts, "temporal": frame_cuts}


def cut(squares: Tensor, cuts: Cuts, crop_size: int) -> Tensor:
    """Crops of (B, H, W, 3) bytes before they are normalised, (N, 3, S, S) in [0, 1]: what a person can look at."""
    span = torch.arange(cuts.side, device=squares.device)
    rows, columns = (cuts.top[:, None] + span)[:, :, None], (cuts.left[:, None] + span)[:, None, :]
    crops = squares[cuts.owner[:, None, None], rows, columns].permute(0, 3, 1, 2).float() / 255
    crops = resize(crops, crop_size)
    if cuts.colour is None or cuts.exponent is None:
        return crops
    mixed = (cuts.colour @ crops.flatten(2)).clamp(0, 1).view_as(crops)
    return mixed ** cuts.exponent[:, None, None, None]


def render(squares: Tensor, cuts: Cuts, crop_size: int) -> Tensor:
    """Cut, resize, colour and normalise, (B, P, 3, S, S)."""
    return normalise(cut(squares, cuts, crop_size)).view(-1, cuts.parts, 3, crop_size, crop_size)


def permute(parts: Tensor, permutations: Tensor) -> Tensor:
    """Apply (B, M, P) permutations to the (B, P, ...) parts of each sample: (B, M, P, ...).

    Position t of the result holds part ψ[t], as in the paper's ψ(x) = (x_ψ1, x_ψ2, ...).
    """
    sample = torch.arange(len(parts), device=parts.device)[:, None, None]
    return parts[sample, permutations]


def normalise(crops: Tensor) -> Tensor:
    """Mean 0 and deviation 1 for each channel of each (N, 3, S, S) crop."""
    std, mean = torch.std_mean(crops, dim=(2, 3), keepdim=True, correction=0)
    return (crops - mean) / std.clamp(min=MIN_STD)


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device=generator.device)


def _offsets(shape: tuple[int, ...], room: int, device: torch.device, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        return torch.full(shape, room // 2, device=device)
    return torch.randint(room + 1, shape, generator=generator, device=device)


def resize(crops: Tensor, side: int) -> Tensor:
    """(N, C, H, H) to (N, C, S, S), smoothed where it shrinks."""
    if crops.shape[-1] == side:
        return crops
    shrinks = crops.shape[-1] > side
    return F.interpolate(crops, (side, side), mode="bilinear", align_corners=False, antialias=shrinks)


def _jitter(draws: int, config: ShuffleConfig, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Colour matrices and exponents.

    An exponent, because offsets and gains would be taken out again by the normalisation of each crop and channel.
    """
    gamma, saturation, hue = (2 * _uniform((3, draws), generator) - 1).unbind()
    matrix = _saturation_matrix(1 + config.saturation * saturation) @ _hue_matrix(2 * math.pi * config.hue * hue)
    return matrix, torch.exp(config.gamma * gamma)


def _saturation_matrix(amount: Tensor) -> Tensor:
    """(N, 3, 3) colour matrices: 1 leaves the colours, 0 makes them grey."""
    identity = torch.eye(3, device=amount.device)
    to_grey = _constant((LUMA, LUMA, LUMA), amount.device)
    return amount[:, None, None] * identity + (1 - amount)[:, None, None] * to_grey


def _hue_matrix(angle: Tensor) -> Tensor:
    """(N, 3, 3) rotations about the grey axis (Rodrigues' formula with the axis (1, 1, 1) / √3)."""
    identity = torch.eye(3, device=angle.device)
    cross = _constant(((0, -1, 1), (1, 0, -1), (-1, 1, 0)), angle.device) / math.sqrt(3)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    return cos * identity + sin * cross + (1 - cos) / 3


@lru_cache(maxsize=16)  # a number that travels to a GPU makes the program wait for all that runs there
def _constant(rows: tuple[tuple[float, ...], ...], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32, device=device)
