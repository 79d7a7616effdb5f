from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.difficulty import (
    CLASSES,
    Division,
    difficulty_classes,
    difficulty_rows,
    group_names,
    pair_rows,
    sampled_fractions,
)
from unshuffle.options import merge, write_config
from unshuffle.runs.history import History
from unshuffle.runs.run import Run


def test_quarters_the_hardest_first() -> None:
    errors = np.array([0.1, 0.9, 0.5, 0.5, 0.3, 0.8, 0.2, 0.0])
    assert difficulty_classes(errors).tolist() == [3, 0, 1, 1, 2, 0, 2, 3]


def test_sampled_fractions() -> None:
    assert sampled_fractions(np.array([1.0, 2, 3, 2]), np.array([0, 3, 3, 1])).tolist() == [0.125, 0.25, 0, 0.625]


def test_rows_divide_by_the_validation_before() -> None:
    history = History(
        np.array([0, 5, 10, 15]),
        np.array([[1.0, 0.75, 0.5, 0.25], [0.0, 0.25, 0.5, 0.75], [1.0, 1, 1, 1], [0.5, 0.5, 0.5, 0.5]]),
        np.array([[0.0, 0, 0, 0], [4, 3, 2, 1], [4, 3, 2, 1], [0, 0, 0, 0]]),
    )
    first, second = difficulty_rows(history, "spatial")  # nothing was sampled in the third period
    percents = [[row[f"quarter_{number}_percent"] for number in (1, 2, 3, 4)] for row in (first, second)]
    np.testing.assert_allclose(percents, [[40, 30, 20, 10], [10, 20, 30, 40]])
    assert (first["iteration"], first["error"], first["quarter_1_error"]) == (5, 0.625, 1.0)
    division = Division("quarter", CLASSES, [first, second])
    assert division.mean_percent(2) == pytest.approx(dict.fromkeys(CLASSES, 25))
    assert list(division.mean_percent(1).values()) == pytest.approx([10, 20, 30, 40])


def test_fewer_permutations_than_quarters() -> None:
    history = History(np.array([0, 1]), np.array([[0.5, 0.2], [0.1, 0.1]]), np.array([[0.0, 0], [1, 3]]))
    (row,) = difficulty_rows(history, "spatial")
    assert row["quarter_1_percent"] == 25 and row["quarter_2_error"] is None


def test_rows_of_pairs_are_those_of_the_episodes() -> None:
    def episode(task: str, iteration: int, sampled: list[float]) -> dict[str, Any]:
        return {"task": task, "iteration": iteration, "sampled": sampled, "group_median": [0.7, 1.0, 1.5]}

    episodes = [episode("spatial", 5, [6, 3, 1]), episode("temporal", 5, [9, 0, 0]), episode("spatial", 10, [0, 1, 3])]
    first, second = pair_rows(episodes, "spatial")
    assert first == {
        "task": "spatial",
        "iteration": 5,
        **{"group_1_percent": 60, "group_1_median": 0.7},
        **{"group_2_percent": 30, "group_2_median": 1.0},
        **{"group_3_percent": 10, "group_3_median": 1.5},
    }
    division = Division("group", group_names(3), [first, second])
    assert division.percent.tolist() == [[60, 30, 10], [0, 25, 75]]
    assert division.mean_percent(2) == {"hardest group": 30, "group 2": 27.5, "easiest group": 42.5}


def test_names_of_two_groups() -> None:
    assert group_names(2) == ["hardest group", "easiest group"]


def test_difficulty_of_a_run_that_grouped_pairs(pair_run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    analysis = analyse("difficulty", run=pair_run.folder)
    sampled = {e["iteration"]: e["sampled"] for e in pair_run.metrics("episode") if e["task"] == "temporal"}
    temporal = [row for row in analysis.rows if row["task"] == "temporal"]
    assert [row["iteration"] for row in temporal] == [2, 4, 6, 8, 10, 12] == list(sampled)
    for row in temporal:
        counts = sampled[row["iteration"]]
        assert sum(counts) == 2 * 4 * 2, "iterations, samples, permutations of each"
        for number, count in enumerate(counts, start=1):
            assert row[f"group_{number}_percent"] == pytest.approx(100 * count / 16)
    assert analysis.statement.startswith("pairs sampled by") and "33.3 % each" in analysis.statement
    assert list(analysis.metrics["spatial"]["percent"]) == ["hardest group", "group 2", "easiest group"]
    assert len(analysis.figure().axes) == 2


def test_a_policy_without_a_finished_episode(copied: Run, analyse: Callable[..., AnalysisResult]) -> None:
    write_config(merge(copied.config, {"policy": {"grouping": "pairs"}}), copied.config_file)
    kept = [line for line in copied.metrics_file.read_text().splitlines() if '"episode"' not in line]
    copied.metrics_file.write_text("\n".join(kept) + "\n")
    with pytest.raises(ValueError, match="has sampled nothing in the policy's episodes yet"):
        analyse("difficulty", run=copied.folder)


def test_difficulty_of_a_run(run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    analysis = analyse("difficulty", run=run.folder)
    assert [row["iteration"] for row in analysis.rows if row["task"] == "spatial"] == [2, 4, 6, 8, 10, 12]
    for row in analysis.rows:
        assert sum(row[f"quarter_{number}_percent"] for number in (1, 2, 3, 4)) == pytest.approx(100)
    assert len(analysis.figure().axes) == 2


def test_a_policy_that_has_not_started_is_said(
    run: Run, analyse: Callable[..., AnalysisResult], tiny_run: Callable[..., Run], tmp_path: Path
) -> None:
    assert "started" not in analyse("difficulty", run=run.folder).statement
    idle = tiny_run(tmp_path / "idle", policy={"start_below": 0.01}, optim={"iterations": 4})
    for name in ("difficulty", "hamming", "baseline"):
        assert analyse(name, run=idle.folder).statement.endswith(
            "; the policy never started for the spatial and temporal tasks, so sampling was uniform"
        )
    write_config(merge(idle.config, {"optim": {"iterations": 40}}), idle.config_file)
    statement = analyse("difficulty", run=idle.folder, task="spatial").statement
    assert "the policy has not started yet for the spatial task, so" in statement


def test_a_new_policy_on_a_checkpoint(run: Run, analyse: Callable[..., AnalysisResult], tmp_path: Path) -> None:
    analysis = analyse(
        "difficulty", run=run.folder, checkpoint=4, episodes=3, out=tmp_path, device="cpu", task="spatial"
    )
    assert [row["iteration"] for row in analysis.rows] == [6, 8, 10]
    branch = Run.open(tmp_path / "difficulty-00000004")
    assert [entry["episode"] for entry in branch.metrics("episode") if entry["task"] == "spatial"] == [1, 2, 3]


def test_a_new_policy_that_groups_pairs(pair_run: Run, analyse: Callable[..., AnalysisResult], tmp_path: Path) -> None:
    analysis = analyse("difficulty", run=pair_run.folder, checkpoint=8, episodes=2, out=tmp_path, device="cpu")
    assert [row["iteration"] for row in analysis.rows if row["task"] == "temporal"] == [10, 12]
    assert sum(analysis.metrics["temporal"]["percent"].values()) == pytest.approx(100)


def test_mistakes(run: Run, analyse: Callable[..., AnalysisResult], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint at iteration 5; there are: 4, 8, 12"):
        analyse("difficulty", run=run.folder, checkpoint=5, out=tmp_path)
    with pytest.raises(ValueError, match="episodes is 0"):
        analyse("difficulty", run=run.folder, checkpoint=4, episodes=0, out=tmp_path)
