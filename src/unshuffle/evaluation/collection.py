"""Any folder or packed store, one square clip at a time; an image is a clip of one frame."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from unshuffle.data.batches import spaced_frames
from unshuffle.data.media import find_images, find_videos, read_image, resize_short_side
from unshuffle.data.shard_files import refuse_shards
from unshuffle.data.source import Pixels
from unshuffle.data.store import Kind, Store
from unshuffle.errors import UserError
from unshuffle.evaluation.identity import digest, stamp
from unshuffle.evaluation.items import video_frames
from unshuffle.evaluation.labelled import centre_square
from unshuffle.evaluation.skips import Skipped


@dataclass(frozen=True)
class Collection:
    """Names, and how to read what they stand for."""

    kind: Kind
    names: list[str]
    fingerprint: str
    """Tells these files from others, or from themselves after a change."""
    read: Callable[[int], Pixels]
    """One item as (frames, size, size, 3); `BadMedia` if that cannot be done."""
    frames: int = 1
    """Frames of a video."""
    skipped: list[Skipped] = field(default_factory=list)
    """What turned out to be unusable."""

    def __len__(self) -> int:
        return len(self.names)

    def name(self, item: int) -> str:
        """What to call an item."""
        return self.names[item]


def open_collection(
    data: Path, size: int, frames: int = 10, kind: Literal["auto", "images", "videos"] = "auto"
) -> Collection:
    """The images or videos of a folder, flat or nested, or of a store; a video gives evenly spread `frames`."""
    if frames < 1:
        raise UserError(f"{frames} frames of a video make no sense: it must be at least 1")
    refuse_shards(data)
    if Store.is_store(data):
        return _of_store(Store(data), size, frames)
    kind, paths = _find(data, kind)
    read = partial(_read_image, size=size) if kind == "images" else partial(_read_video, size=size, frames=frames)
    names = [_printable(path.relative_to(data).as_posix()) for path in paths]
    job = digest([f"{kind} {size} {frames}", *names, *map(stamp, paths)])
    return Collection(kind, names, job, lambda item: read(paths[item]), frames if kind == "videos" else 1)


def _of_store(store: Store, size: int, frames: int) -> Collection:
    frames = frames if store.kind == "videos" else 1

    def read(item: int) -> Pixels:
        chosen = store.read(item, spaced_frames(store.num_frames(item), frames, 0))
        return np.stack([_square(frame, size) for frame in chosen])

    names = [_printable(name) for name in store.names]
    return Collection(store.kind, names, digest([f"{size} {frames} {store.header}", *names]), read, frames)


def _find(data: Path, kind: Literal["auto", "images", "videos"]) -> tuple[Kind, list[Path]]:
    images = find_images(data) if kind != "videos" else []
    videos = find_videos(data) if kind != "images" else []
    if kind == "auto" and images and videos:
        # a GIF may be meant as either; the other files tell
        stills, clips = ([path for path in paths if path.suffix.lower() != ".gif"] for paths in (images, videos))
        if stills and clips:
            raise UserError(f"{data} holds images and videos: give --kind images or --kind videos")
        images = images if stills else []
    if not images and not videos:
        raise UserError(f"there are no {'images or videos' if kind == 'auto' else kind} in {data}")
    return ("images", images) if images else ("videos", videos)


def _read_image(path: Path, size: int) -> Pixels:
    return centre_square(read_image(path, size), size)[None]


def _read_video(path: Path, size: int, frames: int) -> Pixels:
    return np.stack([_square(frame, size) for frame in video_frames(path, frames)])


def _square(frame: Pixels, size: int) -> Pixels:
    return centre_square(np.asarray(resize_short_side(Image.fromarray(frame), size)), size)


def _printable(name: str) -> str:
    """A name that any file can hold; those of the file system need not be valid text."""
    return os.fsencode(name).decode(errors="backslashreplace")
