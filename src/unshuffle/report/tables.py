"""Tables for the terminal: what a run has learned, beside what it has to beat."""

from rich.table import Table

from unshuffle.run import Run


def error_table(run: Run) -> Table:
    """Validation errors before and after, beside those of blind guessing."""
    table = _table("validation error", "untrained", "trained", "guessing")
    entries = list(run.metrics("validation"))
    for task in dict.fromkeys(entry["task"] for entry in entries):
        errors = [entry for entry in entries if entry["task"] == task]
        table.add_row(
            task, *(f"{value:.3f}" for value in (errors[0]["error"], errors[-1]["error"], errors[0]["chance"]))
        )
    return table


def retrieval_table(run: Run) -> Table:
    """Retrieval of the trained network, of the same one untrained, and of features that nobody had to learn."""
    monitors = list(run.metrics("monitor"))
    rows = {"this network": monitors[-1], "untrained network": monitors[0]}
    rows |= {entry["name"]: entry for entry in run.metrics("baseline")}
    columns = [key for key in monitors[0] if key.startswith("top")]
    table = _table("retrieval [%]", *(key.replace("top", "top ") for key in columns))
    for name, scores in rows.items():
        table.add_row(name, *(f"{scores[key]:.1f}" for key in columns))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table
