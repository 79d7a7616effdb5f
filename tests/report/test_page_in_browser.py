"""The page in a real browser: no errors in the console, everything is shown, and the controls work."""

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps

from browser import Page, browse, find_chromium
from unshuffle.analysis.difficulty import divide_samples
from unshuffle.analysis.error_map import by_mean_error
from unshuffle.analysis.figures import MAP
from unshuffle.report.charts import difficulty_chart
from unshuffle.report.page import write_report
from unshuffle.runs.folders import find_runs
from unshuffle.runs.history import read_history, read_sampling_states
from unshuffle.runs.run import Run

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true", reason="there is no chromium to look at the page with"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    assert CHROMIUM is not None, "CI must have a chromium"
    with browse(CHROMIUM, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser: Page) -> Page:
    browser.problems.clear()
    browser.requested.clear()
    browser.size(1200, 900)
    browser.scheme("light")
    return browser


def unfold(page: Page) -> None:
    """Show what the policy preferred, which is folded if that was little."""
    page.run("document.querySelectorAll('#policy details').forEach((details) => { details.open = true; })")
    # a chart that becomes visible is drawn again in its width
    page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")


def all_is_well(page: Page, path: Path) -> None:
    assert page.problems == []
    assert {url for url in page.requested if not url.startswith("data:")} == {path.resolve().as_uri()}
    images = page.run("[...document.images].map((image) => image.complete && image.naturalWidth > 0)")
    assert all(images)
    # pictures that are backgrounds: each must decode, too
    strips = page.run(
        "Promise.all([...document.querySelectorAll('.parts i')].map((part) => getComputedStyle(part).backgroundImage)"
        ".filter((url, index, all) => all.indexOf(url) === index).map((url) => { const image = new Image();"
        "image.src = url.slice(5, -2); return image.decode().then(() => image.naturalWidth, () => 0); }))"
    )
    assert all(width > 0 for width in strips)


def test_a_run(page: Page, run: Run) -> None:
    page.open(run.report)
    all_is_well(page, run.report)
    assert page.run("document.images.length") >= 12
    assert page.run("document.querySelectorAll('.chart svg path.curve').length") == 4 + 1 + 2 + 2 + 1 + 4 + 4
    assert page.run("document.querySelectorAll('.chart svg path.dashed').length") == 2, "errors on the test sets"
    assert page.run("document.querySelectorAll('.puzzle').length") == 6 + 4
    painted = page.run(
        "[...document.querySelectorAll('canvas')].map((canvas) =>"
        "canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0))"
    )
    assert painted == [True] * 4
    coloured = page.run(
        "[...document.querySelectorAll('.preferences canvas')].map((canvas) => {"
        "const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
        "return d3.range(0, data.length, 4).filter((index) => data[index + 3] > 2)"
        ".map((index) => data[index] !== data[index + 2]); })"
    )
    assert all(cells and all(cells) for cells in coloured), "orange and blue, not grey"


def test_runs_with_a_task_that_orders_nothing(page: Page, all_tasks_run: Run, rotation_run: Run) -> None:
    for run, curves, puzzles, maps in ((all_tasks_run, 6 + 1 + 2 + 3 + 1 + 4 + 4, 10, 2), (rotation_run, 6, 0, 0)):
        page.open(run.report)
        all_is_well(page, run.report)
        page.requested.clear()
        assert page.run("document.querySelectorAll('.chart svg path.curve').length") == curves
        assert page.run("document.querySelectorAll('.puzzle').length") == puzzles
        assert page.run("document.querySelectorAll('.errormap').length") == maps
        colours = (
            "new Set([...document.querySelectorAll('.figure[class*=\" t\"] b')].map((e) => getComputedStyle(e).color))"
        )
        assert page.run(f"{colours}.size") == len(run.config.task_names)


def test_advantages_of_groups(page: Page, rollout_run: Run) -> None:
    page.open(rollout_run.report)
    all_is_well(page, rollout_run.report)
    unfold(page)
    assert page.run("document.querySelectorAll('.preferences canvas').length") == 4
    x, y = page.centre(".preferences h4 + .map canvas")
    page.mouse("mouseMoved", x + 5, y + 5)  # the third of four columns, the second of two rows
    entries = [entry for entry in rollout_run.metrics("rollouts") if entry["task"] == "spatial"]
    ((advantage, error),) = [
        (entry["advantage"][1], entry["errors"][1]) for entry in entries if entry["iteration"] == 4
    ]
    told = page.run("document.getElementById('tip').textContent")
    sentence = f"advantage {advantage:+.2f}: error {error:.3f} after its rollout".replace("-", "−")
    assert told == f"iteration 4, group 2{sentence}"
    page.click(".preferences h4 + .map canvas", right=5)
    assert page.run("document.querySelector('.preferences output').textContent") == "iteration 4"


