"""Augmented views of a batch: torchvision's transforms as batched tensor code, with other random numbers for each view.

Random resized crop, horizontal flip, colour jitter, grayscale and Gaussian blur mean what they mean in torchvision,
whose functions are the reference of the tests. On a GPU no shape depends on a random number and nothing is read back:
it does not wait for the host, and a CUDA graph can record the code. A CPU leaves out what changes nothing.
`kernels.views` does the same in fewer passes over the pixels. Axes: B samples, N = B · 2 views, H side of a square in
pixels, S side of a view.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from unshuffle.config import ViewConfig
from unshuffle.data.squares import RankSlice

VIEWS = 2
ATTEMPTS = 10  # of torchvision to find a box of the sampled area and aspect ratio that fits
UNIFORMS = {
    "area": ATTEMPTS,
    "ratio": ATTEMPTS,
    "top": 1,
    "left": 1,
    "hflip": 1,
    "jitter": 1,
    "order": 4,
    "factors": 4,
    "grayscale": 1,
    "blur": 1,
    "sigma": 1,
}
"""The random numbers of a view: names, and numbers of columns in a table of them."""
BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
"""The changes of colour jitter, in torchvision's order."""
LUMA = (0.2989, 0.587, 0.114)  # torchvision's
BLUR_FRACTION = 0.1  # side of the Gaussian kernel, as a fraction of the view's, as in SimCLR
FIXED_ROWS = 1009  # rows of the random numbers for validation
FIXED_SEED = 0


@dataclass(frozen=True)
class ViewPlan:
    """The views of a batch: how each is cropped from its square and how its colours change."""

    count: int
    """N."""
    config: ViewConfig
    uniforms: Tensor | None = None
    """(N, columns) in [0, 1), see UNIFORMS; None: views that depend on the pixels alone, for validation."""
    parts: int = VIEWS
    """Views of a sample, which follow one another."""

    def slice(self, part: RankSlice) -> "ViewPlan":
        """Return the plan of one process's slice of the samples."""
        samples = self.count // self.parts
        rows = part.rows(samples)
        uniforms = None if self.uniforms is None else self.uniforms[rows.start * self.parts : rows.stop * self.parts]
        return replace(self, count=(rows.stop - rows.start) * self.parts, uniforms=uniforms)

    def crop(self, squares: Tensor, crop_size: int) -> Tensor:
        """Return the views (N, 3, S, S) in [0, 1] of (B, H, H, 3) bytes, or of (B · 2, H, H, 3), one square a view."""
        plan = self if self.uniforms is not None else self.fixed(squares)
        changes = plan.changes(squares.shape[1])
        views = resized_crop(squares, changes.boxes, changes.flip, crop_size)
        views = colour_jitter(views, changes.factors, changes.order)
        views = torch.where(changes.grayscale[:, None, None, None], grayscale(views), views)
        return _where(changes.sigma > 0, gaussian_blur, views, changes.sigma)

    def fixed(self, squares: Tensor) -> "ViewPlan":
        """Return the plan with random numbers that the pixels of a sample choose, so that its batch does not matter."""
        samples = self.count // self.parts
        sums = squares.reshape(samples, -1).sum(dim=1, dtype=torch.int64)
        return replace(self, uniforms=_fixed_table(squares.device)[sums % FIXED_ROWS].flatten(0, 1))

    def changes(self, side: int) -> "Changes":
        """Return what is done to each view of squares with this side."""
        assert self.uniforms is not None
        uniforms = dict(zip(UNIFORMS, self.uniforms.split(list(UNIFORMS.values()), dim=1), strict=True))
        low, high = self.config.sigma
        sigma = low + (high - low) * uniforms["sigma"][:, 0]
        return Changes(
            random_boxes(uniforms, self.config, side),
            uniforms["hflip"][:, 0] < self.config.hflip,
            *jitter_factors(uniforms, self.config),
            uniforms["grayscale"][:, 0] < self.config.grayscale,
            sigma.where(uniforms["blur"][:, 0] < self.config.blur, 0.0),
        )


class Changes(NamedTuple):
    """What is done to each of N views, in this order."""

    boxes: Tensor
    """(4, N): top, left, height and width of the crop, in whole pixels of its square."""
    flip: Tensor
    """(N,) whether it is flipped."""
    factors: Tensor
    """(N, 4): brightness, contrast, saturation, hue."""
    order: Tensor
    """(N, 4): which of them comes first, second, third and last."""
    grayscale: Tensor
    """(N,) whether it becomes grayscale."""
    sigma: Tensor
    """(N,) standard deviation of the blur in pixels; 0: none."""


