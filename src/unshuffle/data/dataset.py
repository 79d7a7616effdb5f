"""One dataset for every evaluation: class folders, stores, shards, split lists, objects of VOC, the synthetic world.

`open_dataset` recognises what an address means. Items are read one at a time; nothing is kept in memory.
"""

import hashlib
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, NamedTuple, Unpack

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from unshuffle.config import VIDEO_FRAMES, DataConfig, LimitsConfig
from unshuffle.data.batches import spaced_frames
from unshuffle.data.inventory import Inventory, kinds_of_file, skipped_file, take_inventory, write_skipped
from unshuffle.data.media import (
    DEFAULT_LIMITS,
    MIN_SIDE,
    VIDEO_SUFFIXES,
    BadMedia,
    check_sides,
    file_status,
    memory_limit,
    read_frames,
    read_image,
    resize_short_side,
)
from unshuffle.data.pack import PackOptions, cached_store
from unshuffle.data.shard_files import ShardFile, find_shards, is_shards, read_index, stat_shard, write_index
from unshuffle.data.shards import SHARD_FOLDER, ShardOptions, ShardSource, open_shards
from unshuffle.data.source import Pixels, Skipped, Source
from unshuffle.data.splits import SplitList, find_split_list, is_split_list
from unshuffle.data.store import Store
from unshuffle.data.synthetic import SyntheticSource, synthetic_clips, synthetic_images
from unshuffle.data.voc import CLASSES, MIN_PIXELS, Box, Devkit, find_image_set, large_objects
from unshuffle.errors import UserError
from unshuffle.wording import ignored_words

CACHE = DataConfig.cache
LABEL_SUFFIXES = (".cls", ".txt")
"""Members of a shard that hold a label; the first one counts if an item has both."""
TOO_FEW_CLASSES = "{} needs a subfolder for each of two or more classes (test data may have a single one)"
SYNTHETIC = "synthetic:"
SYNTHETIC_IMAGE_SIZE, SYNTHETIC_FRAME_SIZE, SYNTHETIC_FRAMES = 96, 64, 16

Kind = Literal["images", "videos", "objects"]


# ---- how an item becomes a square


def centre_square(pixels: Pixels, side: int) -> Pixels:
    """Return the middle (side, side) of an image."""
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return pixels[top : top + side, left : left + side]


@dataclass(frozen=True)
class Square:
    """How an image or a frame becomes a square."""

    side: int = 227
    fit: Literal["crop", "squash"] = "crop"
    """crop: resize the short side, then crop the centre; squash: resize the whole image, whatever its shape."""
    margin: float = 1.0
    """With crop, the short side before the crop divided by the side of the square."""

    @property
    def short_side(self) -> int | None:
        """Short side to resize to before the crop; None with squash, which starts from the original size."""
        return round(self.side * self.margin) if self.fit == "crop" else None

    def __call__(self, pixels: Pixels) -> Pixels:
        """Return a (side, side, 3) square of (height, width, 3) pixels."""
        image = Image.fromarray(pixels)
        if self.fit == "squash":
            return np.asarray(image.resize((self.side, self.side), Image.Resampling.BILINEAR))
        return centre_square(np.asarray(resize_short_side(image, self.short_side)), self.side)


# ---- files as a source


