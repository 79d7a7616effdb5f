"""Pictures of a run: what the network does with puzzles and clips, what it finds alike, and how it came to that."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from torch import Tensor
from torch.nn import functional as F

from unshuffle.analysis.sheet import DPI, INK, QUIET, RIGHT, WRONG, Picture, Sheet, shortened
from unshuffle.evaluation.labelled import LabelledImages, Neighbours, one_of_each
from unshuffle.evaluation.monitor import RetrievalMonitor
from unshuffle.evaluation.protocol import Result
from unshuffle.report.attempts import Attempts, attempt
from unshuffle.report.snapshot import Snapshot
from unshuffle.run import Run
from unshuffle.training.trainer import Monitor

PUZZLES, CLIPS, QUERIES, NEIGHBOURS = 6, 6, 8, 5
NAME = 14  # letters of a class that fit over a picture
# In pixels. A block is one sample with what became of it.
BLOCK, MARGIN, BETWEEN = 648, 32, 56  # width of a block, space around all blocks and between two
HEAD = 84  # above the first blocks: a title and names of columns
GUTTER = 15  # between pictures of a block
LABELS = 126  # names to the left of a clip
TASK_COLOURS = {"spatial": "#2b6cb0", "temporal": "#dd7a1e"}
BASELINE_STYLES = ((0, (6, 2)), (0, (1, 2)), (0, (5, 2, 1, 2)))


def draw_pictures(snapshot: Snapshot, monitor: Monitor | None, run: Run) -> list[Path]:
    """Draw what can be drawn of a run into its folder of pictures; returns the files."""
    run.pictures.mkdir(parents=True, exist_ok=True)
    figures = {
        "puzzles": _puzzles(snapshot) if "spatial" in snapshot.permutations else None,
        "clips": _clips(snapshot) if "temporal" in snapshot.permutations else None,
        "neighbours": _neighbours(snapshot, monitor) if isinstance(monitor, RetrievalMonitor) else None,
        "curves": _curves(snapshot, run),
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
    nearest = monitor.neighbours(snapshot.network.trunk).cpu()[:, :NEIGHBOURS]
    chosen = one_of_each(monitor.queries.labels, QUERIES)
    shown = Neighbours(monitor.queries.some(chosen), monitor.gallery.some(nearest[chosen].flatten().tolist()))
    words = f"Images and their nearest neighbours, the nearest first, after {snapshot.iteration:,} iterations"
    return neighbour_sheet(shown, words)


def draw_evaluation(result: Result, folder: Path) -> list[Path]:
    """Draw what can be drawn of an evaluation into a folder; returns the files."""
    if result.neighbours is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "neighbours.png"
    neighbour_sheet(result.neighbours, "Queries and their nearest neighbours, the nearest first").savefig(path, dpi=DPI)
    return [path]


def neighbour_sheet(shown: Neighbours, words: str) -> Figure:
    """Each query, and beside it what was found for it: framed in green if it is of the same class."""
    queries, found = shown.queries, shown.found
    each = len(found) // len(queries)
    step = (BLOCK - GUTTER) // (NEIGHBOURS + 1)
    sheet, corners = _sheet(words, step + 28, len(queries))
    for row, left, top in corners:
        _labelled(sheet, queries, row, left, top, None)
        for rank in range(each):
            place = row * each + rank
            frame = _colour(bool(found.labels[place] == queries.labels[row]))
            _labelled(sheet, found, place, left + GUTTER + (rank + 1) * step, top, frame)
    return sheet.figure


def _labelled(sheet: Sheet, images: LabelledImages, index: int, left: int, top: int, frame: str | None) -> None:
    """An image below the name of its class."""
    side = (BLOCK - GUTTER) // (NEIGHBOURS + 1) - GUTTER
    sheet.picture(_whole(images.pixels[index : index + 1], side)[0], left, top, frame)
    name = images.classes[int(images.labels[index])]
    sheet.text(shortened(name, NAME), left, top - 13, frame or INK, fontsize=8.5)


# ---- curves


def _curves(snapshot: Snapshot, run: Run) -> Figure | None:
    kinds = {kind: list(run.metrics(kind)) for kind in ("train", "validation", "monitor", "baseline")}
    panels = [kind for kind in ("train", "validation", "monitor") if kinds[kind]]
    if not panels:
        return None
    layout = ConstrainedLayoutEngine(w_pad=0.2, h_pad=0.15, wspace=0.02)
    figure = Figure(figsize=(5 * len(panels), 4.6), dpi=DPI, facecolor="white", layout=layout)
    for axes, kind in zip(figure.subplots(1, len(panels), sharex=True, squeeze=False)[0], panels, strict=True):
        if kind == "train":
            sizes = {task: len(rows) for task, rows in snapshot.permutations.items()}
            _draw_losses(axes, kinds["train"], sizes)
        elif kind == "validation":
            _draw_errors(axes, kinds["validation"])
        else:
            _draw_retrieval(axes, kinds["monitor"], kinds["baseline"])
    return figure


def _draw_losses(axes: Axes, entries: Sequence[dict[str, Any]], sizes: Mapping[str, int]) -> None:
    for task in sizes:
        points = [(entry["iteration"], entry["loss"][task]) for entry in entries if task in entry["loss"]]
        _line(axes, points, task, TASK_COLOURS[task])
    _chance(axes, {task: math.log(size) for task, size in sizes.items()}, "guessing: ln |Ψ|")
    _finish(axes, "Training loss", "cross-entropy [nats]")


def _draw_errors(axes: Axes, entries: Sequence[dict[str, Any]]) -> None:
    chances = {entry["task"]: entry["chance"] for entry in entries}
    for task in chances:
        points = [(entry["iteration"], entry["error"]) for entry in entries if entry["task"] == task]
        _line(axes, points, task, TASK_COLOURS[task], marker="o")
    _chance(axes, chances, "guessing")
    _finish(axes, "Validation error", "orders not recognised [share]")


def _draw_retrieval(axes: Axes, entries: Sequence[dict[str, Any]], baselines: Sequence[dict[str, Any]]) -> None:
    _line(axes, [(entry["iteration"], entry["top1"]) for entry in entries], "this network", INK, marker="o")
    levels = {entry["name"]: entry["top1"] for entry in baselines}
    for (name, level), style in zip(levels.items(), BASELINE_STYLES, strict=False):
        axes.axhline(level, color=QUIET, linewidth=1.2, linestyle=style, label=name)
    _finish(axes, "Retrieval", "nearest neighbour of the same class [%]")


def _line(axes: Axes, points: Sequence[tuple[int, float]], label: str, colour: str, marker: str | None = None) -> None:
    if len(points) == 1:
        marker = "o"  # a line through one point is invisible
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=colour, linewidth=1.6, label=label, marker=marker, markersize=4, clip_on=False)


def _chance(axes: Axes, levels: Mapping[str, float], name: str) -> None:
    """Dashed lines where blind guessing would be: one if the tasks agree on it."""
    if len(set(levels.values())) == 1:
        axes.axhline(next(iter(levels.values())), color=QUIET, linewidth=1.2, linestyle="--", label=name)
        return
    for task, level in levels.items():
        axes.axhline(level, color=TASK_COLOURS[task], linewidth=1.2, linestyle="--", label=f"{name}, {task}")


def _finish(axes: Axes, title: str, unit: str) -> None:
    """Names, a calm grid from zero, and a legend below, where it covers nothing."""
    axes.set_title(title, fontsize=11.5, color=INK, loc="left", pad=10)
    axes.set_xlabel("iteration", fontsize=9.5, color=INK)
    axes.set_ylabel(unit, fontsize=9.5, color=INK, labelpad=8)
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    axes.set_ylim(0, 1.02 * axes.get_ylim()[1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(labelsize=9, color=QUIET, labelcolor=INK)
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#bbbbbb")
    columns = 3 if len(axes.get_lines()) <= 3 else 2
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=columns, frameon=False, fontsize=9)
