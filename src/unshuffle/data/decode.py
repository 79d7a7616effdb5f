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

from unshuffle.data.media import BadMedia, read_image
from unshuffle.data.source import EncodedImage, Pixels
from unshuffle.data.squares import Squares, Windows

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
        corners = self.windows.corners.repeat(frames, axis=0).tolist()
        squares = [
            image[top : top + self.side, left : left + self.side]
            for image, (top, left) in zip(self._decoded(device), corners, strict=True)
        ]
        return Squares.of(torch.stack(squares).unflatten(0, (-1, frames)))

    def _decoded(self, device: torch.device) -> list[Tensor]:
        decoded = iter(decode_batch([image for image in self.images if isinstance(image, EncodedImage)], device))
        return [
            next(decoded) if isinstance(image, EncodedImage) else torch.from_numpy(image).to(device)
            for image in self.images
        ]


def decode(encoded: EncodedImage) -> Pixels:
    """Decode with Pillow to the same pixels as those of a packed store.

    An image that turns out to be damaged in the middle of a run becomes grey, with a warning: stopping would not help,
    as a resumed run needs the same samples.
    """
    try:
        pixels = read_image(encoded.data, min(encoded.height, encoded.width))
    except BadMedia as problem:
        warnings.warn(f"{encoded.name} is damaged and replaced by grey: {problem}", stacklevel=2)
        return np.full((encoded.height, encoded.width, 3), GREY, np.uint8)
    if pixels.shape[:2] == (encoded.height, encoded.width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((encoded.width, encoded.height)))


def decode_batch(batch: Sequence[EncodedImage], device: torch.device) -> list[Tensor]:
    """Decode each image to (height, width, 3) bytes on the device.

    On a GPU plain JPEGs are decoded and resized there, which differs from Pillow by a few grey levels; all others, and
    those that the GPU cannot decode, are decoded on the CPU.
    """
    plain = [position for position, encoded in enumerate(batch) if device.type == "cuda" and encoded.plain]
    on_gpu = dict(zip(plain, _decode_on_gpu([batch[position] for position in plain], device), strict=True))
    return [
        on_gpu[position] if position in on_gpu else torch.from_numpy(decode(encoded)).to(device, non_blocking=True)
        for position, encoded in enumerate(batch)
    ]


def _decode_on_gpu(batch: Sequence[EncodedImage], device: torch.device) -> list[Tensor]:
    if not batch:
        return []
    from torchvision.io import ImageReadMode, decode_jpeg

    data = [torch.frombuffer(bytearray(encoded.data), dtype=torch.uint8) for encoded in batch]
    try:
        images: list[Tensor] = decode_jpeg(data, mode=ImageReadMode.RGB, device=device)
    except RuntimeError:  # one damaged image fails the whole batch, and the error does not say which
        return [torch.from_numpy(decode(encoded)).to(device) for encoded in batch]
    return _resize_all(images, [(encoded.height, encoded.width) for encoded in batch])


def _resize_all(images: Sequence[Tensor], sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Resize (3, H, W) images to (height, width, 3); images of equal shape and target size are resized together."""
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for position, (image, size) in enumerate(zip(images, sizes, strict=True)):
        by_shape[(*image.shape, *size)].append(position)
    resized: list[Tensor] = [torch.empty(0)] * len(images)
    for positions in by_shape.values():
        group = _resize(torch.stack([images[position] for position in positions]), sizes[positions[0]])
        for position, image in zip(positions, group, strict=True):
            resized[position] = image
    return resized


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    if images.shape[2:] != size:
        resized = functional.interpolate(images.float(), size, mode="bilinear", antialias=True)
        images = resized.round().clamp(0, 255).byte()
    return images.permute(0, 2, 3, 1).contiguous()