@dataclass(frozen=True)
class FileSource:
    """Image or video files, or objects cut out of image files, each decoded when it is read."""

    root: Path
    """Folder that the names are relative to."""
    paths: Sequence[Path]
    kind: Kind
    boxes: Sequence[Box] = ()
    """The box of each object."""
    short_side: int | None = None
    """Short side at which image files are decoded, which is faster than resizing them afterwards."""
    limits: LimitsConfig = DEFAULT_LIMITS
    """What decoding one file may take."""

    @cached_property
    def names(self) -> Sequence[str]:
        """Paths relative to the root; an object's box follows its path."""
        names = [path.relative_to(self.root).as_posix() for path in self.paths]
        if not self.boxes:
            return names
        return [f"{name}#{','.join(map(str, box))}" for name, box in zip(names, self.boxes, strict=True)]

    def __len__(self) -> int:
        return len(self.paths)

    def num_frames(self, item: int) -> int:
        """Return the number of frames: 1 for an image; a video is decoded, as the headers are often wrong."""
        return self._count_frames(item) if self.kind == "videos" else 1

    def _count_frames(self, item: int) -> int:
        return sum(1 for _ in read_frames(self.paths[item], MIN_SIDE, limits=self.limits))

    def size(self, item: int) -> tuple[int, int]:
        """Return the height and width of an item's frames."""
        height, width = self.read(item, [0]).shape[1:3]
        return int(height), int(width)

    def read(self, item: int, frames: Sequence[int]) -> Pixels:
        """Return the chosen frames as (len(frames), height, width, 3); raise `BadMedia` if that is impossible.

        Only the chosen frames of a video are kept, as all frames of a long one do not fit into memory.
        """
        path = self.paths[item]
        if self.kind == "videos":
            decoded = enumerate(read_frames(path, limits=self.limits))
            chosen = {number: frame for number, frame in decoded if number in frames}
            return np.stack([chosen[frame] for frame in frames])
        if self.boxes:
            return _cut_out(read_image(path, limits=self.limits), self.boxes[item])[None]
        return read_image(path, self.short_side, self.limits)[None]

    def stamp(self, item: int) -> str:
        """Return text that changes when the file, or the box in it, does."""
        return f"{file_stamp(self.paths[item])} {self.boxes[item] if self.boxes else None}"


def _cut_out(pixels: Pixels, box: Box) -> Pixels:
    left, top, right, bottom = box
    part = pixels[max(0, top) : bottom, max(0, left) : right]
    check_sides(part.shape[1], part.shape[0])
    return part


# ---- the dataset


@dataclass(frozen=True, eq=False)
class LabelledDataset:
    """Items of one kind with a class each, or without classes, and how they become squares."""

    address: str
    """What was opened."""
    source: Source
    items: Sequence[int]
    """Positions in the source."""
    labels: Sequence[int]
    """Index of each item's class; -1 for an item without a class, as in scikit-learn."""
    classes: Sequence[str]
    """Names of the classes; empty without labels."""
    kind: Kind
    square: Square = Square()
    frames: int = VIDEO_FRAMES
    """Frames of a video, evenly spaced from the first to the last."""
    skipped: list[Skipped] = field(default_factory=list)
    """Items that turned out to be unusable."""
    ignored: Mapping[str, int] = field(default_factory=dict)
    """Other files of the folder, by extension."""

    def __len__(self) -> int:
        return len(self.items)

    @property
    def frames_per_item(self) -> int:
        """Squares that an item gives: 1 for an image or an object."""
        return self.frames if self.kind == "videos" else 1

    @property
    def names(self) -> list[str]:
        """Name of each item within the dataset, as text that any file can hold."""
        return [_printable(self.source.names[item]) for item in self.items]

    def location(self, index: int) -> str:
        """Return the file of an item, or where in a store, shard or synthetic world it is."""
        return _printable(str(self.paths([index])[0]))

    def paths(self, indices: Iterable[int] | None = None) -> list[Path]:
        """Return the files of the given items, or of all; for items that are not files, address and name."""
        chosen = [self.items[index] for index in (range(len(self)) if indices is None else indices)]
        if isinstance(self.source, FileSource):
            return [self.source.paths[item] for item in chosen]
        return [Path(self.address, self.source.names[item]) for item in chosen]

    def load(self, index: int) -> Pixels:
        """Return an item as (frames, side, side, 3) squares; raise `BadMedia` if that is impossible."""
        return np.stack([self.square(frame) for frame in self._frames(index)])

    def load_resized(self, index: int) -> Pixels:
        """Return the first frame of an item, its short side resized but nothing cropped, as (height, width, 3)."""
        image = Image.fromarray(self._frames(index)[0])
        return np.asarray(resize_short_side(image, self.square.short_side))

    def _frames(self, index: int) -> Sequence[Pixels]:
        item = self.items[index]
        frames = spaced_frames(self.source.num_frames(item), self.frames_per_item, 0)
        if isinstance(self.source, ShardSource) and self.source.encoded:
            # A damaged image is skipped here; the source itself would replace it by grey, as training needs.
            encoded = self.source.read_encoded(item, frames)
            return [read_image(image.data, self.square.short_side, memory_limit(image.memory_gb)) for image in encoded]
        return list(self.source.read(item, frames))

    def with_square(self, square: Square) -> "LabelledDataset":
        """Return the same items as other squares."""
        source = self.source
        if isinstance(source, FileSource):
            source = replace(source, short_side=square.short_side)
        return replace(self, source=source, square=square)

    def subset(self, indices: Iterable[int]) -> "LabelledDataset":
        """Return the items at the given indices, in that order."""
        chosen = list(indices)
        items, labels = ([values[index] for index in chosen] for values in (self.items, self.labels))
        return replace(self, items=items, labels=labels)

    def limited(self, limit: int) -> "LabelledDataset":
        """Return at most `limit` items, evenly over the classes; 0 is no limit."""
        if not self.exceeds(limit):
            return self
        seen, turns = Counter[int](), list[tuple[int, int]]()
        for index, label in enumerate(self.labels):
            turns.append((seen[label], index))
            seen[label] += 1
        return self.subset(sorted(index for _, index in sorted(turns)[:limit]))

    def exceeds(self, limit: int) -> bool:
        """Return whether there are more items than a limit, where 0 is no limit."""
        return 0 < limit < len(self)

    def identity(self) -> str:
        """Return a digest of the items and of how they are read; it changes when a file or an option does."""
        how: list[object] = [self.kind, self.square, self.frames, *self.classes]
        if isinstance(self.source, FileSource):
            limits = self.source.limits  # without the memory, which changes nothing
            how += [limits.max_pixels, limits.max_frames, limits.max_seconds]
        version = _version(self.source)
        rows = (
            f"{path} {self.source.stamp(item) if isinstance(self.source, FileSource) else version} {label}"
            for path, item, label in zip(self.paths(), self.items, self.labels, strict=True)
        )
        return digest([*how, *rows])


