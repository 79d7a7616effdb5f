"""The table of an ablation: mean ± std over seeds, as text, CSV, Markdown and LaTeX."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unshuffle.files import csv_cell
from unshuffle.runs.folders import PUBLISHED, REMARK, decimals
from unshuffle.wording import plus_minus

LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "Ψ": r"$\Psi$",
    "×": r"$\times$",
}


@dataclass(frozen=True)
class Cell:
    """The values of one metric, one per seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """Standard deviation over the seeds (ddof = 1); None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Table:
    """One row per arm, one column per metric."""

    columns: Sequence[str]
    """Metrics, such as "error.TASK" and "retrieval.top1"."""
    rows: Mapping[str, Mapping[str, Cell]]
    """The cells of each arm, by metric."""
    seeds: Mapping[str, str] = field(default_factory=dict)
    """Number of finished seeds of each row, such as "3" or "2/3"."""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Values that the paper reports for a metric, by arm."""
    notes: Sequence[str] = ()
    """Lines below the table."""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """What a reader must know about the figures of an arm; below the table, and in a column of its own in CSV."""

    @property
    def lines_below(self) -> list[str]:
        """The notes and the remarks, one line each."""
        return [*self.notes, *(f"{arm}: {remark}" for arm, remark in self.remarks.items())]

    def cells(self) -> list[list[str]]:
        """Return the header and the rows as text; a missing value is a dash."""
        header = ["", "seeds"]
        for column in self.columns:
            header += [column.replace(".", " "), *([PUBLISHED] if column in self.published else [])]
        return [header, *(self._row(arm) for arm in self.rows)]

    def _row(self, arm: str) -> list[str]:
        row = [arm, self.seeds.get(arm, "")]
        for column in self.columns:
            cell = self.rows[arm].get(column)
            row.append("-" if cell is None else plus_minus(cell.mean, cell.std, decimals(column)))
            if column in self.published:
                row.append(plus_minus(self.published[column].get(arm), None, decimals(column)))
        return row

    def text(self) -> str:
        """Return aligned columns for a terminal."""
        cells = self.cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(word.rjust(width) if number else word.ljust(width) for number, (word, width) in enumerate(pairs))
            for pairs in (list(zip(row, widths, strict=True)) for row in cells)
        ]
        return "\n".join([*(line.rstrip() for line in lines), "", *self.lines_below]) + "\n"

    def csv(self) -> str:
        """Return CSV with the unrounded mean and std in columns of their own."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        header = ["arm", "seeds"]
        for column in self.columns:
            header += [f"{column} mean", f"{column} std"]
            header += [f"{column} {PUBLISHED}"] if column in self.published else []
        writer.writerow([*header, REMARK] if self.remarks else header)
        for arm, cells in self.rows.items():
            row: list[object] = [csv_cell(arm), self.seeds.get(arm, "")]
            for column in self.columns:
                cell = cells.get(column)
                row += [None, None] if cell is None else [cell.mean, cell.std]
                row += [self.published[column].get(arm)] if column in self.published else []
            writer.writerow([*row, self.remarks.get(arm)] if self.remarks else row)
        return file.getvalue()

    def markdown(self) -> str:
        """Return a Markdown table."""
        cells = [[word.replace("|", r"\|") for word in row] for row in self.cells()]
        rule = ["---", *("---:" for _ in cells[0][1:])]
        lines = [f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]]]
        return "\n".join([*lines, "", *(f"{note}  " for note in self.lines_below)]) + "\n"

    def latex(self) -> str:
        """Return a LaTeX tabular that needs no package."""
        head, *body = [" & ".join(map(latex_escaped, row)) + r" \\" for row in self.cells()]
        columns = "l" + "r" * (len(self.cells()[0]) - 1)
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
        return "\n".join([*(f"% {' '.join(note.split())}" for note in self.lines_below), *lines]) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write table.txt, .csv, .md and .tex; return the files."""
        forms = {"txt": self.text(), "csv": self.csv(), "md": self.markdown(), "tex": self.latex()}
        for suffix, text in forms.items():
            (folder / f"table.{suffix}").write_text(text, encoding="utf-8")
        return [folder / f"table.{suffix}" for suffix in forms]


def latex_escaped(text: str) -> str:
    """Return text in which everything that LaTeX takes for a command is escaped."""
    return "".join(LATEX.get(character, character) for character in text)
