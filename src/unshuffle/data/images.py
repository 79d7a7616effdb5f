"""Finding image files and reading them as RGB pixels, whatever their format."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from unshuffle.data.media import (
    BadMedia,
    check_not_empty,
    check_sides,
    explain,
    find_files,
    resize_short_side,
    scaled_size,
)
from unshuffle.data.source import Pixels

# Pillow recognises these formats but has no decoder for them.
_NO_DECODER = {"BUFR", "GRIB", "HDF5", "MPEG"}
_DEEP_MODES = ("I", "F")
_LYING = {5, 6, 7, 8}  # values of the EXIF orientation that swap height and width


class Peek(NamedTuple):
    """An image as it will be read."""

    height: int
    width: int
    plain: bool
    """A JPEG in RGB or grey that is stored upright, as a decoder that knows nothing else can take it."""


@cache
def image_suffixes() -> frozenset[str]:
    """Lower-case suffixes of every image format that the installed Pillow can read."""
    formats = Image.registered_extensions()
    return frozenset(
        suffix.lower() for suffix, name in formats.items() if name in Image.OPEN and name not in _NO_DECODER
    )


def find_images(folder: Path) -> list[Path]:
    """Image files of a folder, flat or nested, sorted by relative path; hidden ones are left out."""
    return find_files(folder, image_suffixes())


def read_image(file: Path | bytes, short_side: int | None = None) -> Pixels:
    """One image, by its path or its bytes, as (height, width, 3) RGB, turned upright, its short side made `short_side`.

    Transparency is laid on white, deep greys are scaled to 8 bits, and an animation gives its first frame.
    Raises `BadMedia` for a file that is empty, truncated, tiny or no image at all.
    """
    with _explained():
        check_not_empty(file)
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
            check_sides(*image.size)
            return np.array(resize_short_side(upright_rgb(image, short_side), short_side))


def peek_image(file: BinaryIO, short_side: int) -> Peek:
    """What `read_image` will make of an image, told by its header; `BadMedia` if that is enough to refuse it."""
    with _explained(), Image.open(file) as image:
        check_sides(*image.size)
        turned = int(image.getexif().get(ExifTags.Base.Orientation, 1))
        plain = image.format == "JPEG" and image.mode in ("RGB", "L") and turned == 1
        _draft(image, short_side)
        width, height = scaled_size(image.size, short_side)
        return Peek(*((width, height) if turned in _LYING else (height, width)), plain)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except BadMedia:
        raise
    except UnidentifiedImageError as error:
        raise BadMedia("not an image in any format that Pillow reads") from error
    except Exception as error:  # a damaged file makes decoders raise almost anything
        raise BadMedia(f"cannot be read as an image: {explain(error)}") from error


def upright_rgb(image: Image.Image, short_side: int | None = None) -> Image.Image:
    """An opened image turned upright, in RGB; `short_side` lets the decoder take short cuts to that size."""
    if short_side is not None:
        _draft(image, short_side)
    return _to_rgb(ImageOps.exif_transpose(image))


def _draft(image: Image.Image, short_side: int) -> None:
    # Lets a JPEG decode at a fraction of its size; twice the target keeps the antialiasing honest.
    image.draft(None, (2 * short_side, 2 * short_side))


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(_DEEP_MODES):
        return Image.fromarray(_to_8_bits(np.asarray(image))).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa"):
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(values: npt.NDArray[np.number]) -> Pixels:
    """Scale by the range that the kind of number stands for; by the values' own when they do not fit it."""
    scales = (1, 255, 65535) if np.issubdtype(values.dtype, np.floating) else (65535,)
    exact = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(exact.min()), float(exact.max())
    fitting = [scale for scale in scales if low >= 0 and high <= scale]
    if fitting:
        low, high = 0.0, float(fitting[0])
    span = (high - low) or 1.0
    return np.rint((exact - low) * (255 / span)).astype(np.uint8)
