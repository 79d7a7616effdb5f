from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.hamming import (
    GAP,
    active_states,
    arrange,
    cut_tiles,
    distances,
    extremes,
    fractions_by_distance,
    hamming_rows,
)
from unshuffle.runs.history import History
from unshuffle.runs.run import Run

PSI = np.array([[0, 1, 2, 3], [1, 0, 2, 3], [1, 2, 0, 3], [3, 2, 1, 0]])


def test_distances() -> None:
    assert distances(PSI).tolist() == [0, 2, 3, 4]


def test_fractions_by_distance() -> None:
    assert fractions_by_distance(np.array([1.0, 1, 2, 4]), np.array([0, 2, 2, 4]), 4).tolist() == [
        0.125,
        0,
        0.375,
        0,
        0.5,
    ]


def test_rows_begin_with_the_set_itself() -> None:
    history = History(np.array([0, 5]), np.zeros((2, 4)), np.array([[0.0, 0, 0, 0], [0, 3, 0, 1]]))
    psi, samples = hamming_rows(history, PSI, "spatial")  # nothing was sampled before iteration 0
    assert (psi["iteration"], psi["mean_distance"], psi["distance_3_percent"]) == (None, 2.25, 25)
    assert (samples["iteration"], samples["mean_distance"], samples["distance_2_percent"]) == (5, 2.5, 75)


def test_extremes() -> None:
    likely, unlikely = extremes(np.array([1.0, 0.2, 1.8, 1.0]), 2)
    assert likely.tolist() == [2, 0] and unlikely.tolist() == [1, 3]


def test_states_without_a_preference_are_not_shown(run: Run, uniform_run: Run) -> None:
    shown = [state.iteration for state in active_states(run, "spatial")]
    assert shown and all(np.ptp(state.likelihoods) > 0.01 for state in active_states(run, "spatial"))
    assert 0 not in shown, "a new policy samples uniformly"
    assert active_states(uniform_run, "spatial") == []


def test_tiles_are_cut_and_put_together_again() -> None:
    square = np.random.default_rng(0).integers(0, 256, (13, 13, 3), dtype=np.uint8)
    tiles = cut_tiles(square, 3)
    assert tiles.shape == (9, 4, 4, 3) and (tiles[5] == square[4:8, 8:12]).all()
    shuffled = arrange(tiles, np.array([8, 1, 2, 3, 4, 5, 6, 7, 0]), 3)
    side = 4 + 2 * GAP
    assert shuffled.shape == (3 * side, 3 * side, 3)
    assert (shuffled[GAP : GAP + 4, GAP : GAP + 4] == tiles[8]).all() and (shuffled[0] == 255).all()


def test_distances_of_runs(run: Run, uniform_run: Run, analyse: Callable[..., AnalysisResult], tmp_path: Path) -> None:
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(tmp_path / "black.png")
    analysis = analyse("hamming", run=run.folder, image=tmp_path / "black.png")
    assert [row["iteration"] for row in analysis.rows if row["task"] == "temporal"] == [None, 2, 4, 6, 8, 10, 12]
    for row in analysis.rows:
        percents = [row.get(f"distance_{distance}_percent", 0) for distance in range(10)]
        assert sum(percents) == pytest.approx(100)
        assert row["mean_distance"] == pytest.approx(sum(d * percent for d, percent in enumerate(percents)) / 100)
    # spatial: distances, and 3 states of 3 + 3; temporal: distances, and 3 states of 2 + 2
    assert len(analysis.figure().axes) == 1 + 18 + 1 + 12
    assert len(analyse("hamming", run=uniform_run.folder).figure().axes) == 2


def test_pairs_have_no_likely_permutations(pair_run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    analysis = analyse("hamming", run=pair_run.folder)
    assert active_states(pair_run, "spatial") == []
    assert "there are no likely and unlikely permutations to show" in analysis.statement
    assert [row["iteration"] for row in analysis.rows if row["task"] == "spatial"] == [None, 2, 4, 6, 8, 10, 12]
    assert len(analysis.figure().axes) == 2


def test_a_missing_image(run: Run, analyse: Callable[..., AnalysisResult], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no image"):
        analyse("hamming", run=run.folder, image=tmp_path / "nowhere.png")
