"""The PASCAL VOC devkit: image sets with their boxes and masks, each file checked before anything is measured.

An image whose files cannot be used is skipped; the image set records which images were skipped, and why.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from PIL import Image

from unshuffle.data.batches import Prefetcher
from unshuffle.data.media import BadMedia, check_sides, read_image
from unshuffle.data.source import Skipped
from unshuffle.errors import UserError

CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
IGNORE_INDEX = 255
"""Label of the pixels that count neither in training nor in the metrics."""
MIN_PIXELS = 10_000
"""Pixels of the smallest box that is cut out, as in the paper, unless another limit is given."""
Mask = npt.NDArray[np.uint8]
Box = tuple[int, int, int, int]
"""Left, top, right and bottom, in pixels from 0; right and bottom are the first pixels outside."""


class BadFile(Exception):
    """The reason for skipping an image; equal reasons are worded alike, because they are counted."""


class VocObject(NamedTuple):
    """One annotated object."""

    label: int
    """Index into CLASSES."""
    box: tuple[float, float, float, float]
    """Left, top, right, bottom in pixels from 0; right and bottom are exclusive."""
    difficult: bool


@dataclass(frozen=True)
class VocImage:
    """An image with its annotation."""

    name: str
    path: Path
    size: tuple[int, int]
    """Height and width."""
    objects: tuple[VocObject, ...] = ()
    mask: Path | None = None


@dataclass(frozen=True)
class ImageSet:
    """The usable images of one split, at least one."""

    name: str
    """Year and split, such as "VOC2007 test"."""
    images: Sequence[VocImage]
    skipped: Sequence[Skipped] = ()
    """The images left out, each with the reason."""

    ignored: Mapping[str, int] = field(default_factory=dict)
    """Nothing: what the lists of a devkit do not name is not asked for."""

    @property
    def address(self) -> str:
        """Year and split, by which it is opened."""
        return self.name

    def __post_init__(self) -> None:
        if not self.images:
            raise UserError(f"no image of {self.name} can be used: {self.skip_reasons()}")

    def __len__(self) -> int:
        return len(self.images)

    def paths(self) -> list[Path]:
        """Return the paths of the image files."""
        return [image.path for image in self.images]

    def skip_reasons(self) -> str:
        """Return the number of skipped images for each reason, the most frequent first."""
        counts = Counter(reason for _, reason in self.skipped)
        return ", ".join(f"{count} because {reason}" for reason, count in counts.most_common())

    def filtered(self, usable: Callable[[VocImage], bool], reason: str) -> "ImageSet":
        """Return the set without the images that an evaluation cannot use; those are recorded as skipped."""
        images = [image for image in self.images if usable(image)]
        rejected = [(image.name, reason) for image in self.images if not usable(image)]
        return ImageSet(self.name, images, [*self.skipped, *rejected])


class Devkit:
    """One year of a VOC devkit."""

    def __init__(self, root: Path, year: int) -> None:
        root, self.year = root.expanduser(), year
        candidates = [root / f"VOC{year}", root / "VOCdevkit" / f"VOC{year}"]
        if root.name == f"VOC{year}" or not root.name.startswith("VOC2"):  # not the folder of another year
            candidates.append(root)
        folder = next((folder for folder in candidates if (folder / "JPEGImages").is_dir()), None)
        if folder is None:
            raise UserError(
                f"no VOC devkit of {year} in {root} (looked for VOC{year}/JPEGImages): check the path and the year"
            )
        self.folder = folder

    def with_objects(self, name: str, limit: int = 0) -> ImageSet:
        """Return an image set of ImageSets/Main (or of a file of image names) with its objects; 0 is no limit."""
        return self._read("Main", name, limit, self._with_objects)

    def with_masks(self, name: str, masks: str = "SegmentationClass", limit: int = 0) -> ImageSet:
        """Return an image set of ImageSets/Segmentation (or of a file of image names) with a mask for each image."""
        return self._read("Segmentation", name, limit, lambda image: self._with_mask(image, self.folder / masks))

    def _read(self, kind: str, name: str, limit: int, read: Callable[[str], VocImage]) -> ImageSet:
        names = self.names(kind, name)[: limit or None]

        def read_or_skip(number: int) -> VocImage | Skipped:
            try:
                return read(names[number])
            except BadFile as reason:
                return names[number], str(reason)

        outcomes = list(Prefetcher(read_or_skip, 0, len(names), os.cpu_count() or 1))
        images = [outcome for outcome in outcomes if isinstance(outcome, VocImage)]
        skipped = [outcome for outcome in outcomes if not isinstance(outcome, VocImage)]
        return ImageSet(f"VOC{self.year} {Path(name).stem}", images, skipped)

    def names(self, kind: str, name: str) -> list[str]:
        """Return the names of the images in an image set of ImageSets/Main or ImageSets/Segmentation, or in a file."""
        folder = self.folder / "ImageSets" / kind
        file = next((file for file in (folder / f"{name}.txt", Path(name).expanduser()) if file.is_file()), None)
        if file is None:
            class_prefixes = tuple(f"{label}_" for label in CLASSES)  # such as cat_train: one class of a split
            splits = sorted(path.stem for path in folder.glob("*.txt") if not path.stem.startswith(class_prefixes))
            hint = f"; choose one of {', '.join(splits)}" if splits else ""
            raise UserError(f"there is no image set '{name}' in {folder}{hint}")
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.split()[0] for line in lines if line.strip()]
        if not names:
            raise UserError(f"the image set {file} is empty")
        if len(set(names)) < len(names):
            raise UserError(f"the image set {file} lists {Counter(names).most_common(1)[0][0]} more than once")
        return names

    def _image(self, name: str) -> tuple[Path, tuple[int, int]]:
        path = self.folder / "JPEGImages" / f"{name}.jpg"
        if not path.is_file():
            raise BadFile("the image is missing")
        try:
            height, width, _ = read_image(path).shape
        except BadMedia:
            raise BadFile("the image cannot be read") from None
        return path, (height, width)

    def _with_objects(self, name: str) -> VocImage:
        path, size = self._image(name)
        return VocImage(name, path, size, read_objects(self.folder / "Annotations" / f"{name}.xml", size))

    def _with_mask(self, name: str, folder: Path) -> VocImage:
        path, size = self._image(name)
        mask = folder / f"{name}.png"
        labels = read_mask(mask)
        if labels.shape != size:
            raise BadFile("the mask and the image differ in size")
        if np.all(labels == IGNORE_INDEX):
            raise BadFile("every pixel of the mask is labelled 'ignore'")
        return VocImage(name, path, size, mask=mask)


def read_objects(file: Path, size: tuple[int, int]) -> tuple[VocObject, ...]:
    """Read the objects of an annotation file; `size` is the height and width of the image."""
    if not file.is_file():
        raise BadFile("the annotation is missing")
    try:
        root = ElementTree.parse(file).getroot()  # noqa: S314 (expat limits entities, and reads no other file)
        return tuple(_read_object(element, size) for element in root.findall("object"))
    except (ElementTree.ParseError, UnicodeError, ValueError, OverflowError):
        raise BadFile("the annotation cannot be read") from None


def _read_object(element: ElementTree.Element, size: tuple[int, int]) -> VocObject:
    name = (element.findtext("name") or "").strip()
    if name not in CLASSES:
        raise BadFile(f"it is annotated with '{name}', which is not a VOC class")
    left, top, right, bottom = (
        float(element.findtext(f"bndbox/{side}", "")) for side in ("xmin", "ymin", "xmax", "ymax")
    )
    height, width = size
    # annotations count pixels from 1, and right and bottom are inclusive
    left, top, right, bottom = max(left - 1, 0.0), max(top - 1, 0.0), min(right, width), min(bottom, height)
    if not (left < right and top < bottom):
        raise BadFile("a box has no area within the image")
    difficult = int(element.findtext("difficult", "0")) != 0
    return VocObject(CLASSES.index(name), (left, top, right, bottom), difficult)


def read_mask(file: Path) -> Mask:
    """Read the labels of a mask: 0 for background, 1 to 20 for the classes, IGNORE_INDEX for ignored pixels."""
    if not file.is_file():
        raise BadFile("the mask is missing")
    try:
        with Image.open(file, formats=("PNG", "BMP", "GIF", "TIFF")) as image:
            if image.mode not in ("P", "L"):
                raise BadFile("the mask holds colours instead of labels")
            labels: Mask = np.array(image, np.uint8)
    except (OSError, SyntaxError, ValueError):  # Pillow raises all of them for damaged files
        raise BadFile("the mask cannot be read") from None
    if np.any((labels > len(CLASSES)) & (labels != IGNORE_INDEX)):
        raise BadFile("the mask has labels that are not VOC's")
    return labels


# ---- objects


def large_objects(
    images: ImageSet, *, min_pixels: int = MIN_PIXELS, difficult: bool = True
) -> list[tuple[Path, int, Box]]:
    """Return path, class and box of each object with at least `min_pixels`; without `difficult`, of the easy ones."""
    large = []
    for image in images.images:
        for annotated in image.objects:
            left, top, right, bottom = map(round, annotated.box)
            pixels = (right - left) * (bottom - top)
            if pixels < min_pixels or (annotated.difficult and not difficult):
                continue
            with suppress(BadMedia):
                check_sides(right - left, bottom - top)
                large.append((image.path, annotated.label, (left, top, right, bottom)))
    if not large:
        raise UserError(f"no object of {images.name} has {min_pixels} pixels")
    return large


def find_image_set(address: Path) -> tuple[Devkit, str] | None:
    """Return the devkit and the name of an image set that VOC2007/ImageSets/Main/NAME.txt leads to, if it does."""
    file = address.expanduser().absolute()
    if file.parts[-3:-1] != ("ImageSets", "Main") or not file.is_file():
        return None
    year = file.parents[2].name.removeprefix("VOC")
    if not year.isdecimal():
        raise UserError(f"{file} is not in a folder VOC2007 or of another year")
    return Devkit(file.parents[2], int(year)), file.stem
