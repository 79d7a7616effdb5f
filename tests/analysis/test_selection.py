from collections.abc import Callable
from pathlib import Path

import pytest

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.selection import relative_accuracy, relative_rows
from unshuffle.runs.run import Run


def test_relative_accuracy() -> None:
    rows = [
        *relative_rows(4, {"policy": {"spatial": 60.0}, "uniform": {"spatial": 50.0}, "inverse": {"spatial": 40.0}}),
        *relative_rows(8, {"policy": {"spatial": 80.0}, "uniform": {"spatial": 80.0}, "inverse": {"spatial": 20.0}}),
    ]
    assert [row["relative_percent"] for row in rows] == [120, 100, 80, 100, 100, 25]
    accuracies = relative_accuracy(rows)
    assert accuracies["policy"] == {"mean": 110, "std": pytest.approx(20 / 2**0.5), "repetitions": 2}
    assert accuracies["inverse"]["mean"] == 52.5
    assert relative_accuracy(rows[:3])["policy"]["std"] is None


def test_uniform_sampling_with_an_accuracy_of_zero() -> None:
    rows = relative_rows(4, {"policy": {"spatial": 1.0}, "uniform": {"spatial": 0.0}, "inverse": {"spatial": 0.0}})
    assert relative_accuracy(rows)["policy"] == {"mean": None, "std": None, "repetitions": 0}


@pytest.mark.parametrize("name", ["run", "uniform_run"])
def test_selection_of_a_run(
    name: str, request: pytest.FixtureRequest, analyse: Callable[..., AnalysisResult], tmp_path: Path
) -> None:
    chosen: Run = request.getfixturevalue(name)
    analysis = analyse("selection", run=chosen.folder, checkpoints=(4, 8), iterations=2, out=tmp_path, device="cpu")
    assert len(analysis.rows) == 2 * 3 * 2 and "2 iterations" in analysis.statement
    assert ("new ones" in analysis.statement) == (name == "uniform_run")
    branch = Run.open(tmp_path / "selection" / "00000008-uniform")
    assert analysis.statement.startswith("test accuracy") and {row["measured"] for row in analysis.rows} == {"test"}
    last = {entry["task"]: entry["error"] for entry in branch.metrics("test")}
    (row,) = [r for r in analysis.rows if (r["checkpoint"], r["method"], r["task"]) == (8, "uniform", "spatial")]
    assert row["accuracy_percent"] == pytest.approx(100 * (1 - last["spatial"]))
    assert not branch.checkpoints.exists()
    analysis.figure()


def test_a_run_without_a_test_set_is_compared_on_X_val(
    tiny_run: Callable[..., Run], analyse: Callable[..., AnalysisResult], tmp_path: Path
) -> None:
    run = tiny_run(tmp_path / "run", data={"test_size": 0}, optim={"iterations": 4, "milestones": []})
    analysis = analyse("selection", run=run.folder, checkpoints=(4,), iterations=2, out=tmp_path / "out", device="cpu")
    assert analysis.statement.startswith("validation accuracy")
    assert {row["measured"] for row in analysis.rows} == {"validation"}


def test_mistakes(copied: Run, analyse: Callable[..., AnalysisResult], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="iterations is 0"):
        analyse("selection", run=copied.folder, iterations=0, out=tmp_path)
    for file in copied.checkpoints.iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="has no checkpoint to start from yet"):
        analyse("selection", run=copied.folder, out=tmp_path)
