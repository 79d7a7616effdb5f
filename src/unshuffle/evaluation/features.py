"""From a dataset to features: the backbone to evaluate, its input, and extraction that resumes where it stopped."""

import copy
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor
from torch.nn import functional as F

from unshuffle.config import FEATURE_BATCH, PRETRAINED, VIDEO_FRAMES, Pool
from unshuffle.console import progress, say
from unshuffle.data.batches import Prefetcher
from unshuffle.data.dataset import (
    CACHE,
    LabelledDataset,
    Square,
    centre_square,
    digest,
    open_dataset,
)
from unshuffle.data.inventory import skipped_file, write_skipped
from unshuffle.data.media import BadMedia, read_image, resize_short_side, upright_rgb
from unshuffle.data.source import Pixels, Skipped
from unshuffle.errors import UserError
from unshuffle.evaluation.protocol import OtherEvaluation
from unshuffle.files import atomic_write
from unshuffle.models import BACKBONES, Backbone, build_backbone
from unshuffle.models.hub import hub_weights, is_on_hub
from unshuffle.models.registry import PER_IMAGE, backbone_features
from unshuffle.models.torchvision_timm import cached_weights, full_name, is_published
from unshuffle.models.weights import load_backbone
from unshuffle.wording import counted, did_you_mean

T = TypeVar("T")
GRID = 3  # cells across and down the map, with pool grid
WORKERS = os.cpu_count() or 1
PART = 256
"""Frames in a part of the features: what an interruption can cost."""


# ---- the backbone


def find_backbone(spec: str, seed: int = 0, architecture: str | None = None, download: bool = False) -> Backbone:
    """Return a backbone in the form for evaluation.

    `spec` is a run folder; a weights file; `pretrained` for the weights that come with the package; `hf:OWNER/NAME` for
    weights in the cache of Hugging Face, which `download` fetches; `alexnet`, `torchvision:NAME` or `timm:NAME` for
    pretrained weights that are on this machine already; or `random` for the paper's backbone untrained and
    `random:NAME` for any other. `architecture` says that of a file that does not name it and is not recognised.
    """
    if not spec:
        raise UserError("there is no backbone to evaluate: give --weights")
    name, _, untrained = spec.partition(":")
    path = Path(spec).expanduser()
    if is_on_hub(spec):
        return load_backbone(hub_weights(spec, download=download), architecture)
    if download:
        raise UserError(
            f"--download fetches weights from the Hugging Face hub (hf:OWNER/NAME), and {spec} is not there"
        )
    if name != "random" and (spec == PRETRAINED or path.exists()):
        return load_backbone(spec if spec == PRETRAINED else path, architecture)
    if architecture is not None:
        raise UserError(f"--architecture says which network a weights file holds, and {spec} is none")
    if name == "random":
        torch.manual_seed(seed)
        return build_backbone(full_name(untrained or "caffenet")).for_evaluation()
    if is_published(spec):
        return load_backbone(cached_weights(spec), architecture=spec if ":" in spec else f"torchvision:{spec}")
    if spec in BACKBONES:
        raise UserError(
            f"{spec} has no weights of its own: give a run folder or a file, or random:{spec} for it untrained"
        )
    hint = did_you_mean(spec, [PRETRAINED, *BACKBONES])
    raise UserError(f"there are no weights at {spec}, and there is no backbone of that name{hint}")


