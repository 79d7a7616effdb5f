"""Image and video files: finding them in a folder and reading them as RGB pixels, whatever their format."""

import io
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from unshuffle.data.source import Pixels
from unshuffle.errors import UserError

MIN_SIDE = 16
MAX_ASPECT_RATIO = 100  # a thinner strip would grow without bound when its short side is scaled up
MIN_FRAMES = 2
VIDEO_SUFFIXES = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".m4v", ".gif"})

_WITHOUT_DECODER = {"BUFR", "GRIB", "HDF5", "MPEG"}  # Pillow recognises these formats but cannot read them
_DEEP_MODES = ("I", "F")  # prefixes of the Pillow modes with more than 8 bits per channel
_TRANSPOSED = {5, 6, 7, 8}  # values of the EXIF orientation that swap height and width


class BadMedia(Exception):
    """A file that cannot be used; the text says why."""


@cache
def image_suffixes() -> frozenset[str]:
    """Lower-case suffixes of every image format that the installed Pillow can read."""
    formats = Image.registered_extensions()
    return frozenset(
        suffix.lower() for suffix, name in formats.items() if name in Image.OPEN and name not in _WITHOUT_DECODER
    )


def find_images(folder: Path) -> list[Path]:
    """Visible image files of a folder and its subfolders, sorted by relative path."""
    return find_files(folder, image_suffixes())


def find_videos(folder: Path) -> list[Path]:
    """Visible video files of a folder and its subfolders, sorted by relative path."""
    return find_files(folder, VIDEO_SUFFIXES)


def find_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Visible files under a folder with one of the lower-case suffixes, sorted by relative POSIX path."""
    if not folder.exists():
        raise UserError(f"{folder} does not exist: check the path")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder that contains the files")
    visible: list[Path] = []
    visited: set[str] = set()
    for parent, folders, files in os.walk(folder, followlinks=True):  # through links too, but no folder twice
        visited.add(os.path.realpath(parent))
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and os.path.realpath(Path(parent, name)) not in visited
        )
        visible += [Path(parent, name) for name in files if not name.startswith(".")]
    matching = [path for path in visible if path.suffix.lower() in suffixes and path.is_file()]
    return sorted(matching, key=lambda path: path.relative_to(folder).as_posix())


def check_not_empty(file: Path | bytes) -> None:
    """Raise `BadMedia` for a file of zero bytes, for which decoders have only obscure messages."""
    if (len(file) if isinstance(file, bytes) else file.stat().st_size) == 0:
        raise BadMedia("the file is empty")


def check_short_side(short_side: int) -> None:
    """Raise a UserError for a target size at which `check_sides` would refuse every frame."""
    if short_side < MIN_SIDE:
        raise UserError(f"a short side of {short_side} pixels is too small: the minimum is {MIN_SIDE}")


def check_sides(width: int, height: int) -> None:
    """Raise `BadMedia` for frames that are too small or too thin."""
    if min(width, height) < MIN_SIDE:
        raise BadMedia(f"{width} x {height} pixels is too small: the least is {MIN_SIDE} a side")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise BadMedia(f"{width} x {height} pixels is too thin: the most is 1 to {MAX_ASPECT_RATIO}")


def explain(error: Exception) -> str:
    """Return a decoder's message without the path that most decoders add to it."""
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def resize_short_side(image: Image.Image, short_side: int | None) -> Image.Image:
    """Resize an image so that its short side has `short_side` pixels, keeping its shape; None leaves it unchanged."""
    if short_side is None or min(image.size) == short_side:
        return image
    return image.resize(scaled_size(image.size, short_side), Image.Resampling.BILINEAR)


def scaled_size(size: tuple[int, int], short_side: int) -> tuple[int, int]:
    """Both sides of a frame after its short side is scaled to `short_side` pixels."""
    scale = short_side / min(size)
    return round(size[0] * scale), round(size[1] * scale)


def read_image(file: Path | bytes, short_side: int | None = None) -> Pixels:
    """Read one image, from a path or from bytes, as (height, width, 3) RGB with its short side at `short_side`.

    The EXIF orientation is applied, transparency is composited on white, deep grayscale is scaled to 8 bits, and of
    an animation the first frame is returned. Raises `BadMedia` for a file that is empty, truncated, tiny or no image.
    """
    with _image_errors_explained():
        check_not_empty(file)
        with Image.open(io.BytesIO(file) if isinstance(file, bytes) else file) as image:
            check_sides(*image.size)
            if short_side is not None:
                _draft(image, short_side)
            return np.array(resize_short_side(upright_rgb(image), short_side))


