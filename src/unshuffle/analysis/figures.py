"""Style and layout of all figures: colour-blind safe colours, axes, sheets of pictures, SVG and PNG."""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from unshuffle.config import TASK_SYMBOLS

P = ParamSpec("P")
Picture: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
"""(height, width, 3) in [0, 1] or in bytes."""

INK, QUIET, GRID = "#222222", "#6b6b6b", "#e6e6e6"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""For lines and names, in this order (Okabe and Ito)."""
RIGHT, WRONG = "#2a8a57", "#c9453b"
"""For frames and verdicts."""
LEVELS: tuple[Any, ...] = ("--", "-.", ":", (0, (6, 2)))
"""Line styles of reference levels."""
MAP = "viridis"
"""Colour map of heat maps and of steps from hard to easy."""
DPI = 150
"""Resolution of plots."""
SHEET_DPI = 100
"""Resolution of sheets of pictures."""
FRAME_GAP = 3
"""Pixels between a picture on a sheet and its frame."""
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # names of folders may contain a $
    "axes.edgecolor": "#bbbbbb",
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 11.5,
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",  # text stays text: small and searchable
    "svg.hashsalt": "unshuffle",  # the same numbers give the same file
}


def task_colour(task: str) -> str:
    """Return the colour of a task in figures."""
    names: list[str] = list(TASK_SYMBOLS.values())
    return COLOURS[names.index(task) % len(COLOURS)]


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a function that draws a figure: our matplotlib style applies inside it and nowhere else."""

    @wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return wrapper


def panels(
    rows: int = 1, columns: int = 1, width: float = 6.4, height: float = 4.2, **options: Any
) -> tuple[Figure, Any]:
    """Return a figure and its (rows, columns) array of axes, each of this size in inches."""
    figure = Figure(figsize=(width * columns, height * rows), facecolor="white", layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def name_axes(axes: Axes, title: str, x: str, y: str, *, grid: bool = True) -> None:
    """Set the title and the labels of the axes, which carry their unit in brackets."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(grid)


def thousands(axis: Any) -> None:
    """Set few, whole ticks with thousands separators, for iterations."""
    axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def legend_below(axes: Axes, columns: int = 3) -> None:
    """Place the legend below the axes."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=columns)


def save_figure(figure: Figure, paths: Sequence[Path]) -> None:
    """Write a figure to each path, in the format of its suffix."""
    with rc_context(STYLE):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=DPI, metadata=metadata)


# ---- sheets of pictures


def title_width(title: str) -> int:
    """Return the width in pixels of a sheet that fits a title in 12 points."""
    return 40 + round(8.7 * len(title))


def shortened(name: str, letters: int) -> str:
    """Return a name cut to so many letters, to fit above or below a picture."""
    return name if len(name) <= letters else f"{name[: max(1, letters - 1)]}…"


class Sheet:
    """A figure on which pictures are placed pixel by pixel, the origin at the top left."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / SHEET_DPI, height / SHEET_DPI), dpi=SHEET_DPI, facecolor="white")

    def picture(
        self, pixels: Picture, left: float, top: float, frame: str | None = None, *, side: int | None = None
    ) -> None:
        """Place a picture pixel by pixel, or a square one resized to a side."""
        height, width = pixels.shape[:2] if side is None else (side, side)
        axes = self.figure.add_axes(self._box(left, top, width, height))
        axes.imshow(pixels, interpolation="nearest" if side is None else "auto", aspect="auto")
        axes.set_axis_off()
        if frame is not None:
            x, y, w, h = self._box(left - FRAME_GAP, top - FRAME_GAP, width + 2 * FRAME_GAP, height + 2 * FRAME_GAP)
            self.figure.add_artist(Rectangle((x, y), w, h, fill=False, edgecolor=frame, linewidth=1.8))

    def text(self, line: str, left: float, top: float, colour: str = QUIET, **style: Any) -> None:
        """Write a line; its middle is at `top` unless the style says otherwise."""
        # file names may contain a $, and need not be valid text
        line = line.encode(errors="backslashreplace").decode()
        style = {"fontsize": 9.5, "va": "center", "color": colour, "parse_math": False, **style}
        self.figure.text(left / self.width, 1 - top / self.height, line, **style)

    def _box(self, left: float, top: float, width: float, height: float) -> tuple[float, float, float, float]:
        bottom = self.height - top - height
        return left / self.width, bottom / self.height, width / self.width, height / self.height
