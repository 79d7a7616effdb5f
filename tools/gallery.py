"""Draw the pictures of docs/gallery.md: parts of a demo run's report as a browser shows them.

python tools/gallery.py [RUN]; without a run folder it trains the preset `demo` first.
"""

import io
import sys
import tempfile
from pathlib import Path

from browser import Page, browse, find_chromium
from PIL import Image

import unshuffle
from unshuffle.report.page import write_report
from unshuffle.runs.folders import find_runs

OUT = Path(__file__).parents[1] / "docs" / "images" / "gallery"
DESKTOP, PHONE = 1140, 390
PARTS = {
    "results": ("header", "#results"),
    "curves": ("#curves", "#curves"),
    "examples": ("#examples", "#examples"),
    "neighbours": ("#neighbours", "#neighbours"),
    "policy": ("#policy", "#policy details"),
    "errors": ("#errors", "#errors .runs"),
}
"""Each picture reaches from the top of the first element to the bottom of the second."""
UNFOLD = "document.querySelectorAll('#policy details').forEach((details) => { details.open = true; })"


def main() -> None:
    """Draw all pictures."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit("chromium was not found: install it to draw the gallery")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else unshuffle.pretrain(out=Path(folder, "demo")).folder
        page_file = Path(folder, "report.html")
        write_report(find_runs([run]), page_file)
        OUT.mkdir(parents=True, exist_ok=True)
        with browse(chromium, Path(folder, "profile")) as page:
            draw(page, page_file)
    print(f"{sum(path.stat().st_size for path in OUT.iterdir()) / 1e6:.2f} MB in {OUT}")


def draw(page: Page, page_file: Path) -> None:
    """Draw the parts of the page on a desktop with light colours, and two of its screens on a phone with dark ones."""
    page.size(DESKTOP, 800)
    page.scheme("light")
    page.open(page_file)
    page.run(UNFOLD)
    for name, (first, last) in PARTS.items():
        top, bottom = (page.run(f"{box(selector)}.{edge}") for selector, edge in ((first, "top"), (last, "bottom")))
        save(name, screenshot(page, top, DESKTOP, bottom - top + 8))
    page.size(PHONE, 800, mobile=True)
    page.scheme("dark")
    page.open(page_file)
    examples = page.run(f"{box('#examples')}.top") + 20
    pair = Image.new("RGB", (2 * PHONE + 24, 844), "white")
    for number, top in enumerate((0, examples)):
        pair.paste(screenshot(page, top, PHONE, 844), (number * (PHONE + 24), 0))
    save("phone", pair)


def screenshot(page: Page, top: float, width: int, height: float) -> Image.Image:
    """Return a part of the page as an image."""
    return Image.open(io.BytesIO(page.picture(0, top, width, height)))


def box(selector: str) -> str:
    """Return the script for the rectangle of an element, on a page that has not been scrolled."""
    return f"document.querySelector('{selector}').getBoundingClientRect()"


def save(name: str, picture: Image.Image) -> None:
    """Save as WebP, a quarter of the size of a PNG."""
    picture.convert("RGB").save(OUT / f"{name}.webp", quality=84, method=6)


if __name__ == "__main__":
    main()
