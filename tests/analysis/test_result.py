import csv
import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from unshuffle.analysis.figures import panels, styled
from unshuffle.analysis.result import FEW, Analysis


@styled
def drawing() -> Figure:
    figure, ((axes,),) = panels()
    axes.plot([0, 1], [0, 1])
    axes.set_title("A word")
    return figure


def test_four_files(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": 2.5}, {"a": 2, "c": "x, y"}]
    analysis = Analysis("line", "a line", {"slope": 1.0, "none": float("nan"), "all": [float("inf"), 2]}, rows, drawing)
    paths = analysis.write(tmp_path / "new" / "folder", {"run": "runs/a"})
    assert [path.name for path in paths] == ["line.json", "line.csv", "line.svg", "line.png"]
    assert json.loads(paths[0].read_text()) == {
        "command": "analyze line",
        "protocol": "a line",
        "config": {"run": "runs/a"},
        "metrics": {"slope": 1.0, "none": None, "all": [None, 2]},
    }
    with paths[1].open(newline="") as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": "2.5", "c": ""}, {"a": "2", "b": "", "c": "x, y"}]
    assert "A word" in "".join(ElementTree.parse(paths[2]).getroot().itertext())
    assert Image.open(paths[3]).size == (960, 630)


def test_the_same_numbers_give_the_same_files(tmp_path: Path) -> None:
    analysis = Analysis("line", "a line", {}, [], drawing)
    first, second = (analysis.write(tmp_path / name) for name in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_style_stays_inside() -> None:
    from matplotlib import rcParams

    before = dict(rcParams)
    drawing()
    assert dict(rcParams) == before


def printed(analysis: Analysis) -> list[list[str]]:
    console = Console(width=80, file=io.StringIO())
    console.print(analysis.summary or "nothing")
    return [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def test_a_few_numbers_are_printed() -> None:
    metrics = {"spatial": {"mean_error": 0.123456, "name": "x", "list": [1, 2]}, "[odd]": 3}
    assert printed(Analysis("line", "", metrics, [], drawing)) == [
        ["spatial", "mean", "error", "0.1235"],
        ["[odd]", "3"],
    ]
    many = {str(number): number for number in range(FEW + 1)}
    assert printed(Analysis("line", "", many, [], drawing)) == [["nothing"]]
