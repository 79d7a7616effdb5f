"""How much of the last map should a feature vector keep? Leave-one-out retrieval of images with each pooling.

    python benchmarks/pooling.py CLASSES [--weights pretrained ...] [--device cpu]

CLASSES are class folders; the nearest other image, by cosine, should have the class. Use the training side of a data
set: the pooling of `unshuffle embed` was chosen by this. Results go to results/pooling_DEVICE.csv.
"""

import argparse
from typing import Any

import torch
from rich.console import Console
from rivals import nearest_other
from table import write_table
from torch.nn import functional as F

from unshuffle.accelerator import choose_device
from unshuffle.evaluation.features import find_backbone
from unshuffle.evaluation.index import build_index, open_unlabelled


def main() -> None:
    """Measure every pooling of every network, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("classes")
    parser.add_argument("--weights", nargs="+", default=["pretrained", "random:caffenet"])
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    rows = [row for weights in args.weights for row in rows_of(weights, args)]
    write_table(f"pooling_{torch.device(args.device).type}", rows, args.device)


def rows_of(weights: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the figures of all poolings of one network."""
    backbone, device = find_backbone(weights), choose_device(args.device)
    dataset = open_unlabelled(backbone, args.classes)
    index = build_index(backbone, dataset, weights, pool="flat", device=device, console=Console(stderr=True))
    names = [path.parent.name for path in index.dataset.paths()]
    classes = sorted(set(names))
    labels = torch.tensor([classes.index(name) for name in names])
    maps = index.features.unflatten(1, (backbone.channels, -1))
    side = round(maps.shape[2] ** 0.5)
    maps = maps.unflatten(2, (side, side))
    poolings = {
        "avg": maps.mean(dim=(2, 3)),
        "max": maps.amax(dim=(2, 3)),
        **{f"{cells} x {cells}": F.adaptive_avg_pool2d(maps, cells).flatten(1) for cells in range(2, side)},
        "flat": maps.flatten(1),
    }
    families = torch.arange(len(labels))
    return [
        {
            "weights": weights,
            "pooling": name,
            "numbers": vectors.shape[1],
            "images": len(labels),
            "top1": round(nearest_other(vectors, labels, families), 1),
        }
        for name, vectors in poolings.items()
    ]


if __name__ == "__main__":
    main()
