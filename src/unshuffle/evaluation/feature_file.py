"""Features with their names as .npy, .parquet or .csv, written a part at a time."""

import csv
import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from unshuffle.errors import UserError

Rows = npt.NDArray[np.float32]
Parts = Iterable[tuple[list[str], Rows]]
"""Names and rows, in their order."""
Writer = Callable[[Path, Parts, int, int], None]


def find_writer(out: Path) -> Writer:
    """What writes a file of that name, given all parts, the number of rows and their length."""
    if out.suffix not in _WRITERS:
        raise UserError(f"features are written as {', '.join(_WRITERS)}, and {out} is none of them")
    if out.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError("Parquet needs pyarrow: pip install 'unshuffle[parquet]'")
    return _WRITERS[out.suffix]


def names_file(out: Path) -> Path:
    """Where the names of the rows of a .npy file are; the other formats hold them themselves."""
    return out.with_suffix(".names.csv")


def skipped_file(out: Path) -> Path:
    """Where the files that gave no row are listed."""
    return out.with_suffix(".skipped.csv")


def write_table(file: Path, header: list[str], rows: Iterable[Iterable[str]]) -> None:
    """A CSV file."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)


def _write_npy(out: Path, parts: Parts, rows: int, dimensions: int) -> None:
    table = np.lib.format.open_memmap(out, mode="w+", dtype=np.float32, shape=(rows, dimensions))
    names: list[str] = []
    for some, block in parts:
        table[len(names) : len(names) + len(some)] = block
        names += some
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
