"""Tables of mean ± standard deviation over seeds, as text, CSV, Markdown and LaTeX."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PUBLISHED = "published, other data"
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "Ψ": r"$\Psi$",
    "×": r"$\times$",
}


@dataclass(frozen=True)
class Cell:
    """The figures of one metric, one for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return statistics.fmean(self.values)

    @property
    def std(self) -> float | None:
        """Their standard deviation as an estimate for all seeds (ddof = 1); one value has none."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Table:
    """A row for each arm, a column for each metric."""

    columns: Sequence[str]
    """Metrics, such as "error.spatial" and "retrieval.top1"."""
    rows: Mapping[str, Mapping[str, Cell]]
    """The cells of each arm by metric."""
    seeds: Mapping[str, str] = field(default_factory=dict)
    """How many seeds of each row there are, such as "3" or "2/3"."""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """What the paper prints for a metric, by arm."""
    notes: Sequence[str] = ()
    """What to know when reading it."""

    def cells(self) -> list[list[str]]:
        """Header and rows, in words for people; what there is not is a dash."""
        header = ["", "seeds"]
        for column in self.columns:
            header += [column.replace(".", " "), *([PUBLISHED] if column in self.published else [])]
        return [header, *(self._words(arm) for arm in self.rows)]

    def _words(self, arm: str) -> list[str]:
        words = [arm, self.seeds.get(arm, "")]
        for column in self.columns:
            cell = self.rows[arm].get(column)
            words.append("-" if cell is None else plus_minus(cell.mean, cell.std, digits(column)))
            if column in self.published:
                words.append(plus_minus(self.published[column].get(arm), None, digits(column)))
        return words

    def text(self) -> str:
        """Aligned columns for a terminal."""
        cells = self.cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(word.rjust(width) if place else word.ljust(width) for place, (word, width) in enumerate(pairs))
            for pairs in (list(zip(row, widths, strict=True)) for row in cells)
        ]
        return "\n".join([*(line.rstrip() for line in lines), "", *self.notes]) + "\n"

    def csv(self) -> str:
        """Mean and standard deviation in columns of their own, unrounded."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        header = ["arm", "seeds"]
        for column in self.columns:
            header += [f"{column} mean", f"{column} std"]
            header += [f"{column} {PUBLISHED}"] if column in self.published else []
        writer.writerow(header)
        for arm, cells in self.rows.items():
            row: list[object] = [arm, self.seeds.get(arm, "")]
            for column in self.columns:
                cell = cells.get(column)
                row += [None, None] if cell is None else [cell.mean, cell.std]
                row += [self.published[column].get(arm)] if column in self.published else []
            writer.writerow(row)
        return file.getvalue()

    def markdown(self) -> str:
        """A table for GitHub and its like."""
        cells = [[word.replace("|", r"\|") for word in row] for row in self.cells()]
        rule = ["---", *("---:" for _ in cells[0][1:])]
        lines = [f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]]]
        return "\n".join([*lines, "", *(f"{note}  " for note in self.notes)]) + "\n"

    def latex(self) -> str:
        """A tabular that needs no package."""
        head, *body = [" & ".join(map(latex_escaped, row)) + r" \\" for row in self.cells()]
        columns = "l" + "r" * (len(self.cells()[0]) - 1)
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"]
        return "\n".join([*(f"% {' '.join(note.split())}" for note in self.notes), *lines]) + "\n"

    def write(self, folder: Path) -> list[Path]:
        """Write table.txt, .csv, .md and .tex."""
        forms = {"txt": self.text(), "csv": self.csv(), "md": self.markdown(), "tex": self.latex()}
        for suffix, text in forms.items():
            (folder / f"table.{suffix}").write_text(text, encoding="utf-8")
        return [folder / f"table.{suffix}" for suffix in forms]


def read_cells(path: Path) -> list[list[str]]:
    """The cells of a table.csv as `Table.cells` had them; none if it is no such table."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        header, *rows = [*csv.reader(file)] or [[]]
    if header[:2] != ["arm", "seeds"] or any(len(row) != len(header) for row in rows):
        return []
    columns = [name for name in header[2:] if not name.endswith(" std")]
    names = [
        PUBLISHED if name.endswith(PUBLISHED) else name.removesuffix(" mean").replace(".", " ") for name in columns
    ]
    found = [["", "seeds", *names]]
    for row in rows:
        figures = {name: float(text) for name, text in zip(header[2:], row[2:], strict=True) if text}
        found.append([*row[:2], *(_read_figure(figures, name) for name in columns)])
    return found


def _read_figure(figures: Mapping[str, float], column: str) -> str:
    std = figures.get(f"{column.removesuffix(' mean')} std")
    return plus_minus(figures.get(column), std, digits(column))


def numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of nested dicts, under dotted names."""
    found: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found[f"{prefix}{key}"] = value
    return found


def digits(column: str) -> int:
    """Decimals of a metric: errors are shares, all else is percent or larger."""
    return 3 if column.startswith("error.") else 1


def plus_minus(mean: float | None, std: float | None, decimals: int = 1) -> str:
    """A mean and its standard deviation, if there are such."""
    if mean is None:
        return "-"
    return f"{mean:.{decimals}f}" if std is None else f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def latex_escaped(text: str) -> str:
    """Text with everything escaped that LaTeX takes for a command."""
    return "".join(LATEX.get(character, character) for character in text)
