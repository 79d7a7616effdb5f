from collections.abc import Callable

import numpy as np
import pytest

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.error_map import analyse_errors, by_mean_error, column_edges, error_statistics
from unshuffle.runs.history import History
from unshuffle.runs.run import Run

HISTORY = History(np.array([0, 10]), np.array([[1.0, 0.5, 0.9], [0.2, 0.5, 0.6]]), np.zeros((2, 3)))


def test_the_hardest_on_average_comes_first() -> None:
    assert by_mean_error(HISTORY).tolist() == [2, 0, 1]
    rows = analyse_errors({"a": HISTORY}, "spatial").rows
    assert rows[0] == {
        "run": "a",
        "task": "spatial",
        "rank": 0,
        "permutation": 2,
        "mean_error": 0.75,
        "0": 0.9,
        "10": 0.6,
    }


def test_statistics() -> None:
    first, last = error_statistics(HISTORY)
    assert (first["iteration"], last["iteration"]) == (0, 10)
    assert first["mean"] == pytest.approx(0.8) and last["mean"] == pytest.approx(1.3 / 3)
    assert last["std"] == pytest.approx(np.sqrt((0.04 + 0.25 + 0.36) / 3 - (1.3 / 3) ** 2))


def test_columns_meet_half_way() -> None:
    assert column_edges(np.array([0.0, 2, 10])).tolist() == [-1, 1, 6, 14]
    assert column_edges(np.array([5.0])).tolist() == [4.5, 5.5]


def test_error_maps_of_two_runs(run: Run, uniform_run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    analysis = analyse("error-map", runs=(run.folder, uniform_run.folder))
    assert list(analysis.metrics) == ["policy (reinforce)", "uniform"] and len(analysis.rows) == 12
    for name, mapped in zip(analysis.metrics, (run, uniform_run), strict=True):
        logged = [entry["error"] for entry in mapped.metrics("validation") if entry["task"] == "spatial"]
        np.testing.assert_allclose([entry["mean"] for entry in analysis.metrics[name]], logged)
    assert len(analysis.figure().axes) == 3


def test_error_map_of_one_run(run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    assert len(analyse("error-map", runs=(run.folder,), task="temporal").rows) == 5
    with pytest.raises(ValueError, match="give a run folder"):
        analyse("error-map", runs=())
