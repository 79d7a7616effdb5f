"""Several runs: finding them in folders such as an ablation's, naming them, and reading the table beside them."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unshuffle.config import OrderingConfig
from unshuffle.errors import UserError
from unshuffle.files import csv_text
from unshuffle.options import read_yaml
from unshuffle.runs.run import Run
from unshuffle.wording import plus_minus

PLAN_NAME = "ablation.yaml"
"""File of an ablation's folder that lists its arms."""
TABLE_NAME = "table.csv"
"""File of an ablation's folder that holds its figures."""
PUBLISHED = "published, other data"
"""Heading of the figures that the paper reports."""
REMARK = "remark"
"""Column of a table.csv that says what a reader must know about the figures of an arm."""


# ---- names


def short_names(paths: Sequence[str | Path]) -> list[str]:
    """Return the last components of paths, as few as make them distinct; what is not a path stays as it is."""
    split_paths = [_components(path) for path in paths]
    for length in range(1, max(map(len, split_paths), default=1) + 1):
        names = ["/".join(components[-length:]) for components in split_paths]
        if len(set(names)) == len(names):
            return names
    raise UserError("the same path is given twice: name each only once")


def _components(path: str | Path) -> tuple[str, ...]:
    expanded = Path(path).expanduser()
    components = expanded.absolute().parts if expanded.exists() else (str(path),)
    return tuple(component.encode(errors="backslashreplace").decode() for component in components)


def run_labels(runs: Sequence[Run]) -> list[str]:
    """Return a distinct name for each run: its folder's, with the sampler's where the folder does not mention it."""
    names, samplers = short_names([run.folder for run in runs]), [_sampler_name(run) for run in runs]
    return [name if sampler in name else f"{name} ({sampler})" for name, sampler in zip(names, samplers, strict=True)]


def _sampler_name(run: Run) -> str:
    """Return the name of the run's sampler; empty if it has no ordering task."""
    config = run.config
    orders = any(isinstance(config.section(task), OrderingConfig) for task in config.task_names)
    return config.policy.name if orders else ""


def folder_name(name: str) -> str:
    """Return the folder of an arm or evaluation, safe on every file system and in every shell: S&T is S-and-T."""
    safe = re.sub(r"[^A-Za-z0-9.+_-]", "_", name.replace("&", "-and-"))
    if not safe.strip("._-") or safe.startswith((".", "-")):
        raise UserError(f"'{name}' cannot name an arm or an evaluation: begin it with a letter or a digit")
    return safe


# ---- runs


@dataclass(frozen=True)
class NamedRun:
    """A run and what it is called among others."""

    run: Run
    name: str
    arm: str
    """The arm of an ablation that it belongs to; otherwise its name."""


def find_runs(folders: Sequence[Path]) -> list[NamedRun]:
    """Return the runs of run folders, and of folders that contain runs, such as an ablation's."""
    single = [Run.open(folder) for folder in folders if not runs_below(folder)]
    names = run_labels(single) if len(single) > 1 else [run.folder.resolve().name for run in single]
    runs = [NamedRun(run, name, name) for run, name in zip(single, names, strict=True)]
    parents = [folder for folder in folders if runs_below(folder)]
    prefixes = [f"{name}/" for name in short_names(parents)] if len(parents) > 1 else [""] * len(parents)
    for prefix, parent in zip(prefixes, parents, strict=True):
        for name, path in runs_below(parent).items():
            runs.append(NamedRun(Run.open(path), prefix + name, prefix + name.partition("/")[0]))
    return runs


def runs_below(folder: Path) -> dict[str, Path]:
    """Return the runs below a folder that is not a run itself, by name: RUN, or ARM/seed-0 in an ablation.

    The arms of an ablation keep their own names and their order.
    """
    if (folder / "config.yaml").is_file():
        return {}
    arms, runs = _read_arms(folder), {}
    for pattern in ("*/config.yaml", "*/*/config.yaml"):
        for path in sorted(folder.glob(pattern)):
            first, *rest = path.relative_to(folder).parts[:-1]
            if any(name.startswith(".") for name in (first, *rest)):  # a run that was killed as it began
                continue
            runs["/".join([arms.get(first, first), *rest])] = path.parent
    rank = {arm: position for position, arm in enumerate(arms.values())}
    return dict(sorted(runs.items(), key=lambda item: rank.get(item[0].partition("/")[0], len(rank))))


def _read_arms(folder: Path) -> dict[str, str]:
    """Return the arms of an ablation in their order, by the names of their folders; none if it is no ablation."""
    file = folder / PLAN_NAME
    arms = read_yaml(file, "ablation").get("arms") if file.is_file() else None
    return {folder_name(name): name for name in arms or {}}


# ---- options


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the options in which the runs differ, except for the run folder."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    return [name for name in names if name != "out" and len({str(config.get(name)) for config in configs}) > 1]


# ---- the table of an ablation


def find_tables(folders: Sequence[Path]) -> list[Path]:
    """Return the tables that `ablate` has written beside its runs."""
    return [file for folder in folders if runs_below(folder) and (file := folder / TABLE_NAME).is_file()]


def read_table(path: Path) -> list[list[str]]:
    """Return the header and the rows of a table.csv as text, mean ± std; nothing if it is not an ablation's table."""
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        header, *rows = [*csv.reader(file)] or [[]]
    if header[:2] != ["arm", "seeds"] or any(len(row) != len(header) for row in rows):
        return []
    columns = [name for name in header[2:] if not name.endswith(" std") and name != REMARK]
    names = [
        PUBLISHED if name.endswith(PUBLISHED) else name.removesuffix(" mean").replace(".", " ") for name in columns
    ]
    table = [["", "seeds", *names]]
    for row in rows:
        cells = zip(header[2:], row[2:], strict=True)
        figures = {name: float(text) for name, text in cells if text and name != REMARK}
        stds = [figures.get(f"{name.removesuffix(' mean')} std") for name in columns]
        means = [plus_minus(figures.get(name), std, decimals(name)) for name, std in zip(columns, stds, strict=True)]
        table.append([csv_text(row[0]), row[1], *means])
    return table


def decimals(column: str) -> int:
    """Return the decimals to print of a metric: errors are fractions, all else is percent or larger."""
    return 3 if column.startswith("error.") else 1
