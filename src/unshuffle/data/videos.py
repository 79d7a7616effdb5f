"""Finding video files and reading their frames in the order in which the decoder gives them."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from unshuffle.data.media import (
    BadMedia,
    check_not_empty,
    check_sides,
    explain,
    find_files,
    resize_short_side,
)
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError

if TYPE_CHECKING:
    from av import VideoFrame
    from av.video.reformatter import VideoReformatter

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".avi", ".mov", ".mkv", ".webm", ".mpg", ".mpeg", ".m4v", ".gif"},
)
MIN_FRAMES = 2


def find_videos(folder: Path) -> list[Path]:
    """Video files of a folder, flat or nested, sorted by relative path; hidden ones are left out."""
    return find_files(folder, VIDEO_SUFFIXES)


def read_frames(path: Path, short_side: int | None = None, every: int = 1) -> Iterator[Pixels]:
    """Every `every`-th frame of a clip as (height, width, 3) RGB, all of the first one's size.

    The order is the decoder's: timestamps and the header's frame count are often wrong and never looked at.
    Rotation tags are ignored. A clip that breaks off keeps the frames before the break if there are two or
    more, as most players do; with fewer, or for a file that is no video, `BadMedia` is raised.
    """
    size: tuple[int, int] | None = None
    for frame in _frames_before_break(path, every):
        check_sides(*frame.size)
        resized = resize_short_side(frame, short_side)
        size = size or resized.size
        yield np.array(resized if resized.size == size else resized.resize(size))


def _frames_before_break(path: Path, every: int) -> Iterator[Image.Image]:
    count = 0
    try:
        check_not_empty(path)
        for frame in islice(_decode(path), 0, None, every):
            count += 1
            yield Image.fromarray(frame)
    except (BadMedia, UserError):
        raise
    except Exception as error:  # FFmpeg's bindings raise many kinds of errors for a damaged file
        if count < MIN_FRAMES:
            raise BadMedia(f"cannot be decoded as a video: {explain(error)}") from error
    if count < MIN_FRAMES:
        raise BadMedia(f"a clip needs at least {MIN_FRAMES} frames and this one gives {count}")


def _decode(path: Path) -> Iterator[Pixels]:
    try:
        import av  # noqa: F401
    except ImportError:
        return _decode_opencv(path)
    return _decode_pyav(path)


def _decode_pyav(path: Path) -> Iterator[Pixels]:
    import av

    with av.open(str(path)) as container:
        if not container.streams.video:
            raise BadMedia("there is no video in the file")
        stream = container.streams.video[0]
        # Files are decoded in parallel already: more threads inside each one would only compete.
        stream.thread_type = "NONE"
        stream.codec_context.thread_count = 1
        converter = av.video.reformatter.VideoReformatter()  # one for all frames: it is slow to set up
        for frame in container.decode(stream):
            yield np.asarray(_to_rgb(frame, converter).to_ndarray(), np.uint8)


def _to_rgb(frame: "VideoFrame", converter: "VideoReformatter") -> "VideoFrame":
    try:
        return converter.reformat(frame, format="rgb24", threads=1)
    except TypeError:  # an older PyAV, which has no such option and one thread
        return converter.reformat(frame, format="rgb24")


def _decode_opencv(path: Path) -> Iterator[Pixels]:
    try:
        import cv2
    except ImportError as error:
        raise UserError("reading videos needs PyAV or OpenCV: pip install av") from error

    capture = cv2.VideoCapture(str(path))
    capture.set(cv2.CAP_PROP_ORIENTATION_AUTO, 0)
    try:
        while True:
            found, frame = capture.read()
            if not found:
                return
            yield np.asarray(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB), np.uint8)
    finally:
        capture.release()
