"""Features of a folder of any size as a file, with the name of each row; a broken-off run is gone on with.

Rows are computed in parts, each of which is a file of `OUT.parts/` once it is done. In the end they are put together.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from unshuffle.data.media import check_short_side
from unshuffle.errors import UserError
from unshuffle.evaluation.collection import Collection
from unshuffle.evaluation.feature_file import Rows, find_writer, names_file, skipped_file, write_table
from unshuffle.evaluation.features import pool5
from unshuffle.evaluation.identity import digest, fingerprint
from unshuffle.evaluation.kept import Kept
from unshuffle.evaluation.skips import Skipped
from unshuffle.evaluation.streaming import WORKERS, stream
from unshuffle.files import check_new_file
from unshuffle.models import Backbone
from unshuffle.models.registry import backbone_features


@dataclass(frozen=True)
class Embedded:
    """What became of a folder."""

    rows: int
    dimensions: int
    skipped: list[Skipped]
    """Name and reason for each file that could not be used."""


@dataclass(frozen=True)
class Embedder:
    """A backbone that turns squares into vectors."""

    backbone: Backbone
    size: int
    device: torch.device
    batch: int = 64

    def __post_init__(self) -> None:
        check_short_side(self.size)
        if self.batch < 1:
            raise UserError(f"a batch of {self.batch} makes no sense: it must be at least 1")
        self.backbone.to(self.device).eval()

    def __call__(self, pixels: Tensor) -> Tensor:
        """A vector for each of (N, size, size, 3) bytes on the device."""
        return pool5(self.backbone, pixels, self.size)


def embed(embedder: Embedder, data: Collection, out: Path, *, workers: int | None = None, bar: bool = True) -> Embedded:
    """Write the features of all of `data` to `out` (.npy, .parquet or .csv), or go on where that was broken off."""
    write = find_writer(out)
    check_new_file(out, "--out")
    dimensions = backbone_features(embedder.backbone, embedder.size)
    folder = out.with_name(f"{out.name}.parts")
    kept = Kept(folder, digest([fingerprint(embedder.backbone), embedder.size, data.fingerprint]))
    console = Console(stderr=True, quiet=not bar)

    def parts(title: str) -> Iterator[tuple[list[str], Rows]]:
        chunks = stream(
            replace(data, skipped=skipped),
            embedder,
            embedder.device,
            console,
            title,
            batch=embedder.batch,
            workers=workers or WORKERS,
            kept=kept,
            means=True,
        )
        return (([data.names[item] for item in chunk.items.tolist()], chunk.values.numpy()) for chunk in chunks)

    skipped: list[Skipped] = []
    try:
        rows = sum(len(names) for names, _ in parts(f"embedding {data.kind}"))
    except UserError:  # none can be read
        shutil.rmtree(folder)
        raise
    draft, found = folder / f"whole{out.suffix}", list(skipped)
    write(draft, parts("writing"), rows, dimensions)
    skipped_file(out).unlink(missing_ok=True)  # of an earlier file of this name
    if found:
        write_table(skipped_file(out), ["file", "reason"], found)
    if names_file(draft).exists():
        names_file(draft).replace(names_file(out))
    draft.replace(out)  # last, so that the rest is there when it is
    shutil.rmtree(folder)
    return Embedded(rows, dimensions, found)
