import csv
from pathlib import Path

import numpy as np
import pytest

from unshuffle.errors import UserError
from unshuffle.evaluation.feature_file import Rows, find_writer, names_file

NAMES = [["a.jpg", 'quo"te, comma.jpg'], ["über/c.jpg"]]
BLOCKS = [np.random.default_rng(0).normal(size=(len(names), 5)).astype(np.float32) for names in NAMES]


def written(out: Path) -> tuple[list[str], Rows]:
    """What a person reads from the file."""
    find_writer(out)(out, zip(NAMES, BLOCKS, strict=True), 3, 5)
    if out.suffix == ".npy":
        names = list(csv.DictReader(names_file(out).open(newline="", encoding="utf-8")))
        return [row["file"] for row in names], np.load(out)
    if out.suffix == ".csv":
        head, *rows = csv.reader(out.open(newline="", encoding="utf-8"))
        assert head == ["file", "f0", "f1", "f2", "f3", "f4"]
        return [row[0] for row in rows], np.array([row[1:] for row in rows], np.float32)
    table = pytest.importorskip("pyarrow.parquet").read_table(out).to_pydict()
    return table["file"], np.array(table["features"], np.float32)


@pytest.mark.parametrize("suffix", [".npy", ".csv", ".parquet"])
def test_names_and_numbers_come_back_as_they_were(suffix: str, tmp_path: Path) -> None:
    names, rows = written(tmp_path / f"f.v1{suffix}")
    assert names == NAMES[0] + NAMES[1]
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, np.concatenate(BLOCKS))


def test_other_files() -> None:
    with pytest.raises(UserError, match=r"as \.npy, \.parquet, \.csv, and f\.txt is none"):
        find_writer(Path("f.txt"))


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'unshuffle\[parquet\]'"):
        find_writer(Path("f.parquet"))
