"""RankMe (Garrido et al., ICML 2023): the effective rank of the features of unlabelled data."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, Self

import torch
from annotated_types import Ge
from rich.console import Console
from torch import Tensor

from unshuffle.accelerator import choose_device
from unshuffle.config import Count
from unshuffle.data.dataset import Square, open_dataset
from unshuffle.errors import UserError
from unshuffle.evaluation.features import (
    WORKERS,
    FeatureCache,
    extract_features,
    find_backbone,
    pool5,
    weights_digest,
)
from unshuffle.evaluation.protocol import Evaluation, Result, note_skipped, skipped_figures
from unshuffle.randomness import numpy_rng

EPSILON = 1e-7


def effective_rank(features: Tensor) -> float:
    """Return exp of the entropy of the normalised singular values of (N, D) features, between 1 and min(N, D).

    It is NaN where the features are not finite.
    """
    if not features.isfinite().all():  # which has no eigenvalues
        return math.nan
    # The singular values of a matrix are the roots of its smaller Gram matrix' eigenvalues, which are far cheaper.
    wide = features if len(features) <= features.shape[1] else features.T
    values = wide.double() if wide.device.type != "mps" else wide.cpu().double()
    singular = torch.linalg.eigvalsh(values @ values.T).clamp(min=0).sqrt()
    fractions = singular / singular.sum().clamp(min=torch.finfo(singular.dtype).tiny) + EPSILON
    return float((-fractions * fractions.log()).sum().exp())


@dataclass(frozen=True)
class RankMe(Evaluation):
    """Effective rank of the features of unlabelled images (RankMe): a low rank is a sign of collapse."""

    images: str | None = None
    """Images without labels: a folder, flat or nested, a packed store, tar shards, VOC2007/ImageSets/Main/trainval.txt
    for the objects of VOC, or synthetic:images:COUNT:SEED. Of videos the middle frames are used."""
    kind: Literal["auto", "images", "videos"] = "auto"
    """What to read; auto works if there are only images or only videos."""
    limit: Annotated[int, Ge(0)] = 25_600
    """Evaluate at most this many images, sampled with the seed; the rank is bounded by their number; 0 is no limit."""
    batch_size: Count = 64
    """Images per forward pass; lower it if memory runs out."""
    workers: Count = WORKERS
    """Threads that decode files."""

    @classmethod
    def quick(cls) -> Self:
        """Return the options for at most 1,000 images."""
        return cls(preset="quick", limit=1000)

    incidental = Evaluation.incidental | {"batch_size"}
    stated = Evaluation.stated | {"kind"}

    def measure(self, console: Console) -> Result:
        """Measure the effective rank of pool5."""
        if self.images is None:
            raise UserError("there are no images to rank: give --images")
        device = choose_device(self.device)
        backbone = find_backbone(self.weights, self.seed, self.architecture, self.download).to(device)
        square = Square(backbone.eval_size)
        dataset = open_dataset(self.images, kind=self.kind, labelled=False, square=square, frames=1)
        if dataset.exceeds(self.limit):
            order = numpy_rng(self.seed, "rankme").permutation(len(dataset))
            dataset = dataset.subset(sorted(order[: self.limit].tolist()))
        chunks = extract_features(
            dataset,
            lambda pixels: pool5(backbone, pixels, backbone.eval_size),
            device,
            console,
            dataset.kind,
            batch=self.batch_size,
            workers=self.workers,
            cache=FeatureCache.at(self.folder("features/images"), [weights_digest(backbone), dataset.identity()]),
        )
        features = torch.cat([chunk.values for chunk in chunks])
        note_skipped(console, dataset, dataset.kind, self.out)
        count, dimensions = features.shape
        rank = effective_rank(features.to(device))
        return Result(
            "RankMe",
            f"{count:,} {dataset.kind} ({self.images}), centre square at {backbone.eval_size} px; "
            f"exp of the entropy of the singular values of pool5 ({dimensions:,} numbers), "
            f"to compare with equal numbers of {dataset.kind} only",
            {"rankme": rank, "images": count, "dimensions": dimensions, "skipped": skipped_figures(dataset.skipped)},
            f"effective rank {rank:.1f} of at most {min(count, dimensions):,}",
        )
