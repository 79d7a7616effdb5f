"""The notebooks run in short form, and what is committed of them is complete and small."""

import re
from pathlib import Path

import nbformat
import pytest

import notebooks as tool

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def test_there_are_three() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["1-neighbours", "2-paper", "3-new-task"]


@pytest.mark.slow
@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSHUFFLE_SHORT", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    tool.execute(file)  # raises where a cell does


@pytest.mark.slow
def test_a_cell_that_raises_is_an_error(tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("raise ValueError('on purpose')")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "broken.ipynb")
    with pytest.raises(Exception, match="on purpose"):
        tool.execute(tmp_path / "broken.ipynb")


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_what_is_committed_is_complete_and_small(file: Path) -> None:
    assert file.stat().st_size < tool.MAX_BYTES
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "executed from top to bottom"
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs and not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    figures = [
        cell for cell in code if any(re.search("image/", " ".join(output.get("data", ()))) for output in cell.outputs)
    ]
    captions = re.findall(r"^\*Figure (\d+)\. ", "\n".join(cell.source for cell in notebook.cells), re.MULTILINE)
    assert captions == [str(number) for number in range(1, len(figures) + 1)], "each figure has its caption"
    assert str(Path.home()) not in file.read_text() and "/tmp/" not in file.read_text()
