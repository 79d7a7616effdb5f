"""How the figures of the analyses look: one style, colours that the colour-blind tell apart, SVG and PNG."""

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")

INK, QUIET, GRID = "#222222", "#6b6b6b", "#e6e6e6"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""For lines and names, in this order (Okabe and Ito)."""
TASK_COLOURS = {"spatial": COLOURS[0], "temporal": COLOURS[1]}
LEVELS: tuple[Any, ...] = ("--", "-.", ":", (0, (6, 2)))
"""Styles of lines that curves are held against."""
MAP = "viridis"
"""The colours of heat maps, and of steps from hard to easy: they differ in lightness, too."""
DPI = 150
STYLE: Any = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "text.parse_math": False,  # names of folders may hold a $
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
    "svg.fonttype": "none",  # text stays text: small, and can be searched
    "svg.hashsalt": "unshuffle",  # the same numbers, the same file
}


def styled(draw: Callable[P, "Figure"]) -> Callable[P, "Figure"]:
    """Decorator for what draws a figure: inside it matplotlib has our style, and outside that of its user."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> "Figure":
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return drawn


def panels(
    rows: int = 1, columns: int = 1, width: float = 6.4, height: float = 4.2, **options: Any
) -> tuple["Figure", Any]:
    """A figure and its (rows, columns) array of axes, each so many inches large."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), facecolor="white", layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def name_axes(axes: "Axes", title: str, x: str, y: str, *, grid: bool = True) -> None:
    """Title and axes, each with its unit in brackets."""
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(grid)


def thousands(axis: Any) -> None:
    """Few, whole ticks with separators, for iterations."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def legend_below(axes: "Axes", columns: int = 3) -> None:
    """A legend where it covers nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=columns)


def save_figure(figure: "Figure", paths: Sequence[Path]) -> None:
    """Write a figure to each path, in the format of its ending."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        for path in paths:
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=DPI, metadata=metadata)
