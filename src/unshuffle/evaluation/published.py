"""The figures that the paper prints in its Tab. 1 to 5, to stand beside one's own."""

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from rich.table import Table


@cache
def published(table: str) -> dict[str, dict[str, float]]:
    """One of the paper's tables, "1" to "5": the figures of each method by column; a dash there is missing here."""
    methods: dict[str, dict[str, float]] = {}
    with files("unshuffle.evaluation").joinpath("published.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["table"] == table:
                methods.setdefault(row["method"], {})[row["column"]] = float(row["value"])
    return methods


def figure_table(ours: Mapping[str, Mapping[str, float]]) -> Table:
    """Figures in percent by row and column; a row may lack some."""
    drawn = Table(box=None, padding=(0, 2, 0, 0))
    drawn.add_column("[%]", no_wrap=True)
    columns = list(dict.fromkeys(column for row in ours.values() for column in row))
    for column in columns:
        drawn.add_column(column, justify="right")
    for name, row in ours.items():
        _add(drawn, name, row, columns)
    return drawn


def published_table(
    table: str,
    ours: Mapping[str, Mapping[str, float]],
    data: str,
    theirs: Mapping[str, str] | None = None,
    *,
    same: bool = False,
) -> Table:
    """Our figures by row and column, and below them what the paper prints in these columns.

    `data` is what the paper's figures are of, and `same` whether ours are of it too. `theirs` gives our columns the
    paper's names; without it they have the same. A column that the paper does not have is ours alone; a method without
    a figure in any of them is left out.
    """
    drawn = figure_table(ours)
    columns = {str(column.header): str(column.header) for column in drawn.columns[1:]}
    columns |= theirs or {}
    rows = {method: row for method, row in published(table).items() if row.keys() & set(columns.values())}
    if rows:
        drawn.add_row()
        drawn.add_row(f"published, {data}" if same else f"published, other data ({data})")
    for method, row in rows.items():
        _add(drawn, f"  {method}", row, list(columns.values()))
    return drawn


def _add(drawn: Table, name: str, row: Mapping[str, float], columns: list[str]) -> None:
    drawn.add_row(name, *(f"{row[key]:.1f}" if key in row else "-" for key in columns))
