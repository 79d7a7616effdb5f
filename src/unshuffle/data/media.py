"""Image and video files: finding them in a folder and reading them as RGB pixels, whatever their format.

The files are not trusted: only known formats are decoded, within limits of size, time and memory, and no decoder opens
anything but the file itself.
"""

import io
import math
import os
import stat
import threading
import time
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from unshuffle.config import LimitsConfig
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.stopping import check_stopped

MIN_SIDE = 16
MAX_ASPECT_RATIO = 100  # a thinner strip would grow without bound when its short side is scaled up
MIN_FRAMES = 2
VIDEO_SUFFIXES = frozenset({".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".m4v", ".gif"})

DEFAULT_LIMITS = LimitsConfig()


def memory_limit(memory_gb: float) -> LimitsConfig:
    """Return the limits of a file that was within all others earlier: the memory that it has in common with others."""
    # more than any file has, and no more than FFmpeg accepts
    return LimitsConfig(max_pixels=10**9, max_frames=10**9, max_seconds=math.inf, memory_gb=memory_gb)


_IMAGE_FORMATS = (  # Pillow's names; not all that it knows, as EPS for example is a program that Ghostscript runs
    *("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF", "JPEG2000", "MPO", "PPM", "TGA"),
    *("DDS", "DIB", "ICO", "PCX", "QOI", "SGI"),
)
_CONTAINERS = (  # FFmpeg's names of the formats that are videos; not of playlists, which name further files
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpeg,mpegts,mpegvideo,m4v,h264,hevc,gif,flv,asf,ogg,dv,ivf,mjpeg,mxf"
)
_FFMPEG_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": _CONTAINERS}
_IMAGE_BYTES = 16  # memory per pixel of an image while it is decoded and converted, in any mode
_PROGRESSIVE_BYTES = 6  # and per pixel of the whole image for the coefficients of a progressive JPEG
_FRAME_BYTES = 24  # the same per pixel of a video: the decoder keeps several frames
_STRIP_PIXELS = 1 << 22  # large images are converted in strips, as whole copies would take several times the memory
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_DEEP_MODES = ("I", "F")  # prefixes of the Pillow modes with more than 8 bits per channel
_TRANSPOSED = {5, 6, 7, 8}  # values of the EXIF orientation that swap height and width


class BadMedia(Exception):
    """A file that cannot be used; the text says why."""


class _Memory:
    """The memory of all files that are being decoded; a file waits until there is room for it, or until it is alone."""

    def __init__(self) -> None:
        self._used = 0
        self._freed = threading.Condition()
        self._turn = threading.Lock()  # first come, first served: small files must not keep a large one waiting

    @contextmanager
    def reserve(self, size: int, limit: float) -> Iterator[None]:
        """Wait until `size` bytes more are within the limit, and hold them for the block."""
        while not self._turn.acquire(timeout=0.2):
            check_stopped()
        try:
            with self._freed:
                while self._used and self._used + size > limit:
                    self._freed.wait(timeout=0.2)
                    check_stopped()
                self._used += size
        finally:
            self._turn.release()
        try:
            yield
        finally:
            with self._freed:
                self._used -= size
                self._freed.notify_all()


_MEMORY = _Memory()


class _Stopwatch:
    """The time that decoding one file has taken, without the time for which its frames were used elsewhere."""

    def __init__(self, limit: float) -> None:
        self.limit, self._before, self._begin = limit, 0.0, time.monotonic()

    def pause(self) -> None:
        """Stop counting."""
        self._before += time.monotonic() - self._begin

    def resume(self) -> None:
        """Count again."""
        self._begin = time.monotonic()

    def check(self) -> None:
        """Raise `BadMedia` if the time is used up, and end the thread if its work is no longer needed."""
        check_stopped()
        if self._before + time.monotonic() - self._begin > self.limit:
            raise BadMedia(f"decoding it takes more than {self.limit:g} seconds (limits.max_seconds)")


class _WatchedFile(io.FileIO):
    """A file that checks the time whenever a decoder reads on."""

    watch: _Stopwatch

    def read(self, size: int | None = -1, /) -> Any:
        """Read up to `size` bytes."""
        self.watch.check()
        return super().read(size)


class _WatchedBytes(io.BytesIO):
    """Bytes that check the time whenever a decoder reads on."""

    watch: _Stopwatch

    def read(self, size: int | None = -1, /) -> bytes:
        """Read up to `size` bytes."""
        self.watch.check()
        return super().read(size)


@cache
def image_formats() -> tuple[str, ...]:
    """Pillow's names of the formats that are read, as far as the installed Pillow has them."""
    Image.init()
    return tuple(name for name in _IMAGE_FORMATS if name in Image.OPEN)


@cache
def image_suffixes() -> frozenset[str]:
    """Lower-case suffixes of the image formats that are read."""
    formats = image_formats()
    return frozenset(suffix.lower() for suffix, name in Image.registered_extensions().items() if name in formats)


def find_images(folder: Path) -> list[Path]:
    """Visible image files of a folder and its subfolders, sorted by relative path."""
    return find_files(folder, image_suffixes())


def find_videos(folder: Path) -> list[Path]:
    """Visible video files of a folder and its subfolders, sorted by relative path."""
    return find_files(folder, VIDEO_SUFFIXES)


def find_files(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Visible entries under a folder with one of the lower-case suffixes, sorted by relative POSIX path.

    What cannot be read is among them, so that it is listed as skipped: broken links, named pipes, subfolders without
    permission, and folders with the name of a file and no files below them.
    """
    if not folder.exists():
        raise UserError(f"{folder} does not exist: check the path")
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder that contains the files")
    matching: list[Path] = []
    named_folders: list[Path] = []
    unreadable: list[Path] = []
    visited: set[str] = set()
    walk = os.walk(folder, followlinks=True, onerror=lambda error: unreadable.append(Path(error.filename)))
    for parent, folders, files in walk:  # through links too, but no folder twice
        check_stopped()
        visited.add(os.path.realpath(parent))
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and os.path.realpath(Path(parent, name)) not in visited
        )
        paths = [Path(parent, name) for name in files if not name.startswith(".")]
        matching += [path for path in paths if path.suffix.lower() in suffixes]
        named_folders += [path for name in folders if (path := Path(parent, name)).suffix.lower() in suffixes]
    if folder in unreadable:
        raise UserError(f"{folder} cannot be read: check its permissions")
    used = {parent for path in matching for parent in path.parents}
    matching += unreadable + [path for path in named_folders if path not in used and path not in unreadable]
    return sorted(matching, key=lambda path: path.relative_to(folder).as_posix())


def file_status(path: Path) -> os.stat_result:
    """Return the status of a file, or of a link that leads nowhere, which is listed as skipped."""
    return path.stat() if path.exists() else path.lstat()


def check_regular(path: Path) -> None:
    """Raise `BadMedia` for what is not a file: reading a named pipe, for example, would wait for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise BadMedia("it is a link to a file that does not exist") from None
        raise
    if stat.S_ISDIR(mode) and not os.access(path, os.R_OK | os.X_OK):
        raise BadMedia("it is a folder that cannot be read: permission denied")
    if not stat.S_ISREG(mode):
        raise BadMedia(f"it is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file")


def check_pixels(width: int, height: int, limits: LimitsConfig) -> None:
    """Raise `BadMedia` for an image or a frame that is too large to decode."""
    if width * height > limits.max_pixels:
        raise BadMedia(f"{width} x {height} pixels are more than {limits.max_pixels} (limits.max_pixels)")


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
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def resize_short_side(image: Image.Image, short_side: int | None) -> Image.Image:
    """Resize an image so that its short side has `short_side` pixels, keeping its shape; None leaves it unchanged."""
    if short_side is None or min(image.size) == short_side:
        return image
    return image.resize(scaled_size(image.size, short_side), Image.Resampling.BILINEAR)


def scaled_size(size: tuple[int, int], short_side: int) -> tuple[int, int]:
    """Both sides of a frame after its short side is scaled to `short_side` pixels."""
    scale = short_side / min(size)
    return round(size[0] * scale), round(size[1] * scale)


def read_image(file: Path | bytes, short_side: int | None = None, limits: LimitsConfig = DEFAULT_LIMITS) -> Pixels:
    """Read one image, from a path or from bytes, as (height, width, 3) RGB with its short side at `short_side`.

    The EXIF orientation is applied, transparency is composited on white, deep grayscale is scaled to 8 bits, and of
    an animation the first frame is returned. The content decides about the format, not the name. Raises `BadMedia` for
    a file that is empty, truncated, tiny, no image or beyond the limits.
    """
    with _image_errors_explained(), _watched(file, limits) as stream, _open_image(stream, limits) as image:
        size = image.size
        if short_side is not None:
            _draft(image, short_side)
        with _MEMORY.reserve(_memory_of(image, size), limits.memory_gb * 1e9):
            stream.watch.resume()  # the wait does not count
            return np.array(resize_short_side(upright_rgb(image), short_side))


def read_image_header(data: bytes, short_side: int, limits: LimitsConfig = DEFAULT_LIMITS) -> tuple[int, int, bool]:
    """Read the height and width at which `read_image` returns an image, and whether it is plain (`EncodedImage`).

    Raises `BadMedia` for an image that `read_image` would refuse. It is decoded for that, except for a JPEG with its
    end marker: whatever is damaged before that, Pillow reads nearly all of them.
    """
    with _image_errors_explained(), _watched(data, limits) as stream, _open_image(stream, limits) as image:
        size = image.size
        _draft(image, short_side)
        # Before the EXIF data, for which Pillow decodes the whole of a PNG.
        with _MEMORY.reserve(_memory_of(image, size), limits.memory_gb * 1e9):
            stream.watch.resume()
            orientation = int(image.getexif().get(ExifTags.Base.Orientation, 1))
            if image.format != "JPEG" or not _has_end_marker(data):
                image.load()
        plain = image.format == "JPEG" and image.mode in ("RGB", "L") and orientation == 1
        width, height = scaled_size(image.size, short_side)
        return *((width, height) if orientation in _TRANSPOSED else (height, width)), plain


def _has_end_marker(data: bytes) -> bool:
    """Whether the end marker of a JPEG follows its pixels; those of embedded thumbnails come before them."""
    position = 2
    while data[position : position + 1] == b"\xff":
        if data[position + 1 : position + 2] == b"\xda":  # start of scan
            return data.find(b"\xff\xd9", position) >= 0
        position += 2 + int.from_bytes(data[position + 2 : position + 4])
    return False


@contextmanager
def _watched(file: Path | bytes, limits: LimitsConfig) -> Iterator[_WatchedFile | _WatchedBytes]:
    """Open a file whose reading is limited in time."""
    if isinstance(file, Path):
        check_regular(file)
    check_not_empty(file)
    with _WatchedBytes(file) if isinstance(file, bytes) else _WatchedFile(file) as stream:
        stream.watch = _Stopwatch(limits.max_seconds)
        yield stream


def _open_image(stream: _WatchedFile | _WatchedBytes, limits: LimitsConfig) -> Image.Image:
    image = Image.open(stream, formats=image_formats())
    check_sides(*image.size)
    check_pixels(*image.size, limits)
    return image


def _memory_of(image: Image.Image, size: tuple[int, int]) -> int:
    """Estimate the bytes that decoding takes; `size` is that of the file, before `_draft`."""
    progressive = _PROGRESSIVE_BYTES * size[0] * size[1] if image.info.get("progressive") else 0
    return _IMAGE_BYTES * image.width * image.height + progressive


def encode_jpeg(pixels: Pixels, quality: int, optimize: bool = False) -> bytes:
    """Encode (height, width, 3) as JPEG; `optimize` makes it a little smaller and takes longer."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, optimize=optimize)
    return buffer.getvalue()


def decode_jpeg(data: bytes | memoryview) -> Pixels:
    """Decode what `encode_jpeg` returned to (height, width, 3)."""
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return np.asarray(image)


@contextmanager
def _image_errors_explained() -> Iterator[None]:
    """Raise every error of the decoder as `BadMedia`."""
    try:
        yield
    except BadMedia:
        raise
    except UnidentifiedImageError as error:
        raise BadMedia("not an image in any format that is read") from error
    except Exception as error:  # a damaged file makes decoders raise almost anything
        raise BadMedia(f"cannot be read as an image: {explain(error)}") from error


def _draft(image: Image.Image, short_side: int) -> None:
    # A JPEG may be decoded at a fraction of its size; at twice the target the resize still antialiases.
    image.draft(None, (2 * short_side, 2 * short_side))


def upright_rgb(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation and convert to RGB; an upright RGB image is returned as it is, without a copy."""
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith(_DEEP_MODES):
        return Image.fromarray(_to_8_bits(np.asarray(image))).convert("RGB")
    if "transparency" in image.info or image.mode in ("RGBA", "LA", "PA", "RGBa"):
        return _on_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    flat = Image.new("RGB", image.size)
    rows = max(1, _STRIP_PIXELS // image.width)
    for top in range(0, image.height, rows):
        check_stopped()
        layer = image.crop((0, top, image.width, min(top + rows, image.height))).convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        flat.paste(Image.alpha_composite(white, layer).convert("RGB"), (0, top))
    return flat


def _to_8_bits(values: npt.NDArray[np.number]) -> Pixels:
    """Scale by the usual range of the number type, or by the range of the values if they exceed it."""
    scales = (1, 255, 65535) if np.issubdtype(values.dtype, np.floating) else (65535,)
    strips = np.array_split(values, max(1, values.size // _STRIP_PIXELS))
    finite = [(float(strip.min()), float(strip.max())) for strip in map(_finite, strips)]
    low, high = min(least for least, _ in finite), max(most for _, most in finite)
    fitting = [scale for scale in scales if low >= 0 and high <= scale]
    if fitting:
        low, high = 0.0, float(fitting[0])
    span = (high - low) or 1.0
    return np.concatenate([np.rint((_finite(strip) - low) * (255 / span)).astype(np.uint8) for strip in strips])


def _finite(values: npt.NDArray[np.number]) -> npt.NDArray[np.float64]:
    return np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)


def read_frames(
    path: Path, short_side: int | None = None, every: int = 1, limits: LimitsConfig = DEFAULT_LIMITS
) -> Generator[Pixels]:
    """Iterate over every `every`-th frame of a clip as (height, width, 3) RGB, all of the first frame's size.

    Frames come in the decoder's order: timestamps and the header's frame count are often wrong and are ignored, as
    are rotation tags. A truncated clip keeps its readable frames if there are two or more; with fewer, for a file that
    is no video and for one beyond the limits, `BadMedia` is raised.
    """
    size: tuple[int, int] | None = None
    watch = _Stopwatch(limits.max_seconds)
    for frame in _readable_frames(path, every, limits, watch):
        check_sides(*frame.size)
        resized = resize_short_side(frame, short_side)
        size = size or resized.size
        pixels = np.array(resized if resized.size == size else resized.resize(size))
        watch.pause()
        yield pixels
        watch.resume()


def _readable_frames(path: Path, every: int, limits: LimitsConfig, watch: _Stopwatch) -> Iterator[Image.Image]:
    count = 0
    try:
        check_regular(path)
        check_not_empty(path)
        for frame in islice(_limited(path, limits, watch), 0, None, every):
            count += 1
            yield Image.fromarray(frame)
    except (BadMedia, UserError):
        raise
    except Exception as error:  # FFmpeg's bindings raise many kinds of errors for a damaged file
        if count < MIN_FRAMES:
            raise BadMedia(f"cannot be decoded as a video: {explain(error)}") from error
    if count < MIN_FRAMES:
        raise BadMedia(f"a clip needs at least {MIN_FRAMES} frames and this one gives {count}")


def _limited(path: Path, limits: LimitsConfig, watch: _Stopwatch) -> Iterator[Pixels]:
    """Decode the frames of a clip within the limits."""
    for number, frame in enumerate(_decode_video(path, limits, watch)):
        watch.check()
        if number >= limits.max_frames:
            raise BadMedia(f"it has more than {limits.max_frames} frames (limits.max_frames)")
        yield frame


@contextmanager
def _memory_for_frames(width: int, height: int, limits: LimitsConfig, watch: _Stopwatch) -> Iterator[None]:
    """Check the size of a video's frames, and hold the memory for them."""
    check_pixels(width, height, limits)
    watch.pause()
    with _MEMORY.reserve(_FRAME_BYTES * width * height, limits.memory_gb * 1e9):
        watch.resume()
        yield


def _decode_video(path: Path, limits: LimitsConfig, watch: _Stopwatch) -> Iterator[Pixels]:
    try:
        import av
    except ImportError:
        yield from _decode_opencv(path, limits, watch)
        return
    # By its absolute path: FFmpeg takes a name such as http:/host/x.mp4 for an address. Titles need not be UTF-8.
    # Not by `options`, which go to the streams too: of a format that finds streams later (.mpg) PyAV frees too many.
    with av.open(str(path.absolute()), container_options=_FFMPEG_OPTIONS, metadata_errors="replace") as container:
        if not container.streams.video:
            raise BadMedia("there is no video in the file")
        stream = container.streams.video[0]
        # Files are decoded in parallel already: more threads inside each one would only compete.
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        # in case that later frames are larger; FFmpeg counts the padding of its buffers too
        stream.codec_context.options = {"max_pixels": str(2 * limits.max_pixels + 65536)}
        reformatter = av.video.reformatter.VideoReformatter()  # one for all frames: it is slow to set up
        with _memory_for_frames(stream.width, stream.height, limits, watch):
            for packet in container.demux(stream):
                watch.check()  # here too, as packets need not give frames
                for frame in packet.decode():
                    check_pixels(frame.width, frame.height, limits)  # frames may be larger than the header says
                    try:
                        rgb = reformatter.reformat(frame, format="rgb24", threads=1)
                    except TypeError:  # an older PyAV, which has no such option and always uses one thread
                        rgb = reformatter.reformat(frame, format="rgb24")
                    yield np.asarray(rgb.to_ndarray(), np.uint8)


def _decode_opencv(path: Path, limits: LimitsConfig, watch: _Stopwatch) -> Iterator[Pixels]:
    try:
        import cv2
    except ImportError as error:
        raise UserError("reading videos needs PyAV or OpenCV: pip install av") from error

    # The only way to give FFmpeg options through OpenCV.
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "|".join(f"{name};{value}" for name, value in _FFMPEG_OPTIONS.items())
    capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
    try:
        width, height = (int(capture.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
        with _memory_for_frames(width, height, limits, watch):
            while True:
                decoded, frame = capture.read()
                if not decoded:
                    return
                check_pixels(frame.shape[1], frame.shape[0], limits)  # frames may be larger than the header says
                yield np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8)
    finally:
        capture.release()
