"""Image and video files: recognising them by their content and reading them as RGB pixels, whatever their format.

The files are not trusted: only known formats are decoded, within limits of size, time and memory, and no decoder opens
anything but the file itself.
"""

import io
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

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
HEIF_SUFFIXES = frozenset({".heic", ".heif", ".hif"})
HEIF_REASON = "it is a HEIC image, which needs another package: pip install pillow-heif"
HEAD_BYTES = 512
"""Bytes at the beginning of a file that `recognise` needs."""

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
_IMAGE_HEADS = (  # of the formats with a distinctive beginning; the others need their extension
    *(b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    *(b"\0\0\0\x0cjP  \r\n\x87\n", b"\xff\x4f\xff\x51", b"qoif", b"DDS \x7c\0\0\0"),
)
_VIDEO_HEADS = (
    *(b"\x1a\x45\xdf\xa3", b"\0\0\1\xba", b"\0\0\1\xb3", b"FLV\1", b"DKIF", b"GIF87a", b"GIF89a"),
    *(b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", b"\x06\x0e\x2b\x34\x02\x05\x01\x01\x0d\x01\x02"),
)
_BITMAP_HEADERS = {12, 40, 52, 56, 64, 108, 124}  # sizes of the second header of a BMP
_HEIF_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"hevm", b"hevs", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}
_AUDIO_BRANDS = {b"M4A ", b"M4B ", b"M4P "}
_QUICKTIME_ATOMS = {b"moov", b"mdat", b"wide", b"pnot"}
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


def heif_readable() -> bool:
    """Return whether HEIC images can be read: that needs the package pillow-heif."""
    return "HEIF" in image_formats()


@cache
def image_formats() -> tuple[str, ...]:
    """Pillow's names of the formats that are read, as far as the installed Pillow and its plugins have them."""
    Image.init()
    with suppress(ImportError):
        import pillow_heif

        pillow_heif.register_heif_opener()
    return tuple(name for name in _IMAGE_FORMATS if name in Image.OPEN)


@cache
def image_suffixes() -> frozenset[str]:
    """Lower-case suffixes of the image formats; HEIC is one even if it cannot be read, so that it is not overlooked."""
    formats = image_formats()
    known = (suffix.lower() for suffix, name in Image.registered_extensions().items() if name in formats)
    return HEIF_SUFFIXES.union(known)


def recognise(head: bytes) -> frozenset[str]:
    """Return what a file can be used as by its first bytes, `images` or `videos`: a GIF as both, most files as neither.

    Formats whose beginning is not distinctive (PPM, TGA, ICO, PCX, SGI) are not recognised.
    """
    kinds = {"images"} if head.startswith(_IMAGE_HEADS) or _is_bitmap(head) else set()
    if head.startswith(_VIDEO_HEADS) or _is_transport_stream(head) or head[4:8] in _QUICKTIME_ATOMS:
        kinds.add("videos")
    if head[:4] == b"RIFF":
        kinds |= {b"WEBP": {"images"}, b"AVI ": {"videos"}}.get(head[8:12], set())
    if head[:4] == b"OggS" and b"theora" in head:
        kinds.add("videos")
    if brands := _brands(head):
        if brands & (_HEIF_BRANDS | _AVIF_BRANDS):
            kinds.add("images")
        elif head[8:12] not in _AUDIO_BRANDS:
            kinds.add("videos")
    return frozenset(kinds)


def _brands(head: bytes) -> set[bytes]:
    """Return the brands of a file of the MP4 family, by which HEIC, AVIF, sound and videos differ; empty for others."""
    if head[4:8] != b"ftyp":
        return set()
    size = min(int.from_bytes(head[:4]), len(head))
    return {head[start : start + 4] for start in (8, *range(16, size, 4))}


def _is_heif(head: bytes) -> bool:
    brands = _brands(head)
    return bool(brands & _HEIF_BRANDS) and not brands & _AVIF_BRANDS


def _is_bitmap(head: bytes) -> bool:
    return head[:2] == b"BM" and head[6:10] == bytes(4) and int.from_bytes(head[14:18], "little") in _BITMAP_HEADERS


def _is_transport_stream(head: bytes) -> bool:
    return any(
        len(head) > start + 2 * packet and {head[start], head[start + packet], head[start + 2 * packet]} == {0x47}
        for start, packet in ((0, 188), (4, 192))
    )


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
        raise BadMedia(f"{width} x {height} pixels is too small: the minimum is {MIN_SIDE} pixels per side")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise BadMedia(f"{width} x {height} pixels is too thin: the aspect ratio is above {MAX_ASPECT_RATIO}:1")


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


def read_image_size(path: Path, limits: LimitsConfig = DEFAULT_LIMITS) -> tuple[int, int]:
    """Return the width and height of an image file, upright, without decoding it; raise `BadMedia` if it is none."""
    with _image_errors_explained(), _watched(path, limits) as stream, _open_image(stream, limits) as image:
        # the EXIF data of other formats may need the whole file decoded
        turned = image.format == "JPEG" and image.getexif().get(ExifTags.Base.Orientation, 1) in _TRANSPOSED
        return (image.height, image.width) if turned else image.size


def _open_image(stream: _WatchedFile | _WatchedBytes, limits: LimitsConfig) -> Image.Image:
    try:
        image = Image.open(stream, formats=image_formats())
    except UnidentifiedImageError:
        stream.seek(0)
        head = stream.read(HEAD_BYTES)
        if _is_heif(head) and not heif_readable():
            raise BadMedia(HEIF_REASON) from None
        if "videos" in recognise(head):
            raise BadMedia("it is a video, not an image") from None
        raise
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
        raise BadMedia("not a supported image format") from error
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


class VideoFacts(NamedTuple):
    """What the header of a video states; it may be wrong."""

    width: int
    height: int
    frames: int
    """0 if it is not stated."""
    seconds: float
    """0 if it is not stated."""


def read_video_header(path: Path) -> VideoFacts:
    """Return size, frames and duration of a video without decoding it; raise `BadMedia` if it is none."""
    with _video_errors_explained():
        check_regular(path)
        check_not_empty(path)
        try:
            return _read_header_av(path)
        except ImportError:
            return _read_header_opencv(path)


def count_frames(path: Path, limits: LimitsConfig = DEFAULT_LIMITS) -> int:
    """Return the number of frames of a video without decoding them; raise `BadMedia` if there are too many.

    Packets are counted, as headers are often wrong; a damaged or interlaced video may give fewer frames than that.
    """
    watch, count = _Stopwatch(limits.max_seconds), 0
    with _video_errors_explained():
        check_regular(path)
        check_not_empty(path)
        try:
            import av
        except ImportError:
            count = _read_header_opencv(path).frames
        else:
            with suppress(av.error.FFmpegError), _open_av(path) as container:  # a truncated file: what is there
                for packet in container.demux(container.streams.video[:1]):
                    watch.check()
                    count += packet.size > 0
    if count > limits.max_frames:
        raise BadMedia(f"it has more than {limits.max_frames} frames (limits.max_frames)")
    return count


def read_frames(
    path: Path,
    short_side: int | None = None,
    every: int = 1,
    limits: LimitsConfig = DEFAULT_LIMITS,
    spans: Sequence[range] | None = None,
) -> Generator[Pixels]:
    """Iterate over every `every`-th frame of a clip as (height, width, 3) RGB, all of the first frame's size.

    Frames come in the decoder's order: timestamps and the header's frame count are often wrong and are ignored, as
    are rotation tags. A truncated clip keeps its readable frames if there are two or more; with fewer, for a file that
    is no video and for one beyond the limits, `BadMedia` is raised. Of the frames that `every` leaves, only those in
    the `spans` are returned, which are in order.
    """
    size: tuple[int, int] | None = None
    watch = _Stopwatch(limits.max_seconds)
    for frame in _readable_frames(path, every, limits, spans, watch):
        check_sides(*frame.size)
        resized = resize_short_side(frame, short_side)
        size = size or resized.size
        pixels = np.array(resized if resized.size == size else resized.resize(size))
        watch.pause()
        yield pixels
        watch.resume()


def _readable_frames(
    path: Path, every: int, limits: LimitsConfig, spans: Sequence[range] | None, watch: _Stopwatch
) -> Iterator[Image.Image]:
    def wanted(number: int) -> bool:
        return number % every == 0 and (spans is None or any(number // every in span for span in spans))

    end = None if spans is None else every * (spans[-1].stop - 1) + 1
    count = 0
    try:
        check_regular(path)
        check_not_empty(path)
        for frame in _limited(path, limits, wanted, end, watch):
            count += 1
            yield Image.fromarray(frame)
    except (BadMedia, UserError):
        raise
    except Exception as error:  # FFmpeg's bindings raise many kinds of errors for a damaged file
        if count < MIN_FRAMES:
            raise _not_a_video(error) from error
    if count < MIN_FRAMES:
        raise BadMedia(f"a clip needs at least {MIN_FRAMES} frames and this one gives {count}")


@contextmanager
def _video_errors_explained() -> Iterator[None]:
    """Raise every error of the decoder as `BadMedia`."""
    try:
        yield
    except (BadMedia, UserError):
        raise
    except Exception as error:
        raise _not_a_video(error) from error


def _not_a_video(error: Exception) -> BadMedia:
    return BadMedia(f"cannot be decoded as a video: {explain(error)}")


def _limited(
    path: Path, limits: LimitsConfig, wanted: Callable[[int], bool], end: int | None, watch: _Stopwatch
) -> Iterator[Pixels]:
    """Decode the wanted frames of a clip within the limits."""
    for number, frame in enumerate(_decode_video(path, limits, wanted, watch)):
        watch.check()
        if number >= limits.max_frames:
            raise BadMedia(f"it has more than {limits.max_frames} frames (limits.max_frames)")
        if frame is not None:
            yield frame
        if number + 1 == end:
            return


@contextmanager
def _memory_for_frames(width: int, height: int, limits: LimitsConfig, watch: _Stopwatch) -> Iterator[None]:
    """Check the size of a video's frames, and hold the memory for them."""
    check_pixels(width, height, limits)
    watch.pause()
    with _MEMORY.reserve(_FRAME_BYTES * width * height, limits.memory_gb * 1e9):
        watch.resume()
        yield


def _open_av(path: Path) -> Any:
    import av

    # By its absolute path: FFmpeg takes a name such as http:/host/x.mp4 for an address. Titles need not be UTF-8.
    # Not by `options`, which go to the streams too: of a format that finds streams later (.mpg) PyAV frees too many.
    container = av.open(str(path.absolute()), container_options=_FFMPEG_OPTIONS, metadata_errors="replace")
    if not container.streams.video:
        container.close()
        raise BadMedia("there is no video in the file")
    return container


def _read_header_av(path: Path) -> VideoFacts:
    with _open_av(path) as container:
        stream = container.streams.video[0]
        seconds = float(stream.duration * stream.time_base) if stream.duration else (container.duration or 0) / 1e6
        frames = stream.frames or round(seconds * float(stream.average_rate or 0))
        return VideoFacts(stream.width, stream.height, frames, seconds)


def _decode_video(
    path: Path, limits: LimitsConfig, wanted: Callable[[int], bool], watch: _Stopwatch
) -> Iterator[Pixels | None]:
    """Yield the frames by their numbers, None for those that are not wanted: converting them is slow."""
    try:
        import av
    except ImportError:
        yield from _decode_opencv(path, limits, wanted, watch)
        return
    with _open_av(path) as container:
        stream = container.streams.video[0]
        # Files are decoded in parallel already: more threads inside each one would only compete.
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        # in case that later frames are larger; FFmpeg counts the padding of its buffers too
        stream.codec_context.options = {"max_pixels": str(2 * limits.max_pixels + 65536)}
        reformatter = av.video.reformatter.VideoReformatter()  # one for all frames: it is slow to set up
        number = 0
        with _memory_for_frames(stream.width, stream.height, limits, watch):
            for packet in container.demux(stream):
                watch.check()  # here too, as packets need not give frames
                for frame in packet.decode():
                    check_pixels(frame.width, frame.height, limits)  # frames may be larger than the header says
                    yield _to_rgb(frame, reformatter) if wanted(number) else None
                    number += 1


def _to_rgb(frame: Any, reformatter: Any) -> Pixels:
    try:
        rgb = reformatter.reformat(frame, format="rgb24", threads=1)
    except TypeError:  # an older PyAV, which has no such option and always uses one thread
        rgb = reformatter.reformat(frame, format="rgb24")
    return np.asarray(rgb.to_ndarray(), np.uint8)


@contextmanager
def _open_opencv(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the module and a video that it has opened."""
    try:
        import cv2
    except ImportError as error:
        raise UserError("reading videos needs PyAV or OpenCV: pip install av") from error

    # The only way to give FFmpeg options through OpenCV.
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "|".join(f"{name};{value}" for name, value in _FFMPEG_OPTIONS.items())
    capture = cv2.VideoCapture(str(path.absolute()), cv2.CAP_FFMPEG)
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
    try:
        yield cv2, capture
    finally:
        capture.release()


def _read_header_opencv(path: Path) -> VideoFacts:
    with _open_opencv(path) as (cv2, capture):
        width, height, frames = (
            int(capture.get(field))
            for field in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT, cv2.CAP_PROP_FRAME_COUNT)
        )
        if not width:
            raise BadMedia("cannot be decoded as a video: OpenCV cannot open it")
        rate = capture.get(cv2.CAP_PROP_FPS)
        return VideoFacts(width, height, max(0, frames), frames / rate if rate and frames > 0 else 0.0)


def _decode_opencv(
    path: Path, limits: LimitsConfig, wanted: Callable[[int], bool], watch: _Stopwatch
) -> Iterator[Pixels | None]:
    with _open_opencv(path) as (cv2, capture):
        width, height = (int(capture.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
        with _memory_for_frames(width, height, limits, watch):
            number = 0
            while True:
                decoded, frame = capture.read()
                if not decoded:
                    return
                check_pixels(frame.shape[1], frame.shape[0], limits)  # frames may be larger than the header says
                yield np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8) if wanted(number) else None
                number += 1