def view_uniforms(views: int, device: torch.device, generator: torch.Generator | None) -> Tensor | None:
    """Return the random numbers of a `ViewPlan`; None without a generator."""
    if generator is None:
        return None
    return torch.rand(views, sum(UNIFORMS.values()), generator=generator, device=device)


@lru_cache(maxsize=4)
def _fixed_table(device: torch.device) -> Tensor:
    """Return the random numbers for validation, (rows, 2, columns), the same on every device."""
    generator = torch.Generator().manual_seed(FIXED_SEED)
    return torch.rand(FIXED_ROWS, VIEWS, sum(UNIFORMS.values()), generator=generator).to(device)


def random_boxes(uniforms: dict[str, Tensor], config: ViewConfig, side: int) -> Tensor:
    """Return top, left, height and width, (4, N) in whole pixels, as torchvision's RandomResizedCrop samples them."""
    (low, high), (narrow, wide) = config.scale, config.ratio
    area = side * side * (low + (high - low) * uniforms["area"])
    ratio = torch.exp(math.log(narrow) + (math.log(wide) - math.log(narrow)) * uniforms["ratio"])
    width, height = torch.round(torch.sqrt(area * ratio)), torch.round(torch.sqrt(area / ratio))
    fits = (width > 0) & (width <= side) & (height > 0) & (height <= side)
    first = fits.int().argmax(dim=1, keepdim=True)
    fitting = fits.any(dim=1)
    # where no attempt fits: the whole square, as far as the aspect ratio allows
    width = width.gather(1, first)[:, 0].where(fitting, float(min(side, round(side * wide))))
    height = height.gather(1, first)[:, 0].where(fitting, float(min(side, round(side / narrow))))
    room = torch.stack([side - height, side - width])
    corner = torch.stack([uniforms["top"][:, 0], uniforms["left"][:, 0]]) * (room + 1)
    # rounding may make a number just below 1 reach it
    corner = torch.where(fitting, corner.floor().minimum(room), (room / 2).floor())
    return torch.cat([corner, torch.stack([height, width])])


def resized_crop(squares: Tensor, boxes: Tensor, flip: Tensor, size: int) -> Tensor:
    """Return boxes of (Q, H, H, 3) bytes resized with antialiasing, and flipped where `flip`: (N, 3, S, S) in [0, 1].

    The boxes of a square follow one another. Resizing is linear and separable, so it is a matrix product for the rows
    and one for the columns; the matrices hold the boxes.
    """
    top, left, height, width = boxes
    side, views = squares.shape[1], len(flip)
    rows = _resize_weights(top, height, size, side)
    columns = _resize_weights(left, width, size, side)
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    pixels = squares.flatten(2).float() / 255  # square, row, column and channel
    resized = (rows.view(len(squares), -1, side) @ pixels).view(views, size, side, 3)
    channels = resized.permute(0, 3, 1, 2).reshape(views, 3 * size, side)
    return (channels @ columns.transpose(1, 2)).view(views, 3, size, size)


