import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from unshuffle import cli
from unshuffle.analysis.question import QUESTIONS, Question, find_question
from unshuffle.run import Run


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_is_found_and_described(name: str) -> None:
    kind = find_question(name)
    assert issubclass(kind, Question)
    assert QUESTIONS[name].summary == (kind.__doc__ or "").partition("\n")[0] != ""


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["analyze"]) == 2
    assert cli.run(["analyze", "--help"]) == 0
    listed = capsys.readouterr().out
    assert all(f"\n  {name} " in listed for name in QUESTIONS)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("csot x", "there is no analysis 'csot'"),
        ("cost", "still missing: RUN; see unshuffle analyze cost --help"),
        ("cost nowhere", "nowhere is not a run folder"),
        ("cost nowhere --json no/such/file.json", "there is no folder no/such"),
        ("cost nowhere --out file", "file is a file"),
        ("cost nowhere --uot x", "did you mean --out?"),
    ],
)
def test_a_mistake_is_one_sentence(
    line: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("here")
    assert cli.run(["analyze", *line.split()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("unshuffle: ") and sentence in said and said.count("\n") == 1


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
    assert any(re.search(r"\[(%|share|batches|groups|samples)\]", word) for word in words), "no axis has a unit"


def test_the_command_prints_and_writes(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cost.json"
    assert cli.run(["analyze", "cost", str(run.folder), "--out", str(tmp_path / "out"), "--json", str(file)]) == 0
    assert file.read_text() == (tmp_path / "out" / "cost.json").read_text()
    assert json.loads(file.read_text())["config"]["run"] == str(run.folder)
    said = capsys.readouterr().out
    assert said.startswith("cost of the validations") and "cost.png" in said


def test_a_run_that_has_just_begun(copied: Run, ask: Callable[..., object]) -> None:
    copied.metrics_file.write_text('{"iteration": 0, "kind": "start"}\n{"iteration": 0, "ki')
    with pytest.raises(ValueError, match="has no validation yet"):
        ask("cost", run=copied.folder)


def test_the_files_of_one_run_go_into_it() -> None:
    assert find_question("cost")(run=Path("runs/a")).folder == Path("runs/a/analysis")  # type: ignore[call-arg]
    assert find_question("convergence")(runs=(Path("a"), Path("b"))).folder == Path("analysis")  # type: ignore[call-arg]
    assert find_question("cost")(run=Path("runs/a"), out=Path("x")).folder == Path("x")  # type: ignore[call-arg]
