"""The analyses behind `unshuffle analyze NAME`: their common options, their results, and the list of them."""

import csv
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from unshuffle.config import TaskName
from unshuffle.console import plain_table
from unshuffle.errors import UserError
from unshuffle.files import csv_cell, write_measurement
from unshuffle.lazy import LazyClass, find_entry
from unshuffle.runs.folders import short_names
from unshuffle.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
"""One line of a CSV: plain values by column."""


@dataclass(frozen=True)
class AnalysisResult:
    """The numbers of an analysis and the figure of them."""

    name: str
    """The name of the analysis and of its files."""
    statement: str
    """One line: what was measured, on which data."""
    metrics: dict[str, Any]
    """The numbers to quote, as JSON holds them; in percent where the paper prints percent."""
    rows: Sequence[Row]
    """The numbers behind the figure; columns that a row lacks stay empty."""
    figure: Callable[[], "Figure"]
    """Draws the figure."""
    table: Table
    """The main numbers, to print below the statement."""

    def write(self, folder: Path, config: Mapping[str, Any] | None = None) -> list[Path]:
        """Write NAME.json, NAME.csv, NAME.svg and NAME.png; `config` holds the options of the analysis."""
        # imports matplotlib, which the list of analyses does not need
        from unshuffle.analysis.figures import save_figure

        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"{self.name}.{suffix}" for suffix in ("json", "csv", "svg", "png")]
        write_measurement(paths[0], f"analyze {self.name}", self.statement, dict(config or {}), self.metrics)
        write_rows(paths[1], self.rows)
        save_figure(self.figure(), paths[2:])
        return paths


TITLE_WIDTH = 26
"""Characters of a line of a table's title."""


def metrics_table(title: str, columns: Mapping[str, Mapping[Any, Any]], rows: Mapping[Any, str]) -> Table:
    """Return a table of figures: a column for each mapping, a row for each of its keys under a readable name."""
    # long headings take two lines, so that the columns of two tasks fit into 80 characters
    table = plain_table(textwrap.fill(title, TITLE_WIDTH), *(escape(column).replace(", ", ",\n") for column in columns))
    for key, name in rows.items():
        table.add_row(escape(name), *(_cell(figures.get(key)) for figures in columns.values()))
    return table


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else escape(str(value))


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a CSV with the columns of all rows, in the order of their first appearance."""
    columns = dict.fromkeys(name for row in rows for name in row)
    # file names need not be valid text
    with path.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)


def flat_values(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested dicts under dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= flat_values(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def flat_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return all numbers in nested dicts, under dotted names."""
    flat = flat_values(values).items()
    return {name: value for name, value in flat if isinstance(value, int | float) and not isinstance(value, bool)}


def chosen_names(names: Sequence[str], paths: Sequence[str | Path]) -> list[str]:
    """Return the names that the user gave, or short names of the paths."""
    if not names:
        return short_names(paths)
    if len(set(names)) != len(paths) or len(names) != len(paths):
        raise UserError(f"give {len(paths)} different names, as there are {len(paths)} to name")
    return list(names)


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Options that every analysis has; fields of a subclass that have no default are positional arguments."""

    out: Path | None = None
    """Folder for the numbers (JSON, CSV) and the figure (SVG, PNG); by default `analysis` in the run, or in the working
    directory for several runs."""
    json: Path | None = None
    """Also write the metrics to this JSON file."""

    @property
    def folder(self) -> Path:
        """Folder of the files; by default in the run if there is one, as the files of two runs have the same names."""
        if self.out is not None:
            return self.out.expanduser()
        given = next((getattr(self, name) for name in ("run", "runs", "weights") if hasattr(self, name)), ())
        sources = given if isinstance(given, tuple) else (given,)
        if len(sources) == 1:
            folder = Path(sources[0]).expanduser()
            if (
                not hasattr(self, "weights") or Run(folder).config_file.is_file()
            ):  # weights may also be a file or a name
                return folder / "analysis"
        return Path("analysis")

    def analyse(self, console: Console) -> AnalysisResult:
        """Return the result; the command line prints its statement and writes its files."""
        raise NotImplementedError


def run_warnings(analysis: Analysis) -> list[str]:
    """Return a sentence about each run of an analysis that has damaged metrics."""
    folders: tuple[Path, ...] = getattr(analysis, "runs", ())
    if hasattr(analysis, "run"):
        folders = (analysis.run,)
    return [warning for folder in folders if (warning := Run(folder.expanduser()).metrics_warning)]


@dataclass(frozen=True)
class TaskAnalysis(Analysis):
    """Options of an analysis of the ordering tasks of one run."""

    run: Path
    """A run folder."""
    task: TaskName | None = None
    """Analyse this task only; by default all ordering tasks of the run."""


_analysis = partial(LazyClass, "unshuffle.analysis")
ANALYSES: dict[str, LazyClass] = {
    "selection": _analysis(
        "selection",
        "Selection",
        "Continue from checkpoints with the policy, uniform sampling and the inverse policy (appendix F).",
    ),
    "difficulty": _analysis(
        "difficulty",
        "Difficulty",
        "Difficulty of the sampled permutations, in quarters of Ψ by validation error (Fig. 4).",
    ),
    "error-map": _analysis(
        "error_map", "ErrorMap", "Validation error of every permutation over time, with and without policy (Fig. 6)."
    ),
    "convergence": _analysis(
        "convergence",
        "Convergence",
        "Retrieval over iterations (Fig. 5) and over forward passes, including the policy's (appendix H).",
    ),
    "baseline": _analysis(
        "baseline", "Baseline", "Extrapolated error, actual error and reward of each episode (appendix E)."
    ),
    "hamming": _analysis(
        "hamming",
        "Hamming",
        "Hamming distance of the sampled permutations over time, and the most and least likely ones (appendix G).",
    ),
    "cost": _analysis(
        "cost", "Cost", "Cost of the policy relative to training: derived as in the paper, and measured (appendix H)."
    ),
    "valset": _analysis(
        "validation_size",
        "ValidationSize",
        "Mean and std of the validation error for several sizes of X_val (appendix C).",
    ),
    "groups": _analysis(
        "group_count",
        "GroupCount",
        "Choose |C|: histogram of softmax ratios, pairwise tests of the groups, a recommendation (appendix D).",
    ),
    "activations": _analysis(
        "activations", "Activations", "Images with the highest conv5 activations, in several datasets (appendix I.1)."
    ),
    "saliency": _analysis("saliency", "Saliency", "Saliency maps of fine-tuned networks, side by side (appendix I.2)."),
    "neighbours": _analysis(
        "neighbours",
        "NearestNeighbours",
        "Queries and their five nearest neighbours, for several models side by side (Fig. 3).",
    ),
}


def find_analysis(name: str) -> type[Analysis]:
    """Return the class of an analysis; raise a UserError if there is none of that name."""
    analysis: type[Analysis] = find_entry(name, ANALYSES, "analysis").load()
    return analysis
