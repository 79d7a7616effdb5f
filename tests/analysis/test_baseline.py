from collections.abc import Callable

import pytest

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.baseline import baseline_rows, extrapolate, reward_statistics
from unshuffle.options import merge, write_config
from unshuffle.runs.run import Run


def test_the_extrapolation_of_two_errors() -> None:
    """2 E_t − E_(t−1), although the last step is twice as long."""
    rows = extrapolate([(0, 0.9), (10, 0.8), (20, 0.6), (40, 0.5)], [])
    assert [row["baseline"] for row in rows] == [None, None, pytest.approx(0.7), pytest.approx(0.4)]
    assert [row["reward"] for row in rows] == [None, None, pytest.approx(0.1), pytest.approx(-0.1)]


def test_a_learning_rate_drop_restarts_the_extrapolation() -> None:
    rows = extrapolate([(0, 0.9), (10, 0.8), (20, 0.6), (30, 0.5), (40, 0.4)], [10])
    assert [row["baseline"] for row in rows] == [None, None, None, None, pytest.approx(0.4)]


def test_statistics() -> None:
    rows = [{"reward": None}, {"reward": 0.1}, {"reward": -0.3}]
    assert reward_statistics(rows) == {
        "rewards": 2,
        "mean": pytest.approx(-0.1),
        "std": pytest.approx(0.2),
        "positive_percent": 50.0,
    }
    assert reward_statistics([])["mean"] is None


def test_the_rewards_are_those_that_the_policy_had(run: Run) -> None:
    for task in ("spatial", "temporal"):
        by_episode = {row["episode"]: row for row in baseline_rows(run, task) if row["episode"] is not None}
        logged = [entry for entry in run.metrics("episode") if entry["task"] == task]
        assert len(by_episode) == len(logged) == 6
        assert any(entry["reward"] is None for entry in logged[1:])  # after the learning-rate drop
        for entry in logged:
            assert (by_episode[entry["episode"]]["baseline"], by_episode[entry["episode"]]["reward"]) == (
                entry["baseline"],
                entry["reward"],
            )


def test_rewards_of_runs(run: Run, uniform_run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    analysis = analyse("baseline", run=run.folder)
    assert analysis.metrics["spatial"]["episodes"] == 6 and len(analysis.rows) == 14
    without = analyse("baseline", run=uniform_run.folder, task="temporal")
    assert without.metrics["temporal"]["episodes"] == 0 and without.metrics["temporal"]["rewards"] == 3
    assert len(analysis.figure().axes) == 4 and len(without.figure().axes) == 2


def test_the_statement_mentions_learning_from_rollouts(
    run: Run, pair_run: Run, analyse: Callable[..., AnalysisResult]
) -> None:
    assert "learns from the advantages" not in analyse("baseline", run=run.folder).statement
    assert "learns from the advantages of rollouts" in analyse("baseline", run=pair_run.folder).statement


def test_a_sampler_that_does_not_learn_is_not_said_to_learn_from_rollouts(
    copied: Run, analyse: Callable[..., AnalysisResult]
) -> None:
    write_config(merge(copied.config, {"policy": {"sampler": "hard-first"}}), copied.config_file)
    assert "learns from" not in analyse("baseline", run=copied.folder).statement
