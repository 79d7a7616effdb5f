"""Similarity of copies of photographs and of different ones, for the threshold of `unshuffle neighbours`.

    python benchmarks/near_duplicates.py PHOTOS [--weights pretrained random:caffenet] [--count 100]

PHOTOS is a folder of photographs without copies, of which `--count`, evenly spaced, are compared. `found` is the
percentage of the copies at or above the threshold of near-duplicates, `nearest` of those whose original is the most
similar photograph. The row "another photograph" is about the nearest other photograph of each. Results go to
results/near_duplicates_cpu.csv.
"""

import argparse
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageEnhance, ImageOps
from rich.console import Console
from table import write_table
from torch import Tensor

from unshuffle.config import FEATURE_BATCH, NEAR_DUPLICATE, Pool
from unshuffle.evaluation.features import find_backbone, pooled, preprocess
from unshuffle.evaluation.index import Index, build_index, open_unlabelled
from unshuffle.runs.history import evenly_spaced


def main() -> None:
    """Measure every network and pooling, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--weights", nargs="+", default=["pretrained", "random:caffenet"])
    parser.add_argument("--count", type=int, default=100)
    args = parser.parse_args()
    pools: tuple[Pool, ...] = ("flat", "avg")
    rows = [
        {"weights": weights, "pool": pool, **row}
        for weights in args.weights
        for pool in pools
        for row in measure(weights, pool, args.photos, args.count)
    ]
    write_table("near_duplicates_cpu", rows, note=f"{args.count} photographs, threshold {NEAR_DUPLICATE}")


def measure(weights: str, pool: Pool, photos: Path, count: int) -> list[dict[str, Any]]:
    """Return a row for different photographs and one for each kind of copy."""
    backbone = find_backbone(weights)
    dataset = open_unlabelled(backbone, photos, kind="images")
    dataset = dataset.subset(evenly_spaced(range(len(dataset)), count))
    index = build_index(backbone, dataset, weights, pool=pool, device=torch.device("cpu"), console=Console(quiet=True))
    others = index.neighbours(1).similarities[:, 0]
    rows = [summary("another photograph", others)]
    for name, change in COPIES.items():
        values, is_nearest = similarities(index, change)
        rows.append(summary(name, values) | {"nearest": round(100 * is_nearest, 1)})
    return rows


def similarities(index: Index, change: Callable[[Image.Image], Image.Image]) -> tuple[Tensor, float]:
    """Return the similarity of each photograph to its copy, and the fraction whose original is the nearest."""
    paths, features = index.dataset.paths(), []
    with torch.inference_mode():
        for start in range(0, len(paths), FEATURE_BATCH):
            copies = [change(Image.open(path).convert("RGB")) for path in paths[start : start + FEATURE_BATCH]]
            inputs = [preprocess(copy, index.dataset.square.side, index.backbone.normalise) for copy in copies]
            features.append(pooled(index.backbone(torch.stack(inputs)), index.pool))
    near = index.search(torch.cat(features), len(index))
    own = near.items == torch.arange(len(index))[:, None]
    return near.similarities[own], float(own[:, 0].float().mean())


def summary(copy: str, values: Tensor) -> dict[str, Any]:
    """Return quantiles, and the percentage that counts as near-duplicates."""
    quantiles = {f"{percent} %": round(float(values.quantile(percent / 100)), 3) for percent in (5, 50, 95, 100)}
    return {
        "copy": copy,
        **quantiles,
        "found": round(100 * float((values >= NEAR_DUPLICATE).float().mean()), 1),
        "nearest": "",
    }


def _recompressed(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=40)
    return Image.open(buffer)


def _cropped(image: Image.Image, fraction: float) -> Image.Image:
    width, height = image.size
    return image.crop((fraction * width, fraction * height, width, height))


COPIES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2)),
    "JPEG, quality 40": _recompressed,
    "brighter by 20 %": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "grayscale": lambda image: image.convert("L").convert("RGB"),
    "5 % cut off": lambda image: _cropped(image, 0.05),
    "10 % cut off": lambda image: _cropped(image, 0.1),
    "flipped": ImageOps.mirror,
}


if __name__ == "__main__":
    main()
