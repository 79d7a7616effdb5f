"""Region proposals: from files, or by selective search with a cache on disk."""

import os
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor
from torchvision.ops import clip_boxes_to_image

from unshuffle.data.media import read_image
from unshuffle.data.source import Pixels
from unshuffle.data.voc import VocImage
from unshuffle.errors import UserError
from unshuffle.evaluation.features import prefetched
from unshuffle.files import atomic_write

Boxes = npt.NDArray[np.float32]
MIN_SIDE = 16
"""Shortest side in pixels of a box from selective search; a smaller box covers less than a cell of CaffeNet's map."""


def read_proposals(files: Sequence[Path]) -> dict[str, Boxes]:
    """Read proposals from all files, by image name.

    .npz: one array per image, under its name: (N, 4) of left, top, right, bottom in pixels from 0, right and bottom
    exclusive, the best first. .mat: the format published with Fast R-CNN.
    """
    proposals: dict[str, Boxes] = {}
    for file in files:
        if not file.is_file():
            raise UserError(f"there is no file of proposals at {file}")
        try:
            proposals |= _read_mat(file) if file.suffix == ".mat" else _read_npz(file)
        except _BadProposals as problem:
            raise UserError(f"the proposals in {file} cannot be read: {problem}") from None
    return proposals


class _BadProposals(Exception):
    """What is wrong with a file of proposals."""


def _read_npz(file: Path) -> dict[str, Boxes]:
    if not zipfile.is_zipfile(file):
        raise _BadProposals("it is not a complete .npz file")
    try:
        with np.load(file) as arrays:
            return {name: _check_boxes(arrays[name]) for name in arrays.files}
    except (ValueError, KeyError, OSError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        raise _BadProposals("one of its arrays is damaged or not numeric") from None


def _read_mat(file: Path) -> dict[str, Boxes]:
    """Read `images`, a cell of names, and `boxes`, a cell of top, left, bottom, right from 1, all inclusive."""
    from scipy.io.matlab import MatReadError, loadmat

    try:
        content = loadmat(file)
    except (MatReadError, ValueError, OSError, NotImplementedError):  # the last: MATLAB 7.3, which is HDF5
        raise _BadProposals("it is not a complete .mat file of MATLAB 7.2 or older") from None
    try:
        names = [str(np.ravel(name)[0]) for name in np.ravel(content["images"])]
        boxes = [np.asarray(cell)[:, (1, 0, 3, 2)] - (1.0, 1.0, 0.0, 0.0) for cell in np.ravel(content["boxes"])]
        return {name: _check_boxes(image_boxes) for name, image_boxes in zip(names, boxes, strict=True)}
    except (KeyError, IndexError, ValueError, TypeError):
        raise _BadProposals("it does not hold the cells images and boxes, of equal length") from None


def _check_boxes(boxes: npt.NDArray[Any]) -> Boxes:
    boxes = np.asarray(boxes, np.float32)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise _BadProposals(f"an array has the shape {boxes.shape}, not (N, 4)")
    return boxes


def clip_proposals(boxes: Boxes, size: tuple[int, int], limit: int) -> Tensor:
    """Return the first `limit` proposals, clipped to an image of that height and width, without those outside it."""
    clipped: Tensor = clip_boxes_to_image(torch.from_numpy(boxes), size)
    return clipped[((clipped[:, 2:] - clipped[:, :2]) >= 1).all(dim=1)][:limit]


def search_proposals(images: Sequence[VocImage], cache: Path | None, console: Console) -> dict[str, Boxes]:
    """Run selective search on every image that the cache folder does not hold yet."""
    search = selective_search()

    def boxes(item: int) -> Boxes:
        return _cached_search(images[item], cache, search)

    results = prefetched(boxes, len(images), os.cpu_count() or 1, console, "selective search")
    return dict(zip([image.name for image in images], results, strict=True))


def _cached_search(image: VocImage, cache: Path | None, search: Callable[[Pixels], Boxes]) -> Boxes:
    if cache is None:
        return search(read_image(image.path))
    file = cache / f"{image.name}.npy"
    if not file.is_file():
        boxes = search(read_image(image.path))
        cache.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as draft, draft.open("wb") as stream:
            np.save(stream, boxes)
    try:
        return _check_boxes(np.load(file))
    except (ValueError, EOFError, _BadProposals):
        raise UserError(f"{file} is damaged: delete it to search its proposals again") from None


def selective_search() -> Callable[[Pixels], Boxes]:
    """Return OpenCV's selective search in its fast mode, which the published proposals were made with."""
    try:
        import cv2

        segmentation = getattr(cv2, "ximgproc").segmentation  # noqa: B009, only in OpenCV's contrib modules
    except (ImportError, AttributeError):
        raise UserError(
            "selective search needs OpenCV with its contrib modules: pip install opencv-contrib-python-headless in "
            "place of any other OpenCV, or use --proposals"
        ) from None

    def search(pixels: Pixels) -> Boxes:
        searcher = segmentation.createSelectiveSearchSegmentation()
        searcher.setBaseImage(np.ascontiguousarray(pixels[..., ::-1]))
        searcher.switchToSelectiveSearchFast()
        rectangles = np.asarray(searcher.process(), np.float32).reshape(-1, 4)
        corner, sides = np.split(rectangles[(rectangles[:, 2:] >= MIN_SIDE).all(axis=1)], 2, axis=1)
        return np.concatenate([corner, corner + sides], axis=1)

    return search
