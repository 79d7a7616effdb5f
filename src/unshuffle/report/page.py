"""`unshuffle report`: one self-contained HTML file about one run or several."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from markupsafe import Markup

import unshuffle
from unshuffle.errors import UserError
from unshuffle.files import atomic_write, check_file
from unshuffle.report.charts import Chart, chart_values, charts, run_colours
from unshuffle.report.rendering import d3, environment, script_hash, template_source
from unshuffle.report.snapshot import Snapshot
from unshuffle.report.views import View, add_pictures, describe_run
from unshuffle.runs.checkpoints import DamagedCheckpoint
from unshuffle.runs.folders import NamedRun, differing, read_table
from unshuffle.runs.history import error_label
from unshuffle.runs.run import Run

Table = list[list[str]]
"""The header and the rows below it."""

MAX_PICTURED = 4  # runs; more are compared by their curves and tables
NO_PICTURES = "There are no pictures: the run has no checkpoint yet, or log.pictures is off."
GENERATOR_TAG = '<meta name="generator" content="unshuffle'


def default_file(folders: Sequence[Path]) -> Path:
    """Return the default file of a report: in the folder of one run, or here if there are several."""
    return folders[0] / "report.html" if len(folders) == 1 else Path("report.html")


def check_page(path: Path) -> None:
    """Raise a UserError if a report cannot be written to a path, or would overwrite another kind of file."""
    check_file(path, "--out")
    if path.is_file():
        with path.open("rb") as file:
            if GENERATOR_TAG.encode() not in file.read(2000):
                raise UserError(f"{path} is not a report of unshuffle: choose another --out")


def write_report(
    runs: Sequence[NamedRun],
    path: Path,
    *,
    tables: Sequence[Path] = (),
    snapshots: Mapping[Path, Snapshot] | None = None,
) -> list[str]:
    """Write the report; return a sentence about each damaged file that it had to do without.

    `tables` are files table.csv of ablations; runs whose snapshot is given, by run folder, are not read from a
    checkpoint.
    """
    warnings = [warning for named in runs if (warning := named.run.metrics_warning)]
    views = [describe_run(named, colour) for named, colour in zip(runs, run_colours(runs), strict=True)]
    if len(runs) <= MAX_PICTURED:
        for view, named in zip(views, runs, strict=True):
            snapshot = (snapshots or {}).get(named.run.folder)
            if snapshot is None:
                snapshot, warning = _newest_snapshot(named.run)
                warnings += [warning] if warning else []
            add_pictures(view, named.run, snapshot)
    page = _render(views, charts(runs), [table for file in tables if (table := read_table(file))])
    with atomic_write(path) as draft:
        draft.write_text(page, encoding="utf-8", errors="backslashreplace")  # file names need not be valid text
    return warnings


def _newest_snapshot(run: Run) -> tuple[Snapshot | None, str | None]:
    """Return the newest snapshot, if there is one, and a sentence about damaged checkpoints, if there are any."""
    try:
        snapshot = Snapshot.newest(run)
    except DamagedCheckpoint as problem:
        return None, f"{run.folder} has no pictures: {problem}"
    return snapshot, None if snapshot is None else snapshot.warning


def chance_cells(views: Sequence[View]) -> dict[str, str]:
    """Return the chance level of each column of the table of several runs; a range where they differ."""
    levels: dict[str, set[str]] = {}
    for view in views:
        for row in view["errors"]:
            levels.setdefault(row.task, set()).add(f"{row.chance:.3f}")
        for measure in view["measures"]:
            levels.setdefault(measure.key, set()).update([] if measure.chance is None else [f"{measure.chance:.1f}"])
    ordered = {name: sorted(texts, key=float) for name, texts in levels.items()}
    return {name: " to ".join(dict.fromkeys([texts[0], texts[-1]])) for name, texts in ordered.items() if texts}


def _render(views: Sequence[View], page_charts: Sequence[Chart], tables: Sequence[Table]) -> str:
    scripts = [d3(), template_source("drawing.js"), template_source("report.js")]
    return (
        environment()
        .get_template("report.html")
        .render(
            generator=f"unshuffle {unshuffle.__version__}",
            written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
            runs=views,
            tasks={task: facts for view in views for task, facts in view["tasks"].items()},
            error_label=error_label(row.kind for view in views for row in view["errors"]),
            measures={measure.key: measure.title for view in views for measure in view["measures"]},
            chances=chance_cells(views),
            charts=page_charts,
            data={"charts": list(map(chart_values, page_charts)), "runs": [view["data"] for view in views]},
            tables=tables,
            differing=differing([view["config"] for view in views]),
            no_pictures=NO_PICTURES,
            max_pictured=MAX_PICTURED,
            scripts=[Markup(script) for script in scripts],  # noqa: S704 (our own file and the library's)
            hashes=[script_hash(script) for script in scripts],
        )
    )