def test_groups_of_pairs(page: Page, pair_run: Run) -> None:
    page.open(pair_run.report)
    all_is_well(page, pair_run.report)
    unfold(page)
    policy = "document.querySelector('.preferences')"
    assert page.run("document.querySelectorAll('.preferences canvas').length") == 4
    assert page.run(f"{policy}.querySelectorAll('.examples *').length") == 0, "no permutation belongs to a group"
    page.hover(".preferences canvas", right=5)  # the third of four columns, the third of five rows
    preference = read_sampling_states(pair_run, "spatial")[2].preferences[2]
    assert (
        page.run("document.getElementById('tip').textContent")
        == f"iteration 4, group 3{preference:.2f} × uniform sampling"
    )
    page.click(".preferences canvas")
    assert " times as likely as with uniform sampling" in page.run(f"{policy}.querySelector('.now').textContent")
    assert page.run("document.querySelectorAll('.preferences .chart path.curve').length") == 5 + 5


def test_names_that_are_html_stay_text(page: Page, hostile_run: Run) -> None:
    page.open(hostile_run.report)
    all_is_well(page, hostile_run.report)
    title = page.run("document.title")
    assert title.startswith("<img src=x onerror") and title.endswith("unshuffle")
    assert page.run("document.querySelectorAll('[onerror], img[src=x]').length") == 0
    assert page.run("document.querySelector('.puzzle .name').textContent").startswith("<img src=x onerror")
    page.click(".gallery button:last-child")
    assert "<img src=x" in page.run("document.querySelector('.neighbour-rows img').title")
    assert page.run("document.title") == title


