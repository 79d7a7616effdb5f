"""Puzzles: held-out samples, shuffled, and as the network puts them back in order."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from unshuffle.data.crops import resize
from unshuffle.data.held_out import HeldOut
from unshuffle.data.media import encode_jpeg
from unshuffle.data.source import Pixels
from unshuffle.data.squares import Squares
from unshuffle.permutations import inverse
from unshuffle.randomness import torch_generator
from unshuffle.report.snapshot import Snapshot

THUMBNAIL_QUALITY, STRIP_QUALITY = 80, 85
JPEG_URI = "data:image/jpeg;base64,"


def restored_order(shown: Tensor, predicted: Tensor) -> Tensor:
    """Return which part is at each position when parts shuffled by ψ are put back by ψ̂; rows of (..., P).

    The result is 0, 1, 2 ... where ψ̂ is ψ.
    """
    inverted = torch.from_numpy(inverse(predicted.cpu().numpy())).to(shown.device)
    return shown.gather(-1, inverted)


def correct_positions(restored: Tensor) -> Tensor:
    """Return the number of parts at their true position, for each row of (..., P)."""
    return (restored == torch.arange(restored.shape[-1], device=restored.device)).sum(dim=-1)


@dataclass(frozen=True)
class Puzzles:
    """Validation samples, the permutations that were applied to them, and the predicted ones."""

    names: Sequence[str]
    pixels: Tensor
    """(N, frames, H, W, 3) bytes"""
    parts: Tensor
    """(N, P, 3, S, S) in [0, 1]: the network's crops, not shuffled and not normalised."""
    shown: Tensor
    """(N, P) ψ"""
    predicted: Tensor
    """(N, P) ψ̂"""

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def restored(self) -> Tensor:
        """(N, P) the parts in the order that the network restores."""
        return restored_order(self.shown, self.predicted)

    def is_solved(self, sample: int) -> bool:
        """Return whether the permutation of a sample was recognised."""
        return torch.equal(self.shown[sample], self.predicted[sample])

    @property
    def solved(self) -> list[int]:
        """The samples whose permutation was recognised."""
        return [sample for sample in range(len(self)) if self.is_solved(sample)]

    def subset(self, samples: Sequence[int]) -> "Puzzles":
        """Return some of the samples, in the given order."""
        rows = list(samples)
        arrays = {name: getattr(self, name)[rows] for name in ("pixels", "parts", "shown", "predicted")}
        return replace(self, names=[self.names[sample] for sample in rows], **arrays)

    def right_and_wrong(self, count: int) -> "Puzzles":
        """Return at most `count` samples, the recognised ones first; half of them were not, if there are so many."""
        return self.subset(right_and_wrong([self.is_solved(sample) for sample in range(len(self))], count))

    def verdict(self, sample: int, noun: str = "") -> str:
        """Return how many parts of a sample are at their true position; `noun` is what the parts are called."""
        if self.is_solved(sample):
            return "recognised"
        correct = int(correct_positions(self.restored[sample]))
        return f"{correct} of {self.shown.shape[1]} {noun} in place".replace("  ", " ")


def right_and_wrong(right: Sequence[bool], count: int) -> list[int]:
    """Return the indices of at most `count` answers, the right ones first; half are wrong, if there are so many."""
    good = [index for index, is_right in enumerate(right) if is_right]
    bad = [index for index, is_right in enumerate(right) if not is_right]
    few = min(len(bad), max(count // 2, count - len(good)))
    return [*good[: count - few], *bad[:few]]


def solve_puzzles(snapshot: Snapshot, task: str, count: int, rounds: int = 1) -> Puzzles:
    """Let the network order up to `count` of the samples, each shuffled `rounds` times by a random permutation of Ψ."""
    samples, ordering = snapshot.held_out[task], snapshot.ordering_tasks[task]
    permutations = ordering.permutations
    # sampled on the CPU, so that every device shows the same puzzles
    generator = torch_generator(torch.device("cpu"), snapshot.config.seed, "pictures", task)
    chosen = torch.randperm(len(samples), generator=generator)[:count].repeat(rounds)
    pixels = samples.pixels[chosen]
    labels = torch.randint(len(permutations), (len(pixels),), generator=generator).to(permutations.device)
    crops = ordering.crops(Squares.of(pixels).to(snapshot.device))
    predicted = permutations[ordering.recognise(snapshot.network, crops, labels)]
    parts = ordering.pictures(pixels, ordering.settings.crop_size)
    names = [samples.names[position] for position in chosen.tolist()]
    return Puzzles(names, pixels, parts, permutations[labels].cpu(), predicted.cpu())


# ---- pictures as text inside a page


def data_uri(pixels: Pixels, quality: int) -> str:
    """Return (H, W, 3) bytes as a data: URI of a JPEG."""
    return f"{JPEG_URI}{base64.b64encode(encode_jpeg(pixels, quality, optimize=True)).decode()}"


def thumbnails(frames: Tensor, side: int) -> list[str]:
    """Return (N, S, S, 3) bytes as data: URIs of square pictures of at most `side` pixels."""
    images = resize(frames.permute(0, 3, 1, 2).float() / 255, min(side, frames.shape[1]))
    return [data_uri(picture, THUMBNAIL_QUALITY) for picture in _to_bytes(images)]


def picture_uri(picture: Tensor) -> str:
    """Return a (3, S, S) picture in [0, 1] as a data: URI."""
    return data_uri(_to_bytes(picture[None])[0], THUMBNAIL_QUALITY)


def strip(parts: Tensor) -> str:
    """Return (P, 3, S, S) parts in [0, 1] side by side in one picture, from which the page shows any permutation."""
    return data_uri(np.concatenate(list(_to_bytes(parts)), axis=1), STRIP_QUALITY)


def highest_contrast(samples: HeldOut) -> int:
    """Return the sample with the highest contrast, on which a permutation is easy to see."""
    return int(samples.pixels.float().flatten(1).std(dim=1).argmax())


def _to_bytes(images: Tensor) -> Pixels:
    """Return (N, 3, H, W) in [0, 1] as (N, H, W, 3) bytes."""
    pixels: Pixels = images.clamp(0, 1).mul(255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return pixels
