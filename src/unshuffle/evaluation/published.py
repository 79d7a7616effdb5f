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


def published_table(table: str, ours: Mapping[str, float], name: str = "this network", on: str = "") -> Table:
    """Our figures by column, and below them what the paper prints in these columns.

    A column that the paper does not have is ours alone; a method without a figure in any of them is left out. `on` is
    the data set, where the paper's columns begin with one.
    """
    drawn = Table(box=None, padding=(0, 2, 0, 0))
    drawn.add_column("[%]", no_wrap=True)
    for column in ours:
        drawn.add_column(column, justify="right")
    drawn.add_row(name, *(f"{value:.1f}" for value in ours.values()))
    theirs = {column: f"{on} {column}".strip() for column in ours}
    rows = {method: figures for method, figures in published(table).items() if figures.keys() & set(theirs.values())}
    if rows:
        drawn.add_row()
        drawn.add_row(f"published, other data{f' ({on})' if on else ''}")
    for method, figures in rows.items():
        drawn.add_row(f"  {method}", *(f"{figures[key]:.1f}" if key in figures else "-" for key in theirs.values()))
    return drawn
