"""Pictures of a run: what the network does with puzzles and clips, what it finds alike, and how it came to that."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from unshuffle.analysis.figures import (
    INK,
    LEVELS,
    QUIET,
    TASK_COLOURS,
    legend_below,
    name_axes,
    panels,
    styled,
    thousands,
)
from unshuffle.analysis.names import short_names
from unshuffle.analysis.neighbours import draw as draw_neighbours
from unshuffle.analysis.sheet import DPI, RIGHT, WRONG, Picture, Sheet
from unshuffle.data.dataset import one_per_class
from unshuffle.evaluation.protocol import Result
from unshuffle.evaluation.retrieval import Neighbours, RetrievalMonitor
from unshuffle.report.attempts import Attempts, attempt
from unshuffle.report.curves import Chart, charts
from unshuffle.report.snapshot import Snapshot
from unshuffle.report.subjects import find_subjects
from unshuffle.run import Run
from unshuffle.training.trainer import Monitor

PUZZLES, CLIPS, QUERIES, NEIGHBOURS = 6, 6, 8, 5
# In pixels. A block is one sample with what became of it.
BLOCK, MARGIN, BETWEEN = 648, 32, 56  # width of a block, space around all blocks and between two
HEAD = 84  # above the first blocks: a title and names of columns
GUTTER = 15  # between pictures of a block
LABELS = 126  # names to the left of a clip
DOTTED = 40  # points of a curve, or fewer, that are marked


def draw_pictures(snapshot: Snapshot, monitor: Monitor | None, run: Run) -> list[Path]:
    """Draw what can be drawn of a run into its folder of pictures; returns the files."""
    run.pictures.mkdir(parents=True, exist_ok=True)
    figures = {
        "puzzles": _puzzles(snapshot) if "spatial" in snapshot.permutations else None,
        "clips": _clips(snapshot) if "temporal" in snapshot.permutations else None,
        "neighbours": _neighbours(snapshot, monitor) if isinstance(monitor, RetrievalMonitor) else None,
        "curves": draw_charts(drawn) if (drawn := charts(find_subjects([run.folder]))) else None,
    }
    paths = []
    for name, figure in figures.items():
        if figure is not None:
            paths.append(run.pictures / f"{name}.png")
            figure.savefig(paths[-1], dpi=DPI)
    return paths


# ---- a sheet of pictures


def mosaic(parts: Tensor, columns: int, width: int, gap: int = 3) -> Picture:
    """(P, 3, S, S) parts on a white grid, row by row, about `width` pixels wide."""
    side = (width - gap * (columns - 1)) // columns
    cells = _resize(parts, side)
    rows = len(parts) // columns
    canvas = np.ones((rows * (side + gap) - gap, columns * (side + gap) - gap, 3), np.float32)
    for position, cell in enumerate(cells):
        top, left = (side + gap) * (position // columns), (side + gap) * (position % columns)
        canvas[top : top + side, left : left + side] = cell
    return canvas


def _resize(parts: Tensor, side: int) -> Picture:
    """(N, 3, S, S) in [0, 1] to (N, side, side, 3): enlarged here because matplotlib would blur the gaps as well."""
    shrinks = parts.shape[-1] > side
    sized = F.interpolate(parts.cpu().float(), (side, side), mode="bicubic", align_corners=False, antialias=shrinks)
    # 64 levels look the same, and the files are a third smaller.
    pixels: Picture = sized.clamp(0, 1).mul(63).round().div(63).permute(0, 2, 3, 1).numpy()
    return pixels


def _whole(images: Tensor | npt.NDArray[np.uint8], side: int) -> Picture:
    """(N, H, W, 3) bytes to (N, side, side, 3)."""
    return _resize(torch.as_tensor(images).permute(0, 3, 1, 2).float() / 255, side)


def _sheet(title: str, block_height: int, count: int, head: int = HEAD) -> tuple[Sheet, Iterator[tuple[int, int, int]]]:
    """A titled sheet for `count` blocks in two columns, and (sample, left, top) of each block."""
    columns = min(2, count)
    rows = math.ceil(count / columns)
    sheet = Sheet(2 * MARGIN + columns * (BLOCK + BETWEEN) - BETWEEN, head + rows * block_height)
    sheet.text(title, MARGIN, 30, INK, fontsize=11.5)
    corners = (
        (sample, MARGIN + (sample % columns) * (BLOCK + BETWEEN), head + (sample // columns) * block_height)
        for sample in range(count)
    )
    return sheet, corners


# ---- the sheets


def _puzzles(snapshot: Snapshot) -> Figure:
    attempts = attempt(snapshot, "spatial", PUZZLES)
    title = f"Validation images, each in one of {_orders(snapshot, 'spatial')}"
    sheet, corners = _sheet(title, _third() + 50, len(attempts))
    for sample, left, top in corners:
        _puzzle(sheet, attempts, sample, snapshot.config.shuffle.grid, left, top)
        if top == HEAD:
            for i, words in enumerate(("image", "shuffled", "put together by the network")):
                sheet.text(words, left + i * (_third() + GUTTER), top - 18)
    return sheet.figure


def _colour(right: bool) -> str:
    return RIGHT if right else WRONG


def _third() -> int:
    return (BLOCK - 2 * GUTTER) // 3


def _puzzle(sheet: Sheet, attempts: Attempts, sample: int, grid: int, left: int, top: int) -> None:
    """Image, shuffled tiles and restored tiles side by side."""
    tiles = attempts.parts[sample]
    words, colour = attempts.verdict(sample, "tiles "), _colour(attempts.recognised(sample))
    shuffled = mosaic(tiles[attempts.shown[sample]], grid, _third())
    restored = mosaic(tiles[attempts.restored[sample]], grid, _third())
    step = _third() + GUTTER
    sheet.picture(_whole(attempts.pixels[sample, :1], len(shuffled))[0], left, top)
    sheet.picture(shuffled, left + step, top)
    sheet.picture(restored, left + 2 * step, top, colour)
    sheet.text(words, left + 2 * step, top + len(restored) + 16, colour)


def _orders(snapshot: Snapshot, task: str) -> str:
    return f"{len(snapshot.permutations[task]):,} orders, after {snapshot.iteration:,} iterations"


def _clips(snapshot: Snapshot) -> Figure:
    attempts = attempt(snapshot, "temporal", CLIPS)
    height = len(mosaic(attempts.parts[0], attempts.shown.shape[1], BLOCK - LABELS))
    title = f"Validation clips, each in one of {_orders(snapshot, 'temporal')}"
    sheet, corners = _sheet(title, 3 * (height + 26) + 22, len(attempts), head=66)
    for sample, left, top in corners:
        _clip(sheet, attempts, sample, left, top, height)
    return sheet.figure


def _clip(sheet: Sheet, attempts: Attempts, sample: int, left: int, top: int, height: int) -> None:
    """A clip in its true order, shuffled and restored, one below the other."""
    words, colour = attempts.verdict(sample), _colour(attempts.recognised(sample))
    true = torch.arange(attempts.shown.shape[1])
    orders = (true, attempts.shown[sample], attempts.restored[sample])
    names = (("true order", QUIET), ("shuffled", QUIET), ("put together", QUIET), (words, colour))
    tops = [top + i * (height + 26) for i in range(3)]
    for order, strip_top, frame in zip(orders, tops, (None, None, colour), strict=True):
        _strip(sheet, attempts.parts[sample], order, left + LABELS, strip_top, frame)
    middles = (tops[0], tops[1], tops[2] - 9, tops[2] + 9)
    for (name, ink), middle in zip(names, middles, strict=True):
        sheet.text(name, left, middle + height / 2, ink)


def _strip(sheet: Sheet, frames: Tensor, order: Tensor, left: int, top: int, frame: str | None) -> None:
    """Frames of a clip in an order, each with its number in the true order below it."""
    strip = mosaic(frames[order], len(order), BLOCK - LABELS)
    sheet.picture(strip, left, top, frame)
    step = strip.shape[1] / len(order)
    if step < 20:  # the numbers would run into one another
        return
    for position, number in enumerate(order.tolist()):
        sheet.text(str(number + 1), left + step * (position + 0.5), top + len(strip) + 12, ha="center", fontsize=8)


def _neighbours(snapshot: Snapshot, monitor: RetrievalMonitor) -> Figure:
    nearest = monitor.neighbours(snapshot.network.backbone).cpu()[:, :NEIGHBOURS]
    chosen = one_per_class(monitor.queries.labels, QUERIES)
    shown = Neighbours(monitor.queries.subset(chosen), monitor.gallery.subset(nearest[chosen].flatten().tolist()))
    return draw_neighbours({f"this network, after {snapshot.iteration:,} iterations": shown})


def draw_evaluation(result: Result, weights: str, folder: Path) -> list[Path]:
    """Draw what can be drawn of an evaluation of some weights into a folder; returns the files."""
    if result.neighbours is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "neighbours.png"
    draw_neighbours({short_names([weights])[0]: result.neighbours}).savefig(path, dpi=DPI)
    return [path]


# ---- curves


@styled
def draw_charts(drawn: Sequence[Chart]) -> Figure:
    """The report's charts, two beside each other."""
    figure, grid = panels(math.ceil(len(drawn) / 2), min(2, len(drawn)))
    for axes, chart in zip(grid.flat, drawn, strict=False):
        _draw_chart(axes, chart)
    for axes in grid.flat[len(drawn) :]:
        axes.remove()
    return figure


def _draw_chart(axes: Axes, chart: Chart) -> None:
    for series in chart.series:
        marker = "o" if len(series.points) <= DOTTED else None
        axes.plot(
            *zip(*series.points, strict=True),
            color=TASK_COLOURS.get(series.name, INK),
            marker=marker,
            label=series.name,
        )
    for (name, level), style in zip(chart.levels.items(), LEVELS, strict=False):
        axes.axhline(level, color=QUIET, linewidth=1.2, linestyle=style, label=name)
    name_axes(axes, chart.title, "iteration", chart.unit)
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    axes.set_ylim(0, 1.02 * axes.get_ylim()[1])
    thousands(axes.xaxis)
    legend_below(axes)
