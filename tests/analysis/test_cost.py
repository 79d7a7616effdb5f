"""The cost of a run in forward passes and seconds, against hand counts."""

from collections.abc import Callable

import pytest

from unshuffle.analysis.analysis import AnalysisResult
from unshuffle.analysis.cost import PAPER_COST, derived_cost, draw, measured_cost, training_seconds
from unshuffle.analysis.passes import Validations
from unshuffle.config import demo
from unshuffle.runs.run import Run


def test_the_cost_in_the_paper() -> None:
    assert pytest.approx(100 * 90 * 2 * 781.25 / 350_000) == PAPER_COST
    assert round(PAPER_COST) == 40


def test_derived_cost_of_two_tasks() -> None:
    tasks = [
        Validations([0, 10], samples=4, permutations=6, batch_size=2),
        Validations([0], samples=8, permutations=3, batch_size=2),
    ]
    # (2 · 4 · 6 + 8 · 3) / 2 batches of 2, beside 2 tasks · 10 iterations
    assert derived_cost(tasks, 20, 0, 10, shared_backbone=False) == pytest.approx(100 * 36 / 20)
    assert derived_cost(tasks, 20, 0, 10, shared_backbone=True) == pytest.approx(100 * 8 / 20)
    assert derived_cost(tasks, 20, 5, 10, shared_backbone=True) == pytest.approx(100 * (8 + 5) / 20), "with rollouts"


def test_measured_cost() -> None:
    config = demo()  # batches of 32
    lines = [
        {"iteration": 10, "loss": {"spatial": 1, "temporal": 1}, "samples_per_second": 64.0},  # 640 samples: 10 s
        {"iteration": 15, "loss": {"spatial": 1, "temporal": 1}, "samples_per_second": 32.0},  # 320 samples: 10 s
    ]
    costs = [{"iteration": iteration, "duration": 0.5} for iteration in (0, 5, 15)]
    seconds = training_seconds(config, lines)
    assert seconds == [(10, 10.0), (15, 20.0)]
    assert [row["cost_percent"] for row in measured_cost(seconds, costs)] == [10.0, 7.5]


def test_cost_of_a_run(run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    analysis = analyse("cost", run=run.folder)
    assert analysis.metrics["tasks"]["temporal"] == {"validations": 7, "samples": 6, "permutations": 5}
    costs = analysis.metrics["cost_percent"]
    assert costs["all_permutations"] == pytest.approx(100 * 7 * 6 * (6 + 5) / 4 / 24)
    assert costs["shared_backbone"] == pytest.approx(100 * 7 * 6 * 2 / 4 / 24)
    assert costs["measured"] > 0 and [row["iteration"] for row in analysis.rows] == [2, 4, 6, 8, 10, 12]
    assert "rollouts" not in analysis.statement and analysis.metrics["rollouts"] == {"count": 0, "iterations": 0}
    draw(costs)


def test_cost_of_a_run_with_rollouts(pair_run: Run, analyse: Callable[..., AnalysisResult]) -> None:
    """Three rollouts of two iterations on both tasks at the end of five episodes, each with a validation."""
    analysis = analyse("cost", run=pair_run.folder)
    assert analysis.metrics["tasks"]["spatial"] == {"validations": 7 + 15, "samples": 6, "permutations": 6}
    assert analysis.metrics["rollouts"] == {"count": 15, "iterations": 30}
    costs = analysis.metrics["cost_percent"]
    assert costs["all_permutations"] == pytest.approx(100 * (60 + 22 * 6 * (6 + 5) / 4) / 24)
    assert costs["shared_backbone"] == pytest.approx(100 * (60 + 22 * 6 * 2 / 4) / 24)
    assert "cost of the validations and rollouts" in analysis.statement
    assert analysis.figure().axes[0].get_title(loc="left") == "Cost of the policy's validations and rollouts"


def test_what_is_derived_does_not_look_measured() -> None:
    (axes,) = draw({"paper": 40.0, "all_permutations": 1328.0, "measured": 3.0}).axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [label.split(":")[0] for label in labels] == ["measured", "derived, not done", "derived"]
    assert "filled: measured, hollow: derived" in axes.get_xlabel()
    hollow = [line.get_markerfacecolor() == "white" for line in axes.lines]
    assert hollow == [False, True, True]
