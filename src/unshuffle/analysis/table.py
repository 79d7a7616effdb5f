"""Tables of mean ± standard deviation over seeds, as text, CSV, Markdown and LaTeX."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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
            words.append(_figure(self.rows[arm].get(column), digits(column)))
            if column in self.published:
                theirs = self.published[column].get(arm)
                words.append("-" if theirs is None else f"{theirs:.{digits(column)}f}")
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


def digits(column: str) -> int:
    """Decimals of a metric: errors are shares, all else is percent or larger."""
    return 3 if column.startswith("error.") else 1


def _figure(cell: Cell | None, decimals: int) -> str:
    if cell is None:
        return "-"
    spread = "" if cell.std is None else f" ± {cell.std:.{decimals}f}"
    return f"{cell.mean:.{decimals}f}{spread}"


def latex_escaped(text: str) -> str:
    """Text with everything escaped that LaTeX takes for a command."""
    return "".join(LATEX.get(character, character) for character in text)
