"""Encoded images to pixels: on the GPU by nvJPEG where it can, on the CPU by Pillow otherwise."""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from unshuffle.data.images import read_image
from unshuffle.data.media import BadMedia
from unshuffle.data.source import Encoded, Pixels
from unshuffle.data.squares import Squares, Windows

GREY = 127


@dataclass(frozen=True)
class EncodedSquares:
    """The squares of a batch that the device will decode."""

    images: list[Encoded | Pixels]
    """All frames of the first sample, then of the second ...; those that the device cannot decode are decoded."""
    windows: Windows
    side: int

    def __len__(self) -> int:
        return len(self.windows.items)

    def to(self, device: torch.device) -> Squares:
        """Decoded, and cut out."""
        frames = self.windows.frames.shape[1]
        corners = self.windows.corners.repeat(frames, axis=0).tolist()
        squares = [
            image[top : top + self.side, left : left + self.side]
            for image, (top, left) in zip(self._decoded(device), corners, strict=True)
        ]
        return Squares.of(torch.stack(squares).unflatten(0, (-1, frames)))

    def _decoded(self, device: torch.device) -> list[Tensor]:
        coming = iter(decode_batch([image for image in self.images if isinstance(image, Encoded)], device))
        return [
            next(coming) if isinstance(image, Encoded) else torch.from_numpy(image).to(device) for image in self.images
        ]


def decode(encoded: Encoded) -> Pixels:
    """Pixels by Pillow, equal to those of a packed store.

    What turns out to be damaged in the middle of a run is grey, and said to be: stopping would not help, as a resumed
    run needs the same samples.
    """
    try:
        pixels = read_image(encoded.data, min(encoded.height, encoded.width))
    except BadMedia as problem:
        warnings.warn(f"{encoded.name} is grey from now on: {problem}", stacklevel=2)
        return np.full((encoded.height, encoded.width, 3), GREY, np.uint8)
    if pixels.shape[:2] == (encoded.height, encoded.width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((encoded.width, encoded.height)))


def decode_batch(batch: Sequence[Encoded], device: torch.device) -> list[Tensor]:
    """Each image as (height, width, 3) bytes on the device.

    On a GPU plain JPEGs are decoded and resized there, which differs from Pillow by some grey levels; the others, and
    whatever the GPU refuses, take the way of the CPU.
    """
    plain = [place for place, encoded in enumerate(batch) if device.type == "cuda" and encoded.plain]
    done = dict(zip(plain, _decode_on_gpu([batch[place] for place in plain], device), strict=True))
    return [
        done[place] if place in done else torch.from_numpy(decode(encoded)).to(device, non_blocking=True)
        for place, encoded in enumerate(batch)
    ]


def _decode_on_gpu(batch: Sequence[Encoded], device: torch.device) -> list[Tensor]:
    if not batch:
        return []
    from torchvision.io import ImageReadMode, decode_jpeg

    data = [torch.frombuffer(bytearray(encoded.data), dtype=torch.uint8) for encoded in batch]
    try:
        images: list[Tensor] = decode_jpeg(data, mode=ImageReadMode.RGB, device=device)
    except RuntimeError:  # one damaged image spoils the batch, and nothing says which
        return [torch.from_numpy(decode(encoded)).to(device) for encoded in batch]
    return _resize_all(images, [(encoded.height, encoded.width) for encoded in batch])


def _resize_all(images: Sequence[Tensor], sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """(3, H, W) images to (height, width, 3) of the wanted sizes; those alike go together."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place, (image, size) in enumerate(zip(images, sizes, strict=True)):
        alike[(*image.shape, *size)].append(place)
    resized: list[Tensor] = [torch.empty(0)] * len(images)
    for places in alike.values():
        group = _resize(torch.stack([images[place] for place in places]), sizes[places[0]])
        for place, image in zip(places, group, strict=True):
            resized[place] = image
    return resized


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    if images.shape[2:] != size:
        exact = functional.interpolate(images.float(), size, mode="bilinear", antialias=True)
        images = exact.round().clamp(0, 255).byte()
    return images.permute(0, 2, 3, 1).contiguous()
