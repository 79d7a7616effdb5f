"""`unshuffle neighbours`: what it prints, the page and the contact sheet."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import unshuffle
from browser import Page, browse, find_chromium
from unshuffle import cli
from unshuffle.data.synthetic import synthetic_images
from unshuffle.errors import UserError
from unshuffle.evaluation.index import Index
from unshuffle.models import weights
from unshuffle.report import similarity_page

CHROMIUM = find_chromium()
COUNT = 14


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen images, one of them also as a smaller copy, and a file that cannot be read."""
    folder = tmp_path_factory.mktemp("data") / "my <photos>"
    folder.mkdir()
    source = synthetic_images(COUNT, 64, 5)
    for item in range(COUNT):
        Image.fromarray(source.read(item, [0])[0]).save(folder / f"{item:02} & more.png")
    Image.open(folder / "03 & more.png").resize((48, 48)).save(folder / "copy.png")
    (folder / "broken.png").write_text("no")
    return folder


@pytest.fixture(scope="module")
def index(folder: Path) -> Index:
    return unshuffle.embed(folder, "random:tiny", pool="flat", workers=1, device="cpu")


def page_data(page: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def output_of_files(output: str) -> list[str]:
    return re.findall(r"^  (.*), \d.* [kM]B, replacing the earlier one$", output, re.MULTILINE)


def test_the_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["neighbours", str(folder), "--weights", "random:tiny", "--device", "cpu", "--json", "n.json"]
    assert cli.run(line) == 0
    output = capsys.readouterr().out
    assert f"{COUNT + 1} images, 13824 features each; 1 file skipped" in output
    assert "features: pool5 of random:tiny (tiny, 96 px) (--pool flat)" in output
    assert "near-duplicates: 2 in 1 group, such as 03 & more.png, copy.png" in output
    assert "outliers (mean similarity to the 5 nearest): " in output and "replacing" not in output
    assert "skipped" in output and "broken.png" in output and "neighbours.html" in output
    metrics = json.loads((tmp_path / "n.json").read_text())["metrics"]
    assert metrics["near_duplicates"] == [["03 & more.png", "copy.png"]] and metrics["items"] == COUNT + 1
    written = ["n.json", "neighbours.html", "neighbours.png", "neighbours.skipped.csv"]
    assert sorted(path.name for path in tmp_path.iterdir()) == written
    assert cli.run([*line, "--pool", "avg", "--threshold", "1"]) == 0, "its own page may be written again"
    assert "96 features each" in (output := capsys.readouterr().out) and "the mean of each channel" in output
    assert "neighbours-2.html" in output and "replacing" not in output
    assert cli.run([*line, "--out", "neighbours.html"]) == 0
    assert output_of_files(capsys.readouterr().out) == ["neighbours.html", "neighbours.png"]


def test_the_page_has_the_neighbours_of_every_image(index: Index, tmp_path: Path) -> None:
    written = unshuffle.neighbours_page(index, tmp_path / "n.html")
    data = page_data(tmp_path / "n.html")
    assert list(data["names"].values()) == index.names and len(data["pictures"]) == COUNT + 1
    near = index.neighbours()
    for item, others in data["nearest"].items():
        assert [other for other, _ in others] == near.items[int(item)].tolist()
        assert [value for _, value in others] == [round(value, 2) for value in near.similarities[int(item)].tolist()]
    assert written.near_duplicates == [["03 & more.png", "copy.png"]]
    assert written.outliers[0][0] == index.names[index.outliers(1)[0][0]]
    text = (tmp_path / "n.html").read_text()
    assert "my &lt;photos&gt;" in text and "<photos>" not in text and "03 &amp; more.png" in text
    assert "broken.png" in text
    with Image.open(tmp_path / "n.png") as sheet:
        assert sheet.width > 900 and np.asarray(sheet.convert("L")).std() > 20


def test_an_earlier_page_is_replaced_only_by_its_name(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "neighbours-2.png").write_text("mine")
    first, second = (unshuffle.neighbours_page(index).files[0] for _ in range(2))
    assert [first.name, second.name] == ["neighbours.html", "neighbours-3.html"]
    assert unshuffle.neighbours_page(index, first).files[0] == first
    assert (tmp_path / "neighbours-2.png").read_text() == "mine"


def test_of_a_large_folder_some_images_are_shown(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"MAX_SHOWN": 10, "SOME": 3, "OUTLIERS": 2}.items():
        monkeypatch.setattr(similarity_page, name, value)
    unshuffle.neighbours_page(index, tmp_path / "n.html")
    data = page_data(tmp_path / "n.html")
    assert list(data["nearest"]) == ["0", "7", "14"]
    shown = {int(item) for item in data["pictures"]}
    assert {other for others in data["nearest"].values() for other, _ in others} <= shown
    assert "3 of the 15 images, evenly spaced" in (tmp_path / "n.html").read_text()


def test_videos(clips: Path, tmp_path: Path) -> None:
    videos = unshuffle.embed(clips, "random:tiny", pool="flat", frames=3, workers=1, device="cpu")
    page = unshuffle.neighbours_page(videos, tmp_path / "n.html")
    assert len(page_data(page.files[0])["pictures"]) == len(videos) > 1


def test_mistakes(index: Index, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"n\.txt must end with \.html"):
        unshuffle.neighbours_page(index, tmp_path / "n.txt")
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(UserError, match=r"mine\.html is not a report of unshuffle"):
        unshuffle.neighbours_page(index, tmp_path / "mine.html")
    (tmp_path / "n.png").write_text("mine")
    with pytest.raises(UserError, match=r"n\.png exists, where the contact sheet would go"):
        unshuffle.neighbours_page(index, tmp_path / "n.html")
    alone = unshuffle.embed(folder / "copy.png", "random:tiny", workers=1, device="cpu")
    with pytest.raises(UserError, match=r"copy\.png has 1 image: give 2 or more"):
        unshuffle.neighbours_page(alone, tmp_path / "one.html")
    monkeypatch.setattr(weights, "PRETRAINED_FILE", tmp_path / "absent.safetensors")
    with pytest.raises(UserError, match="no pretrained weights"):
        unshuffle.embed(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.html", "n.png"]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Page]:
    if CHROMIUM is None and os.environ.get("CI") != "true":
        pytest.skip("there is no chromium to look at the page with")
    assert CHROMIUM is not None, "CI must have a chromium"
    with browse(CHROMIUM, tmp_path / "profile") as page:
        yield page


def test_the_page_in_a_browser(browser: Page, index: Index, tmp_path: Path) -> None:
    file = unshuffle.neighbours_page(index, tmp_path / "n.html").files[0]
    for width, height in ((1200, 900), (390, 844)):
        browser.size(width, height)
        browser.open(file)
        assert browser.run("document.documentElement.scrollWidth") == width, "nothing is wider than the screen"
        assert browser.run("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
        assert browser.run("document.querySelectorAll('#all img').length") == COUNT + 1
        assert browser.run("document.querySelectorAll('.group img').length") == 2
        browser.click("#all figure:nth-child(4) button")
        chosen = "[...document.querySelectorAll('#chosen img')].map((image) => image.title)"
        expected = [index.names[3], *(index.names[item] for item in index.neighbours().items[3].tolist())]
        assert browser.run(chosen) == expected
        browser.click("#chosen .pictures button")
        assert browser.run(chosen)[0] == expected[1], "a neighbour can be chosen in turn"
    assert browser.problems == []
    assert {url for url in browser.requested if not url.startswith("data:")} == {file.resolve().as_uri()}
