"""One sound file, or several, of every format of images and videos that is read: what the fuzzer changes."""

import io
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from soak import fuzzer
from soak.fuzzer import Layout
from soak.samples import texture, write_video
from unshuffle.data.media import heif_readable

SIDE = 64
os.environ.setdefault("SVT_LOG", "1")  # the encoder of AV1 prints errors only


@dataclass(frozen=True)
class Original:
    """A sound file."""

    name: str
    suffix: str
    layout: Layout
    content: bytes


def images() -> list[Original]:
    """Return images of all formats, in several modes."""
    rng = np.random.default_rng(0)
    colour = Image.fromarray(texture(rng, SIDE, SIDE))
    second = Image.fromarray(texture(rng, SIDE, SIDE, 5))
    gray, palette, clear = colour.convert("L"), colour.quantize(32), colour.copy()
    clear.putalpha(gray)
    deep = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    real = Image.fromarray(np.asarray(gray).astype(np.float32) / 255)
    exif = Image.Exif()
    exif[0x0112] = 6
    animation: dict[str, Any] = {"save_all": True, "append_images": [second, colour], "duration": 40}
    saved: list[tuple[str, str, Layout, Image.Image, str, dict[str, Any]]] = [
        ("jpeg", ".jpg", fuzzer.JPEG, colour, "JPEG", {"exif": exif, "comment": b"soak"}),
        ("jpeg progressive", ".jpeg", fuzzer.JPEG, colour, "JPEG", {"progressive": True, "restart_marker_rows": 1}),
        ("jpeg gray", ".jpg", fuzzer.JPEG, gray, "JPEG", {}),
        ("jpeg cmyk", ".jpg", fuzzer.JPEG, colour.convert("CMYK"), "JPEG", {}),
        ("mpo", ".jpg", fuzzer.JPEG, colour, "MPO", {"save_all": True, "append_images": [second.copy()]}),
        ("png", ".png", fuzzer.PNG, colour, "PNG", {"exif": exif, "dpi": (72, 72)}),
        ("png alpha", ".png", fuzzer.PNG, clear, "PNG", {}),
        ("png palette", ".png", fuzzer.PNG, palette, "PNG", {"transparency": 3}),
        ("png 16 bits", ".png", fuzzer.PNG, deep, "PNG", {}),
        ("png animated", ".apng", fuzzer.PNG, colour, "PNG", animation),
        ("gif", ".gif", fuzzer.GIF, palette, "GIF", {"transparency": 2}),
        ("gif animated", ".gif", fuzzer.GIF, colour, "GIF", animation),
        ("webp", ".webp", fuzzer.RIFF, colour, "WEBP", {"exif": exif}),
        ("webp lossless", ".webp", fuzzer.RIFF, clear, "WEBP", {"lossless": True}),
        ("webp animated", ".webp", fuzzer.RIFF, colour, "WEBP", animation),
        ("tiff", ".tif", fuzzer.TIFF, colour, "TIFF", {}),
        ("tiff lzw", ".tiff", fuzzer.TIFF, clear, "TIFF", {"compression": "tiff_lzw"}),
        ("tiff deflate", ".tif", fuzzer.TIFF, deep, "TIFF", {"compression": "tiff_adobe_deflate"}),
        ("tiff jpeg", ".tif", fuzzer.TIFF, colour, "TIFF", {"compression": "jpeg"}),
        ("tiff float", ".tif", fuzzer.TIFF, real, "TIFF", {}),
        ("tiff group 4", ".tif", fuzzer.TIFF, gray.convert("1"), "TIFF", {"compression": "group4"}),
        ("tiff pages", ".tif", fuzzer.TIFF, colour, "TIFF", {"save_all": True, "append_images": [second]}),
        ("avif", ".avif", fuzzer.BOXES, colour, "AVIF", {"speed": 10}),
        ("avif alpha", ".avif", fuzzer.BOXES, clear, "AVIF", {"speed": 10}),
        *([("heic", ".heic", fuzzer.BOXES, colour, "HEIF", {})] if heif_readable() else []),
        ("jpeg 2000", ".jp2", fuzzer.BOXES, colour, "JPEG2000", {}),
        ("jpeg 2000 stream", ".j2k", fuzzer.CODESTREAM, colour, "JPEG2000", {"no_jp2": True}),
        ("bmp", ".bmp", fuzzer.FIELDS, colour, "BMP", {}),
        ("bmp palette", ".bmp", fuzzer.FIELDS, palette, "BMP", {}),
        ("dib", ".dib", fuzzer.FIELDS, colour, "DIB", {}),
        ("ppm", ".ppm", fuzzer.LINES, colour, "PPM", {}),
        ("pgm", ".pgm", fuzzer.LINES, gray, "PPM", {}),
        ("pfm", ".pfm", fuzzer.LINES, real, "PPM", {}),
        ("tga", ".tga", fuzzer.FIELDS, colour, "TGA", {"compression": "tga_rle"}),
        ("dds", ".dds", fuzzer.FIELDS, clear, "DDS", {}),
        ("dds dxt5", ".dds", fuzzer.FIELDS, clear, "DDS", {"pixel_format": "DXT5"}),
        ("ico", ".ico", fuzzer.FIELDS, clear, "ICO", {"sizes": [(32, 32), (64, 64)]}),
        ("ico bmp", ".ico", fuzzer.FIELDS, clear, "ICO", {"sizes": [(64, 64)], "bitmap_format": "bmp"}),
        ("pcx", ".pcx", fuzzer.FIELDS, colour, "PCX", {}),
        ("qoi", ".qoi", fuzzer.FIELDS, colour, "QOI", {}),
        ("sgi", ".sgi", fuzzer.FIELDS, colour, "SGI", {}),
    ]
    return [
        Original(name, suffix, layout, _saved(image, kind, options))
        for name, suffix, layout, image, kind, options in saved
    ]


