"""Pictures of a run as PNG files: puzzles and nearest neighbours."""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F
from torchvision.utils import make_grid

from unshuffle.analysis.figures import (
    INK,
    RIGHT,
    SHEET_DPI,
    WRONG,
    Picture,
    Sheet,
)
from unshuffle.analysis.neighbours import draw as draw_neighbours
from unshuffle.evaluation.monitor import RetrievalMonitor
from unshuffle.evaluation.protocol import Result
from unshuffle.report.neighbours import labelled_neighbours, save_neighbours
from unshuffle.report.puzzles import Puzzles, solve_puzzles
from unshuffle.report.snapshot import Snapshot
from unshuffle.runs.folders import short_names
from unshuffle.runs.run import Run
from unshuffle.tasks import TASKS

SAMPLES = 6
# In pixels. A block shows one sample: true order, shuffled, restored.
BLOCK, MARGIN, BETWEEN = 648, 32, 56  # width of a block, space around all blocks and between two
HEAD = 84  # above the first blocks: the title and the headings of columns
GUTTER = 15  # between the pictures of a block
LABELS = 126  # names to the left of a strip


def draw_pictures(snapshot: Snapshot, monitor: RetrievalMonitor | None, run: Run) -> list[Path]:
    """Draw all pictures of a run into its folder of pictures, and return the files.

    Labelled neighbours are also stored for the report.
    """
    run.pictures.mkdir(parents=True, exist_ok=True)
    figures = {TASKS[task].view.picture_name: _draw_puzzles(snapshot, task) for task in snapshot.ordering_tasks}
    if monitor is not None:
        shown = labelled_neighbours(monitor, snapshot.network.backbone)
        save_neighbours(run.neighbours, shown, monitor, snapshot.iteration)
        figures["neighbours"] = draw_neighbours({f"this network, after {snapshot.iteration:,} iterations": shown})
    paths = [run.pictures / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        figure.savefig(path, dpi=SHEET_DPI)
    return paths


# ---- a sheet of pictures


def mosaic(parts: Tensor, columns: int, width: int, gap: int = 3) -> Picture:
    """Return (P, 3, S, S) parts on a white grid, row by row, about `width` pixels wide."""
    cells = _resize(parts, (width - gap * (columns - 1)) // columns)
    grid: Tensor = make_grid(cells, columns, padding=gap, pad_value=1)[:, gap:-gap, gap:-gap]  # none around the grid
    picture: Picture = grid.permute(1, 2, 0).numpy()
    return picture


def _resize(images: Tensor, side: int) -> Tensor:
    """Resize (N, 3, S, S) in [0, 1] to (N, 3, side, side); matplotlib would blur the gaps as well."""
    shrinks = images.shape[-1] > side
    resized = F.interpolate(images.cpu().float(), (side, side), mode="bicubic", align_corners=False, antialias=shrinks)
    return resized.clamp(0, 1).mul(63).round().div(63)  # 64 levels look the same and make the files a third smaller


def _sheet(title: str, block_height: int, count: int, head: int = HEAD) -> tuple[Sheet, Iterator[tuple[int, int, int]]]:
    """Return a titled sheet for `count` blocks in two columns, and (sample, left, top) of each block."""
    columns = min(2, count)
    rows = math.ceil(count / columns)
    sheet = Sheet(2 * MARGIN + columns * (BLOCK + BETWEEN) - BETWEEN, head + rows * block_height)
    sheet.text(title, MARGIN, 30, INK, fontsize=11.5)
    corners = (
        (sample, MARGIN + (sample % columns) * (BLOCK + BETWEEN), head + (sample // columns) * block_height)
        for sample in range(count)
    )
    return sheet, corners


# ---- puzzles


def _draw_puzzles(snapshot: Snapshot, task: str) -> Figure:
    view, puzzles = TASKS[task].view, solve_puzzles(snapshot, task, SAMPLES)
    count = len(snapshot.ordering_tasks[task].permutations)
    title = (
        f"Validation {view.media_noun}, each shuffled by one of {count:,} permutations, "
        f"after {snapshot.iteration:,} iterations"
    )
    return _draw_grids(puzzles, title, view.noun) if view.in_grid else _draw_strips(puzzles, title)


def _draw_grids(puzzles: Puzzles, title: str, noun: str) -> Figure:
    """Draw each image, its shuffled tiles and the restored tiles side by side."""
    side, columns = (BLOCK - 2 * GUTTER) // 3, math.isqrt(puzzles.shown.shape[1])
    sheet, corners = _sheet(title, side + 50, len(puzzles))
    for sample, left, top in corners:
        tiles, colour = puzzles.parts[sample], _verdict_colour(puzzles, sample)
        shuffled, restored = (
            mosaic(tiles[arrangement[sample]], columns, side) for arrangement in (puzzles.shown, puzzles.restored)
        )
        image = _resize(puzzles.pixels[sample, :1].permute(0, 3, 1, 2).float() / 255, len(shuffled))
        starts = [left + column * (side + GUTTER) for column in range(3)]
        sheet.picture(image[0].permute(1, 2, 0).numpy(), starts[0], top)
        sheet.picture(shuffled, starts[1], top)
        sheet.picture(restored, starts[2], top, colour)
        sheet.text(puzzles.verdict(sample, noun), starts[2], top + len(restored) + 16, colour)
        if top == HEAD:
            for start, heading in zip(starts, ("image", "shuffled", "restored by the network"), strict=True):
                sheet.text(heading, start, top - 18)
    return sheet.figure


def _verdict_colour(puzzles: Puzzles, sample: int) -> str:
    return RIGHT if puzzles.is_solved(sample) else WRONG


def _draw_strips(puzzles: Puzzles, title: str) -> Figure:
    """Draw each clip in its true order, shuffled and restored, one below the other."""
    height = len(mosaic(puzzles.parts[0], puzzles.shown.shape[1], BLOCK - LABELS))
    sheet, corners = _sheet(title, 3 * (height + 26) + 22, len(puzzles), head=66)
    for sample, left, top in corners:
        colour = _verdict_colour(puzzles, sample)
        identity = torch.arange(puzzles.shown.shape[1])
        arrangements = (identity, puzzles.shown[sample], puzzles.restored[sample])
        tops = [top + row * (height + 26) for row in range(3)]
        for arrangement, strip_top, frame in zip(arrangements, tops, (None, None, colour), strict=True):
            _draw_strip(sheet, puzzles.parts[sample], arrangement, left + LABELS, strip_top, frame)
        for name, name_top in zip(("true order", "shuffled", "restored"), (*tops[:2], tops[2] - 9), strict=True):
            sheet.text(name, left, name_top + height / 2)
        sheet.text(puzzles.verdict(sample), left, tops[2] + 9 + height / 2, colour)
    return sheet.figure


def _draw_strip(sheet: Sheet, frames: Tensor, arrangement: Tensor, left: int, top: int, frame: str | None) -> None:
    """Draw the rearranged frames of a clip, each above the number of its true position."""
    strip = mosaic(frames[arrangement], len(arrangement), BLOCK - LABELS)
    sheet.picture(strip, left, top, frame)
    step = strip.shape[1] / len(arrangement)
    if step < 20:  # the numbers would overlap
        return
    for position, number in enumerate(arrangement.tolist()):
        sheet.text(str(number + 1), left + step * (position + 0.5), top + len(strip) + 12, ha="center", fontsize=8)


def draw_evaluation(result: Result, weights: str, folder: Path) -> list[Path]:
    """Draw the neighbours of a retrieval evaluation, if it has any, into a folder, and return the files."""
    if result.neighbours is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "neighbours.png"
    draw_neighbours({short_names([weights])[0]: result.neighbours}).savefig(path, dpi=SHEET_DPI)
    return [path]
