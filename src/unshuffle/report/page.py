"""`unshuffle report`: one HTML file about one run or several, which needs nothing beside it."""

import base64
import hashlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

import unshuffle
from unshuffle.analysis.table import read_cells
from unshuffle.files import atomic_write
from unshuffle.report.curves import Chart, charts
from unshuffle.report.snapshot import Snapshot
from unshuffle.report.subjects import Subject
from unshuffle.report.view import View, describe, illustrate
from unshuffle.wording import counted

Table = list[list[str]]
"""A row of names, and the rows below it."""

WITH_PICTURES = 4  # more runs than that are told apart by their curves and tables
NO_PICTURES = "There are no pictures: it has no checkpoint yet, or was told to keep none (log.pictures)."


def write_report(
    subjects: Sequence[Subject],
    path: Path,
    *,
    tables: Sequence[Path] = (),
    snapshots: Mapping[Path, Snapshot] | None = None,
) -> None:
    """Write the report.

    `tables` are the table.csv of ablations; a snapshot that is at hand, by its run folder, need not be read from a
    checkpoint.
    """
    views = [describe(subject) for subject in subjects]
    if len(subjects) <= WITH_PICTURES:
        for view, subject in zip(views, subjects, strict=True):
            run = subject.run
            illustrate(view, run, (snapshots or {}).get(run.folder) or Snapshot.newest(run))
    drawn = charts(subjects)
    page = _render(views, drawn, [table for file in tables if (table := read_cells(file))])
    with atomic_write(path) as draft:
        draft.write_text(page, encoding="utf-8", errors="backslashreplace")  # file names need not be valid text


def _render(views: Sequence[View], drawn: Sequence[Chart], tables: Sequence[Table]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("unshuffle.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["counted"] = counted
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
    scripts = [d3(), (Path(__file__).parent / "templates" / "report.js").read_text(encoding="utf-8")]
    return environment.get_template("report.html").render(
        generator=f"unshuffle {unshuffle.__version__}",
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        runs=views,
        tasks=list(dict.fromkeys(task for view in views for task in view["tasks"])),
        charts=drawn,
        data={"charts": [asdict(chart) for chart in drawn], "runs": [view["data"] for view in views]},
        tables=tables,
        differing=differing([view["config"] for view in views]),
        no_pictures=NO_PICTURES,
        with_pictures=WITH_PICTURES,
        scripts=[Markup(script) for script in scripts],
        hashes=[script_hash(script) for script in scripts],
    )


def d3() -> str:
    """D3, which the package mpld3 carries; importing that would import matplotlib."""
    place = importlib.metadata.distribution("mpld3").locate_file("mpld3/js/d3.v5.min.js")
    return Path(str(place)).read_text(encoding="utf-8")


def script_hash(script: str) -> str:
    """By which a browser knows a script that may run: no other does, whatever a file may be called."""
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names under which not all runs have the same value; a folder of its own each of them has anyway."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    return [name for name in names if name != "out" and len({str(config.get(name)) for config in configs}) > 1]