def weights_digest(backbone: Backbone) -> str:
    """Return a digest of the weights and the normalisation of a backbone."""
    hashed = hashlib.sha256(backbone.normalisation.to_json().encode())
    for key, value in backbone.state_dict().items():
        hashed.update(key.encode() + value.cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()


# ---- its input


def preprocess(
    image: Image.Image | Pixels | str | Path, size: int, normalise: Callable[[Tensor], Tensor] = PER_IMAGE
) -> Tensor:
    """Return an image or image file as a (3, size, size) input: short side resized, centre crop, normalised.

    Weights that were trained elsewhere need their own `backbone.normalise`.
    """
    if isinstance(image, str | Path):
        file = Path(image).expanduser()
        try:
            image = read_image(file)
        except BadMedia as problem:
            raise UserError(f"{file}: {problem}") from None
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    pixels = np.asarray(resize_short_side(upright_rgb(picture), size))
    return normalise(to_floats(torch.from_numpy(centre_square(pixels, size).copy())[None]))[0]


def to_floats(pixels: Tensor) -> Tensor:
    """Return (N, H, W, 3) bytes as (N, 3, H, W) floats in [0, 1]."""
    return pixels.permute(0, 3, 1, 2).float() / 255


def resized_floats(pixels: Tensor, height: int, width: int) -> Tensor:
    """Return (N, H, W, 3) bytes as (N, 3, height, width) floats in [0, 1], with antialiasing."""
    images = to_floats(pixels)
    if images.shape[2:] == (height, width):
        return images
    return F.interpolate(images, (height, width), mode="bilinear", align_corners=False, antialias=True)


def network_input(backbone: Backbone, pixels: Tensor, size: int | None = None) -> Tensor:
    """Return (N, side, side, 3) bytes normalised for a backbone, resized to `size` if that is given."""
    return backbone.normalise(to_floats(pixels) if size is None else resized_floats(pixels, size, size))


# ---- features of pixels


@torch.no_grad()
def extract(backbone: Backbone, pixels: Pixels, device: torch.device) -> Tensor:
    """Return pool5 of (N, side, side, 3) squares at the backbone's evaluation size, flattened, (N, D) on the CPU.

    The backbone itself is not changed; a copy takes the form for evaluation.
    """
    evaluated = copy.deepcopy(backbone).for_evaluation().to(device)
    chunks = torch.from_numpy(pixels).split(FEATURE_BATCH)
    return torch.cat([pool5(evaluated, chunk.to(device), backbone.eval_size).cpu() for chunk in chunks])


@torch.no_grad()
def pool5(backbone: Backbone, pixels: Tensor, size: int, pool: Pool = "flat") -> Tensor:
    """Return features of (N, side, side, 3) bytes, resized to `size`; the backbone is in evaluation form."""
    return pooled(backbone(network_input(backbone, pixels, size)), pool).float()


def pooled(maps: Tensor, pool: Pool) -> Tensor:
    """Return (N, C, h, w) maps as one vector each; the cells of a grid are those of `adaptive_avg_pool2d`."""
    if pool == "flat":
        return maps.flatten(1)
    if pool == "grid":
        height, width = (min(GRID, side) for side in maps.shape[2:])
        return F.adaptive_avg_pool2d(maps, (height, width)).flatten(1)
    return maps.mean(dim=(2, 3)) if pool == "avg" else maps.amax(dim=(2, 3))


def feature_length(backbone: Backbone, size: int, pool: Pool) -> int:
    """Return the length of the vector of an image; a size that does not suit the backbone is a UserError."""
    backbone_features(backbone, size)
    pixels = torch.zeros(1, size, size, 3, dtype=torch.uint8, device=next(backbone.parameters()).device)
    with torch.no_grad():
        return pool5(backbone, pixels, size, pool).shape[1]


def raw_pixels(pixels: Pixels, side: int = 32) -> Tensor:
    """Return a baseline's features: the normalised image itself, (N, 3 * side * side)."""
    images = F.interpolate(to_floats(torch.from_numpy(pixels)), (side, side), mode="bilinear", antialias=True)
    return PER_IMAGE(images).flatten(1)


def colour_histograms(pixels: Pixels, bins: int = 4) -> Tensor:
    """Return a baseline's features: how many pixels have each colour, (N, bins³)."""
    counts = []
    for image in torch.from_numpy(pixels):  # one at a time: a one-hot code of all would take gigabytes
        red, green, blue = (image.flatten(0, 1).long() * bins // 256).unbind(dim=1)
        counts.append(torch.bincount((red * bins + green) * bins + blue, minlength=bins**3))
    return torch.stack(counts).float()


# ---- datasets to train and to test on


def open_pair(
    train: str | Path,
    test: str | Path,
    *,
    square: Square | None = None,
    frames: int = VIDEO_FRAMES,
    cache: Path = CACHE,
) -> tuple[LabelledDataset, LabelledDataset]:
    """Open a training and a test dataset of one kind, the second with the classes of the first."""
    training = open_dataset(train, square=square, frames=frames, cache=cache)
    testing = open_dataset(test, classes=training.classes, square=square, frames=frames, cache=cache)
    if training.kind != testing.kind:
        raise UserError(f"{train} holds {training.kind}, but {test} holds {testing.kind}: give two of a kind")
    return training, testing


# ---- features of datasets


def prefetched(make: Callable[[int], T], count: int, workers: int, console: Console, title: str) -> Iterator[T]:
    """Yield `make` of 0 to count - 1, computed by threads ahead of their use, and show the progress."""
    results = iter(Prefetcher(make, 0, count, workers))
    with closing(results), progress(console, title, count) as advance:
        for done, result in enumerate(results, start=1):
            yield result
            advance(done)


class FeatureChunk(NamedTuple):
    """Features of the frames of some items that follow one another."""

    values: Tensor
    """(frames, ...)"""
    items: Tensor
    """(frames,) index of the item that each frame is of"""
    skipped: Sequence[Skipped] = ()


@dataclass(frozen=True)
class FeatureCache:
    """A folder of features, one file for each part, from which an interrupted extraction resumes."""

    folder: Path
    identity: str
    """Digest of the data, weights and options; a folder with another one is refused."""

    def __post_init__(self) -> None:
        header = self.folder / "job.txt"
        if header.exists():
            if header.read_text() != self.identity:
                raise OtherEvaluation(
                    f"{self.folder} was begun with other files, weights or options: delete it, or choose another --out"
                )
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(header) as draft:
            draft.write_text(self.identity)

    @classmethod
    def at(cls, folder: Path | None, job: Iterable[object]) -> "FeatureCache | None":
        """Return the cache of a job in a folder; None without a folder."""
        return None if folder is None else cls(folder, digest(job))

    def __contains__(self, part: range) -> bool:
        return self._file(part).exists() or self._joined.exists()

    def save(self, part: range, chunk: FeatureChunk) -> None:
        """Write the features of a part."""
        _save_arrays(self._file(part), values=chunk.values.numpy(), **_item_arrays(chunk.items, chunk.skipped))

    def load(self, part: range) -> FeatureChunk:
        """Read the features of a part."""
        with suppress(FileNotFoundError), np.load(self._file(part)) as stored:  # or it was joined to the others
            return FeatureChunk(torch.from_numpy(stored["values"]), *_load_items(stored))
        first, last = np.searchsorted(self._whole.items.numpy(), [part.start, part.stop])
        skipped = self._whole.skipped if part.start == 0 else []
        return FeatureChunk(self._whole.values[first:last], self._whole.items[first:last], skipped)

    def join(self) -> FeatureChunk:
        """Return the features of all parts, which must be there, mapped from one file that takes their place.

        Mapped features may be larger than the memory. While they are joined, they need twice their space on the disk.
        """
        if not self._joined.exists():
            try:
                self._join()
            except FileNotFoundError:
                if not self._joined.exists():  # otherwise another process has joined them meanwhile
                    raise
        for file in self._parts():
            file.unlink(missing_ok=True)
        return self._whole

    def _join(self) -> None:
        chunks = []
        for file in self._parts():
            with np.load(file) as stored:
                items, skipped = _load_items(stored)
                shape = stored["values"].shape[1:] if len(items) else None
            chunks.append((file, items, skipped, shape))
        shape = next(shape for _, _, _, shape in chunks if shape is not None)
        items = torch.cat([items for _, items, _, _ in chunks])
        with atomic_write(self._values) as draft:
            table = np.lib.format.open_memmap(draft, mode="w+", dtype=np.float32, shape=(len(items), *shape))
            begin = 0
            for file, own, _, _ in chunks:
                if len(own):
                    with np.load(file) as stored:
                        table[begin : begin + len(own)] = stored["values"]
                begin += len(own)
            table.flush()
        skipped = [entry for _, _, entries, _ in chunks for entry in entries]
        _save_arrays(self._joined, **_item_arrays(items, skipped))

    @cached_property
    def _whole(self) -> FeatureChunk:
        """The features of all parts, once they are joined."""
        with np.load(self._joined) as stored:
            items, skipped = _load_items(stored)
        # copy on write: torch warns of arrays that cannot be written to
        return FeatureChunk(torch.from_numpy(np.load(self._values, mmap_mode="c")), items, skipped)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.npz"))

    def _file(self, part: range) -> Path:
        return self.folder / f"{part.start:09}.npz"

    @property
    def _values(self) -> Path:
        return self.folder / "values.npy"

    @property
    def _joined(self) -> Path:
        """File of the items and the skipped files, written after the values."""
        return self.folder / "joined.npz"


def _save_arrays(path: Path, **arrays: Any) -> None:
    with atomic_write(path) as draft, draft.open("wb") as file:
        np.savez(file, **arrays)


def _item_arrays(items: Tensor, skipped: Sequence[Skipped]) -> dict[str, npt.NDArray[Any]]:
    return {"items": items.numpy(), "skipped": np.array(skipped, str).reshape(-1, 2)}


def _load_items(stored: Mapping[str, npt.NDArray[Any]]) -> tuple[Tensor, list[Skipped]]:
    skipped = [(str(file), str(reason)) for file, reason in stored["skipped"]]
    return torch.from_numpy(stored["items"]), skipped


def extract_features(
    dataset: LabelledDataset,
    compute: Callable[[Tensor], Tensor],
    device: torch.device,
    console: Console,
    title: str,
    *,
    batch: int = FEATURE_BATCH,
    workers: int = WORKERS,
    cache: FeatureCache | None = None,
    item_means: bool = False,
) -> Iterator[FeatureChunk]:
    """Yield `compute` of the (frames, side, side, 3) bytes of all items in their order, on the CPU, a part at a time.

    Threads decode the items; they are never all in memory. Unreadable ones are left out and added to
    `dataset.skipped`. Parts in the cache are not computed again. With `item_means` an item has one value, the mean of
    its frames' values.
    """
    frames = dataset.frames_per_item
    parts = _ranges(range(len(dataset)), max(1, PART // frames))
    missing = [part for part in parts if cache is None or part not in cache]
    batches = {part: _ranges(part, max(1, batch // frames)) for part in missing}
    flat = [indices for part in missing for indices in batches[part]]
    coming = iter(Prefetcher(lambda number: _load_batch(dataset, flat[number]), 0, len(flat), workers))
    done = len(dataset) - sum(map(len, missing))
    if 0 < done < len(dataset):
        say(console, f"resuming: {done} of {counted(len(dataset), dataset.kind)} were done before")
    rows = 0
    with closing(coming), progress(console, title, len(dataset)) as advance:
        for part in parts:
            if part in batches:
                chunk = _compute(islice(coming, len(batches[part])), compute, device, item_means)
                if cache is not None:
                    cache.save(part, chunk)
            else:
                assert cache is not None
                chunk = cache.load(part)
            dataset.skipped.extend(chunk.skipped)
            if len(chunk.items):
                rows += len(chunk.items)
                yield chunk
            advance(part.stop)
    if not rows:
        file, reason = dataset.skipped[0]
        count = counted(len(dataset), dataset.kind)
        listed = write_skipped(skipped_file(dataset.address, CACHE), dataset.skipped)
        raise UserError(
            f"none of the {dataset.kind} can be read ({count}; first problem: {file}: {reason}); "
            f"all are listed in {listed}"
        )


def item_features(
    backbone: Backbone,
    dataset: LabelledDataset,
    device: torch.device,
    console: Console,
    title: str,
    *,
    pool: Pool,
    batch: int = FEATURE_BATCH,
    workers: int | None = None,
    cache: FeatureCache | None = None,
) -> Iterator[FeatureChunk]:
    """Yield a vector for each item of a dataset, for a video the mean over its frames; see `extract_features`."""
    return extract_features(
        dataset,
        lambda pixels: pool5(backbone, pixels, dataset.square.side, pool),
        device,
        console,
        title,
        batch=batch,
        workers=workers or WORKERS,
        cache=cache,
        item_means=True,
    )


def readable_items(
    dataset: LabelledDataset, console: Console, *, workers: int, cache: FeatureCache | None
) -> LabelledDataset:
    """Return the items that can be read; the others are added to `skipped`."""

    def nothing(pixels: Tensor) -> Tensor:
        return torch.zeros(len(pixels), 0)

    chunks = extract_features(
        dataset, nothing, torch.device("cpu"), console, "reading", workers=workers, cache=cache, item_means=True
    )
    return dataset.subset(torch.cat([chunk.items for chunk in chunks]).tolist())


def merge_chunks(chunks: Sequence[FeatureChunk]) -> FeatureChunk:
    """Return the values and items of several chunks as one."""
    return FeatureChunk(torch.cat([chunk.values for chunk in chunks]), torch.cat([chunk.items for chunk in chunks]))


def _ranges(whole: range, length: int) -> list[range]:
    return [whole[start : start + length] for start in range(0, len(whole), length)]


def _load_batch(dataset: LabelledDataset, indices: range) -> FeatureChunk:
    """Return the bytes of the frames of the readable items."""
    frames, items, skipped = [], [], []
    for index in indices:
        try:
            pixels = dataset.load(index)
        except BadMedia as reason:
            skipped.append((dataset.location(index), str(reason)))
        else:
            frames.append(pixels)
            items += [index] * len(pixels)
    values = torch.from_numpy(np.concatenate(frames)) if frames else torch.zeros(0)
    return FeatureChunk(values, torch.tensor(items, dtype=torch.long), skipped)


def _compute(
    batches: Iterable[FeatureChunk], compute: Callable[[Tensor], Tensor], device: torch.device, item_means: bool
) -> FeatureChunk:
    computed, skipped = list[FeatureChunk](), list[Skipped]()
    for batch in batches:
        if len(batch.items):
            computed.append(batch._replace(values=compute(batch.values.to(device)).cpu()))
        skipped += batch.skipped
    if not computed:
        return FeatureChunk(torch.zeros(0), torch.zeros(0, dtype=torch.long), skipped)
    chunk = merge_chunks(computed)._replace(skipped=skipped)
    return mean_per_item(chunk) if item_means else chunk


def mean_per_item(chunk: FeatureChunk) -> FeatureChunk:
    """Return one vector for each item: the mean of those of its frames."""
    items, owners, counts = chunk.items.unique_consecutive(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(items), chunk.values.shape[1]).index_add_(0, owners, chunk.values)
    return FeatureChunk(sums / counts[:, None], items, chunk.skipped)
