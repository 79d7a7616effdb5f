"""`unshuffle neighbours`: a self-contained HTML page and a contact sheet of the nearest neighbours in a dataset."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from markupsafe import Markup
from matplotlib.figure import Figure

import unshuffle
from unshuffle.analysis.figures import INK, SHEET_DPI, Sheet, shortened
from unshuffle.config import NEAR_DUPLICATE
from unshuffle.data.source import Pixels
from unshuffle.errors import UserError
from unshuffle.evaluation.index import OUTLIER_NEIGHBOURS, USUAL, Index
from unshuffle.files import atomic_write, check_file
from unshuffle.report.page import check_page
from unshuffle.report.puzzles import thumbnails
from unshuffle.report.rendering import environment, script_hash
from unshuffle.runs.history import evenly_spaced
from unshuffle.wording import counted

SIDE = 128
"""Pixels of a thumbnail."""
MAX_SHOWN, SOME = 1000, 100
"""Up to so many items are all on the page; of more there are so many, evenly spaced, with their neighbours."""
MAX_GROUPS, MAX_MEMBERS, OUTLIERS = 40, 12, 24
"""Groups of near-duplicates and members of one, and outliers, on the page."""
EXAMPLES, NEIGHBOURS, GROUPS = 8, 7, 3
"""Rows of the contact sheet, neighbours in a row, and groups of near-duplicates on it."""


class SimilarityPage(NamedTuple):
    """What `neighbours_page` has written, and what stands out in the dataset."""

    files: tuple[Path, Path]
    """The page and the contact sheet."""
    near_duplicates: list[list[str]]
    """The names of each group."""
    outliers: list[tuple[str, float]]
    """Names, and the mean similarity to the nearest few."""


def page_file(out: str | Path | None = None) -> Path:
    """Return the file for a page, by default the next free neighbours.html, neighbours-2.html, ...

    Raise a UserError if the page or the sheet beside it cannot be written, or would overwrite another kind of file.
    """
    if out is None:
        numbers = itertools.count(2)
        out = Path("neighbours.html")
        while out.exists() or out.with_suffix(".png").exists():
            out = Path(f"neighbours-{next(numbers)}.html")
    out = Path(out).expanduser()
    if out.suffix != ".html":
        raise UserError(f"--out {out} must end with .html")
    was_ours = out.is_file()
    check_page(out)
    sheet = out.with_suffix(".png")
    check_file(sheet, "--out")
    if sheet.exists() and not was_ours:
        raise UserError(f"{sheet} exists, where the contact sheet would go: choose another --out")
    return out


def neighbours_page(
    index: Index, out: str | Path | None = None, *, threshold: float = NEAR_DUPLICATE
) -> SimilarityPage:
    """Write a page of the nearest neighbours, near-duplicates and outliers of an index, and a contact sheet.

    By default it is neighbours.html, or the next free of neighbours-2.html, ...; a page that is named is replaced.
    """
    out = page_file(out)
    if len(index) < 2:
        raise UserError(f"{index.dataset.address} has {counted(len(index), index.dataset.kind)}: give 2 or more")
    names, groups, outliers = index.names, index.near_duplicates(threshold), index.outliers(OUTLIERS)
    queries = list(range(len(index))) if len(index) <= MAX_SHOWN else evenly_spaced(range(len(index)), SOME)
    near = index.neighbours()
    nearest = {item: near.items[item].tolist() for item in queries}
    shown_groups = [group[:MAX_MEMBERS] for group in groups[:MAX_GROUPS]]
    listed = [*(item for group in shown_groups for item in group), *(item for item, _ in outliers)]
    shown = sorted({*queries, *(item for items in nearest.values() for item in items), *listed})
    pixels = dict(zip(shown, _squares(index, shown), strict=True))
    pictures = thumbnails(torch.from_numpy(np.stack(list(pixels.values()))), SIDE)
    data = {
        "pictures": dict(zip(shown, pictures, strict=True)),
        "names": {item: names[item] for item in shown},
        "nearest": {
            item: [
                [other, round(value, 2)] for other, value in zip(others, near.similarities[item].tolist(), strict=True)
            ]
            for item, others in nearest.items()
        },
    }
    page = _render(index, data, queries, groups, shown_groups, outliers, threshold)
    sheet = _draw(index, pixels, evenly_spaced(queries, EXAMPLES), groups[:GROUPS], outliers)
    sheet.savefig(out.with_suffix(".png"), dpi=SHEET_DPI)
    with atomic_write(out) as draft:
        draft.write_text(page, encoding="utf-8", errors="backslashreplace")
    return SimilarityPage(
        (out, out.with_suffix(".png")),
        [[names[item] for item in group] for group in groups],
        [(names[item], value) for item, value in outliers],
    )


def _squares(index: Index, items: Sequence[int]) -> list[Pixels]:
    """Return items as the network sees them; of a video the middle frame."""
    squares = [index.dataset.load(item) for item in items]
    return [frames[len(frames) // 2] for frames in squares]


def _render(
    index: Index,
    data: dict[str, Any],
    queries: Sequence[int],
    groups: Sequence[Sequence[int]],
    shown_groups: Sequence[Sequence[int]],
    outliers: Sequence[tuple[int, float]],
    threshold: float,
) -> str:
    script = (Path(__file__).parent / "templates" / "similarity.js").read_text(encoding="utf-8")
    return (
        environment()
        .get_template("similarity.html")
        .render(
            generator=f"unshuffle {unshuffle.__version__}",
            folder=Path(index.dataset.address).name or index.dataset.address,
            address=index.dataset.address,
            kind=index.dataset.kind,
            index=index,
            skipped=index.dataset.skipped,
            neighbours=min(USUAL, len(index) - 1),
            outlier_neighbours=min(OUTLIER_NEIGHBOURS, len(index) - 1),
            queries=queries,
            first=evenly_spaced(queries, 3)[1 if len(queries) > 2 else 0],
            groups=groups,
            shown_groups=shown_groups,
            outliers=outliers,
            threshold=threshold,
            data=data,
            script=Markup(script),  # noqa: S704 (our own file)
            hashes=[script_hash(script)],
        )
    )


# ---- the contact sheet


CELL, GAP, LINE, MARGIN, HEAD = 112, 10, 30, 24, 64  # in pixels


def _draw(
    index: Index,
    pixels: dict[int, Pixels],
    examples: Sequence[int],
    groups: Sequence[Sequence[int]],
    outliers: Sequence[tuple[int, float]],
) -> Figure:
    """Draw rows of an item and its neighbours, then rows of near-duplicates, then a row of outliers."""
    near, names = index.neighbours(NEIGHBOURS), index.names
    blocks: list[tuple[str, list[list[tuple[int, str]]]]] = [
        (
            "Nearest neighbours of the first image of each row, with their similarity",
            [
                [
                    (item, shortened(names[item], 15)),
                    *(
                        (other, f"{value:.2f}")
                        for other, value in zip(*(part[item].tolist() for part in near), strict=True)
                    ),
                ]
                for item in examples
            ],
        ),
        (
            "Near-duplicates",
            [[(item, shortened(names[item], 15)) for item in group[: NEIGHBOURS + 1]] for group in groups],
        ),
        (
            f"Outliers, with their mean similarity to the {OUTLIER_NEIGHBOURS} nearest",
            [[(item, f"{value:.2f}") for item, value in outliers[: NEIGHBOURS + 1]]],
        ),
    ]
    blocks = [(title, rows) for title, rows in blocks if rows]
    width = 2 * MARGIN + (NEIGHBOURS + 1) * (CELL + GAP)
    height = HEAD + sum(len(rows) * (CELL + LINE) + 2 * LINE for _, rows in blocks)
    sheet, top = Sheet(width, height), HEAD
    title = f"{counted(len(index), index.dataset.kind)} of {Path(index.dataset.address).name}"
    sheet.text(shortened(title, width // 10), MARGIN, 30, INK, fontsize=14)
    for heading, rows in blocks:
        sheet.text(heading, MARGIN, top, INK, fontsize=10.5)
        top += LINE - 6
        for row in rows:
            for column, (item, caption) in enumerate(row):
                left = MARGIN + column * (CELL + GAP) + (GAP if column and heading.startswith("Nearest") else 0)
                sheet.picture(pixels[item], left, top, side=CELL)
                sheet.text(caption, left, top + CELL + 11, fontsize=8)
            top += CELL + LINE
        top += LINE + 6
    return sheet.figure
