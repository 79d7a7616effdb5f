"""Crops of a batch, and their order: batched tensor code on any device.

A task plans its crops first (`Plan`); then they are rendered. A `CropPlan` is rendered by the tensor code here, which
is the reference, or by the fused kernel of `kernels.crops`; `data.views` has the plan of augmented views. Axes: B
samples, P parts of a sample (tiles or frames), N = B · P crops, M permutations of a sample, S side of a crop. With a
generator the crops and colours are random, for training; without one, centre crops in their true colours, for
validation.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import AugmentationConfig
from unshuffle.data.squares import RankSlice

LUMA = (0.299, 0.587, 0.114)
MIN_STD = 2 / 255  # a crop with hardly any contrast is not amplified into noise
CPU_CHUNK = 1 << 20  # numbers in the crops that a CPU renders at a time: large temporary tensors are slow to allocate


class Jitter(NamedTuple):
    """Strengths of the changes of colour; 0: none."""

    grayscale: float = 0.0
    gamma: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    @classmethod
    def of(cls, config: AugmentationConfig, *, grayscale: bool) -> "Jitter":
        """Return the configured jitter, with or without grayscale."""
        return cls(config.grayscale if grayscale else 0.0, config.gamma, config.saturation, config.hue)


NO_JITTER = Jitter()


class Plan(Protocol):
    """The crops of a batch, before they are rendered."""

    @property
    def count(self) -> int:
        """N."""

    @property
    def parts(self) -> int:
        """P: crops of a sample, which follow one another."""

    def slice(self, part: RankSlice) -> Self:
        """Return the plan of one process's slice of the samples, whose squares are then counted from 0."""

    def crop(self, squares: Tensor, crop_size: int) -> Tensor:
        """Return the crops of (B, H, W, 3) bytes before normalisation, (N, 3, S, S) in [0, 1], fit to be looked at."""


