"""Features of a dataset of any size as a .npy, .parquet or .csv file; an interrupted run resumes.

Rows are computed in parts, each of which is a file of `OUT.parts/` once it is done. In the end they are put together.
"""

import csv
import importlib.util
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from unshuffle.data.dataset import LabelledDataset, digest
from unshuffle.data.inventory import write_skipped
from unshuffle.data.media import check_short_side
from unshuffle.data.source import Skipped
from unshuffle.errors import UserError
from unshuffle.evaluation.features import BATCH, WORKERS, FeatureCache, extract_features, pool5, weights_digest
from unshuffle.files import check_new_file, csv_cell
from unshuffle.models import Backbone
from unshuffle.models.registry import backbone_features

Rows = npt.NDArray[np.float32]
Parts = Iterable[tuple[list[str], Rows]]
"""Names and rows, in their order."""
Writer = Callable[[Path, Parts, int, int], None]


@dataclass(frozen=True)
class Embedded:
    """The outcome for a dataset."""

    rows: int
    dimensions: int
    skipped: list[Skipped]
    """File and reason for each item that could not be used."""


def embed(
    backbone: Backbone,
    dataset: LabelledDataset,
    out: Path,
    *,
    device: torch.device,
    batch: int = BATCH,
    workers: int | None = None,
    bar: bool = True,
) -> Embedded:
    """Write pool5 of a dataset's squares to `out` (.npy, .parquet or .csv), or resume where that was interrupted."""
    size = dataset.square.side
    check_short_side(size)
    write = find_writer(out)
    check_new_file(out, "--out")
    backbone.to(device).eval()
    dimensions = backbone_features(backbone, size)
    folder = out.with_name(f"{out.name}.parts")
    cache = FeatureCache(folder, digest([weights_digest(backbone), size, dataset.identity()]))
    item_names = dataset.names
    console = Console(stderr=True, quiet=not bar)

    def parts(title: str) -> Iterator[tuple[list[str], Rows]]:
        chunks = extract_features(
            replace(dataset, skipped=skipped),
            lambda pixels: pool5(backbone, pixels, size),
            device,
            console,
            title,
            batch=batch,
            workers=workers or WORKERS,
            cache=cache,
            item_means=True,
        )
        return (([item_names[item] for item in chunk.items.tolist()], chunk.values.numpy()) for chunk in chunks)

    skipped = list(dataset.skipped)
    try:
        rows = sum(len(names) for names, _ in parts(f"embedding {dataset.kind}"))
    except UserError:  # no item can be read
        shutil.rmtree(folder)
        raise
    draft, unreadable = folder / f"whole{out.suffix}", list(skipped)
    write(draft, parts("writing"), rows, dimensions)
    skipped_file(out).unlink(missing_ok=True)  # of an earlier file of this name
    if unreadable:
        write_skipped(skipped_file(out), unreadable)
    if names_file(draft).exists():
        names_file(draft).replace(names_file(out))
    draft.replace(out)  # last, so that the rest is there when it is
    shutil.rmtree(folder)
    return Embedded(rows, dimensions, unreadable)


# ---- files


def find_writer(out: Path) -> Writer:
    """Return the function that writes a file of that name, given all parts, the number of rows and their length."""
    if out.suffix not in _WRITERS:
        raise UserError(f"features are written as {', '.join(_WRITERS)}, and {out} is none of them")
    if out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError("Parquet needs pyarrow: pip install 'unshuffle[parquet]'")
    return _WRITERS[out.suffix]


def names_file(out: Path) -> Path:
    """Return the file with the names of the rows of a .npy file; the other formats hold them themselves."""
    return out.with_suffix(".names.csv")


def skipped_file(out: Path) -> Path:
    """Return the file that lists the items without a row."""
    return out.with_suffix(".skipped.csv")


def write_table(file: Path, header: list[str], rows: Iterable[Iterable[str]]) -> None:
    """Write a CSV file, in which no name of a file is a formula."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(map(csv_cell, row) for row in rows)


def _write_npy(out: Path, parts: Parts, rows: int, dimensions: int) -> None:
    table = np.lib.format.open_memmap(out, mode="w+", dtype=np.float32, shape=(rows, dimensions))
    names: list[str] = []
    for part_names, block in parts:
        table[len(names) : len(names) + len(part_names)] = block
        names += part_names
    table.flush()
    write_table(names_file(out), ["file"], ([name] for name in names))


def _write_csv(out: Path, parts: Parts, rows: int, dimensions: int) -> None:
    header = ["file", *(f"f{number}" for number in range(dimensions))]
    entries = (entry for names, block in parts for entry in zip(names, block, strict=True))
    # nine digits are enough to get the same float32 back
    write_table(out, header, ([name, *(f"{value:.9g}" for value in row)] for name, row in entries))


def _write_parquet(out: Path, parts: Parts, rows: int, dimensions: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([("file", pa.string()), ("features", pa.list_(pa.float32(), dimensions))])
    with parquet.ParquetWriter(out, schema) as writer:
        for names, block in parts:
            features = pa.FixedSizeListArray.from_arrays(pa.array(block.ravel()), dimensions)
            writer.write_table(pa.table([pa.array(names, pa.string()), features], schema=schema))


_WRITERS: dict[str, Writer] = {".npy": _write_npy, ".parquet": _write_parquet, ".csv": _write_csv}
