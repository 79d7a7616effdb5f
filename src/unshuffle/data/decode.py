"""Decoding images to pixels: on the GPU by nvJPEG where possible, on the CPU by Pillow otherwise."""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from unshuffle.data.media import BadMedia, memory_limit, read_image
from unshuffle.data.source import EncodedImage, Pixels
from unshuffle.data.squares import Squares, Windows
from unshuffle.wording import printable

GREY = 127


@dataclass(frozen=True)
class EncodedSquares:
    """The squares of a batch, still encoded, to be decoded on the device."""

    images: list[EncodedImage | Pixels]
    """All frames of the first sample, then of the second ...; those that the device cannot decode are pixels."""
    windows: Windows
    side: int

    def __len__(self) -> int:
        return len(self.windows.items)

    def to(self, device: torch.device) -> Squares:
        """Decode the images on the device and crop the squares."""
        frames = self.windows.frames.shape[1]
        corners = self.windows.corners.reshape(-1, 2).tolist()
        squares = [
            image[top : top + self.side, left : left + self.side]
            for image, (top, left) in zip(decode_batch(self.images, device), corners, strict=True)
        ]
        return Squares.of(torch.stack(squares).unflatten(0, (-1, frames)))


def decode(encoded: EncodedImage) -> Pixels:
    """Decode with Pillow to the same pixels as those of a packed store.

    An image that turns out to be damaged in the middle of a run becomes grey, with a warning: stopping would not help,
    as a resumed run needs the same samples.
    """
    try:
        # The other limits were checked when the shard was indexed.
        limits = memory_limit(encoded.memory_gb)
        pixels = read_image(encoded.data, min(encoded.height, encoded.width), limits)
    except BadMedia as problem:
        warnings.warn(f"{printable(encoded.name)} is damaged and replaced by grey: {problem}", stacklevel=2)
        return np.full((encoded.height, encoded.width, 3), GREY, np.uint8)
    if pixels.shape[:2] == (encoded.height, encoded.width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((encoded.width, encoded.height)))


def decode_batch(batch: Sequence[EncodedImage | Pixels], device: torch.device) -> list[Tensor]:
    """Decode each image to (height, width, 3) bytes on the device; pixels are only copied there.

    On a GPU plain JPEGs are decoded and resized there, which differs from Pillow by a few grey levels; all others, and
    those that the GPU cannot decode, are decoded on the CPU.
    """
    on_gpu = [image for image in batch if device.type == "cuda" and isinstance(image, EncodedImage) and image.plain]
    decoded = {id(image): pixels for image, pixels in zip(on_gpu, _decode_on_gpu(on_gpu, device), strict=True)}
    return [decoded[id(image)] if id(image) in decoded else _decode_on_cpu(image, device) for image in batch]


def _decode_on_cpu(image: EncodedImage | Pixels, device: torch.device) -> Tensor:
    pixels = decode(image) if isinstance(image, EncodedImage) else image
    return torch.from_numpy(pixels).to(device, non_blocking=True)


def _decode_on_gpu(batch: Sequence[EncodedImage], device: torch.device) -> list[Tensor]:
    if not batch:
        return []
    from torchvision.io import ImageReadMode, decode_jpeg

    data = [torch.frombuffer(bytearray(encoded.data), dtype=torch.uint8) for encoded in batch]
    try:
        images: list[Tensor] = decode_jpeg(data, mode=ImageReadMode.RGB, device=device)
    except RuntimeError:  # one damaged image fails the whole batch, and the error does not say which
        return [_decode_on_cpu(encoded, device) for encoded in batch]
    return _resize_all(images, [(encoded.height, encoded.width) for encoded in batch])


def _resize_all(images: Sequence[Tensor], sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Resize (3, H, W) images to (height, width, 3); images of equal shape and target size are resized together."""
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for position, (image, size) in enumerate(zip(images, sizes, strict=True)):
        by_shape[(*image.shape, *size)].append(position)
    resized: dict[int, Tensor] = {}
    for positions in by_shape.values():
        group, size = torch.stack([images[position] for position in positions]), sizes[positions[0]]
        if group.shape[2:] != size:
            scaled = functional.interpolate(group.float(), size, mode="bilinear", antialias=True)
            group = scaled.round().clamp(0, 255).byte()
        resized.update(zip(positions, group.permute(0, 2, 3, 1).contiguous(), strict=True))
    return [resized[position] for position in range(len(images))]