@dataclass(frozen=True)
class CropPlan:
    """The crops of a batch: where they lie in their squares, and how their colours change.

    All randomness is one table of uniform numbers, so that it takes a single call on a device.
    """

    count: int
    """N."""
    parts: int
    """P: crops of a sample, which follow one another."""
    side: int
    """Side of a crop, in pixels of its square."""
    room: int
    """Pixels by which a crop may be shifted, down and right."""
    grid: int = 1
    """Crops lie in the cells of a grid x grid over their square; frames have one cell."""
    cell: int = 0
    """Pixels from one cell to the next."""
    uniforms: Tensor | None = None
    """(rows, 6) in [0, 1): down, right, grayscale, gamma, saturation, hue; None: centre crops in true colours.

    With `hflip` above 0 there is a seventh column."""
    jitter: Jitter = NO_JITTER
    hflip: float = 0.0
    """Probability that a sample is flipped horizontally, as a whole."""

    @property
    def repeats(self) -> int:
        """Number of crops that share a row of uniform numbers."""
        return 1 if self.uniforms is None else self.count // len(self.uniforms)

    @property
    def coloured(self) -> bool:
        """Whether any colour may change."""
        return self.uniforms is not None and any(strength > 0 for strength in self.jitter)

    @property
    def flipped(self) -> bool:
        """Whether any sample may be flipped."""
        return self.uniforms is not None and self.hflip > 0

    def slice(self, part: RankSlice) -> "CropPlan":
        """Return the plan of one process's slice of the samples, whose squares are then counted from 0."""
        samples = self.count // self.parts
        rows = part.rows(samples)
        uniforms = None if self.uniforms is None else self.uniforms.unflatten(0, (samples, -1))[rows].flatten(0, 1)
        return replace(self, count=(rows.stop - rows.start) * self.parts, uniforms=uniforms)

    def crop(self, squares: Tensor, crop_size: int) -> Tensor:
        """Return the crops of (B, H, W, 3) bytes before normalisation, (N, 3, S, S) in [0, 1], fit to be looked at."""
        square, rows, columns = self.positions(squares.device)
        crops = squares[square[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).float() / 255
        crops = resize(crops, crop_size)
        if not self.coloured:
            return crops
        matrix, exponent = self.colours()
        mixed = (matrix @ crops.flatten(2)).clamp(0, 1).view_as(crops)
        return mixed ** exponent[:, None, None, None]

    def positions(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return square, (N, side) rows and (N, side) columns of each crop; flipped ones have reversed columns."""
        crop = torch.arange(self.count, device=device)
        square, cell = crop // self.grid**2, crop % self.grid**2
        down, right = self._shifts(crop)
        span = torch.arange(self.side, device=device)
        rows = (cell // self.grid * self.cell + down)[:, None] + span
        columns = (cell % self.grid * self.cell + right)[:, None] + span
        last_column = (self.grid - 1) * self.cell + self.room + self.side - 1  # that any crop may reach
        return square, rows, torch.where(self._flips(crop)[:, None], last_column - columns, columns)

    def _flips(self, crop: Tensor) -> Tensor:
        if self.uniforms is None or not self.flipped:
            return torch.zeros_like(crop, dtype=torch.bool)
        return self.uniforms[self._sample_row(crop), 6] < self.hflip

    def _sample_row(self, crop: Tensor) -> Tensor:
        """Return the row of uniform numbers that stands for the whole sample of a crop."""
        return crop // self.parts * self.parts // self.repeats

    def _shifts(self, crop: Tensor) -> Tensor:
        if self.uniforms is None:
            return torch.full((2, self.count), self.room // 2, device=crop.device)
        shifts = self.uniforms[crop // self.repeats, :2].T * (self.room + 1)
        return shifts.long().clamp(max=self.room)  # rounding may make a number just below 1 reach it

    def colours(self) -> tuple[Tensor, Tensor]:
        """Return (N, 3, 3) matrices that mix the channels, and (N,) exponents to apply afterwards.

        An exponent, because offsets and gains would be removed again by the normalisation of each crop and channel.
        """
        assert self.uniforms is not None
        crop = torch.arange(self.count, device=self.uniforms.device)
        gamma, saturation, hue = 2 * self.uniforms[crop // self.repeats, 3:6].T - 1
        matrix = _saturation_matrix(1 + self.jitter.saturation * saturation)
        matrix = matrix @ _hue_matrix(2 * math.pi * self.jitter.hue * hue)
        # an image becomes grayscale as a whole
        gray = self.uniforms[self._sample_row(crop), 2] < self.jitter.grayscale
        return matrix @ _saturation_matrix(1 - gray.float()), torch.exp(self.jitter.gamma * gamma)


def uniform_table(
    rows: int, augmentation: AugmentationConfig, device: torch.device, generator: torch.Generator | None
) -> Tensor | None:
    """Return the random numbers of a `CropPlan`; None without a generator."""
    columns = 7 if augmentation.hflip > 0 else 6
    return None if generator is None else torch.rand(rows, columns, generator=generator, device=device)


def render(squares: Tensor, plan: Plan, crop_size: int) -> Tensor:
    """Crop, resize, colour and normalise: (B, P, 3, S, S)."""
    samples = plan.count // plan.parts
    numbers = 3 * plan.count * crop_size**2
    chunks = min(samples, math.ceil(numbers / CPU_CHUNK)) if squares.device.type == "cpu" else 1
    of_samples = squares.unflatten(0, (samples, -1))
    crops = []
    for part in (RankSlice(chunk, chunks) for chunk in range(chunks)):
        own = of_samples[part.rows(samples)].flatten(0, 1)
        crops.append(normalise(plan.slice(part).crop(own, crop_size)))
    return torch.cat(crops).view(-1, plan.parts, 3, crop_size, crop_size)


def permute(parts: Tensor, permutations: Tensor) -> Tensor:
    """Apply (B, M, P) permutations to the (B, P, ...) parts of each sample: (B, M, P, ...).

    Position t of the result holds part ψ[t], as in the paper's ψ(x) = (x_ψ1, x_ψ2, ...).
    """
    sample = torch.arange(len(parts), device=parts.device)[:, None, None]
    return parts[sample, permutations]


def normalise(crops: Tensor) -> Tensor:
    """Standardise each channel of each (N, 3, S, S) crop to mean 0 and standard deviation 1."""
    std, mean = torch.std_mean(crops, dim=(2, 3), keepdim=True, correction=0)
    return (crops - mean) / std.clamp(min=MIN_STD)


def resize(crops: Tensor, side: int) -> Tensor:
    """Resize (N, C, H, H) to (N, C, S, S), with antialiasing where it shrinks."""
    if crops.shape[-1] == side:
        return crops
    shrinks = crops.shape[-1] > side
    return F.interpolate(crops, (side, side), mode="bilinear", align_corners=False, antialias=shrinks)


def _saturation_matrix(amount: Tensor) -> Tensor:
    """Return (N, 3, 3) colour matrices: 1 keeps the colours, 0 makes them grayscale."""
    identity = torch.eye(3, device=amount.device)
    to_gray = _constant((LUMA, LUMA, LUMA), amount.device)
    return amount[:, None, None] * identity + (1 - amount)[:, None, None] * to_gray


def _hue_matrix(angle: Tensor) -> Tensor:
    """Return (N, 3, 3) rotations of the hue about the gray axis (Rodrigues' formula with the axis (1, 1, 1) / √3)."""
    identity = torch.eye(3, device=angle.device)
    cross = _constant(((0, -1, 1), (1, 0, -1), (-1, 1, 0)), angle.device) / math.sqrt(3)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    return cos * identity + sin * cross + (1 - cos) / 3


@lru_cache(maxsize=16)  # copying a constant to a GPU would wait for all work in progress there
def _constant(rows: tuple[tuple[float, ...], ...], device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32, device=device)
