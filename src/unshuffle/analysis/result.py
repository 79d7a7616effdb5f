"""What an analysis found, and the files that it leaves."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from unshuffle.analysis.figures import save_figure
from unshuffle.analysis.table import numbers
from unshuffle.files import write_measurement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEW = 24
"""Numbers that are printed; more are for the files."""

Row = Mapping[str, Any]
"""One line of a CSV: the names of the columns, and plain values."""


@dataclass(frozen=True)
class Analysis:
    """Numbers and their figure."""

    name: str
    """The name of the analysis and of its files."""
    statement: str
    """One line: what was measured, on what."""
    metrics: dict[str, Any]
    """The numbers to quote, as JSON holds them; in percent where the paper prints percent."""
    rows: Sequence[Row]
    """The numbers that the figure is drawn from; columns that a row lacks stay empty."""
    figure: Callable[[], "Figure"]
    """Draws them."""
    table: Table | None = None
    """What to print below the statement; without it the metrics, if they are few."""

    @property
    def summary(self) -> Table | None:
        """What a person reads first."""
        found = numbers(self.metrics)
        if self.table is not None or not 0 < len(found) <= FEW:
            return self.table
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in found.items():
            table.add_row(Text(name.replace(".", " ").replace("_", " ")), f"{value:.4g}")
        return table

    def write(self, folder: Path, config: Mapping[str, Any] | None = None) -> list[Path]:
        """Write NAME.json, NAME.csv, NAME.svg and NAME.png into a folder; config is what the analysis was asked."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.{ending}" for ending in ("json", "csv", "svg", "png")]
        write_measurement(paths[0], f"analyze {self.name}", self.statement, dict(config or {}), self.metrics)
        write_rows(paths[1], self.rows)
        save_figure(self.figure(), paths[2:])
        return paths


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """A CSV with the columns of all rows, in the order in which they first come."""
    columns = dict.fromkeys(name for row in rows for name in row)
    with path.open(
        "w", newline="", encoding="utf-8", errors="backslashreplace"
    ) as file:  # names need not be valid text
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows)
