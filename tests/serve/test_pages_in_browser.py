"""The live page in a real browser: it shows what is new and keeps the view, and its controls work."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unshuffle.runs.heartbeat import Heartbeat
from unshuffle.runs.run import Run

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
from browser import Page, browse, find_chromium

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true", reason="there is no chromium to look at the page with"
)
AXE = os.environ.get("UNSHUFFLE_AXE")
"""File axe.min.js of the npm package axe-core, which checks accessibility."""
PAGES = {
    "/?run=first&run=second": "document.querySelectorAll('tbody tr').length >= 4",
    "/run/first": "document.querySelector('#policy .errormap canvas') && document.querySelector('#solved .puzzle')",
    "/compare?run=first&run=second&seeds=mean": "document.querySelector('.chart path.band')",
    "/search?item=3": "document.querySelectorAll('.found img').length === 20",
    "/puzzle?run=first": "document.querySelector('.board button')",
}
"""Each page, and when it is complete."""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert CHROMIUM is not None, "CI must have a chromium"
    with browse(CHROMIUM, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Iterator[Page]:
    browser.problems.clear()
    browser.requested.clear()
    browser.size(1200, 900)
    browser.scheme("light")
    yield browser
    browser.visit("about:blank")  # no stream stays open
    assert browser.problems == []


def text(page: Page, selector: str) -> str:
    words: str = page.run(f"document.querySelector({json.dumps(selector)}).textContent")
    return words


def names(page: Page) -> list[str]:
    shown: list[str] = page.run("[...document.querySelectorAll('table.all tbody tr')].map((row) => row.dataset.name)")
    return shown


def append_validation(run: Run, iteration: int) -> None:
    with run.metrics_file.open("a") as file:
        for task in ("spatial", "temporal"):
            entry = {"iteration": iteration, "kind": "validation", "task": task, "error": 0.5, "chance": 0.8}
            file.write(json.dumps(entry) + "\n")


def test_the_table_sorts_filters_and_compares_and_the_address_holds_the_view(page: Page, client: Any) -> None:
    page.visit(client.address)
    page.wait("document.querySelectorAll('tbody tr').length === 4")
    assert "damaged" in text(page, "tr[data-name=damaged]") and "config.yaml" in text(page, "tr[data-name=damaged]")
    page.click("th[data-column=name] button")
    page.click("th[data-column=name] button")
    order = names(page)
    assert order.index("second") < order.index("first") and page.run("location.search") == "?sort=name&descending=1"
    page.run("document.getElementById('filter').focus()")
    page.call("Input.insertText", text="FINISHED s+t")
    assert sorted(names(page)) == sorted(set(order) - {"damaged"})
    for name in ("first", "second"):
        page.click(f"input[data-run={name}]")
    assert page.run("[...document.querySelectorAll('#differing tbody th')].map((cell) => cell.textContent)") == ["seed"]
    assert page.run("[...document.querySelectorAll('td.differs')].map((cell) => cell.textContent)") == ["0", "1"]
    csv = page.run("fetch(document.getElementById('csv').href).then((answer) => answer.text())")
    assert [line.partition(",")[0].strip('"') for line in csv.splitlines()[1:]] == names(page)
    before = page.run("document.querySelector('table').outerHTML")
    page.call("Page.reload")
    page.wait("document.querySelectorAll('td.differs').length === 2")
    assert page.run("document.querySelector('table').outerHTML") == before
    page.click("#compare")
    page.wait("location.pathname === '/compare' && document.querySelectorAll('.chart path.curve').length > 8")


def test_names_that_are_html_stay_text(page: Page, client: Any) -> None:
    page.visit(f"{client.address}/search")
    page.wait("[...document.querySelectorAll('.items img')].some((image) => image.alt.startsWith('<img'))")
    page.visit(client.address)
    page.wait("[...document.querySelectorAll('tbody a')].some((link) => link.textContent.startsWith('<img'))")
    assert page.run("document.querySelectorAll('[onerror], img[src=x]').length") == 0
    page.run("document.querySelector(\"tr[data-name^='<img'] a\").click()")
    page.wait("document.querySelector('.chart path.curve')")
    assert text(page, "h1").startswith("<img") and page.run("document.title") != "pwned"


def test_new_points_and_a_reload_keep_zoom_and_slider(
    page: Page, serving: Any, library_folder: Path, tmp_path: Path
) -> None:
    run = Run(Path(shutil.copytree(library_folder / "first", tmp_path / "runs" / "live")))
    chart = "document.querySelector('.chart')"
    ticks = f"[...{chart}.querySelector('.axis').querySelectorAll('text')].map((tick) => tick.textContent).join()"
    points = f"{chart}.querySelectorAll('circle').length"
    with serving(tmp_path / "runs") as client:
        page.visit(f"{client.address}/run/live")
        page.wait(PAGES["/run/first"])
        whole, before = page.run(ticks), page.run(points)
        page.drag(".chart svg", 120)
        zoomed = page.run(ticks)
        assert zoomed != whole
        page.run("document.getElementById('at').focus()")
        for _ in range(2):
            for kind in ("keyDown", "keyUp"):
                page.call(
                    "Input.dispatchKeyEvent", type=kind, key="ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37
                )
        chosen = text(page, "output[for=at]")
        page.wait("document.querySelector('#solved .hint').textContent.includes('after 8 iterations')")
        groups = page.run("document.querySelector('table.groups').textContent")
        append_validation(run, 14)
        page.wait(f"{points} > {before}")
        assert page.run(ticks) == zoomed and text(page, "output[for=at]") == chosen
        page.call("Page.reload")
        page.wait(PAGES["/run/first"])
        page.wait("document.querySelector('#solved .hint').textContent.includes('after 8 iterations')")
        assert page.run(ticks) == zoomed and text(page, "output[for=at]") == chosen
        assert page.run("document.querySelector('table.groups').textContent") == groups
        Heartbeat("failed", time.time(), "out of <b>memory</b>").write(run)
        page.wait("document.querySelector('.state.failed') !== null")
        assert text(page, ".message") == "out of <b>memory</b>"
        shutil.rmtree(run.folder)
        page.wait("document.querySelector('.state.damaged') !== null")
        page.visit("about:blank")


def test_comparing_over_time(page: Page, client: Any) -> None:
    page.visit(f"{client.address}/compare?run=first&run=second")
    page.wait("document.querySelector('.chart .axisname')?.textContent === 'iteration'")
    for axis, title in (("time", "time of training [s]"), ("passes", "forward passes [batches]")):
        page.click(f"input[value={axis}]")
        page.wait(f"document.querySelector('.chart .axisname')?.textContent === '{title}'")
    assert page.run("document.querySelectorAll('.chart path.band').length") == 0
    page.click("#seeds")
    page.wait("document.querySelectorAll('.chart path.band').length > 0")
    assert "axis=passes" in page.run("location.search") and "seeds=mean" in page.run("location.search")


def test_a_dropped_image_finds_its_neighbours(page: Page, client: Any, images: Path) -> None:
    page.visit(f"{client.address}/search")
    page.wait("document.querySelector('main [role=status]').textContent.startsWith('13 images')")
    drop(page, images / "05.png")
    page.wait("document.querySelectorAll('.sides section').length === 2")
    first = page.run(
        "[...document.querySelectorAll('.sides section')].map((side) =>"
        "[...side.querySelectorAll('.found .name')].map((name) => name.textContent))"
    )
    assert [side[0] for side in first] == ["05.png", "05.png"] and all(len(side) == 10 for side in first)
    weights = page.run("document.querySelector('.sides section').dataset.weights")
    data = page.run("document.getElementById('data').value")
    answer = client(f"/api/search/image?data={data}&weights={weights}", "POST", (images / "05.png").read_bytes()).json
    assert first[0] == [found["name"] for found in answer["found"]], "test_app compares these with brute force"
    page.click(".found button")
    page.wait("location.search.includes('item=') && document.querySelectorAll('.found img').length === 20")


DROP = """
(() => {{
  const bytes = Uint8Array.from(atob('{data}'), (letter) => letter.charCodeAt(0)), transfer = new DataTransfer();
  transfer.items.add(new File([bytes], 'mine.png', {{type: 'image/png'}}));
  document.querySelector('.drop').dispatchEvent(new DragEvent('drop', {{dataTransfer: transfer, bubbles: true}}));
}})()
"""


def drop(page: Page, file: Path) -> None:
    page.run(DROP.format(data=base64.b64encode(file.read_bytes()).decode()))


def test_a_puzzle_of_an_own_image(page: Page, client: Any, images: Path) -> None:
    page.visit(f"{client.address}/puzzle?run=first")
    page.wait("document.querySelector('.board button')")
    drop(page, images / "05.png")
    page.wait("document.querySelector('main > .hint:last-of-type').textContent.startsWith('mine.png')")
    page.click("#ask")
    page.wait("document.querySelector('.restored')")
    assert "% sure" in text(page, ".score")
    page.click("#other")
    page.wait("!document.querySelector('main > .hint:last-of-type').textContent.startsWith('mine.png')")


def test_a_puzzle_is_solved_by_hand_and_by_the_network(page: Page, client: Any) -> None:
    page.visit(f"{client.address}/puzzle?run=first")
    page.wait("document.querySelector('.board button')")
    page.click("#ask")
    page.wait("document.querySelector('.restored')")
    assert "% sure" in text(page, ".score")
    order = (
        "[...document.querySelectorAll('.board button')].map((tile) =>"
        "Number(tile.getAttribute('aria-label').split(' ')[1]) - 1)"
    )
    wrong = page.run("document.querySelectorAll('.restored .misplaced').length")
    assert text(page, ".score").startswith("Right" if wrong == 0 else f"{wrong} of 9 tiles")
    x, y = page.centre(".board button:nth-child(1)")
    to_x, to_y = page.run(
        "(() => { const box = document.querySelector('.board button:nth-child(5)').getBoundingClientRect();"
        "return [box.x + 20, box.y + 20]; })()"
    )
    before = page.run(order)
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.mouse("mouseMoved", to_x, to_y, button="left")
    page.mouse("mouseReleased", to_x, to_y, button="left", clickCount=1)
    assert page.run(order) == [before[4], *before[1:4], before[0], *before[5:]], "dragged"
    page.click("#race")
    page.wait("document.querySelector('.score').textContent.includes('Your turn')")
    for position in range(9):
        at = page.run(order).index(position)
        if at != position:
            page.click(f".board button:nth-child({at + 1})")
            page.click(f".board button:nth-child({position + 1})")
            if "You: 1 of 1 right" in text(page, ".score"):
                break
    page.wait("document.querySelector('.score').textContent.includes('You: 1 of 1 right')")
    assert "The network:" in text(page, ".score")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_and_everything_has_a_name(page: Page, client: Any, width: int, scheme: str) -> None:
    page.size(width, 800, mobile=width < 500)
    page.scheme(scheme)
    for path, complete in PAGES.items():
        page.visit(client.address + path)
        page.wait(complete)
        assert page.run("document.documentElement.scrollWidth") <= width, path
        unnamed = page.run(
            "[...document.querySelectorAll('button, input, select, img, canvas')].filter((element) =>"
            "!(element.ariaLabel || element.alt || element.textContent.trim() || element.labels?.length))"
            ".map((element) => element.outerHTML)"
        )
        assert unnamed == []


@pytest.mark.skipif(
    AXE is None,
    reason="axe-core is not there: npm install axe-core, and UNSHUFFLE_AXE=node_modules/axe-core/axe.min.js",
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_axe_finds_no_serious_violation(page: Page, client: Any, width: int, scheme: str) -> None:
    assert AXE is not None
    page.size(width, 800, mobile=width < 500)
    page.scheme(scheme)
    for path, complete in PAGES.items():
        page.visit(client.address + path)
        page.wait(complete)
        if path.startswith("/puzzle"):
            page.click("#ask")
            page.wait("document.querySelector('.restored')")
        page.call("Runtime.evaluate", expression=Path(AXE).read_text())
        found = page.run(
            "axe.run().then((found) => ({passed: found.passes.length, violations: found.violations"
            ".filter((one) => ['serious', 'critical'].includes(one.impact))"
            ".map((one) => `${one.id}: ${one.nodes.slice(0, 3).map((node) => node.html).join(' ')}`)}))"
        )
        assert found["violations"] == [] and found["passed"] > 10, path


TRAIN = """
import sys
from pathlib import Path
from rich.console import Console
from unshuffle.config import read_config
from unshuffle.pretraining import run_pretraining
from unshuffle.runs import heartbeat
heartbeat.SECONDS_BETWEEN_BEATS = 0.2
run_pretraining(read_config(Path(sys.argv[1])), resume=True, console=Console(quiet=True))
"""


def test_a_real_training_is_live_turns_stale_and_comes_alive_again(
    page: Page, serving: Any, library_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unshuffle.runs.heartbeat.STALE_SECONDS", 3.0)
    text_of = (library_folder / "first" / "config.yaml").read_text()
    out = tmp_path / "runs" / "training"
    out.parent.mkdir()
    config = tmp_path / "config.yaml"
    config.write_text(
        text_of.replace(str(library_folder / "first"), str(out)).replace("iterations: 12\n", "iterations: 4000\n")
    )
    words = [sys.executable, "-c", TRAIN, str(config)]
    with serving(out.parent) as client:
        page.visit(client.address)
        training = subprocess.Popen(words)
        try:
            page.wait("document.querySelector('.state.training')", 120)
            page.visit(f"{client.address}/run/training")
            shown = "document.querySelector('.facts')?.textContent.match(/iteration ([\\d,]+)/)"
            iteration = f"Number(({shown} || [])[1]?.replace(',', '') || 0)"
            page.wait(f"{iteration} > 4", 120)
            seen = page.run(iteration)
            page.wait(f"{iteration} > {seen}", 120)
            assert page.run("document.querySelectorAll('.chart path.curve').length") >= 4, "without a reload"
        finally:
            training.send_signal(signal.SIGKILL)
            training.wait()
        page.wait("document.querySelector('.state.stale')", 60)
        training = subprocess.Popen(words)
        try:
            page.wait("document.querySelector('.state.training')", 120)
        finally:
            training.send_signal(signal.SIGINT)
            training.wait()
        page.wait("document.querySelector('.state.stopped')", 60)
        page.visit("about:blank")
