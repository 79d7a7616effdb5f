"""B: samples become crops, and crops are put in another order. Batched tensor code on any device.

What is cut is drawn first (`tile_cuts`, `frame_cuts`), then rendered: by the tensor code here, which is the reference,
or by one kernel of `rendering`. Axes: B samples, P parts of a sample (tiles or frames), N = B · P crops, M permutations
of a sample, S side of a crop. A generator makes the random crops and colours of training; without one, centre crops
and true colours, for validation.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import ShuffleConfig
from unshuffle.data.share import Share

LUMA = (0.299, 0.587, 0.114)
MIN_STD = 2 / 255  # a crop with hardly any contrast is not blown up into noise


class Jitter(NamedTuple):
    """Strengths of the changes of colour; 0: none."""

    grey: float = 0.0
    gamma: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0


STILL = Jitter()


@dataclass(frozen=True)
class Cuts:
    """The crops of a batch: where they are cut out of their squares, and how they are coloured.

    All that is random is a table of uniform numbers, so that making it is one call for a device.
    """

    count: int
    """N."""
    parts: int
    """P: crops of a sample, which follow one another."""
    side: int
    """Of a crop, in pixels of its square."""
    room: int
    """Pixels by which a crop may be shifted, down and right."""
    grid: int = 1
    """Crops lie in the cells of a grid x grid over their square; frames have one cell."""
    cell: int = 0
    """Pixels from one cell to the next."""
    draws: Tensor | None = None
    """(rows, 6) in [0, 1): down, right, grey, gamma, saturation, hue; None: centre crops in true colours.

    With `mirror` there is a seventh column."""
    jitter: Jitter = STILL
    mirror: bool = False
    """Whether half of the samples are mirrored, each as a whole."""

    @property
    def repeats(self) -> int:
        """Crops that share a row of draws."""
        return 1 if self.draws is None else self.count // len(self.draws)

    @property
    def coloured(self) -> bool:
        """Whether any colour may change."""
        return self.draws is not None and any(strength > 0 for strength in self.jitter)

    def part(self, share: Share) -> "Cuts":
        """Those of one share of the samples, whose squares are then counted from 0."""
        samples = self.count // self.parts
        mine = share.rows(samples)
        draws = None if self.draws is None else self.draws.unflatten(0, (samples, -1))[mine].flatten(0, 1)
        return replace(self, count=(mine.stop - mine.start) * self.parts, draws=draws)

    def places(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Square, (N, side) rows and (N, side) columns of each crop; mirrored ones have their columns backwards."""
        crop = torch.arange(self.count, device=device)
        square, cell = crop // self.grid**2, crop % self.grid**2
        down, right = self._shifts(crop)
        span = torch.arange(self.side, device=device)
        rows = (cell // self.grid * self.cell + down)[:, None] + span
        columns = (cell % self.grid * self.cell + right)[:, None] + span
        return square, rows, torch.where(self._mirrored(crop)[:, None], self._last - columns, columns)

    @property
    def _last(self) -> int:
        """The last column that any crop may reach."""
        return (self.grid - 1) * self.cell + self.room + self.side - 1

    def _mirrored(self, crop: Tensor) -> Tensor:
        if self.draws is None or not self.mirror:
            return torch.zeros_like(crop, dtype=torch.bool)
        return self.draws[self._first(crop), 6] < 0.5

    def _first(self, crop: Tensor) -> Tensor:
        """The row of draws that stands for the whole sample of a crop."""
        return crop // self.parts * self.parts // self.repeats

    def _shifts(self, crop: Tensor) -> Tensor:
        if self.draws is None:
            return torch.full((2, self.count), self.room // 2, device=crop.device)
        shifts = self.draws[crop // self.repeats, :2].T * (self.room + 1)
        return shifts.long().clamp(max=self.room)  # rounding may make a number just below 1 reach it

    def colours(self) -> tuple[Tensor, Tensor]:
        """(N, 3, 3) matrices that mix the channels, and (N,) exponents for what they give.

        An exponent, because offsets and gains would be taken out again by the normalisation of each crop and channel.
        """
        assert self.draws is not None
        crop = torch.arange(self.count, device=self.draws.device)
        gamma, saturation, hue = 2 * self.draws[crop // self.repeats, 3:6].T - 1
        matrix = _saturation_matrix(1 + self.jitter.saturation * saturation)
        matrix = matrix @ _hue_matrix(2 * math.pi * self.jitter.hue * hue)
        grey = self.draws[self._first(crop), 2] < self.jitter.grey  # an image turns grey as a whole
        return matrix @ _saturation_matrix(1 - grey.float()), torch.exp(self.jitter.gamma * gamma)


def tile_cuts(
    batch: int, size: int, config: ShuffleConfig, device: torch.device, generator: torch.Generator | None = None
) -> Cuts:
    """A crop in each cell of a grid over each of a batch of squares of a size."""
    cell = size // config.grid
    side = max(1, round(cell * config.tile_share))
    count = batch * config.tiles
    jitter = Jitter(config.grey, config.gamma, config.saturation, config.hue)
    draws = _draws(count, config.mirror, device, generator)
    return Cuts(count, config.tiles, side, cell - side, config.grid, cell, draws, jitter, config.mirror)


def frame_cuts(
    batch: int, size: int, config: ShuffleConfig, device: torch.device, generator: torch.Generator | None = None
) -> Cuts:
    """A crop of each frame of a batch of clips; a clip's frames are squares that follow one another."""
    side = max(1, round(size * config.frame_share))
    count = batch * config.frames
    rows = batch if config.shared_crop else count
    jitter = Jitter(0.0, config.gamma, config.saturation, config.hue) if config.frame_jitter else STILL
    draws = _draws(rows, config.mirror, device, generator)
    return Cuts(count, config.frames, side, size - side, draws=draws, jitter=jitter, mirror=config.mirror)


def _draws(rows: int, mirror: bool, device: torch.device, generator: torch.Generator | None) -> Tensor | None:
    return None if generator is None else torch.rand(rows, 7 if mirror else 6, generator=generator, device=device)


CUTS = {"spatial": tile_cuts, "temporal": frame_cuts}


def cut(squares: Tensor, cuts: Cuts, crop_size: int) -> Tensor:
    """Crops of (B, H, W, 3) bytes before they are normalised, (N, 3, S, S) in [0, 1]: what a person can look at."""
    owner, rows, columns = cuts.places(squares.device)
    crops = squares[owner[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).float() / 255
    crops = resize(crops, crop_size)
    if not cuts.coloured:
        return crops
    colour, exponent = cuts.colours()
    mixed = (colour @ crops.flatten(2)).clamp(0, 1).view_as(crops)
    return mixed ** exponent[:, None, None, None]


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


def resize(crops: Tensor, side: int) -> Tensor:
    """(N, C, H, H) to (N, C, S, S), smoothed where it shrinks."""
    if crops.shape[-1] == side:
        return crops
    shrinks = crops.shape[-1] > side
    return F.interpolate(crops, (side, side), mode="bilinear", align_corners=False, antialias=shrinks)


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
