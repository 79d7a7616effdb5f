"""A sheet of pictures, placed pixel by pixel."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

Picture: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.uint8]
"""(height, width, 3) in [0, 1] or in bytes."""

DPI = 100
PAD = 3  # between a picture and its frame
INK, QUIET, RIGHT, WRONG = "#222222", "#777777", "#2a8a57", "#c9453b"


def room_for(title: str) -> int:
    """Width of a sheet that a title in 12 points fits on."""
    return 40 + round(8.7 * len(title))


def shortened(name: str, letters: int) -> str:
    """A name that fits above or below a picture."""
    return name if len(name) <= letters else f"{name[: max(1, letters - 1)]}…"


class Sheet:
    """A figure on which pictures are placed pixel by pixel, the origin at the top left."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI, facecolor="white")

    def picture(
        self, pixels: Picture, left: float, top: float, frame: str | None = None, *, side: int | None = None
    ) -> None:
        """Place a picture: one of its pixels to one of the sheet's, or a square one resized to a side."""
        height, width = pixels.shape[:2] if side is None else (side, side)
        axes = self.figure.add_axes(self._box(left, top, width, height))
        axes.imshow(pixels, interpolation="nearest" if side is None else "auto", aspect="auto")
        axes.set_axis_off()
        if frame is not None:
            x, y, w, h = self._box(left - PAD, top - PAD, width + 2 * PAD, height + 2 * PAD)
            self.figure.add_artist(Rectangle((x, y), w, h, fill=False, edgecolor=frame, linewidth=1.8))

    def text(self, words: str, left: float, top: float, colour: str = QUIET, **style: Any) -> None:
        """Write a line; its middle is at `top` unless the style says otherwise.

        Names of files may hold a $, and need not be valid text.
        """
        words = words.encode(errors="backslashreplace").decode()
        style = {"fontsize": 9.5, "va": "center", "color": colour, "parse_math": False, **style}
        self.figure.text(left / self.width, 1 - top / self.height, words, **style)

    def _box(self, left: float, top: float, width: float, height: float) -> tuple[float, float, float, float]:
        bottom = self.height - top - height
        return left / self.width, bottom / self.height, width / self.width, height / self.height