def read_image_header(file: BinaryIO, short_side: int) -> tuple[int, int, bool]:
    """Read the height and width at which `read_image` returns an image, and whether it is plain (`EncodedImage`).

    Raises `BadMedia` if the header suffices to refuse it.
    """
    with _image_errors_explained(), Image.open(file) as image:
        check_sides(*image.size)
        orientation = int(image.getexif().get(ExifTags.Base.Orientation, 1))
        plain = image.format == "JPEG" and image.mode in ("RGB", "L") and orientation == 1
        _draft(image, short_side)
        width, height = scaled_size(image.size, short_side)
        return *((width, height) if orientation in _TRANSPOSED else (height, width)), plain


def encode_jpeg(pixels: Pixels, quality: int, optimize: bool = False) -> bytes:
    """Encode (height, width, 3) as JPEG; `optimize` makes it a little smaller and takes longer."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, optimize=optimize)
    return buffer.getvalue()


def decode_jpeg(data: bytes | memoryview) -> Pixels:
    """Decode what `encode_jpeg` returned to (height, width, 3)."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)


@contextmanager
def _image_errors_explained() -> Iterator[None]:
    """Raise every error of the decoder as `BadMedia`."""
    try:
        yield
    except BadMedia:
        raise
    except UnidentifiedImageError as error:
        raise BadMedia("not an image in any format that Pillow reads") from error
    except Exception as error:  # a damaged file makes decoders raise almost anything
        raise BadMedia(f"cannot be read as an image: {explain(error)}") from error


def _draft(image: Image.Image, short_side: int) -> None:
    # A JPEG may be decoded at a fraction of its size; at twice the target the resize still antialiases.
    image.draft(None, (2 * short_side, 2 * short_side))


def upright_rgb(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation and convert to RGB."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(_DEEP_MODES):
        return Image.fromarray(_to_8_bits(np.asarray(image))).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa"):
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _to_8_bits(values: npt.NDArray[np.number]) -> Pixels:
    """Scale by the usual range of the number type, or by the range of the values if they exceed it."""
    scales = (1, 255, 65535) if np.issubdtype(values.dtype, np.floating) else (65535,)
    finite = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(finite.min()), float(finite.max())
    fitting = [scale for scale in scales if low >= 0 and high <= scale]
    if fitting:
        low, high = 0.0, float(fitting[0])
    span = (high - low) or 1.0
    return np.rint((finite - low) * (255 / span)).astype(np.uint8)


def read_frames(path: Path, short_side: int | None = None, every: int = 1) -> Iterator[Pixels]:
    """Iterate over every `every`-th frame of a clip as (height, width, 3) RGB, all of the first frame's size.

    Frames come in the decoder's order: timestamps and the header's frame count are often wrong and are ignored, as
    are rotation tags. A truncated clip keeps its readable frames if there are two or more; with fewer, or for a file
    that is no video, `BadMedia` is raised.
    """
    size: tuple[int, int] | None = None
    for frame in _readable_frames(path, every):
        check_sides(*frame.size)
        resized = resize_short_side(frame, short_side)
        size = size or resized.size
        yield np.array(resized if resized.size == size else resized.resize(size))


def _readable_frames(path: Path, every: int) -> Iterator[Image.Image]:
    count = 0
    try:
        check_not_empty(path)
        for frame in islice(_decode_video(path), 0, None, every):
            count += 1
            yield Image.fromarray(frame)
    except (BadMedia, UserError):
        raise
    except Exception as error:  # FFmpeg's bindings raise many kinds of errors for a damaged file
        if count < MIN_FRAMES:
            raise BadMedia(f"cannot be decoded as a video: {explain(error)}") from error
    if count < MIN_FRAMES:
        raise BadMedia(f"a clip needs at least {MIN_FRAMES} frames and this one gives {count}")


def _decode_video(path: Path) -> Iterator[Pixels]:
    try:
        import av
    except ImportError:
        yield from _decode_opencv(path)
        return
    with av.open(str(path)) as container:
        if not container.streams.video:
            raise BadMedia("there is no video in the file")
        stream = container.streams.video[0]
        # Files are decoded in parallel already: more threads inside each one would only compete.
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        reformatter = av.video.reformatter.VideoReformatter()  # one for all frames: it is slow to set up
        for frame in container.decode(stream):
            try:
                rgb = reformatter.reformat(frame, format="rgb24", threads=1)
            except TypeError:  # an older PyAV, which has no such option and always uses one thread
                rgb = reformatter.reformat(frame, format="rgb24")
            yield np.asarray(rgb.to_ndarray(), np.uint8)


def _decode_opencv(path: Path) -> Iterator[Pixels]:
    try:
        import cv2
    except ImportError as error:
        raise UserError("reading videos needs PyAV or OpenCV: pip install av") from error

    capture = cv2.VideoCapture(str(path))
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
    try:
        while True:
            decoded, frame = capture.read()
            if not decoded:
                return
            yield np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8)
    finally:
        capture.release()
