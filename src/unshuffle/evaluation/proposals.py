"""Boxes that may hold an object: by selective search, kept on disk, or from files."""

import os
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import Tensor

from unshuffle.console import progress
from unshuffle.data.batches import Prefetcher
from unshuffle.data.media import read_image
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.boxes import clip
from unshuffle.evaluation.voc import VocImage
from unshuffle.files import atomic_write

Boxes = npt.NDArray[np.float32]
LEAST_SIDE = 16
"""Pixels; what selective search finds with a shorter side is less than a cell of CaffeNet's map."""


def read_proposals(files: Sequence[Path]) -> dict[str, Boxes]:
    """Proposals by image name, of all files together.

    .npz: an array for each image, under its name: (N, 4) of left, top, right, bottom in pixels from 0, right and
    bottom the first pixels outside, the best first. .mat: as published with Fast R-CNN.
    """
    found: dict[str, Boxes] = {}
    for file in files:
        if not file.is_file():
            raise UserError(f"there are no proposals at {file}")
        try:
            found |= _read_mat(file) if file.suffix == ".mat" else _read_npz(file)
        except _BadProposals as problem:
            raise UserError(f"the proposals in {file} cannot be read: {problem}") from None
    return found


class _BadProposals(Exception):
    """What is wrong with a file."""


def _read_npz(file: Path) -> dict[str, Boxes]:
    if not zipfile.is_zipfile(file):
        raise _BadProposals("it is not a whole .npz file")
    try:
        with np.load(file) as arrays:
            return {name: _checked(arrays[name]) for name in arrays.files}
    except (ValueError, KeyError, OSError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        raise _BadProposals("one of its arrays is damaged or no array of numbers") from None


def _read_mat(file: Path) -> dict[str, Boxes]:
    """`images`, a cell of names, and `boxes`, a cell of top, left, bottom, right from 1, the last pixel included."""
    from scipy.io.matlab import MatReadError, loadmat

    try:
        content = loadmat(file)
    except (MatReadError, ValueError, OSError, NotImplementedError):  # the last: MATLAB's newer kind, which is HDF5
        raise _BadProposals("it is not a whole .mat file of MATLAB 7.2 or older") from None
    try:
        names = [str(np.ravel(name)[0]) for name in np.ravel(content["images"])]
        boxes = [np.asarray(some)[:, (1, 0, 3, 2)] - (1.0, 1.0, 0.0, 0.0) for some in np.ravel(content["boxes"])]
        return {name: _checked(some) for name, some in zip(names, boxes, strict=True)}
    except (KeyError, IndexError, ValueError, TypeError):
        raise _BadProposals("it does not hold the cells images and boxes, of equal length") from None


def _checked(boxes: npt.NDArray[Any]) -> Boxes:
    boxes = np.asarray(boxes, np.float32)
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise _BadProposals(f"an array has the shape {boxes.shape}, not (N, 4)")
    return boxes


def cleaned(boxes: Boxes, size: tuple[int, int], limit: int) -> Tensor:
    """The first `limit` proposals, cut to the image; those that lie outside it are left out."""
    inside = clip(torch.from_numpy(boxes), size)
    return inside[((inside[:, 2:] - inside[:, :2]) >= 1).all(dim=1)][:limit]


def search_proposals(images: Sequence[VocImage], folder: Path | None, console: Console) -> Mapping[str, Boxes]:
    """Selective search in every image; results are kept in the folder and found there the next time."""
    search = selective_search()
    found: dict[str, Boxes] = {}
    coming = iter(Prefetcher(lambda n: _kept(images[n], folder, search), 0, len(images), os.cpu_count() or 1))
    with closing(coming), progress(console, "selective search", len(images)) as advance:
        for image, boxes in zip(images, coming, strict=True):
            found[image.name] = boxes
            advance(len(found))
    return found


def _kept(image: VocImage, folder: Path | None, search: Callable[[Pixels], Boxes]) -> Boxes:
    if folder is None:
        return search(read_image(image.path))
    file = folder / f"{image.name}.npy"
    if not file.is_file():
        boxes = search(read_image(image.path))
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as draft, draft.open("wb") as stream:
            np.save(stream, boxes)
    try:
        return _checked(np.load(file))
    except (ValueError, EOFError, _BadProposals):
        raise UserError(f"{file} is damaged: delete it, and its proposals are searched again") from None


def selective_search() -> Callable[[Pixels], Boxes]:
    """OpenCV's selective search in its fast mode, which is that of the published proposals."""
    try:
        import cv2

        segmentation = getattr(cv2, "ximgproc").segmentation  # noqa: B009, the plain OpenCV does not have it
    except (ImportError, AttributeError):
        raise UserError(
            "selective search needs OpenCV with its contrib modules (pip install opencv-contrib-python-headless, in "
            "place of any other OpenCV); or give --proposals"
        ) from None

    def search(pixels: Pixels) -> Boxes:
        searcher = segmentation.createSelectiveSearchSegmentation()
        searcher.setBaseImage(np.ascontiguousarray(pixels[..., ::-1]))
        searcher.switchToSelectiveSearchFast()
        found = np.asarray(searcher.process(), np.float32).reshape(-1, 4)
        corner, sides = np.split(found[(found[:, 2:] >= LEAST_SIDE).all(axis=1)], 2, axis=1)
        return np.concatenate([corner, corner + sides], axis=1)

    return search