def _resize_weights(start: Tensor, length: Tensor, size: int, side: int) -> Tensor:
    """Return (N, size, side) weights of pixels for each new one: a triangle about its centre, inside of the box."""
    scale = (length / size)[:, None, None]
    pixel = torch.arange(side, device=start.device) + 0.5
    centre = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    weights = (1 - (pixel - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    inside = (pixel > start[:, None]) & (pixel < (start + length)[:, None])
    weights = weights * inside[:, None]
    return weights / weights.sum(dim=2, keepdim=True)


def jitter_factors(uniforms: dict[str, Tensor], config: ViewConfig) -> tuple[Tensor, Tensor]:
    """Return (N, 4) factors of brightness, contrast and saturation and the shift of the hue, and their (N, 4) order."""
    jitter = [(config.brightness, 1.0), (config.contrast, 1.0), (config.saturation, 1.0), (config.hue, 0.0)]
    columns = []
    for (strength, neutral), uniform in zip(jitter, uniforms["factors"].unbind(1), strict=True):
        low = max(0.0, neutral - strength) if neutral else -strength
        factor = low + (neutral + strength - low) * uniform
        columns.append(factor.where(uniforms["jitter"][:, 0] < config.jitter, neutral))
    return torch.stack(columns, dim=1), uniforms["order"].argsort(dim=1)


def colour_jitter(images: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of (N, 3, S, S) images in [0, 1], in the order of each image.

    `factors` are those of torchvision's `adjust_brightness` and so on, (N, 4); `order` is which of them comes first,
    second, third and last. All but the hue blend with a grey image, so images with different orders share a pass, and
    the hue is changed once: after the blends that precede it and before those that follow.
    """
    hue_position = (order == HUE).int().argmax(dim=1)
    chosen = factors.gather(1, order)
    for position in range(3):
        rows = (position < hue_position) & (chosen[:, position] != 1)
        images = _where(rows, _blend, images, chosen[:, position], order[:, position])
    images = _where(factors[:, HUE] != 0, adjust_hue, images, factors[:, HUE])
    for position in range(1, 4):
        rows = (position > hue_position) & (chosen[:, position] != 1)
        images = _where(rows, _blend, images, chosen[:, position], order[:, position])
    return images


def _where(rows: Tensor, change: Callable[..., Tensor], images: Tensor, *arguments: Tensor) -> Tensor:
    """Return the images, changed where `rows`."""
    if images.device.type != "cpu":
        return torch.where(rows[:, None, None, None], change(images, *arguments), images)
    indices = rows.nonzero()[:, 0]
    if not len(indices):
        return images
    return images.index_copy(0, indices, change(images[indices], *(argument[indices] for argument in arguments)))


def _blend(images: Tensor, factor: Tensor, kind: Tensor) -> Tensor:
    """Change brightness, contrast or saturation: blend with black or grey."""
    grey, kind, factor = grayscale(images), kind[:, None, None, None], factor[:, None, None, None]
    mean = grey.mean(dim=(2, 3), keepdim=True)
    base = torch.where(kind == SATURATION, grey, mean * (kind == CONTRAST))
    return (factor * images + (1 - factor) * base).clamp(0, 1)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue of (N, 3, S, S) images by (N,) fractions of the colour circle."""
    red, green, blue = images.unbind(1)
    value, chroma = images.amax(dim=1), images.amax(dim=1) - images.amin(dim=1)
    divisor = chroma.where(chroma > 0, 1.0)
    sector = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    sector = sector + 6 * shift[:, None, None]
    channels = []
    for offset in (5, 3, 1):  # red, green, blue
        distance = (sector + offset) % 6
        channels.append(value - chroma * torch.minimum(distance, 4 - distance).clamp(0, 1))
    return torch.stack(channels, dim=1)


def grayscale(images: Tensor) -> Tensor:
    """Return the luma (N, 1, S, S) of (N, 3, S, S) images."""
    red, green, blue = images.split(1, dim=1)
    luma: Tensor = LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue
    return luma


def gaussian_blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur (N, 3, S, S) images with (N,) standard deviations in pixels, by a kernel of a tenth of S; 0: no blur."""
    matrices = blur_matrices(images.shape[-1], sigma)[:, None]
    blurred: Tensor = matrices @ images @ matrices.transpose(2, 3)
    return blurred


def blur_matrices(size: int, sigma: Tensor) -> Tensor:
    """Return (N, S, S) matrices: from the left they blur the columns of an image; transposed, from the right, its rows.

    A blur is linear and separable, so two matrix products are enough.
    """
    kernel_size = blur_kernel_size(size)
    offset = torch.arange(kernel_size, device=sigma.device) - kernel_size // 2
    # with a tiny standard deviation all other weights are zero exactly
    kernels = torch.exp(-0.5 * (offset / sigma.clamp(min=1e-3)[:, None]).square())
    kernels = kernels / kernels.sum(dim=1, keepdim=True)
    return (kernels @ _taps(size, sigma.device)).view(-1, size, size)


def blur_kernel_size(size: int) -> int:
    """Return the side of the Gaussian kernel for views of this size, an odd number."""
    return 2 * round((size * BLUR_FRACTION - 1) / 2) + 1 if size * BLUR_FRACTION > 1 else 1


@lru_cache(maxsize=16)
def _taps(size: int, device: torch.device) -> Tensor:
    """Return (kernel_size, size · size): a 1 where a tap of the kernel moves a pixel to; edges are reflected."""
    kernel_size = blur_kernel_size(size)
    taps = torch.zeros(kernel_size, size, size)
    for tap in range(kernel_size):
        for target in range(size):
            source = abs(target + tap - kernel_size // 2)
            taps[tap, target, min(source, 2 * (size - 1) - source)] += 1
    return taps.flatten(1).to(device)
