"""How far low-level similarity gets with the temporal task: the order in which like frames follow each other.

    python benchmarks/frame_similarity.py --videos FOLDER --val_videos FOLDER [--weights WEIGHTS ...]
                                          [--permutations 100] [--val_size 434]

For every permutation of every validation clip the answer is the one of Ψ after which the restored clip is smoothest:
the sum of the distances between neighbouring frames is least (`path`), or the distances between all frames grow most
evenly with their distance in time (`seriation`). Nothing is learned for it. Distances are those of raw pixels, of
pixels of 8 x 8 frames, of colour histograms, and of pool5 of the given backbones. The frames of a clip have one crop, the
centre, or each has its own at random, as when the paper trains; their side is 0.7 of the frame's, as in the preset
`small`, or 0.875, as in the paper. A clip and its reverse are equally smooth: where Ψ holds both, each gets half a
point. Results go to results/frame_similarity.csv.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from table import write_table
from torch import Tensor
from unshuffle.assembly import build_trainer
from unshuffle.data.prepare import prepare

from unshuffle.config import preset_config
from unshuffle.data.crops import resize
from unshuffle.data.squares import Squares
from unshuffle.evaluation.features import find_backbone
from unshuffle.options import merge
from unshuffle.training.trainer import Trainer

SHARES = (0.7, 0.875)
Smoothness = Callable[[Tensor], Tensor]


def main() -> None:
    """Measure every kind of crop and of distance, write the table."""
    args = arguments()
    config = merge(
        preset_config("small"),
        {
            "tasks": "T",
            "videos": args.videos,
            "device": "cpu",
            "permutations": {"temporal": args.permutations},
            "data": {"val_videos": args.val_videos, "val_size": args.val_size},
            "policy": {"sampler": "uniform"},
            "shuffle": {"frame_jitter": False, "mirror": False},
        },
    )
    data, rows = prepare(config), []
    for share, own in itertools.product(SHARES, (False, True)):
        trainer = build_trainer(merge(config, {"shuffle": {"shared_crop": not own, "frame_share": share}}), data)
        for row in measure(all_clips(trainer, own), trainer.permutations["temporal"], args.weights):
            rows.append({"frame_share": share, "crops": "own" if own else "one", **row})
            print(rows[-1], flush=True)
    write_table("frame_similarity", rows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", required=True)
    parser.add_argument("--val_videos", required=True)
    parser.add_argument("--weights", nargs="*", default=["random:caffenet"])
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument("--val_size", type=int, default=434)
    return parser.parse_args()


def measure(clips: Tensor, orders: Tensor, weights: list[str]) -> Iterator[dict[str, Any]]:
    """The error of each kind of distance."""
    for name, features in all_features(clips, weights):
        distances = torch.cdist(features, features)
        for way, cost in (("path", path), ("seriation", seriation)):
            yield {"distance": name, "smoothness": way, "error": round(error(distances, orders, cost), 4)}


def all_clips(trainer: Trainer, own_crops: bool) -> Tensor:
    """(B, P, 3, S, S) X_val: centre crops, or a random one for each frame as in training."""
    if not own_crops:
        return torch.cat(list(trainer.validation_crops("temporal")))
    squares = Squares.of(trainer.validation_pixels["temporal"])
    return trainer.crops("temporal", squares, torch.Generator().manual_seed(0))


def all_features(clips: Tensor, weights: list[str]) -> Iterator[tuple[str, Tensor]]:
    """(B, P, D) of the frames of (B, P, 3, S, S) clips, by what they are."""
    yield "pixels", clips.flatten(2)
    yield "pixels of 8 x 8", resize(clips.flatten(0, 1), 8).unflatten(0, clips.shape[:2]).flatten(2)
    yield "colour histogram", histograms(clips)
    for name in weights:
        yield f"pool5 of {Path(name).name}", pool5(clips, name)


def histograms(clips: Tensor, bins: int = 4) -> Tensor:
    """(B, P, bins³) share of the pixels in each cell of the colour cube; the crops are normalised, so within ±2."""
    cells = ((clips + 2) * bins / 4).long().clamp(0, bins - 1).flatten(3)
    codes = (cells[:, :, 0] * bins + cells[:, :, 1]) * bins + cells[:, :, 2]
    return torch.nn.functional.one_hot(codes, bins**3).float().mean(dim=2)


@torch.no_grad()
def pool5(clips: Tensor, weights: str) -> Tensor:
    """The backbone's features."""
    backbone = find_backbone(weights).eval()
    return torch.stack([backbone(clip).flatten(1) for clip in clips])


def path(distances: Tensor) -> Tensor:
    """(..., P, P) distances in order to the length of the way from the first to the last."""
    return distances.diagonal(1, -2, -1).sum(dim=-1)


def seriation(distances: Tensor) -> Tensor:
    """(..., P, P) distances in order to minus their correlation with the distances in time."""
    places = torch.arange(distances.shape[-1])
    gaps = (places[:, None] - places).abs().float()
    gaps = gaps - gaps.mean()
    rest = distances - distances.mean(dim=(-2, -1), keepdim=True)
    return -(rest * gaps).sum(dim=(-2, -1)) / rest.square().sum(dim=(-2, -1)).sqrt().clamp(min=1e-9)


def error(distances: Tensor, orders: Tensor, cost: Smoothness) -> float:
    """Share of all (permutation, sample) pairs that the smoothest restored clip gets wrong."""
    hits = 0.0
    restoring = orders.argsort(dim=1)
    for label, order in enumerate(orders):
        restored = order[restoring]  # (|Ψ|, P): which frame each answer puts at each place
        costs = cost(distances[:, restored[:, :, None], restored[:, None, :]])
        least = costs.min(dim=1, keepdim=True).values
        best = costs <= least + 1e-5 * least.abs() + 1e-9
        hits += float((best[:, label].float() / best.sum(dim=1)).mean())
    return 1 - hits / len(orders)


if __name__ == "__main__":
    main()
