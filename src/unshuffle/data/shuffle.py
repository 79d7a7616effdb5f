"""B: samples become crops, and crops are put in another order. Batched tensor code on any device.

Axes: B samples, P parts of a sample (tiles or frames), M permutations of a sample, S side of a crop.
A generator makes the random crops and colours of training; without one, centre crops and true colours, for validation.
Samples may be a share of a batch: the draws are then those of the whole batch, cut.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import ShuffleConfig
from unshuffle.data.share import WHOLE, Share

LUMA = (0.299, 0.587, 0.114)
MIN_STD = 2 / 255  # a crop with hardly any contrast is not blown up into noise


def tiles(
    images: Tensor, config: ShuffleConfig, generator: torch.Generator | None = None, share: Share = WHOLE
) -> Tensor:
    """Cut (B, H, W, 3) bytes into a grid: a crop in each cell, resized and normalised, (B, m*m, 3, S, S)."""
    crops = cut_tiles(images, config, generator, share)
    return normalise(crops.flatten(0, 1)).view_as(crops)


def cut_tiles(
    images: Tensor, config: ShuffleConfig, generator: torch.Generator | None = None, share: Share = WHOLE
) -> Tensor:
    """The tiles before they are normalised, in [0, 1]: what a person can look at."""
    batch, size = images.shape[0], images.shape[1]
    cell = size // config.grid
    side = max(1, round(cell * config.tile_share))
    corner = torch.arange(config.grid, device=images.device) * cell
    top, left = (axis.flatten().repeat(batch) for axis in torch.meshgrid(corner, corner, indexing="ij"))
    shift = _offsets((len(top), 2), cell - side, images.device, generator, share)
    owner = torch.arange(batch, device=images.device).repeat_interleave(config.tiles)
    crops = _crop(images, owner, top + shift[:, 0], left + shift[:, 1], side)
    crops = _resize(crops, config.crop_size)
    if generator is not None:
        grey = _uniform((batch,), generator, images.device, share) < config.grey
        crops = _recolour(crops, config, generator, share, grey.repeat_interleave(config.tiles))
    return torch.unflatten(crops, 0, (batch, config.tiles))


def frames(
    clips: Tensor, config: ShuffleConfig, generator: torch.Generator | None = None, share: Share = WHOLE
) -> Tensor:
    """Crop, resize and normalise each frame of (B, u, H, W, 3) bytes, (B, u, 3, S, S)."""
    crops = cut_frames(clips, config, generator, share)
    return normalise(crops.flatten(0, 1)).view_as(crops)


def cut_frames(
    clips: Tensor, config: ShuffleConfig, generator: torch.Generator | None = None, share: Share = WHOLE
) -> Tensor:
    """The frames before they are normalised, in [0, 1]: what a person can look at."""
    batch, num_frames, size = clips.shape[0], clips.shape[1], clips.shape[2]
    side = max(1, round(size * config.frame_share))
    draws = batch if config.shared_crop else batch * num_frames
    repeats = batch * num_frames // draws
    shift = _offsets((draws, 2), size - side, clips.device, generator, share).repeat_interleave(repeats, 0)
    owner = torch.arange(batch * num_frames, device=clips.device)
    crops = _crop(clips.flatten(0, 1), owner, shift[:, 0], shift[:, 1], side)
    crops = _resize(crops, config.crop_size)
    if generator is not None and config.frame_jitter:
        crops = _recolour(crops, config, generator, share, repeats=repeats)
    return torch.unflatten(crops, 0, (batch, num_frames))


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


def _uniform(shape: tuple[int, ...], generator: torch.Generator, device: torch.device, share: Share) -> Tensor:
    """(..., N) numbers in [0, 1) for the N crops of a share."""
    *others, crops = shape
    total = crops * share.of
    return torch.rand((*others, total), generator=generator, device=device)[..., share.rows(total)]


def _offsets(
    shape: tuple[int, ...], room: int, device: torch.device, generator: torch.Generator | None, share: Share
) -> Tensor:
    """(N, ...) offsets for the N crops of a share."""
    if generator is None:
        return torch.full(shape, room // 2, device=device)
    crops, *others = shape
    total = crops * share.of
    return torch.randint(room + 1, (total, *others), generator=generator, device=device)[share.rows(total)]


def _crop(images: Tensor, owner: Tensor, top: Tensor, left: Tensor, side: int) -> Tensor:
    """Squares of (B, H, W, 3) bytes as (N, 3, side, side) floats in [0, 1]; crop n is from images[owner[n]]."""
    span = torch.arange(side, device=images.device)
    rows, columns = (top[:, None] + span)[:, :, None], (left[:, None] + span)[:, None, :]
    return images[owner[:, None, None], rows, columns].permute(0, 3, 1, 2).float() / 255


def _resize(crops: Tensor, side: int) -> Tensor:
    if crops.shape[-1] == side:
        return crops
    shrinks = crops.shape[-1] > side
    return F.interpolate(crops, (side, side), mode="bilinear", align_corners=False, antialias=shrinks)


def _recolour(
    crops: Tensor,
    config: ShuffleConfig,
    generator: torch.Generator,
    share: Share,
    grey: Tensor | None = None,
    repeats: int = 1,
) -> Tensor:
    """Turn crops grey where asked, then jitter: one draw for each group of `repeats` crops."""
    draws = len(crops) // repeats
    gamma, saturation, hue = (
        (2 * _uniform((3, draws), generator, crops.device, share) - 1).repeat_interleave(repeats, 1).unbind()
    )
    matrix = _saturation_matrix(1 + config.saturation * saturation) @ _hue_matrix(2 * math.pi * config.hue * hue)
    if grey is not None:
        matrix = matrix @ _saturation_matrix(1 - grey.float())
    mixed = (matrix @ crops.flatten(2)).clamp(0, 1).view_as(crops)
    # an exponent, because offsets and gains would be taken out again by the normalisation of each crop and channel
    return mixed ** torch.exp(config.gamma * gamma)[:, None, None, None]


def _saturation_matrix(amount: Tensor) -> Tensor:
    """(N, 3, 3) colour matrices: 1 leaves the colours, 0 makes them grey."""
    identity = torch.eye(3, device=amount.device)
    to_grey = torch.tensor(LUMA, device=amount.device).expand(3, 3)
    return amount[:, None, None] * identity + (1 - amount)[:, None, None] * to_grey


def _hue_matrix(angle: Tensor) -> Tensor:
    """(N, 3, 3) rotations about the grey axis (Rodrigues' formula with the axis (1, 1, 1) / √3)."""
    identity = torch.eye(3, device=angle.device)
    axis = 1 / math.sqrt(3)
    cross = axis * torch.tensor([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]], device=angle.device)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    return cos * identity + sin * cross + (1 - cos) / 3
