import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import pytest

from unshuffle.ablation.table import Cell, Table, latex_escaped
from unshuffle.runs.folders import PUBLISHED, read_table

TABLE = Table(
    columns=["error.spatial", "voc-classification.mAP_area"],
    rows={
        "S&T": {"error.spatial": Cell((0.25, 0.5)), "voc-classification.mAP_area": Cell((50.0, 60.0))},
        "my_arm | 50%": {"error.spatial": Cell((0.125,))},
    },
    seeds={"S&T": "2", "my_arm | 50%": "1/2"},
    published={"voc-classification.mAP_area": {"S&T": 69.8}},
    notes=["a note of 100 %"],
)


def test_mean_and_std_against_the_definition() -> None:
    values = (1.0, 2.0, 4.0, 9.0)
    mean = sum(values) / 4
    assert Cell(values).mean == mean
    assert Cell(values).std == pytest.approx(math.sqrt(sum((value - mean) ** 2 for value in values) / 3))
    assert Cell((5.0,)).std is None


def test_text_is_aligned() -> None:
    assert TABLE.text().splitlines() == [
        "              seeds  error spatial  voc-classification mAP_area  published, other data",
        "S&T               2  0.375 ± 0.177                   55.0 ± 7.1                   69.8",
        "my_arm | 50%    1/2          0.125                            -                      -",
        "",
        "a note of 100 %",
    ]


def test_csv_is_unrounded_and_has_a_column_for_the_std() -> None:
    first, second = csv.DictReader(io.StringIO(TABLE.csv()))
    assert first["arm"] == "S&T" and float(first["error.spatial std"]) == Cell((0.25, 0.5)).std
    assert first[f"voc-classification.mAP_area {PUBLISHED}"] == "69.8"
    assert second["arm"] == "my_arm | 50%" and second["error.spatial mean"] == "0.125"
    assert second["error.spatial std"] == "" and second["voc-classification.mAP_area mean"] == ""


def test_markdown_has_as_many_cells_in_every_row() -> None:
    head, rule, first, second, _, note = TABLE.markdown().splitlines()
    assert first == "| S&T | 2 | 0.375 ± 0.177 | 55.0 ± 7.1 | 69.8 |"
    assert second.startswith(r"| my_arm \| 50% | 1/2 |")
    assert len({line.replace(r"\|", "").count("|") for line in (head, rule, first, second)}) == 1
    assert note.strip() == "a note of 100 %"


def test_latex_is_escaped() -> None:
    lines = TABLE.latex().splitlines()
    assert lines[0] == "% a note of 100 %"
    assert lines[1] == r"\begin{tabular}{lrrrr}"
    assert r"S\&T & 2 & 0.375 $\pm$ 0.177 & 55.0 $\pm$ 7.1 & 69.8 \\" in lines
    assert r"my\_arm | 50\% & 1/2 & 0.125 & - & - \\" in lines
    assert latex_escaped("a\\b{c}$#^~") == r"a\textbackslash{}b\{c\}\$\#\textasciicircum{}\textasciitilde{}"


def test_all_forms_are_written(tmp_path: Path) -> None:
    assert [path.name for path in TABLE.write(tmp_path)] == ["table.txt", "table.csv", "table.md", "table.tex"]
    assert (tmp_path / "table.txt").read_text(encoding="utf-8") == TABLE.text()


def test_cells_are_read_back(tmp_path: Path) -> None:
    TABLE.write(tmp_path)
    assert read_table(tmp_path / "table.csv") == TABLE.cells()


def test_a_remark_stands_below_the_table_and_in_the_csv(tmp_path: Path) -> None:
    table = replace(TABLE, remarks={"S&T": "the policy never started"})
    assert table.text().splitlines()[-1] == "S&T: the policy never started"
    assert "S&T: the policy never started" in table.markdown() and "% S&T: the policy" in table.latex()
    first, second = csv.DictReader(io.StringIO(table.csv()))
    assert (first["remark"], second["remark"]) == ("the policy never started", "")
    (tmp_path / "table.csv").write_text(table.csv())
    (tmp_path / "plain.csv").write_text(TABLE.csv())
    assert read_table(tmp_path / "table.csv") == read_table(tmp_path / "plain.csv") != []
