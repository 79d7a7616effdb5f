"""Labelled things that are read one at a time: images and videos in folders by class, objects of PASCAL VOC."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from unshuffle.data.batches import spaced_frames
from unshuffle.data.media import (
    MIN_SIDE,
    VIDEO_SUFFIXES,
    BadMedia,
    check_sides,
    find_images,
    find_videos,
    read_frames,
    read_image,
    resize_short_side,
)
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.identity import digest, stamp
from unshuffle.evaluation.labelled import centre_square
from unshuffle.evaluation.skips import Skipped
from unshuffle.evaluation.voc.devkit import CLASSES, Devkit

Box = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels from 0; the last two are outside."""
Fit = Literal["crop", "squash"]
Kind = Literal["images", "videos", "objects"]


@dataclass(frozen=True)
class Item:
    """An image, a video, or an object in an image."""

    path: Path
    label: int
    box: Box | None = None


@dataclass(frozen=True)
class Items:
    """Items of one kind with a class each, and how they become squares."""

    items: Sequence[Item]
    classes: Sequence[str]
    kind: Kind
    side: int = 227
    fit: Fit = "crop"
    """crop: the short side is resized, then the middle is cut out; squash: the whole is resized."""
    margin: float = 1.0
    """With crop, the short side before the cut over the side of the square."""
    frames: int = 10
    """Frames of a video, evenly from the first to the last."""
    skipped: list[Skipped] = field(default_factory=list)
    """What turned out to be unusable."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def labels(self) -> list[int]:
        """The class of each item."""
        return [item.label for item in self.items]

    def name(self, position: int) -> str:
        """What to call an item."""
        return str(self.items[position].path)

    def read(self, position: int) -> Pixels:
        """An item as (frames, side, side, 3); 1 frame for an image. `BadMedia` if that cannot be had."""
        item = self.items[position]
        if self.kind == "videos":
            frames = [Image.fromarray(frame) for frame in video_frames(item.path, self.frames)]
        elif item.box is not None:
            frames = [_cut(read_image(item.path), item.box)]
        else:
            frames = [Image.fromarray(read_image(item.path, self._short_side))]
        return np.stack([self._square(frame) for frame in frames])

    def first(self, limit: int) -> "Items":
        """At most so many items, evenly over the classes; 0 is no limit."""
        if self.idle(limit):
            return self
        places: dict[int, list[int]] = {}
        for position, label in enumerate(self.labels):
            places.setdefault(label, []).append(position)
        turns = sorted((turn, position) for some in places.values() for turn, position in enumerate(some))
        chosen = sorted(position for _, position in turns[:limit])
        return replace(self, items=[self.items[position] for position in chosen])

    def idle(self, limit: int) -> bool:
        """Whether a limit leaves nothing out."""
        return limit == 0 or limit >= len(self)

    def fingerprint(self) -> str:
        """Tells these items, and how they are read, from others, or from themselves after a change."""
        how = (self.kind, self.side, self.fit, self.margin, self.frames, *self.classes)
        return digest([*how, *(f"{item.path} {stamp(item.path)} {item.label} {item.box}" for item in self.items)])

    def _square(self, image: Image.Image) -> Pixels:
        if self.fit == "squash":
            return np.asarray(image.resize((self.side, self.side), Image.Resampling.BILINEAR))
        return centre_square(np.asarray(resize_short_side(image, self._short_side)), self.side)

    @property
    def _short_side(self) -> int | None:
        return round(self.side * self.margin) if self.fit == "crop" else None


def _cut(pixels: Pixels, box: Box) -> Image.Image:
    left, top, right, bottom = box
    part = pixels[max(0, top) : bottom, max(0, left) : right]
    check_sides(part.shape[1], part.shape[0])
    return Image.fromarray(part)


def video_frames(path: Path, count: int) -> list[Pixels]:
    """Frames of a video at linspace(0, last, count); a video with fewer gives some of them again.

    It is decoded twice: frames are counted by decoding, and those of a long video do not fit into memory.
    """
    places = spaced_frames(sum(1 for _ in read_frames(path, MIN_SIDE)), count, 0)
    chosen = {place: frame for place, frame in enumerate(read_frames(path)) if place in places}
    return [chosen[place] for place in places]


# ---- folders by class


def class_folders(folder: Path, classes: Sequence[str] | None = None) -> Items:
    """The images, or the videos, of a folder with a subfolder for each class; other classes than given are no match."""
    folder = folder.expanduser()
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder of classes")
    found = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if len(found) < 2:
        raise UserError(f"{folder} needs a subfolder for each of two or more classes")
    if classes is not None and not set(found) <= set(classes):
        strange = sorted(set(found) - set(classes))
        raise UserError(f"{folder} has classes that the training folder has not: {', '.join(strange[:5])}")
    names = found if classes is None else list(classes)
    kind = _kind(folder)
    find = find_images if kind == "images" else find_videos
    files = {name: find(folder / name) for name in found}
    if empty := [name for name, some in files.items() if not some]:
        raise UserError(
            f"{len(empty)} of the {len(found)} classes of {folder} have no {kind} ({', '.join(empty[:5])}): "
            "put some there, or remove the folders"
        )
    return Items([Item(path, names.index(name)) for name in found for path in files[name]], names, kind)


def _kind(folder: Path) -> Kind:
    """Images, or videos if there are no images; an animation may be either."""
    images = any(path.suffix.lower() not in VIDEO_SUFFIXES for path in find_images(folder))
    videos = any(path.suffix.lower() != ".gif" for path in find_videos(folder))
    if images and videos:
        raise UserError(f"{folder} holds images and videos: an evaluation needs one or the other")
    if videos:
        return "videos"
    if not images and not find_images(folder):
        raise UserError(f"there is no image and no video in {folder}")
    return "images"


def any_folder(folder: Path) -> Items:
    """The images, or the videos, of a folder, flat or nested, without classes."""
    folder = folder.expanduser()
    kind = _kind(folder)
    find = find_images if kind == "images" else find_videos
    return Items([Item(path, 0) for path in find(folder)], [""], kind)


# ---- PASCAL VOC


def voc_objects(devkit: Path, year: int, split: str, *, min_pixels: int = 10_000, difficult: bool = True) -> Items:
    """The objects of an image set, cut out along their boxes; small ones are left out, difficult ones by choice."""
    images = Devkit(devkit, year).with_objects(split)
    boxes = [
        Item(image.path, one.label, _whole(one.box))
        for image in images.images
        for one in image.objects
        if difficult or not one.difficult
    ]
    large = [item for item in boxes if _is_large(item, min_pixels)]
    if not large:
        raise UserError(f"no object of {images.name} has {min_pixels} pixels")
    return Items(large, CLASSES, "objects", fit="squash", skipped=list(images.skipped))


def _whole(box: tuple[float, ...]) -> Box:
    left, top, right, bottom = map(round, box)
    return left, top, right, bottom


def _is_large(item: Item, min_pixels: int) -> bool:
    assert item.box is not None
    left, top, right, bottom = item.box
    try:
        check_sides(right - left, bottom - top)
    except BadMedia:
        return False
    return (right - left) * (bottom - top) >= min_pixels
