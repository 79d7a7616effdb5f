"""The effective rank of features, for any folder of images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from rich.console import Console

from unshuffle.accelerator import choose_device
from unshuffle.data.media import find_images
from unshuffle.data.shard_files import refuse_shards
from unshuffle.errors import UserError
from unshuffle.evaluation.backbones import find_backbone
from unshuffle.evaluation.effective_rank import effective_rank
from unshuffle.evaluation.features import pool5
from unshuffle.evaluation.identity import fingerprint
from unshuffle.evaluation.items import Item, Items
from unshuffle.evaluation.kept import kept_features
from unshuffle.evaluation.protocol import Evaluation, Result
from unshuffle.evaluation.skips import skipped_figures, tell_skipped
from unshuffle.evaluation.streaming import WORKERS, stream
from unshuffle.randomness import numpy_rng


@dataclass(frozen=True)
class RankMe(Evaluation):
    """How many dimensions the features of unlabelled images use (RankMe): low is a sign of collapse."""

    images: Path | None = None
    """Any folder of images."""
    limit: int = 25_600
    """At most so many of them, drawn with the seed; the rank cannot be higher than their number; 0 is no limit."""
    batch_size: int = 64
    """Images that pass the backbone together."""
    workers: int = WORKERS
    """Threads that read files."""

    @classmethod
    def quick(cls) -> Self:
        """At most 1,000 images."""
        return cls(preset="quick", limit=1000)

    incidental = Evaluation.incidental | {"batch_size"}
    may_be_zero = Evaluation.may_be_zero | {"limit"}

    def measure(self, console: Console) -> Result:
        """The effective rank of pool5."""
        if self.images is None:
            raise UserError("say whose features to rank: give --images")
        device = choose_device(self.device)
        backbone = find_backbone(self.weights, self.seed).to(device)
        items = Items([Item(path, 0) for path in self._chosen()], ["image"], "images", backbone.eval_size)
        chunks = stream(
            items,
            lambda pixels: pool5(backbone, pixels, backbone.eval_size),
            device,
            console,
            "images",
            batch=self.batch_size,
            workers=self.workers,
            kept=kept_features(self.folder("features/images"), [fingerprint(backbone), items.fingerprint()]),
        )
        features = torch.cat([chunk.values for chunk in chunks])
        tell_skipped(console, items.skipped, "images")
        count, dimensions = features.shape
        rank = effective_rank(features.to(device))
        return Result(
            "RankMe",
            f"{count:,} images ({self.images}), centre square at {backbone.eval_size} px; exp of the entropy of the "
            f"singular values of pool5 ({dimensions:,} numbers), to compare with equal numbers of images only",
            {"rankme": rank, "images": count, "dimensions": dimensions, "skipped": skipped_figures(items.skipped)},
            f"effective rank {rank:.1f} of at most {min(count, dimensions):,}",
        )

    def _chosen(self) -> list[Path]:
        assert self.images is not None
        refuse_shards(self.images)
        paths = find_images(self.images.expanduser())
        if not paths:
            raise UserError(f"there is no image in {self.images}")
        if not 0 < self.limit < len(paths):
            return paths
        return [paths[place] for place in sorted(numpy_rng(self.seed, "rankme").permutation(len(paths))[: self.limit])]
