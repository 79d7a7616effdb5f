import numpy as np
import pytest

from unshuffle.analysis.figures import SHEET_DPI, Sheet, shortened, title_width


def test_long_names_are_shortened() -> None:
    assert shortened("windsor_chair", 13) == "windsor_chair"
    assert shortened("windsor_chair", 12) == "windsor_cha…"
    assert shortened("windsor_chair", 0) == "w…"


@pytest.mark.parametrize(
    "title",
    ["Images with the highest conv5 activations", "Queries and their nearest neighbours, the nearest first; green"],
)
def test_a_title_fits_on_its_sheet(title: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    sheet = Sheet(title_width(title), 50)
    sheet.text(title, 18, 20, fontsize=12)
    canvas = FigureCanvasAgg(sheet.figure)
    assert sheet.figure.texts[0].get_window_extent(canvas.get_renderer()).x1 < title_width(title)


def test_pictures_are_at_their_position() -> None:
    sheet = Sheet(100, 50)
    sheet.picture(np.zeros((8, 8, 3), np.uint8), 10, 20)
    sheet.picture(np.zeros((8, 8, 3), np.uint8), 30, 20, side=16)
    boxes = [axes.get_position().bounds for axes in sheet.figure.axes]
    assert boxes[0] == pytest.approx((0.1, 22 / 50, 0.08, 8 / 50))
    assert boxes[1] == pytest.approx((0.3, 14 / 50, 0.16, 16 / 50))
    assert sheet.figure.get_size_inches().tolist() == [100 / SHEET_DPI, 50 / SHEET_DPI]


def test_dollars_are_not_formulas() -> None:
    sheet = Sheet(100, 50)
    sheet.text("a $\\frac$ b", 1, 1)
    assert sheet.figure.texts[0].get_parse_math() is False
    sheet.text("no \udcff text", 1, 1)
    assert sheet.figure.texts[1].get_text() == "no \\udcff text"
