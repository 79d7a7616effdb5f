import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.table import Table

from unshuffle import cli
from unshuffle.analysis.analysis import (
    ANALYSES,
    Analysis,
    AnalysisResult,
    chosen_names,
    find_analysis,
    flat_numbers,
    metrics_table,
)
from unshuffle.analysis.figures import panels, styled
from unshuffle.errors import UserError
from unshuffle.runs.run import Run


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_is_found_and_described(name: str) -> None:
    kind = find_analysis(name)
    assert issubclass(kind, Analysis)
    assert ANALYSES[name].summary == (kind.__doc__ or "").partition("\n")[0] != ""


def test_the_list_of_analyses(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["analyze"]) == 2
    assert cli.run(["analyze", "--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in ANALYSES)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("csot x", "there is no analysis 'csot'"),
        ("cost", "missing argument: RUN"),
        ("cost nowhere", "nowhere is not a run folder"),
        ("cost nowhere --json no/such/file.json", "there is no folder no/such"),
        ("cost nowhere --out file", "file is a file"),
        ("cost nowhere --uot x", "did you mean --out?"),
    ],
)
def test_a_user_error_is_one_sentence(
    line: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("here")
    assert cli.run(["analyze", *line.split()]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("unshuffle: ") and sentence in shown and shown.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, []) for name in ("difficulty", "error-map", "convergence", "baseline", "hamming", "cost")),
        ("groups", ["--counts", "2", "3"]),
        ("valset", ["--sizes", "2", "3", "--pool", "6", "--device", "cpu"]),
        ("selection", ["--checkpoints", "4", "--iterations", "2", "--device", "cpu"]),
    ],
)
def test_every_analysis_of_a_run_leaves_its_four_files(name: str, options: list[str], run: Run, tmp_path: Path) -> None:
    assert cli.run(["analyze", name, str(run.folder), "--out", str(tmp_path), *options]) == 0
    files = {path.suffix: path for path in tmp_path.iterdir() if path.is_file()}
    assert {path.name for path in files.values()} == {f"{name}.{end}" for end in ("csv", "json", "png", "svg")}
    document = json.loads(files[".json"].read_text())
    assert document["command"] == f"analyze {name}" and document["metrics"]
    assert min(Image.open(files[".png"]).size) > 300
    words = [*ElementTree.parse(files[".svg"]).getroot().itertext()]
    assert any(re.search(r"\[(%|fraction|batches|groups|samples)\]", word) for word in words), "no axis has a unit"


