"""The live page in a real browser: it shows what is new and keeps the view, and its controls work."""

import base64
import http.client
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
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
    "/search": "document.querySelectorAll('.items img').length === 13",
    "/puzzle?run=first": "document.querySelector('.board button')",
    "/puzzle?run=instance": "document.querySelector('.score').textContent.includes('no ordering task')",
    "/run/instance": "document.querySelector('.chart path.curve')",
    "/run/damaged": "document.querySelector('.state.damaged')",
    "/run/nope": "document.querySelector('.problem')",
    "/run/%ff": "document.querySelector('.problem')",
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


def press(page: Page, key: str, code: str = "", number: int = 0) -> None:
    for kind in ("keyDown", "keyUp"):
        page.call("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, windowsVirtualKeyCode=number)


def append_validation(run: Run, iteration: int) -> None:
    with run.metrics_file.open("a") as file:
        for task in ("spatial", "temporal"):
            entry = {"iteration": iteration, "kind": "validation", "task": task, "error": 0.5, "chance": 0.8}
            file.write(json.dumps(entry) + "\n")


def test_the_table_sorts_filters_and_compares_and_the_address_holds_the_view(page: Page, client: Any) -> None:
    page.visit(client.address)
    page.wait("document.querySelectorAll('tbody tr').length === 5")
    assert "damaged" in text(page, "tr[data-name=damaged]") and "config.yaml" in text(page, "tr[data-name=damaged]")
    page.click("th[data-column=name] button")
    page.click("th[data-column=name] button")
    order = names(page)
    assert order.index("second") < order.index("first") and page.run(
        "document.querySelector('[aria-sort=descending]') !== null"
    )
    page.wait("location.search === '?sort=name&descending=1'")
    page.run("document.getElementById('filter').focus()")
    page.call("Input.insertText", text="FINISHED s+t")
    assert sorted(names(page)) == sorted(set(order) - {"damaged", "instance"})
    for name in ("first", "second"):
        page.click(f"input[data-run={name}]")
    assert page.run("[...document.querySelectorAll('#differing tbody th')].map((cell) => cell.textContent)") == ["seed"]
    assert page.run("[...document.querySelectorAll('td.differs')].map((cell) => cell.textContent)") == ["0", "1"]
    csv = page.run("fetch(document.getElementById('csv').href).then((answer) => answer.text())")
    assert [line.partition(",")[0].strip('"') for line in csv.splitlines()[1:]] == names(page)
    page.wait("new URLSearchParams(location.search).getAll('run').length === 2")
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
            press(page, "ArrowLeft", number=37)
        chosen = text(page, "output[for=at]")
        page.wait("document.querySelector('#solved .hint').textContent.includes('iteration 8')")
        groups = page.run("document.querySelector('table.groups').textContent")
        append_validation(run, 14)
        page.wait(f"{points} > {before}")
        assert page.run(ticks) == zoomed and text(page, "output[for=at]") == chosen
        page.call("Page.reload")
        page.wait(PAGES["/run/first"])
        page.wait("document.querySelector('#solved .hint').textContent.includes('iteration 8')")
        assert page.run(ticks) == zoomed and text(page, "output[for=at]") == chosen
        assert page.run("document.querySelector('table.groups').textContent") == groups
        Heartbeat("failed", time.time(), "out of <b>memory</b>").write(run)
        page.wait("document.querySelector('.state.failed') !== null")
        assert text(page, ".message") == "out of <b>memory</b>"
        shutil.rmtree(run.folder)
        page.wait("document.querySelector('.state.damaged') !== null")
        page.visit("about:blank")


def test_a_new_point_keeps_what_is_opened_zoomed_picked_and_selected(
    page: Page, serving: Any, library_folder: Path, tmp_path: Path
) -> None:
    run = Run(Path(shutil.copytree(library_folder / "first", tmp_path / "runs" / "live")))
    axis = "document.querySelector('#policy .chart .axis')"
    ticks = f"[...{axis}.querySelectorAll('text')].map((tick) => tick.textContent).join()"
    with serving(tmp_path / "runs") as client:
        page.visit(f"{client.address}/run/live")
        page.wait(PAGES["/run/first"])
        whole = page.run(ticks)
        page.drag("#policy .chart svg", 120)
        assert page.run(ticks) != whole
        page.click("#policy summary")
        page.hover("#policy .errormap canvas")
        select = "getSelection().selectAllChildren(document.querySelector('{}'))"
        state = (
            "[document.querySelector('#policy details').open, getSelection().toString(),"
            f"{ticks}, document.querySelector('#policy .below').textContent.split(':')[0]]"
        )
        for number, selector in enumerate(("pre.log", ".facts")):
            page.run(select.format(selector))
            before, iteration = page.run(state), 14 + 2 * number
            assert before[0] and before[1]
            page.run("window.kept = document.querySelector('#policy .map canvas')")
            for task in ("spatial", "temporal"):
                file = run.states / f"{task}-{iteration:08d}.npz"
                values = dict(np.load(run.states / f"{task}-00000012.npz"))
                np.savez(file, **{**values, "iteration": np.array(iteration)})
            append_validation(run, iteration)
            page.wait(f"document.querySelector('#at').max == {6 + number + 1}")
            page.wait(f"document.querySelector('.log').textContent.includes('     {iteration}  validation')")
            assert page.run(state)[:1] + page.run(state)[2:] == before[:1] + before[2:]
            assert before[1][-15:] in page.run("getSelection().toString()"), "it is still selected"
            assert page.run("window.kept.isConnected"), "no map is made anew"
        page.visit("about:blank")


def test_a_new_point_keeps_the_lines_of_the_table(
    page: Page, serving: Any, library_folder: Path, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        shutil.copytree(library_folder / name, tmp_path / "runs" / name)
    with serving(tmp_path / "runs") as client:
        page.visit(f"{client.address}/?run=first&run=second")
        page.wait("document.querySelectorAll('td.differs').length === 2")
        for iteration, selector in ((14, "tr[data-name=second]"), (16, "#differing")):
            page.run("window.kept = document.querySelector('tr[data-name=first] a')")
            page.run(f"getSelection().selectAllChildren(document.querySelector('{selector}'))")
            before = page.run("getSelection().toString()")
            append_validation(Run(tmp_path / "runs" / "first"), iteration)
            page.wait(f"document.querySelector('tr[data-name=first]').textContent.includes('{iteration} of 12')")
            assert page.run("getSelection().toString()") == before and before
            assert page.run("window.kept.isConnected"), "a click on it is not lost"
        page.visit("about:blank")


def test_a_drag_over_a_chart_outlasts_a_new_point(
    page: Page, serving: Any, library_folder: Path, tmp_path: Path
) -> None:
    run = Run(Path(shutil.copytree(library_folder / "first", tmp_path / "runs" / "live")))
    chart = "document.querySelector('.chart')"
    points = f"{chart}.querySelectorAll('circle').length"
    with serving(tmp_path / "runs") as client:
        page.visit(f"{client.address}/run/live")
        page.wait(PAGES["/run/first"])
        x, y = page.centre(".chart svg")
        page.mouse("mousePressed", x, y, button="left", clickCount=1)
        page.mouse("mouseMoved", x + 90, y, button="left")
        before = page.run(points)
        append_validation(run, 14)
        page.wait("document.querySelector('.log').textContent.includes('     14  validation')")
        width = page.run(f"{chart}.querySelector('.selection').getBoundingClientRect().width")
        assert width == pytest.approx(90, abs=4)
        page.mouse("mouseReleased", x + 90, y, button="left", clickCount=1)
        page.wait(f"{points} > {before}")
        page.wait("location.search.includes('zoom')")
        page.visit("about:blank")


def test_charts_and_maps_are_read_with_the_keyboard(page: Page, client: Any) -> None:
    page.visit(f"{client.address}/run/first")
    page.wait(PAGES["/run/first"])
    ticks = (
        "[...document.querySelector('.chart .axis').querySelectorAll('text')].map((tick) => tick.textContent).join()"
    )
    whole = page.run(ticks)
    page.run("document.querySelector('.chart svg').focus()")
    press(page, "ArrowLeft", number=37)
    last = text(page, "#tip")
    assert last.startswith("iteration 12") and "spatial" in last
    press(page, "ArrowLeft", number=37)
    assert not text(page, "#tip").startswith("iteration 12")
    press(page, "+")
    near = page.run(ticks)
    press(page, "-")
    assert len({whole, near, page.run(ticks)}) == 3
    press(page, "Escape")
    assert page.run(ticks) == whole and page.run("document.getElementById('tip').hidden")
    below = "#policy .errormap .below"
    page.run("document.querySelector('#policy .errormap canvas').focus()")
    assert "Rank 1 of 6" in text(page, below) and "at iteration 12" in text(page, below)
    press(page, "ArrowDown", number=40)
    press(page, "ArrowLeft", number=37)
    assert "Rank 2 of 6" in text(page, below) and "at iteration 12" not in text(page, below)


def test_a_train_line_asks_for_neither_policy_nor_puzzles(
    page: Page, serving: Any, library_folder: Path, tmp_path: Path
) -> None:
    run = Run(Path(shutil.copytree(library_folder / "first", tmp_path / "runs" / "live")))
    with serving(tmp_path / "runs") as client:
        page.visit(f"{client.address}/run/live")
        page.wait(PAGES["/run/first"])
        page.requested.clear()
        with run.metrics_file.open("a") as file:
            values = {"loss": {"spatial": 1.0}, "accuracy": {"spatial": 0.1}, "samples_per_second": 5.0}
            file.write(json.dumps({"iteration": 13, "kind": "train", "seconds": 1.0, **values}) + "\n")
        page.wait("document.querySelector('.facts').textContent.includes('13 of 12')")
        assert [path.split("/")[4] for path in page.requested if "/api/" in path] == ["run"]
        page.visit("about:blank")


def test_a_hidden_tab_has_no_stream_and_is_renewed_when_it_is_seen_again(
    page: Page, serving: Any, library_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unshuffle.serve.app.MAX_STREAMS", 1)
    run = Run(Path(shutil.copytree(library_folder / "first", tmp_path / "runs" / "live")))

    def is_taken(client: Any) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
        connection.request("GET", "/api/events")
        status = connection.getresponse().status
        connection.close()
        return status == 503

    show = (
        "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    with serving(tmp_path / "runs") as client:
        page.visit(f"{client.address}/run/live")
        page.wait(PAGES["/run/first"])
        assert is_taken(client)
        page.run(show.format("true"))
        deadline = time.monotonic() + 20
        while is_taken(client):
            assert time.monotonic() < deadline, "the stream of a hidden tab stays open"
            time.sleep(0.2)
        time.sleep(3)  # until the server has noticed that this test's own stream is closed
        Heartbeat("failed", time.time(), "no memory").write(run)
        page.run(show.format("false"))
        page.wait("document.querySelector('.state.failed') !== null")
        page.visit("about:blank")


def test_a_run_without_ordering_tasks_has_no_slider_and_no_puzzles(page: Page, client: Any) -> None:
    page.visit(f"{client.address}/run/instance")
    page.wait("document.querySelector('.chart path.curve')")
    assert not page.run("document.getElementById('at').checkVisibility()")
    page.visit(f"{client.address}/puzzle?run=instance")
    page.wait("document.querySelector('.score').textContent.includes('no ordering task')")
    assert "instance" not in page.run("[...document.getElementById('run').options].map((option) => option.value)")
    assert page.run("['ask', 'race', 'other'].every((id) => document.getElementById(id).disabled)")


def test_arrow_keys_move_on_the_board_and_a_finger_scrolls_it(page: Page, client: Any) -> None:
    page.visit(f"{client.address}/puzzle?run=first")
    page.wait("document.querySelector('.board button')")
    page.run("document.querySelector('.board button').focus()")
    for key in ("ArrowRight", "ArrowDown"):
        page.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key)
    assert page.run("document.activeElement.dataset.position") == "4"
    style = "getComputedStyle(document.querySelector('.board button:nth-child(5)')).touchAction"
    assert page.run(style) == "manipulation"
    page.click(".board button:nth-child(5)")
    assert page.run(style) == "none", "the selected one can be dragged"


TOUCH = """
(() => {
  const target = document.querySelector('.chart .overlay'), box = target.getBoundingClientRect();
  return ['touchstart', 'touchmove', 'touchmove'].map((kind, number) => {
    const touch = new Touch({identifier: 1, target, clientX: box.x + 50, clientY: box.y + 50 - 20 * number});
    const touches = {touches: [touch], targetTouches: [touch], changedTouches: [touch]};
    const event = new TouchEvent(kind, {bubbles: true, cancelable: true, ...touches});
    target.dispatchEvent(event);
    return event.defaultPrevented;
  });
})()
"""


def test_a_finger_scrolls_charts_and_reads_their_values(page: Page, client: Any) -> None:
    page.size(390, 800, mobile=True)
    page.visit(f"{client.address}/run/first")
    page.wait(PAGES["/run/first"])
    prevented = page.run(TOUCH)
    assert prevented == [False, False, False], "the browser scrolls"
    assert not page.run("document.getElementById('tip').hidden")
    assert "Last values: " in page.run("document.querySelector('.chart svg').getAttribute('aria-label')")


def test_search_follows_the_files_of_a_folder(
    page: Page, serving: Any, library_folder: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from unshuffle.serve import search

    monkeypatch.setattr(search, "SECONDS_BETWEEN_LOOKS", 0.0)
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(6):
        shutil.copy(images / f"{number:02}.png", folder)
    with serving(library_folder, data=(str(folder),)) as client:
        page.visit(f"{client.address}/search")
        page.wait("document.querySelectorAll('.items img').length === 6")
        item = page.run("document.querySelector('img[alt=\"03.png\"]').parentElement.dataset.item")
        shutil.copy(images / "08.png", folder / "00-first.png")
        page.click('[aria-label="neighbours of 03.png"]')  # the index is built first
        page.wait("document.querySelectorAll('.items img').length === 7")
        page.wait("document.querySelectorAll('.sides .found img').length === 12")
        assert page.run("document.querySelector('img[alt=\"03.png\"]').parentElement.dataset.item") == item
        assert "03.png" not in page.run(
            "[...document.querySelectorAll('.found .name')].map((name) => name.textContent)"
        )
        page.run("document.getElementById('text').focus()")
        page.call("Input.insertText", text="FIRST")
        page.wait("document.querySelectorAll('.items img').length === 1")
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
    page.wait("location.search.includes('axis=passes') && location.search.includes('seeds=mean')")


def test_a_run_is_chosen_with_the_keyboard(page: Page, client: Any) -> None:
    page.visit(f"{client.address}/compare?run=first")
    page.wait("document.querySelector('.chart path.curve')")
    page.run("document.querySelector('input[data-run=second]').focus()")
    press(page, " ", "Space", 32)
    page.wait("document.querySelector('#differing')")
    assert page.run("document.activeElement.dataset.run") == "second"
    press(page, " ", "Space", 32)
    page.wait("document.querySelector('#differing') === null")
    page.wait("location.search === '?run=first'")


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
    assert "The network answers" in text(page, ".score")
    page.click("#other")
    page.wait("!document.querySelector('main > .hint:last-of-type').textContent.startsWith('mine.png')")


def test_a_puzzle_is_solved_by_hand_and_by_the_network(page: Page, client: Any) -> None:
    page.visit(f"{client.address}/puzzle?run=first")
    page.wait("document.querySelector('.board button')")
    page.click("#ask")
    page.wait("document.querySelector('.restored')")
    assert "The network answers" in text(page, ".score")
    order = "[...document.querySelectorAll('.board button')].map((tile) => Number(tile.dataset.part))"
    wrong = page.run("document.querySelectorAll('.restored .misplaced').length")
    assert (": right." if wrong == 0 else f": {wrong} of 9 tiles in the wrong place.") in text(page, ".score")
    x, y = page.centre(".board button:nth-child(1)")
    to_x, to_y = page.run(
        "(() => { const box = document.querySelector('.board button:nth-child(5)').getBoundingClientRect();"
        "return [box.x + 20, box.y + 20]; })()"
    )
    before = page.run(order)
    page.mouse("mousePressed", x, y, button="left", clickCount=1)
    page.mouse("mouseMoved", to_x, to_y, button="left")
    shift = page.run("getComputedStyle(document.querySelector('.board button')).translate.split(' ').map(parseFloat)")
    assert shift == pytest.approx([to_x - x, to_y - y], abs=1), "it follows the pointer"
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
    assert re.search(r"; (you win|the network wins)\. You: .* The network: ", text(page, ".score"))
    assert page.run("document.querySelector('.restored') !== null"), "what the network answered"
    assert text(page, "#race") == "Next puzzle"
    for skipped in range(4):
        page.click("#race")
        page.wait(
            f"document.querySelector('.score').textContent.startsWith('Round {skipped + 2} of 5: the network has')"
        )
        disabled = page.run(
            "['run', 'task', 'ask', 'other', 'shuffle', 'own'].every((id) => document.getElementById(id).disabled)"
        )
        assert disabled and text(page, "#race") == "Skip this puzzle"
        page.wait("Number.parseFloat(document.querySelector('.clock').textContent) > 0")
        page.click("#race")
    assert "In all, " in text(page, ".score") and text(page, "#race") == "You against the network"
    assert not page.run("document.getElementById('ask').disabled")


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
        levels = page.run(
            "[...document.querySelectorAll('h1, h2, h3, h4, h5')].filter((title) => title.checkVisibility())"
            ".map((title) => Number(title.tagName[1]))"
        )
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), (path, levels)


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
        if path == "/search":
            page.click(".items button")
            page.wait("document.querySelectorAll('.found img').length === 20")
        if path == "/puzzle?run=first":
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
