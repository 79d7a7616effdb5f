"""Which runs a report is about, what they are called in it, and where it is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unshuffle.analysis.arms import arms_in
from unshuffle.analysis.history import run_labels
from unshuffle.analysis.names import short_names
from unshuffle.errors import UserError
from unshuffle.files import check_file
from unshuffle.run import Run

COLOURS = 8  # that the page's style has
GENERATOR_TAG = '<meta name="generator" content="unshuffle'


@dataclass(frozen=True)
class Subject:
    """A run to be shown, and how it is told from the others."""

    run: Run
    name: str
    arm: str
    """The arm of an ablation that it belongs to; else its name."""
    colour: str
    """The name of a colour of the page's style, the same for all runs of an arm."""


def find_subjects(folders: Sequence[Path]) -> list[Subject]:
    """The runs that are meant: run folders, or folders of runs such as an ablation."""
    runs = [Run.open(folder) for folder in folders if not _holds_runs(folder)]
    found = [(run, name, name) for run, name in zip(runs, _names(runs), strict=True)]
    for prefix, folder in _prefixed([folder for folder in folders if _holds_runs(folder)]):
        for name, path in _runs_in(folder).items():
            found.append((Run.open(path), prefix + name, prefix + name.partition("/")[0]))
    arms = list(dict.fromkeys(arm for _, _, arm in found))
    return [Subject(run, name, arm, f"c{arms.index(arm) % COLOURS}") for run, name, arm in found]


def _names(runs: Sequence[Run]) -> list[str]:
    return [run.folder.resolve().name for run in runs] if len(runs) == 1 else run_labels(runs)


def _prefixed(folders: Sequence[Path]) -> list[tuple[str, Path]]:
    """Folders of runs, and what tells the runs of one from those of another."""
    prefixes = [f"{name}/" for name in short_names(folders)] if len(folders) > 1 else [""] * len(folders)
    return list(zip(prefixes, folders, strict=True))


def _holds_runs(folder: Path) -> bool:
    return bool(_runs_in(folder))


def _runs_in(folder: Path) -> dict[str, Path]:
    """Runs below a folder that is none itself, by their paths from there: RUN, or ARM/seed-0 as `ablate` has them.

    An ablation's arms have their own names and order.
    """
    if (folder / "config.yaml").is_file():
        return {}
    arms, found = arms_in(folder), {}
    for pattern in ("*/config.yaml", "*/*/config.yaml"):
        for path in sorted(folder.glob(pattern)):
            first, *rest = path.relative_to(folder).parts[:-1]
            found["/".join([arms.get(first, first), *rest])] = path.parent
    order = list(arms.values())
    return dict(sorted(found.items(), key=lambda one: _place(one[0].partition("/")[0], order)))


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def find_tables(folders: Sequence[Path]) -> list[Path]:
    """The tables that `ablate` has written beside its runs."""
    return [file for folder in folders if _holds_runs(folder) and (file := folder / "table.csv").is_file()]


def default_file(folders: Sequence[Path]) -> Path:
    """Where a report is written unless told otherwise: into the folder it is about, or here if there are several."""
    return folders[0] / "report.html" if len(folders) == 1 else Path("report.html")


def check_page(path: Path) -> None:
    """Refuse a place that cannot be written, and to write over what is not a report."""
    check_file(path, "--out")
    if path.is_file():
        with path.open("rb") as file:
            if GENERATOR_TAG.encode() not in file.read(2000):
                raise UserError(f"{path} is not a report of unshuffle: choose another --out")