def test_the_command_prints_and_writes(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cost.json"
    assert cli.run(["analyze", "cost", str(run.folder), "--out", str(tmp_path / "out"), "--json", str(file)]) == 0
    assert file.read_text() == (tmp_path / "out" / "cost.json").read_text()
    assert json.loads(file.read_text())["config"]["run"] == str(run.folder)
    shown = capsys.readouterr().out
    assert shown.startswith("cost of the validations") and "cost.png" in shown


def test_a_run_without_a_validation(copied: Run, analyse: Callable[..., object]) -> None:
    copied.metrics_file.write_text('{"iteration": 0, "kind": "start"}\n{"iteration": 0, "ki')
    with pytest.raises(ValueError, match="has no validation yet"):
        analyse("cost", run=copied.folder)


def test_the_files_of_one_run_go_into_it() -> None:
    assert find_analysis("cost")(run=Path("runs/a")).folder == Path("runs/a/analysis")  # type: ignore[call-arg]
    assert find_analysis("convergence")(runs=(Path("a"), Path("b"))).folder == Path("analysis")  # type: ignore[call-arg]
    for name in ("convergence", "error-map"):
        assert find_analysis(name)(runs=(Path("~/a"),)).folder == Path.home() / "a" / "analysis"  # type: ignore[call-arg]
    assert find_analysis("cost")(run=Path("runs/a"), out=Path("x")).folder == Path("x")  # type: ignore[call-arg]


def test_the_files_of_a_run_given_as_weights_go_into_it(run: Run) -> None:
    neighbours, activations = find_analysis("neighbours"), find_analysis("activations")
    assert neighbours(weights=(str(run.folder),)).folder == run.folder / "analysis"  # type: ignore[call-arg]
    assert neighbours(weights=("random:tiny",)).folder == Path("analysis")  # type: ignore[call-arg]
    assert neighbours(weights=(str(run.folder), "random")).folder == Path("analysis")  # type: ignore[call-arg]
    assert activations(weights=str(run.folder), data=("x",)).folder == run.folder / "analysis"  # type: ignore[call-arg]


def test_the_command_writes_into_the_only_run(copied: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["analyze", "error_map", str(copied.folder)]) == 0
    assert (copied.folder / "analysis" / "error-map.csv").is_file()


def test_a_run_without_an_ordering_task(
    tiny_run: Callable[..., Run], analyse: Callable[..., AnalysisResult], tmp_path: Path
) -> None:
    run = tiny_run(tmp_path / "run", tasks="R")
    for name in ("selection", "difficulty", "error-map", "baseline", "hamming", "cost", "valset", "groups"):
        takes_several = "runs" in find_analysis(name).__dataclass_fields__
        folder = {"runs": (run.folder,)} if takes_several else {"run": run.folder}
        with pytest.raises(
            UserError, match=r"has no ordering task \(its tasks: rotation\), so there are no permutations"
        ):
            analyse(name, **folder, out=tmp_path / "out")
    convergence = analyse("convergence", runs=(run.folder,))
    assert [row["run"] for row in convergence.rows] == ["run"] * 3
    assert [row["forward_passes"] for row in convergence.rows] == [0, 6, 12], "its validations are no policy's cost"


def test_an_ordering_task_beside_one_that_orders_nothing(
    tiny_run: Callable[..., Run], analyse: Callable[..., AnalysisResult], tmp_path: Path
) -> None:
    run = tiny_run(tmp_path / "run", tasks="S+R", optim={"iterations": 8, "milestones": []})
    for name in ("difficulty", "baseline", "hamming"):
        assert list(analyse(name, run=run.folder).metrics) == ["spatial"]
    cost = analyse("cost", run=run.folder).metrics
    assert list(cost["tasks"]) == ["spatial"]
    assert cost["cost_percent"]["shared_backbone"] == pytest.approx(100 * 5 * 6 / 4 / (2 * 8)), (
        "of both tasks' training"
    )
    sizes = analyse("valset", run=run.folder, sizes=(2,), pool=6, device="cpu")
    assert {(row["task"], row["iteration"]) for row in sizes.rows} == {("spatial", 4), ("spatial", 8)}
    selection = analyse("selection", run=run.folder, checkpoints=(4,), iterations=2, out=tmp_path / "o", device="cpu")
    assert {row["task"] for row in selection.rows} == {"spatial"} and "the run's own" in selection.statement


@styled
def drawing() -> Figure:
    figure, ((axes,),) = panels()
    axes.plot([0, 1], [0, 1])
    axes.set_title("A word")
    return figure


def test_a_result_is_written_to_four_files(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": 2.5}, {"a": 2, "c": "x, y"}]
    result = AnalysisResult(
        "line", "a line", {"slope": 1.0, "none": float("nan"), "all": [float("inf"), 2]}, rows, drawing, Table()
    )
    paths = result.write(tmp_path / "new" / "folder", {"run": "runs/a"})
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
    result = AnalysisResult("line", "a line", {}, [], drawing, Table())
    first, second = (result.write(tmp_path / name) for name in ("first", "second"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_style_stays_inside() -> None:
    from matplotlib import rcParams

    before = dict(rcParams)
    drawing()
    assert dict(rcParams) == before


def test_figures_are_printed_under_readable_names() -> None:
    console = Console(width=80, file=io.StringIO())
    columns = {"a [run]": {"mean_error": 0.123456, "count": 1200, "std": None}, "b": {"mean_error": "0 of 3"}}
    names = {"mean_error": "mean error", "count": "[b]samples", "std": "std"}
    console.print(metrics_table("error [%]", columns, names))
    assert [line.split() for line in console.file.getvalue().splitlines()] == [  # type: ignore[attr-defined]
        ["error", "[%]", "a", "[run]", "b"],
        ["mean", "error", "0.1235", "0", "of", "3"],
        ["[b]samples", "1,200", "–"],
        ["std", "–", "–"],
    ]


def test_names_that_the_user_chose() -> None:
    assert chosen_names((), ["random:tiny"]) == ["random:tiny"]
    assert chosen_names(("one", "two"), ["random", "random"]) == ["one", "two"]
    for names in (("one",), ("one", "one"), ("one", "two", "three")):
        with pytest.raises(ValueError, match="give 2 different names"):
            chosen_names(names, ["x", "y"])


def test_flat_numbers_have_dotted_names() -> None:
    nested = {"a": 1, "b": {"c": 0.5, "d": {"e": 2}, "name": "x", "flag": True}, "none": None}
    assert flat_numbers(nested) == {"a": 1, "b.c": 0.5, "b.d.e": 2}
