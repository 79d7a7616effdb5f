from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from unshuffle.analysis.difficulty import CLASSES, chosen_shares, difficulty_classes, difficulty_rows, mean_percent
from unshuffle.analysis.history import History
from unshuffle.analysis.result import Analysis
from unshuffle.run import Run


def test_quarters_the_hardest_first() -> None:
    errors = np.array([0.1, 0.9, 0.5, 0.5, 0.3, 0.8, 0.2, 0.0])
    assert difficulty_classes(errors).tolist() == [3, 0, 1, 1, 2, 0, 2, 3]


def test_shares() -> None:
    assert chosen_shares(np.array([1.0, 2, 3, 2]), np.array([0, 3, 3, 1])).tolist() == [0.125, 0.25, 0, 0.625]


def test_rows_divide_by_the_validation_before() -> None:
    history = History(
        np.array([0, 5, 10, 15]),
        np.array([[1.0, 0.75, 0.5, 0.25], [0.0, 0.25, 0.5, 0.75], [1.0, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]]),
        np.array([[0.0, 0, 0, 0], [4, 3, 2, 1], [4, 3, 2, 1], [0, 0, 0, 0]]),
    )
    first, second = difficulty_rows(history, "spatial")  # nothing was drawn in the third stretch
    percents = [[row[f"quarter_{number}_percent"] for number in (1, 2, 3, 4)] for row in (first, second)]
    np.testing.assert_allclose(percents, [[40, 30, 20, 10], [10, 20, 30, 40]])
    assert (first["iteration"], first["error"], first["quarter_1_error"]) == (5, 0.625, 1.0)
    np.testing.assert_allclose([mean_percent([first, second])[name] for name in CLASSES], 25)


def test_fewer_permutations_than_quarters() -> None:
    history = History(np.array([0, 1]), np.array([[0.5, 0.2], [0.1, 0.1]]), np.array([[0.0, 0], [1, 3]]))
    (row,) = difficulty_rows(history, "spatial")
    assert row["quarter_1_percent"] == 25 and row["quarter_2_error"] is None


def test_of_a_run(run: Run, ask: Callable[..., Analysis]) -> None:
    analysis = ask("difficulty", run=run.folder)
    assert [row["iteration"] for row in analysis.rows if row["task"] == "spatial"] == [2, 4, 6, 8, 10, 12]
    for row in analysis.rows:
        assert sum(row[f"quarter_{number}_percent"] for number in (1, 2, 3, 4)) == pytest.approx(100)
    assert len(analysis.figure().axes) == 2


def test_a_new_policy_on_a_checkpoint(run: Run, ask: Callable[..., Analysis], tmp_path: Path) -> None:
    analysis = ask("difficulty", run=run.folder, checkpoint=4, episodes=3, out=tmp_path, device="cpu", task="spatial")
    assert [row["iteration"] for row in analysis.rows] == [6, 8, 10]
    branch = Run.open(tmp_path / "difficulty-00000004")
    assert [entry["episode"] for entry in branch.metrics("episode") if entry["task"] == "spatial"] == [1, 2, 3]


def test_mistakes(run: Run, ask: Callable[..., Analysis], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint at iteration 5; there are: 4, 8, 12"):
        ask("difficulty", run=run.folder, checkpoint=5, out=tmp_path)
    with pytest.raises(ValueError, match="episodes is 0"):
        ask("difficulty", run=run.folder, checkpoint=4, episodes=0, out=tmp_path)
