from collections.abc import Callable

import pytest

from unshuffle.analysis.cost import derived_cost, draw_cost, measured_cost, paper_cost, training_seconds
from unshuffle.analysis.forward_passes import Validations
from unshuffle.analysis.result import Analysis
from unshuffle.config import demo
from unshuffle.run import Run


def test_the_papers_figure() -> None:
    assert paper_cost() == pytest.approx(100 * 90 * 2 * 781.25 / 350_000)
    assert round(paper_cost()) == 40


def test_derived_cost_of_two_tasks() -> None:
    tasks = [Validations([0, 10], samples=4, permutations=6), Validations([0], samples=8, permutations=3)]
    # (2 · 4 · 6 + 8 · 3) / 2 batches of 2, beside 2 tasks · 10 iterations
    assert derived_cost(tasks, 2, 20, 0, 10, shared_backbone=False) == pytest.approx(100 * 36 / 20)
    assert derived_cost(tasks, 2, 20, 0, 10, shared_backbone=True) == pytest.approx(100 * 8 / 20)
    assert derived_cost(tasks, 2, 20, 5, 10, shared_backbone=True) == pytest.approx(100 * (8 + 5) / 20), "with trials"


def test_measured_cost() -> None:
    config = demo()  # batches of 32
    lines = [
        {"iteration": 10, "loss": {"spatial": 1, "temporal": 1}, "samples_per_second": 64.0},  # 640 samples: 10 s
        {"iteration": 15, "loss": {"spatial": 1, "temporal": 1}, "samples_per_second": 32.0},  # 320 samples: 10 s
    ]
    costs = [{"iteration": iteration, "seconds": 0.5} for iteration in (0, 5, 15)]
    seconds = training_seconds(config, lines)
    assert seconds == [(10, 10.0), (15, 20.0)]
    assert [row["cost_percent"] for row in measured_cost(seconds, costs)] == [10.0, 7.5]


def test_of_a_run(run: Run, ask: Callable[..., Analysis]) -> None:
    analysis = ask("cost", run=run.folder)
    assert analysis.metrics["tasks"]["temporal"] == {"validations": 7, "samples": 6, "permutations": 5}
    costs = analysis.metrics["cost_percent"]
    assert costs["every_order"] == pytest.approx(100 * 7 * 6 * (6 + 5) / 4 / 24)
    assert costs["shared_backbone"] == pytest.approx(100 * 7 * 6 * 2 / 4 / 24)
    assert costs["measured"] > 0 and [row["iteration"] for row in analysis.rows] == [2, 4, 6, 8, 10, 12]
    assert "trials" not in analysis.statement and analysis.metrics["trials"] == {"count": 0, "iterations": 0}
    draw_cost(costs)


def test_of_a_run_with_trials(pair_run: Run, ask: Callable[..., Analysis]) -> None:
    """Three trials of two iterations on both tasks at the end of five episodes, each with a validation."""
    analysis = ask("cost", run=pair_run.folder)
    assert analysis.metrics["tasks"]["spatial"] == {"validations": 7 + 15, "samples": 6, "permutations": 6}
    assert analysis.metrics["trials"] == {"count": 15, "iterations": 30}
    costs = analysis.metrics["cost_percent"]
    assert costs["every_order"] == pytest.approx(100 * (60 + 22 * 6 * (6 + 5) / 4) / 24)
    assert costs["shared_backbone"] == pytest.approx(100 * (60 + 22 * 6 * 2 / 4) / 24)
    assert "cost of the validations and trials" in analysis.statement
    assert analysis.figure().axes[0].get_title(loc="left") == "What the policy's validations and trials cost"