def _saved(image: Image.Image, kind: str, options: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    image.copy().save(buffer, kind, **options)  # a copy: Pillow keeps the options of JPEG for later formats
    return buffer.getvalue()


VIDEOS: list[tuple[str, str, str, str, Layout]] = [
    ("mp4 mpeg4", ".mp4", "mp4", "mpeg4", fuzzer.BOXES),
    ("mp4 h264", ".mp4", "mp4", "libx264", fuzzer.BOXES),
    ("mp4 hevc", ".m4v", "mp4", "libx265", fuzzer.BOXES),
    ("mp4 av1", ".mp4", "mp4", "libsvtav1", fuzzer.BOXES),
    ("mov mjpeg", ".mov", "mov", "mjpeg", fuzzer.BOXES),
    ("3gp", ".mp4", "3gp", "mpeg4", fuzzer.BOXES),
    ("avi mpeg4", ".avi", "avi", "mpeg4", fuzzer.RIFF),
    ("avi mjpeg", ".avi", "avi", "mjpeg", fuzzer.RIFF),
    ("mkv h264", ".mkv", "matroska", "libx264", fuzzer.EBML),
    ("mkv ffv1", ".mkv", "matroska", "ffv1", fuzzer.EBML),
    ("webm vp8", ".webm", "webm", "libvpx", fuzzer.EBML),
    ("webm vp9", ".webm", "webm", "libvpx-vp9", fuzzer.EBML),
    ("mpeg 1", ".mpg", "mpeg", "mpeg1video", fuzzer.START_CODES),
    ("mpeg 2", ".mpeg", "vob", "mpeg2video", fuzzer.START_CODES),
    ("gif", ".gif", "gif", "gif", fuzzer.GIF),
    ("transport stream", ".mpg", "mpegts", "mpeg2video", fuzzer.TRANSPORT),
    ("h264 stream", ".mp4", "h264", "libx264", fuzzer.START_CODES),
    ("hevc stream", ".mp4", "hevc", "libx265", fuzzer.START_CODES),
    ("m4v stream", ".m4v", "m4v", "mpeg4", fuzzer.START_CODES),
    ("flv", ".mp4", "flv", "flv", fuzzer.FIELDS),
    ("asf", ".avi", "asf", "wmv2", fuzzer.FIELDS),
    ("ogg", ".webm", "ogg", "libvpx", fuzzer.OGG),
    ("ivf", ".webm", "ivf", "libvpx", fuzzer.FIELDS),
    ("mjpeg stream", ".avi", "mjpeg", "mjpeg", fuzzer.JPEGS),
    ("mxf", ".mov", "mxf", "mpeg2video", fuzzer.KLV),
]
"""Name, suffix, FFmpeg's names of container and codec, layout. The content decides about the format, not the suffix."""


def videos() -> list[Original]:
    """Return videos in all containers for which this FFmpeg has an encoder."""
    rng = np.random.default_rng(1)
    frames = [texture(rng, SIDE, SIDE, 3 * number) for number in range(8)]
    originals = []
    with tempfile.TemporaryDirectory() as folder:
        for name, suffix, container, codec, layout in VIDEOS:
            path = Path(folder, f"{name}{suffix}")
            try:
                write_video(path, frames, container, codec)
            except (ValueError, OSError) as error:  # of FFmpeg: no such encoder
                print(f"{name} is left out, as it cannot be written here: {error}")
                continue
            originals.append(Original(name, suffix, layout, path.read_bytes()))
    return originals
