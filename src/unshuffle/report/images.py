"""Pictures as text inside a page."""

import base64

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.crops import resize
from unshuffle.data.held_out import HeldOut, encode_jpeg
from unshuffle.data.source import Pixels

QUALITY = 80


def data_uri(pixels: Pixels, quality: int = QUALITY) -> str:
    """(H, W, 3) bytes as the address of a JPEG that is its own content."""
    return f"data:image/jpeg;base64,{base64.b64encode(encode_jpeg(pixels, quality)).decode()}"


def thumbnails(frames: Tensor, side: int) -> list[str]:
    """(N, S, S, 3) bytes as square pictures of at most `side` pixels."""
    images = resize(frames.permute(0, 3, 1, 2).float() / 255, min(side, frames.shape[1]))
    return [data_uri(picture) for picture in _to_bytes(images)]


def strip(parts: Tensor) -> str:
    """(P, 3, S, S) parts in [0, 1], beside one another in one picture: any order of them can be shown from it."""
    return data_uri(np.concatenate(list(_to_bytes(parts)), axis=1), quality=85)


def most_vivid(samples: HeldOut) -> int:
    """The sample with the most contrast: on it an order is easily seen."""
    return int(samples.pixels.float().flatten(1).std(dim=1).argmax())


def _to_bytes(images: Tensor) -> Pixels:
    """(N, 3, H, W) in [0, 1] to (N, H, W, 3)."""
    pixels: Pixels = images.clamp(0, 1).mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return pixels
