"""How far low-level similarity gets with the temporal task: restore the order in which similar frames are neighbours.

    python benchmarks/frame_similarity.py --videos FOLDER --val_videos FOLDER [--weights WEIGHTS ...]
                                          [--permutations 100] [--val_size 434]

For every permutation of every validation clip, predict the permutation of Ψ whose inversion makes the clip smoothest:
the sum of the distances between neighbouring frames is smallest (`path`), or the distances between all frames correlate
best with their distance in time (`seriation`). Nothing is trained. Distances are between raw pixels, pixels of 8 x 8
frames, colour histograms, and pool5 of the given backbones. The frames of a clip share the centre crop (`one`), or each
has a random crop anywhere in the frame, as in the paper's training (`own`); its side is 0.7 of the frame's short side,
as in the preset `small`, or 224/240, as in the paper. A clip and its reverse are equally smooth: where Ψ holds both,
each counts half. Results go to results/frame_similarity.csv.
"""

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from table import write_table
from torch import Tensor

from unshuffle.config import preset_config
from unshuffle.data.batches import Samples
from unshuffle.data.crops import resize
from unshuffle.data.squares import Squares
from unshuffle.evaluation.features import find_backbone
from unshuffle.options import merge
from unshuffle.tasks import build_tasks
from unshuffle.tasks.ordering import OrderingTask
from unshuffle.tasks.prepare import prepare

CROP_FRACTIONS = (0.7, 224 / 240)
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
            "temporal": {"permutations": args.permutations, "colour_jitter": False},
            "augmentation": {"hflip": 0.0},
            "data": {"val_videos": args.val_videos, "val_size": args.val_size},
            "policy": {"sampler": "uniform"},
        },
    )
    rows = []
    for fraction, own in itertools.product(CROP_FRACTIONS, (False, True)):
        cropped = merge(config, {"temporal": {"crop_fraction": fraction}})
        task = build_tasks(cropped, ["temporal"])["temporal"]
        assert isinstance(task, OrderingTask)
        clips = task.crops(Squares.of(evenly_spaced_frames(prepare(cropped).validation["temporal"], own)))
        for row in measure(clips, task.permutations, args.weights):
            rows.append({"crop_fraction": round(fraction, 4), "crops": "own" if own else "one", **row})
            print(rows[-1], flush=True)
    write_table("frame_similarity", rows)


def evenly_spaced_frames(samples: Samples, own: bool) -> Tensor:
    """Read the frames of validation with the centre window of all of them, or with a random window of each."""
    windows = samples.centre_windows(samples.items)
    if own:
        windows = replace(windows, corners=samples.random_windows(samples.items, np.random.default_rng(0)).corners)
    return samples.read(windows)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", required=True)
    parser.add_argument("--val_videos", required=True)
    parser.add_argument("--weights", nargs="*", default=["random:caffenet"])
    parser.add_argument("--permutations", type=int, default=100)
    parser.add_argument("--val_size", type=int, default=434)
    return parser.parse_args()


def measure(clips: Tensor, permutations: Tensor, weights: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the error of each kind of distance and of smoothness."""
    for name, features in all_features(clips, weights):
        distances = torch.cdist(features, features)
        for smoothness, cost in (("path", path), ("seriation", seriation)):
            wrong = error(distances, permutations, cost)
            yield {"distance": name, "smoothness": smoothness, "error": round(wrong, 4)}


def all_features(clips: Tensor, weights: list[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield names and (B, P, D) features of the frames of (B, P, 3, S, S) clips."""
    yield "pixels", clips.flatten(2)
    yield "pixels of 8 x 8", resize(clips.flatten(0, 1), 8).unflatten(0, clips.shape[:2]).flatten(2)
    yield "colour histogram", histograms(clips)
    for name in weights:
        yield f"pool5 of {Path(name).name}", pool5(clips, name)


def histograms(clips: Tensor, bins: int = 4) -> Tensor:
    """Return the (B, P, bins³) fraction of pixels in each cell of the colour cube; normalised crops lie within ±2."""
    cells = ((clips + 2) * bins / 4).long().clamp(0, bins - 1).flatten(3)
    codes = (cells[:, :, 0] * bins + cells[:, :, 1]) * bins + cells[:, :, 2]
    return torch.nn.functional.one_hot(codes, bins**3).float().mean(dim=2)


@torch.no_grad()
def pool5(clips: Tensor, weights: str) -> Tensor:
    """Return the backbone's features of each frame."""
    backbone = find_backbone(weights).eval()
    return torch.stack([backbone(clip).flatten(1) for clip in clips])


def path(distances: Tensor) -> Tensor:
    """Return the length of the path from the first to the last frame, from (..., P, P) distances in order."""
    return distances.diagonal(1, -2, -1).sum(dim=-1)


def seriation(distances: Tensor) -> Tensor:
    """Return minus the correlation of (..., P, P) distances in order with the distances in time."""
    positions = torch.arange(distances.shape[-1])
    gaps = (positions[:, None] - positions).abs().float()
    gaps = gaps - gaps.mean()
    residual = distances - distances.mean(dim=(-2, -1), keepdim=True)
    return -(residual * gaps).sum(dim=(-2, -1)) / residual.square().sum(dim=(-2, -1)).sqrt().clamp(min=1e-9)


def error(distances: Tensor, permutations: Tensor, cost: Smoothness) -> float:
    """Return the fraction of all (permutation, sample) pairs for which the smoothest restored clip is the wrong one."""
    hits = 0.0
    inverses = permutations.argsort(dim=1)
    for label, permutation in enumerate(permutations):
        restored = permutation[inverses]  # (|Ψ|, P): the frame that each prediction puts at each position
        costs = cost(distances[:, restored[:, :, None], restored[:, None, :]])
        least = costs.min(dim=1, keepdim=True).values
        best = costs <= least + 1e-5 * least.abs() + 1e-9
        hits += float((best[:, label].float() / best.sum(dim=1)).mean())
    return 1 - hits / len(permutations)


if __name__ == "__main__":
    main()
