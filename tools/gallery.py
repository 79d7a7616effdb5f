"""Draw the pictures of docs/results/gallery.md and docs/how-to/live-page.md: a report and the live page in a browser.

python tools/gallery.py [RUN ...]; without a run folder it trains the preset `demo` first, and for a short time the
spatial task alone, which the live page compares with it.
"""

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

import unshuffle
from browser import Page, browse, find_chromium
from unshuffle.report.page import write_report
from unshuffle.runs.folders import find_runs

IMAGES = Path(__file__).parents[1] / "docs" / "images"
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
LIVE = {
    "runs": ("/?{selected}", "document.querySelectorAll('#differing tbody tr').length > 0", 640),
    "run": (
        "/run/{run}",
        "document.querySelector('#policy .errormap canvas') && document.querySelector('.puzzle')",
        1840,
    ),
    "compare": ("/compare?{selected}", "document.querySelectorAll('.chart path.curve').length > 3", 900),
    "search": ("/search", "document.querySelectorAll('.items img').length > 3", 1000),
    "puzzle": ("/puzzle?run={run}", "document.querySelector('.board button')", 748),
}
"""Pages of the live page: address, when it is complete, height of the picture."""
CLICKED = {
    "search": (".items button:nth-child(4)", "document.querySelectorAll('.found img').length === 20"),
    "puzzle": ("#ask", "document.querySelector('.restored')"),
}
"""What is clicked on a page, and when the answer is shown."""
UNFOLD = "document.querySelectorAll('#policy details').forEach((details) => { details.open = true; })"


def main() -> None:
    """Draw all pictures."""
    chromium = find_chromium()
    if chromium is None:
        sys.exit("chromium was not found: install it to draw the gallery")
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(word) for word in sys.argv[1:]]
        if not runs:
            short = unshuffle.pretrain(out=Path(folder, "tiles-only"), tasks="S", iterations=100)
            runs = [unshuffle.pretrain(out=Path(folder, "demo")).folder, short.folder]
        page_file = Path(folder, "report.html")
        write_report(find_runs(runs[:1]), page_file)
        with browse(chromium, Path(folder, "profile")) as page:
            draw(page, page_file)
            draw_live(page, runs)
    for out in (IMAGES / "gallery", IMAGES / "serve"):
        print(f"{sum(path.stat().st_size for path in out.iterdir()) / 1e6:.2f} MB in {out}")


def draw(page: Page, page_file: Path) -> None:
    """Draw the parts of the page on a desktop with light colours, and two of its screens on a phone with dark ones."""
    page.size(DESKTOP, 800)
    page.scheme("light")
    page.open(page_file)
    page.run(UNFOLD)
    for name, (first, last) in PARTS.items():
        top, bottom = (page.run(f"{box(selector)}.{edge}") for selector, edge in ((first, "top"), (last, "bottom")))
        save(f"gallery/{name}", screenshot(page, top, DESKTOP, bottom - top + 8))
    page.size(PHONE, 800, mobile=True)
    page.scheme("dark")
    page.open(page_file)
    examples = page.run(f"{box('#examples')}.top") + 20
    pair = Image.new("RGB", (2 * PHONE + 24, 844), "white")
    for number, top in enumerate((0, examples)):
        pair.paste(screenshot(page, top, PHONE, 844), (number * (PHONE + 24), 0))
    save("gallery/phone", pair)


def draw_live(page: Page, runs: Sequence[Path]) -> None:
    """Draw the live page on a desktop with light colours, and side by side on a phone with dark ones."""
    words = [sys.executable, "-m", "unshuffle", "serve", *map(str, runs), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.match(r"http://\S+:\d+", server.stdout.readline())
            assert found is not None
            names = {"run": runs[0].name, "selected": "&".join(f"run={run.name}" for run in runs)}
            phones = Image.new("RGB", (len(LIVE) * (PHONE + 24) - 24, 844), "white")
            for number, (name, (path, complete, height)) in enumerate(LIVE.items()):
                for width in (DESKTOP, PHONE):
                    page.size(width, max(844, height), mobile=width == PHONE)  # images outside are not loaded
                    page.scheme("light" if width == DESKTOP else "dark")
                    page.visit(found[0] + path.format(**names))
                    page.wait(complete, 300)
                    if name in CLICKED:
                        clicked, answered = CLICKED[name]
                        page.click(clicked)
                        page.wait(answered, 300)
                        page.run("scrollTo({top: 0, behavior: 'instant'})")
                    page.wait("[...document.querySelectorAll('.found img')].every((image) => image.complete)")
                    if width == DESKTOP:
                        save(f"serve/{name}", screenshot(page, 0, width, height))
                    else:
                        phones.paste(screenshot(page, 0, width, 844), (number * (PHONE + 24), 0))
            save("serve/phone", phones)
            page.visit("about:blank")
        finally:
            server.terminate()


def screenshot(page: Page, top: float, width: int, height: float) -> Image.Image:
    """Return a part of the page as an image."""
    return Image.open(io.BytesIO(page.picture(0, top, width, height)))


def box(selector: str) -> str:
    """Return the script for the rectangle of an element, on a page that has not been scrolled."""
    return f"document.querySelector('{selector}').getBoundingClientRect()"


def save(name: str, picture: Image.Image) -> None:
    """Save as WebP, a quarter of the size of a PNG."""
    file = IMAGES / f"{name}.webp"
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.convert("RGB").save(file, quality=84, method=6)


if __name__ == "__main__":
    main()
