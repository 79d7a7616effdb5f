"""Tables for the terminal."""

from rich.table import Table

from unshuffle.report.results import errors, retrieval
from unshuffle.run import Run


def error_table(run: Run) -> Table:
    """Validation errors before and after, beside those of blind guessing."""
    table = _table("validation error", "before", "trained", "guessing")
    for row in errors(run):
        table.add_row(row.task, *(f"{value:.3f}" for value in (row.before, row.trained, row.guessing)))
    return table


def retrieval_table(run: Run) -> Table:
    """Retrieval of the trained network, of the same one before, and of features that nobody had to learn."""
    rows = retrieval(run)
    table = _table("retrieval [%]", *rows["this network"])
    for name, scores in rows.items():
        table.add_row(name, *(f"{score:.1f}" for score in scores.values()))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