@dataclass(frozen=True)
class LabelledImages:
    """Square images in memory with a class each."""

    pixels: Pixels
    """(N, side, side, 3)"""
    labels: Tensor
    classes: Sequence[str]
    files: Sequence[str] = ()
    """Locations of the images."""

    def __len__(self) -> int:
        return len(self.pixels)

    def subset(self, indices: Sequence[int]) -> "LabelledImages":
        """Return the images at the given indices, in that order."""
        files = [self.files[index] for index in indices] if self.files else ()
        return LabelledImages(self.pixels[list(indices)], self.labels[list(indices)], self.classes, files)


def load_images(dataset: LabelledDataset, limit: int = 0) -> LabelledImages:
    """Read the first frame of at most `limit` readable items, evenly over the classes, into memory; 0 reads all."""
    per_class = max(1, limit // len(dataset.classes)) if limit else len(dataset)
    counts, chosen, pixels = Counter[int](), list[int](), list[Pixels]()
    for index, label in enumerate(dataset.labels):
        if counts[label] == per_class:
            continue
        try:
            pixels.append(dataset.load(index)[0])
        except BadMedia as problem:
            dataset.skipped.append((dataset.location(index), str(problem)))
            continue
        counts[label] += 1
        chosen.append(index)
    if not pixels:
        listed = write_skipped(skipped_file(dataset.address, CACHE), dataset.skipped)
        raise UserError(f"no readable {dataset.kind.removesuffix('s')} in {dataset.address}: the files are in {listed}")
    labels = torch.tensor([dataset.labels[index] for index in chosen])
    return LabelledImages(np.stack(pixels), labels, dataset.classes, [dataset.location(index) for index in chosen])


def one_per_class(labels: Tensor, count: int) -> list[int]:
    """Return the index of the first sample of each class, for at most `count` classes evenly over all."""
    rows = labels.tolist()
    classes = sorted(set(rows))
    chosen = np.linspace(0, len(classes) - 1, min(count, len(classes))).round().astype(int)
    return [rows.index(classes[number]) for number in chosen]


# ---- opening


class _Opened(NamedTuple):
    """What an address leads to."""

    source: Source
    kind: Kind
    class_of: Sequence[str | None]
    """Class of each item of the source, if it has one."""
    classes: Sequence[str]
    """All classes in their order."""
    items: Sequence[int] | None = None
    """Positions of the items, if they are not the whole source."""
    skipped: Sequence[Skipped] = ()
    ignored: Mapping[str, int] = {}


def open_dataset(
    address: str | Path,
    *,
    kind: Literal["auto", "images", "videos"] = "auto",
    labelled: bool = True,
    classes: Sequence[str] | None = None,
    square: Square | None = None,
    frames: int = VIDEO_FRAMES,
    cache: Path = CACHE,
    limits: LimitsConfig = DEFAULT_LIMITS,
) -> LabelledDataset:
    """Open a dataset by its address.

    An address is a folder with a subfolder for each class (without `labelled` any folder, or a file), a packed store,
    tar shards (anything that `pretrain` reads), a split list of UCF-101 or HMDB-51 (see `unshuffle.data.splits`), an
    image set of a VOC devkit (VOC2007/ImageSets/Main/NAME.txt), which stands for its objects, or
    `synthetic:images:COUNT:SEED` or `synthetic:videos:COUNT:SEED`. The classes of a store are the first folders of its
    names; those of shards stand in .cls or .txt members, or are folders. `classes` are those of the training side,
    which number the classes of this one; others are refused. Files beyond the `limits` are skipped.
    """
    if frames < 1:
        raise UserError(f"{frames} frames of a video were asked for: give 1 or more")
    square, text = square or Square(), str(address)
    folder = Path(text).expanduser()
    if text.startswith(SYNTHETIC):
        opened = _open_synthetic(text)
    elif (image_set := find_image_set(folder)) is not None:
        opened = _open_objects(*image_set)
    elif (split := find_split_list(folder)) is not None:
        opened = _open_split(split)
    elif is_shards(text) or ":/" in text:
        opened = _open_shards(text, kind, square, cache.expanduser(), labelled, limits)
    elif Store.is_store(folder):
        opened = _open_store(Store(folder))
    else:
        opened = _open_folder(folder, kind, labelled)
    if isinstance(opened.source, FileSource):
        opened = opened._replace(source=replace(opened.source, limits=limits))
    if kind not in ("auto", opened.kind):
        raise UserError(f"{address} holds {opened.kind}, but {kind} are needed")
    dataset = replace(_as_dataset(text, opened, labelled, classes), frames=frames, ignored=opened.ignored)
    return dataset.with_square(square)


def address_exists(address: str | Path) -> bool:
    """Return whether an address can be opened, as far as that can be told without reading data."""
    text = str(address)
    return (
        text.startswith(SYNTHETIC) or is_shards(text) or is_split_list(Path(text)) or Path(text).expanduser().exists()
    )


def split_dataset(split: SplitList) -> LabelledDataset:
    """Open the videos of a split list, in a folder or in a packed store."""
    return _as_dataset(str(split.folder), _open_split(split), labelled=True)


def voc_objects(
    devkit: Path, year: int, image_set: str, *, min_pixels: int = MIN_PIXELS, difficult: bool = True
) -> LabelledDataset:
    """Open the objects of an image set, cut out along their boxes and squashed to squares."""
    kit = Devkit(devkit, year)
    dataset = _as_dataset(str(kit.folder), _open_objects(kit, image_set, min_pixels, difficult), labelled=True)
    return dataset.with_square(Square(fit="squash"))


def synthetic_dataset(source: SyntheticSource) -> LabelledDataset:
    """Return a synthetic world as it is: squares of its own size, nothing resized."""
    kind: Kind = "images" if source.num_frames(0) == 1 else "videos"
    square = Square(side=source.size(0)[0])
    labels = source.labels.tolist()
    return LabelledDataset(SYNTHETIC, source, range(len(source)), labels, source.classes, kind, square)


def _as_dataset(
    address: str, opened: _Opened, labelled: bool, training_classes: Sequence[str] | None = None
) -> LabelledDataset:
    items = range(len(opened.source)) if opened.items is None else opened.items
    skipped = list(opened.skipped)
    if not labelled:
        return LabelledDataset(address, opened.source, items, [-1] * len(items), (), opened.kind, skipped=skipped)
    if unlabelled := [name for name, label in zip(opened.source.names, opened.class_of, strict=False) if label is None]:
        raise UserError(
            f"{address} needs a class for every item, and {unlabelled[0]} has none: put it into the folder of its class"
        )
    if len(opened.classes) < 2 and training_classes is None:
        raise UserError(TOO_FEW_CLASSES.format(address))
    classes = opened.classes if training_classes is None else training_classes
    if unknown := [name for name in opened.classes if name not in classes]:
        raise UserError(f"{address} has classes that the training data lacks: {', '.join(unknown[:5])}")
    numbers = {name: number for number, name in enumerate(classes)}
    labels = [numbers[name] for name in opened.class_of if name is not None]
    return LabelledDataset(address, opened.source, items, labels, list(classes), opened.kind, skipped=skipped)


def _open_folder(folder: Path, kind: Literal["auto", "images", "videos"], labelled: bool) -> _Opened:
    if folder.is_file() and not labelled:
        media = _kind_of_file(folder, kind)
        return _Opened(FileSource(folder.parent, [folder], media), media, [None], ())
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist or is not a folder")
    if not labelled:
        media, inventory = _find(folder, kind)
        paths = list(inventory.files.values())
        return _Opened(FileSource(folder, paths, media), media, [None] * len(paths), (), ignored=inventory.ignored)
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise UserError(TOO_FEW_CLASSES.format(folder))
    media, inventory = _find(folder, kind)
    files: dict[str, list[Path]] = {name: [] for name in classes}
    skipped: list[Skipped] = []
    for name, path in inventory.files.items():
        first = _first_folder(name)
        if first in files:
            files[first].append(path)
        else:
            skipped.append((_printable(str(path)), "it is not in the folder of a class"))
    if empty := [name for name in classes if not files[name]]:
        raise UserError(
            f"{len(empty)} of the {len(classes)} classes of {folder} have no {media} ({', '.join(empty[:5])}): "
            "add some, or remove the folders"
        )
    class_of = [name for name in classes for _ in files[name]]
    source = FileSource(folder, list(chain(*files.values())), media)
    return _Opened(source, media, class_of, classes, skipped=skipped, ignored=inventory.ignored)


def _kind_of_file(file: Path, kind: Literal["auto", "images", "videos"]) -> Literal["images", "videos"]:
    """Return whether a file is read as an image or as a video: a GIF as an image, unless `kind` says otherwise."""
    if kind != "auto":
        return kind
    kinds = kinds_of_file(file)
    if not kinds:
        raise UserError(f"{file} is neither an image nor a video: say what it is with --kind images or --kind videos")
    return "images" if "images" in kinds else "videos"


def _find(folder: Path, kind: Literal["auto", "images", "videos"]) -> tuple[Literal["images", "videos"], Inventory]:
    """Return the files of a folder, flat or nested, and whether they are images or videos."""
    nothing = Inventory({}, {})
    images = take_inventory(folder, "images") if kind != "videos" else nothing
    videos = take_inventory(folder, "videos") if kind != "images" else nothing
    if kind == "auto" and images.files and videos.files:
        # A GIF may be meant as either, and a folder that cannot be read is listed with both; the other files tell.
        stills = images.files.keys() - videos.files.keys()
        if stills and videos.files.keys() - images.files.keys():
            raise UserError(
                f"{folder} holds images and videos: give a folder of one kind, or --kind if the command has it"
            )
        images = images if stills else nothing
    if not images.files and not videos.files:
        ignored = (videos if kind == "videos" else images).ignored
        found = f" ({ignored_words(ignored)})" if ignored else ""
        what = "images or videos" if kind == "auto" else kind
        raise UserError(f"there are no {what} in {folder}{found}: check the path")
    return ("images", images) if images.files else ("videos", videos)


def _open_store(store: Store) -> _Opened:
    class_of = [_first_folder(name) for name in store.names]
    return _Opened(store, store.kind, class_of, sorted({name for name in class_of if name is not None}))


def _open_split(split: SplitList) -> _Opened:
    class_of = [split.classes[label] for label in split.labels]
    skipped = [(str(split.folder / name), "absent") for name in split.absent]
    if not Store.is_store(split.folder):
        source = FileSource(split.folder, [split.folder / name for name in split.names], "videos")
        return _Opened(source, "videos", class_of, split.classes, skipped=skipped)
    store = Store(split.folder)
    windows: dict[str, list[int]] = {}
    for item, name in enumerate(store.origins):
        windows.setdefault(name, []).append(item)
    items = [item for name in split.names for item in windows[name]]
    class_of = [label for name, label in zip(split.names, class_of, strict=True) for _ in windows[name]]
    return _Opened(store, store.kind, class_of, split.classes, items, skipped)


def _open_objects(devkit: Devkit, image_set: str, min_pixels: int = MIN_PIXELS, difficult: bool = True) -> _Opened:
    images = devkit.with_objects(image_set)
    paths, labels, boxes = zip(*large_objects(images, min_pixels=min_pixels, difficult=difficult), strict=True)
    source = FileSource(devkit.folder, paths, "objects", boxes)
    return _Opened(source, "objects", [CLASSES[label] for label in labels], CLASSES, skipped=images.skipped)


def _open_synthetic(address: str) -> _Opened:
    _, kind, *numbers = address.split(":")
    if kind not in ("images", "videos") or len(numbers) != 2 or not all(number.isdecimal() for number in numbers):
        raise UserError(
            f"{address} is not a synthetic dataset: write synthetic:images:COUNT:SEED or synthetic:videos:…"
        )
    count, seed = map(int, numbers)
    if count < 2:
        raise UserError(f"{address} has too few items: give 2 or more")
    source = (
        synthetic_images(count, SYNTHETIC_IMAGE_SIZE, seed)
        if kind == "images"
        else synthetic_clips(count, SYNTHETIC_FRAME_SIZE, SYNTHETIC_FRAMES, seed)
    )
    class_of = [source.classes[label] for label in source.labels.tolist()]
    return _Opened(source, "images" if kind == "images" else "videos", class_of, source.classes)


def _first_folder(name: str) -> str | None:
    first, *rest = PurePosixPath(name).parts
    return first if rest else None


# ---- labels of shards


def _open_shards(
    address: str,
    kind: Literal["auto", "images", "videos"],
    square: Square,
    cache: Path,
    labelled: bool,
    limits: LimitsConfig,
) -> _Opened:
    if "://" not in address and ":/" in address:
        raise UserError(f"{address} has lost a slash: give the address of shards as text, such as s3://bucket/name.tar")
    if kind == "auto":
        kind = _kind_of_shards(address)
    options = ShardOptions(kind, square.short_side or square.side, cache_gb=0, limits=limits)
    source = open_shards(address, options, cache, progress=False)
    class_of = _shard_labels(source, cache) if labelled else [None] * len(source)
    classes = sorted({name for name in class_of if name is not None})
    if all(name.isdecimal() for name in classes):
        classes.sort(key=int)
    return _Opened(source, kind, class_of, classes, skipped=source.skipped)


def _kind_of_shards(address: str) -> Literal["images", "videos"]:
    """Return videos if the first shard holds a video file; frames of clips as images need `kind`."""
    names = _text_members(stat_shard(*find_shards(address)[0]))[0]
    suffixes = {PurePosixPath(name).suffix.lower() for name in names}
    return "videos" if suffixes & (VIDEO_SUFFIXES - {".gif"}) else "images"


def _shard_labels(source: ShardSource, cache: Path) -> list[str | None]:
    """Return the class of each item: the text of its .cls or .txt member, otherwise the first folder of its key."""
    texts: dict[str, str] = {}
    prefixes: list[str] = []
    for file in source.files:
        members = _cached_texts(file, cache)
        for prefix in (PurePosixPath(file.path).name, file.address):
            prefixes.append(f"{prefix}/")
            texts |= {f"{prefix}/{key}": text for key, text in members.items()}
    prefixes.sort(key=len, reverse=True)

    def label(name: str) -> str | None:
        key = _shard_key(name)
        prefix = next(prefix for prefix in prefixes if name.startswith(prefix))
        return texts.get(key) or _first_folder(key.removeprefix(prefix))

    return [label(name) for name in source.names]


def _cached_texts(file: ShardFile, cache: Path) -> dict[str, str]:
    """Return the label text of each key of a shard; stored in the cache, as all headers have to be read for it."""
    stored = cache / SHARD_FOLDER / f"{file.digest}-labels.index"
    texts: dict[str, str] | None = read_index(stored)
    if texts is None:
        texts = _text_members(file)[1]
        file.check_unchanged()  # or these would be the labels of another version
        write_index(stored, texts)
    return texts


def _text_members(file: ShardFile) -> tuple[list[str], dict[str, str]]:
    """Return the names of all members of a shard, and the text of the label members by key."""
    return file.scan(_read_texts)


def _read_texts(raw: BinaryIO) -> tuple[list[str], dict[str, str]]:
    names: list[str] = []
    texts: dict[str, dict[str, str]] = {suffix: {} for suffix in LABEL_SUFFIXES}
    with tarfile.open(fileobj=raw, mode="r:") as tar:
        for member in tar:
            name = str(PurePosixPath(member.name))
            names.append(name)
            suffix = PurePosixPath(name).suffix.lower()
            content = tar.extractfile(member) if suffix in texts and member.isreg() else None
            if content is not None:
                texts[suffix][_shard_key(name)] = content.read().decode(errors="replace").strip()
    first, second = (texts[suffix] for suffix in LABEL_SUFFIXES)
    return names, {**second, **first}


def _shard_key(name: str) -> str:
    """Return the WebDataset key: the path up to the first dot of the file's name."""
    path = PurePosixPath(name)
    return str(path.with_name(path.name.split(".", 1)[0]))


# ---- decoding videos once


def packed(
    datasets: Sequence[LabelledDataset], cache: Path, *, progress: bool, **options: Unpack[PackOptions]
) -> list[LabelledDataset]:
    """Decode the video files of some datasets into packed stores, each folder once for all of them.

    Items that cannot be decoded are left out and listed as skipped. Datasets that are not files stay as they are.
    """
    wanted: dict[Path, set[str]] = {}
    for dataset in datasets:
        if isinstance(dataset.source, FileSource):
            names = {dataset.source.names[item] for item in dataset.items}
            wanted.setdefault(dataset.source.root, set()).update(names)
    stores: dict[Path, Store] = {}
    for folder, names in wanted.items():
        options["only"] = names
        stores[folder] = cached_store("videos", folder, cache, progress=progress, **options)
    return [
        _in_store(dataset, stores[dataset.source.root]) if isinstance(dataset.source, FileSource) else dataset
        for dataset in datasets
    ]


def _in_store(dataset: LabelledDataset, store: Store) -> LabelledDataset:
    positions, reasons = {name: position for position, name in enumerate(store.names)}, dict(store.skipped)
    names = [dataset.source.names[item] for item in dataset.items]
    readable = dataset.subset(index for index, name in enumerate(names) if name in positions)
    skipped = [
        (dataset.location(index), reasons.get(name, "absent"))
        for index, name in enumerate(names)
        if name not in positions
    ]
    items = [positions[dataset.source.names[item]] for item in readable.items]
    return replace(readable, source=store, items=items, skipped=[*skipped, *dataset.skipped])


# ---- identity


def digest(values: Iterable[object]) -> str:
    """Return the SHA-256 digest of a list of values, by how they are written."""
    hashed = hashlib.sha256()
    for value in values:
        hashed.update(f"{value}\n".encode(errors="surrogateescape"))
    return hashed.hexdigest()


def file_stamp(path: Path) -> str:
    """Return the size and the time of a file, as text: they change when the file does."""
    status = file_status(path)
    return f"{status.st_size} {status.st_mtime_ns}"


def _version(source: Source) -> str:
    """Return text that changes when a packed store or shards do; a synthetic world is told by its address."""
    if isinstance(source, Store):
        return str(source.header)
    return digest(file.digest for file in source.files) if isinstance(source, ShardSource) else ""


def shared_files(train: Iterable[Path], test: Iterable[Path]) -> list[Path]:
    """Return the test files that are training files too, whatever links lead to them."""
    known = {_file_identity(path) for path in train}
    return [path for path in test if _file_identity(path) in known]


def _file_identity(path: Path) -> tuple[int, int] | Path:
    try:
        status = path.stat()
    except OSError:  # a name in a packed store or a shard is not a file
        return path.absolute()
    return status.st_dev, status.st_ino


def _printable(name: str) -> str:
    """Return a name that any file can hold; names in the file system need not be valid text."""
    return os.fsencode(name).decode(errors="backslashreplace")
