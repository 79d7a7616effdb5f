from collections.abc import Callable
from dataclasses import replace

import pytest

from unshuffle.analysis.cost import derived_cost, draw_cost, measured_cost, paper_cost, training_seconds
from unshuffle.analysis.forward_passes import Validations, total_passes, training_passes, validations_of
from unshuffle.analysis.result import Analysis
from unshuffle.config import demo
from unshuffle.run import Run


def test_the_papers_figure() -> None:
    assert paper_cost() == pytest.approx(100 * 90 * 2 * 781.25 / 350_000)
    assert round(paper_cost()) == 40


def test_passes_of_validations() -> None:
    some = Validations([0, 10, 20], samples=100, permutations=50)
    assert [some.passes(25, iteration) for iteration in (0, 9, 10, 99)] == [200, 200, 400, 600]
    assert some.passes(25, 10, shared_trunk=True) == 8


def test_derived_cost_of_two_tasks() -> None:
    tasks = [Validations([0, 10], samples=4, permutations=6), Validations([0], samples=8, permutations=3)]
    # (2 · 4 · 6 + 8 · 3) / 2 batches of 2, beside 2 tasks · 10 iterations
    assert derived_cost(tasks, 2, 20, 10, shared_trunk=False) == pytest.approx(100 * 36 / 20)
    assert derived_cost(tasks, 2, 20, 10, shared_trunk=True) == pytest.approx(100 * 8 / 20)


def test_training_passes_of_tasks_that_take_turns() -> None:
    assert training_passes(demo(), 2, 10) == 20
    assert training_passes(replace(demo(), tasks="S&T"), 2, 10) == 10


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


def test_of_a_run(run: Run, uniform_run: Run, ask: Callable[..., Analysis]) -> None:
    analysis = ask("cost", run=run.folder)
    assert analysis.metrics["tasks"]["temporal"] == {"validations": 7, "samples": 6, "permutations": 5}
    costs = analysis.metrics["cost_percent"]
    assert costs["every_order"] == pytest.approx(100 * 7 * 6 * (6 + 5) / 4 / 24)
    assert costs["shared_trunk"] == pytest.approx(100 * 7 * 6 * 2 / 4 / 24)
    assert costs["measured"] > 0 and [row["iteration"] for row in analysis.rows] == [2, 4, 6, 8, 10, 12]
    assert total_passes(run, [0, 12]) == [16.5, 24 + 115.5]
    assert total_passes(run, [12], shared_trunk=True) == [24 + 21]
    assert total_passes(uniform_run, [0, 12]) == [0, 24]
    draw_cost(costs)


def test_without_states(copied: Run) -> None:
    for file in copied.states.iterdir():
        file.unlink()
    assert validations_of(copied, "spatial").samples == 6
