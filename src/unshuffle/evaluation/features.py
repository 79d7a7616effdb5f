"""Images to pool5 features, prepared the way the backbone was trained."""

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from unshuffle.data.media import BadMedia, read_image, resize_short_side, upright_rgb
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.labelled import centre_square
from unshuffle.models import Backbone
from unshuffle.models.registry import PER_IMAGE

BATCH = 64


def preprocess(
    image: Image.Image | Pixels | str | Path, size: int, normalise: Callable[[Tensor], Tensor] = PER_IMAGE
) -> Tensor:
    """One image or image file as a backbone expects it, (3, size, size): short side to size, centre square, normalised.

    Weights that were learned elsewhere want their own `backbone.normalise`.
    """
    if isinstance(image, str | Path):
        image = _read(Path(image).expanduser())
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    pixels = np.asarray(resize_short_side(upright_rgb(picture), size))
    return normalise(to_floats(torch.from_numpy(centre_square(pixels, size).copy())[None]))[0]


def _read(file: Path) -> Pixels:
    try:
        return read_image(file)
    except BadMedia as problem:
        raise UserError(f"{file}: {problem}") from None


def to_floats(pixels: Tensor) -> Tensor:
    """(N, H, W, 3) bytes to (N, 3, H, W) in [0, 1]."""
    return pixels.permute(0, 3, 1, 2).float() / 255


@torch.no_grad()
def extract(backbone: Backbone, pixels: Pixels, device: torch.device) -> Tensor:
    """pool5 of (N, side, side, 3) square images at the backbone's evaluation size, flattened, (N, D) on the CPU.

    The backbone itself is left as it is; a copy takes the form for evaluation.
    """
    evaluated = copy.deepcopy(backbone).for_evaluation().to(device)
    chunks = torch.from_numpy(pixels).split(BATCH)
    return torch.cat([pool5(evaluated, chunk.to(device), backbone.eval_size).cpu() for chunk in chunks])


@torch.no_grad()
def pool5(backbone: Backbone, pixels: Tensor, size: int) -> Tensor:
    """Flattened features of (N, side, side, 3) bytes, resized to `size`, by a backbone in its form for evaluation."""
    maps: Tensor = backbone(network_input(backbone, pixels, size))
    return maps.flatten(1).float()


def network_input(backbone: Backbone, pixels: Tensor, size: int | None = None) -> Tensor:
    """(N, side, side, 3) bytes as a backbone wants them, resized to `size` if that is given."""
    images = to_floats(pixels)
    if size is not None and images.shape[-1] != size:
        images = F.interpolate(images, (size, size), mode="bilinear", align_corners=False, antialias=True)
    return backbone.normalise(images)


def raw_pixels(pixels: Pixels, side: int = 32) -> Tensor:
    """What a network has to beat: the normalised image itself, (N, 3 * side * side)."""
    images = F.interpolate(to_floats(torch.from_numpy(pixels)), (side, side), mode="bilinear", antialias=True)
    return PER_IMAGE(images).flatten(1)


def colour_histograms(pixels: Pixels, bins: int = 4) -> Tensor:
    """What a network has to beat: how much of each colour, (N, bins³)."""
    counts = []
    for image in torch.from_numpy(pixels):  # one at a time: a one-hot code of all would take gigabytes
        red, green, blue = (image.flatten(0, 1).long() * bins // 256).unbind(dim=1)
        counts.append(torch.bincount((red * bins + green) * bins + blue, minlength=bins**3))
    return torch.stack(counts).float()
