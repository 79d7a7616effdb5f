"""Features of a dataset of any size as a .npy, .parquet or .csv file; an interrupted run resumes.

Rows are computed in parts, each of which is a file of `OUT.parts/` once it is done. In the end they are put together.
"""

import csv
import importlib.util
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console

from unshuffle.config import FEATURE_BATCH, Pool
from unshuffle.data.dataset import LabelledDataset, digest
from unshuffle.data.inventory import write_skipped
from unshuffle.data.media import check_short_side
from unshuffle.data.source import Skipped
from unshuffle.errors import UserError
from unshuffle.evaluation.features import FeatureCache, feature_length, item_features, weights_digest
from unshuffle.files import check_new_file, csv_cell
from unshuffle.models import Backbone

Rows = npt.NDArray[np.float32]
Parts = Iterable[tuple[list[str], Rows]]
"""Names and rows, in their order."""
LARGE_CSV = 10_000_000
"""Bytes."""
Writer = Callable[[Path, Parts, int, int], None]


@dataclass(frozen=True)
class Embedded:
    """The outcome for a dataset."""

    rows: int
    dimensions: int
    skipped: list[Skipped]
    """File and reason for each item that could not be used."""


def embed_to_file(
    backbone: Backbone,
    dataset: LabelledDataset,
    out: Path,
    *,
    pool: Pool,
    device: torch.device,
    batch: int = FEATURE_BATCH,
    workers: int | None = None,
    bar: bool = True,
) -> Embedded:
    """Write features of a dataset's squares to `out` (.npy, .parquet or .csv), or resume where that was interrupted."""
    size = dataset.square.side
    check_short_side(size)
    write = find_writer(out)
    check_new_file(out, "--out")
    backbone.to(device).eval()
    dimensions = feature_length(backbone, size, pool)
    folder = out.with_name(f"{out.name}.parts")
    cache = FeatureCache(folder, digest([weights_digest(backbone), size, pool, dataset.identity()]))
    item_names = dataset.names
    console = Console(stderr=True, quiet=not bar)

    def parts(title: str) -> Iterator[tuple[list[str], Rows]]:
        readable = replace(dataset, skipped=skipped)
        chunks = item_features(
            backbone, readable, device, console, title, pool=pool, batch=batch, workers=workers, cache=cache
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
        raise UserError(f"{out} has an unknown format: use {', '.join(_WRITERS)}")
    if out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError("Parquet needs pyarrow: pip install 'unshuffle[parquet]'")
    return _WRITERS[out.suffix]


def output_file(out: Path) -> Path:
    """Return the file to write, whose suffix sets the format: .npy without one."""
    return out if out.suffix else out.with_name(f"{out.name}.npy")


def write_file(out: Path, names: list[str], features: Rows) -> Path:
    """Write features that are in memory, and return the file."""
    out = output_file(out)
    write = find_writer(out)
    check_new_file(out, "out")
    with TemporaryDirectory(dir=out.absolute().parent, prefix=f".{out.name}.") as folder:
        draft = Path(folder) / f"whole{out.suffix}"
        write(draft, [(names, features)], *features.shape)
        if names_file(draft).exists():
            names_file(draft).replace(names_file(out))
        draft.replace(out)
    return out


def large_csv(out: Path) -> str | None:
    """Return the hint to a format that is smaller and faster, for a CSV file that is large."""
    size = out.stat().st_size
    if out.suffix != ".csv" or size < LARGE_CSV:
        return None
    parquet = out.with_suffix(".parquet")
    return f"{out} has {size / 1e6:.0f} MB: --out {parquet} is a third of that and far faster to read"


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
