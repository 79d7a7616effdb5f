"""Which held-out images a network takes for alike."""

from dataclasses import dataclass

from torch import Tensor

from unshuffle.evaluation.features import extract, raw_pixels
from unshuffle.evaluation.retrieval import nearest
from unshuffle.report.snapshot import Snapshot

NEIGHBOURS = 6


@dataclass(frozen=True)
class Likeness:
    """Images, and for each of them the others that are nearest."""

    names: list[str]
    frames: Tensor
    """(N, side, side, 3) bytes"""
    nearest: dict[str, list[list[int]]]
    """By the features of the network, and by those it has to beat; the nearest first."""


def find_alike(snapshot: Snapshot, count: int = NEIGHBOURS) -> Likeness | None:
    """The held-out images, or the middle frames of the held-out clips; None if there are fewer than two."""
    task = next((task for task in ("spatial", "temporal") if len(snapshot.held_out.get(task, ())) > 1), None)
    if task is None:
        return None
    samples = snapshot.held_out[task]
    frames = samples.pixels[:, samples.pixels.shape[1] // 2]
    features = {
        "this network": extract(snapshot.network.backbone, frames.numpy(), snapshot.device),
        "raw pixels": raw_pixels(frames.numpy()),
    }
    found = {name: nearest_others(vectors, min(count, len(frames) - 1)) for name, vectors in features.items()}
    return Likeness(list(samples.names), frames, found)


def nearest_others(vectors: Tensor, count: int) -> list[list[int]]:
    """The nearest vectors of each, itself left out: a copy of it may stand before it."""
    found = nearest(vectors, vectors, count + 1).tolist()
    return [[place for place in row if place != own][:count] for own, row in enumerate(found)]