def test_the_slider_goes_through_the_training(page: Page, run: Run) -> None:
    page.open(run.report)
    unfold(page)
    policy = "document.querySelector('.preferences')"
    assert page.run(f"{policy}.querySelector('output').textContent") == "iteration 6"
    seen = {page.run(f"{policy}.querySelector('.needle').style.left")}
    page.run(f"{policy}.querySelector('input').focus()")
    for iteration in (4, 2, 0):
        for kind in ("keyDown", "keyUp"):
            page.call("Input.dispatchKeyEvent", type=kind, key="ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37)
        assert page.run(f"{policy}.querySelector('output').textContent") == f"iteration {iteration}"
        assert page.run(f"{policy}.querySelectorAll('.examples .parts').length") > 0
        seen.add(page.run(f"{policy}.querySelector('.needle').style.left"))
    assert len(seen) == 4
    page.click(".preferences canvas", right=5)  # the third of four columns begins in the middle
    assert page.run(f"{policy}.querySelector('output').textContent") == "iteration 4"
    assert page.problems == []


def test_a_curve_is_read_and_zoomed(page: Page, run: Run) -> None:
    page.open(run.report)
    ticks = "[...document.querySelector('.chart .axis').querySelectorAll('text')].map((tick) => tick.textContent)"
    whole = page.run(ticks)
    page.hover(".chart svg")
    told = page.run("document.getElementById('tip').textContent")
    error = next(e["error"] for e in run.metrics("validation") if e["iteration"] == 2 and e["task"] == "spatial")
    assert told.startswith("iteration 2") and f"spatial {error:.3f}" in told
    page.drag(".chart svg", 120)
    assert page.run(ticks) != whole
    x, y = page.centre(".chart svg")
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            page.mouse(kind, x, y, button="left", clickCount=count)
    assert page.run(ticks) == whole
    assert page.problems == []


def test_the_error_map_shows_the_permutation_pointed_at(page: Page, run: Run) -> None:
    page.open(run.report)
    below = "document.querySelector('.errormap .below').textContent"
    before = page.run(below)
    page.hover(".errormap canvas")
    assert page.run(below) != before and "Rank 3 of 5" in page.run(below)
    assert page.run("document.querySelectorAll('.errormap .below .parts i').length") == 9 + 6


def test_the_error_map_has_a_scale_and_the_colours_of_analyze(page: Page, run: Run) -> None:
    page.open(run.report)
    history = read_history(run, "spatial")
    errors = history.errors[:, by_mean_error(history)].T.flatten()  # row by row
    pixels = page.run(
        "(() => { const canvas = document.querySelector('.errormap canvas'); return [...canvas.getContext('2d')"
        ".getImageData(0, 0, canvas.width, canvas.height).data]; })()"
    )
    wanted = 255 * colormaps[MAP](np.round(errors, 2))
    assert np.abs(np.reshape(pixels, (-1, 4)) - wanted).max() < 4
    assert page.run("document.querySelector('.errormap .maplabels').textContent") == "hardest permutationerror 0  1"
    gradient = page.run("getComputedStyle(document.querySelector('.errormap .scale')).backgroundImage")
    assert gradient.startswith("linear-gradient(to right, rgb(68, 1, 84)") and "rgb(253, 231, 37)" in gradient


def test_the_axis_of_the_difficulties_shows_their_range(
    page: Page, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = difficulty_chart(divide_samples(run, read_history(run, "spatial"), "spatial"))
    near = replace(chart, series=[replace(chart.series[0], points=[(2, 22.0), (4, 28.0)])])
    monkeypatch.setattr("unshuffle.report.policy_summary.difficulty_chart", lambda _: near)
    write_report(find_runs([run.folder]), tmp_path / "report.html")
    page.open(tmp_path / "report.html")
    unfold(page)
    circles = "[...document.querySelectorAll('.preferences .chart circle')].slice(0, 2)"
    first, last = page.run(f"{circles}.map((circle) => Number(circle.getAttribute('cy')))")
    assert first - last > 0.7 * (260 - 38 - 10), "of the height of the chart"


def test_all_held_out_images_can_be_seen(page: Page, run: Run) -> None:
    for width in (390, 1200):
        page.size(width, 800, mobile=width < 500)
        page.open(run.report)
        gallery, images = page.run(
            "(() => { const gallery = document.querySelector('.gallery');"
            "const box = (element) => element.getBoundingClientRect();"
            "return [box(gallery), [...gallery.querySelectorAll('img')].map(box)].map((boxes) =>"
            "[boxes].flat().map(({left, right}) => [left, right])); })()"
        )
        assert len(images) == 6 and all(left >= gallery[0][0] and right <= width for left, right in images)


def test_wrong_puzzles_show_what_is_misplaced(page: Page, run: Run) -> None:
    page.open(run.report)
    puzzles = page.run(
        "[...document.querySelectorAll('.puzzle')].map((puzzle) => [puzzle.querySelectorAll('.misplaced').length,"
        "puzzle.querySelector('.wrong, .right').textContent, puzzle.querySelectorAll('.arrangement small').length])"
    )
    for misplaced, verdict, labels in puzzles:
        assert labels == 3
        placed = re.match(r"(\d+) of (\d+)", verdict)
        assert misplaced == (0 if placed is None else int(placed[2]) - int(placed[1]))


def test_any_image_can_be_the_query(page: Page, run: Run) -> None:
    page.open(run.report)
    name = page.run("document.querySelector('.gallery button:last-child img').title")
    first = "document.querySelector('.neighbour-rows img').title"
    assert page.run(first) != name
    page.click(".gallery button:last-child")
    assert page.run(first) == name
    rows = "[...document.querySelectorAll('.neighbour-rows img')].map((image) => image.title).join()"
    by_network = page.run(rows)
    page.click(".switch input[value='raw pixels']")
    assert page.run(rows) != by_network
    assert page.run(first) == name


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_it_fits_and_can_be_read(page: Page, run: Run, width: int, scheme: str) -> None:
    page.size(width, 800, mobile=width < 500)
    page.scheme(scheme)
    page.open(run.report)
    assert page.run("document.documentElement.scrollWidth") <= width
    ink, paper = page.run(
        "(() => { const style = getComputedStyle(document.body); return [style.color, style.backgroundColor]; })()"
    )

    def lightness(colour: str) -> float:
        return sum(float(value) for value in colour.removeprefix("rgb(").removesuffix(")").split(",")) / 3

    assert (lightness(paper) > lightness(ink)) == (scheme == "light")
    assert abs(lightness(paper) - lightness(ink)) > 150


def test_print_is_light_and_whole(page: Page, run: Run) -> None:
    page.scheme("dark")
    page.open(run.report)
    page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.run("getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()") == "#1f2328"
    assert page.run("getComputedStyle(document.documentElement).colorScheme") == "light"  # the printer's paper is white
    assert page.run("getComputedStyle(document.querySelector('.slider input')).display") == "none"
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    assert page.run("[...document.querySelectorAll('details')].every((details) => details.open)")
    assert len(page.call("Page.printToPDF")["data"]) > 10_000
    page.call("Emulation.setEmulatedMedia", media="")


def test_runs_side_by_side(page: Page, run: Run, uniform_run: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(find_runs([run.folder, uniform_run.folder]), path)
    page.open(path)
    all_is_well(page, path)
    places = page.run(
        "[...document.querySelectorAll('#examples .run')].map((run) => run.getBoundingClientRect())"
        ".map((box) => [box.left, box.top, box.width])"
    )
    left, right, alone = places  # the temporal task, which one run has, takes the whole width
    assert left[0] < right[0] and left[1] == right[1] < alone[1] and alone[2] > 2 * left[2]
