import math

import pytest

from unshuffle.analysis.difficulty import Division, divide_draws, group_names
from unshuffle.analysis.history import read_history
from unshuffle.report.curves import charts, difficulty_chart, thin
from unshuffle.report.subjects import find_subjects
from unshuffle.run import Run


def test_thin_keeps_few_points_as_they_are() -> None:
    assert thin([(0, 1.0), (10, 0.5)]) == [(0, 1.0), (10, 0.5)]


def test_thin_takes_means_of_neighbours() -> None:
    points = [(step, float(step % 2)) for step in range(102)]
    kept = thin(points, most=12)
    assert len(kept) == 12 and kept[0] == points[0] and kept[-1] == points[-1]
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert all(value == 0.5 for _, value in kept[1:-1])  # ten bunches of ten


def test_one_run_has_its_tasks_in_one_chart(run: Run) -> None:
    found = {chart.title: chart for chart in charts(find_subjects([run.folder]))}
    assert list(found) == ["Validation error", "Retrieval", "Training loss", "Effective rank"]
    logged = [
        (entry["iteration"], round(entry["error"], 5))
        for entry in run.metrics("validation")
        if entry["task"] == "temporal"
    ]
    assert [series.name for series in found["Validation error"].series] == ["spatial", "temporal"]
    assert found["Validation error"].series[1].points == logged
    assert found["Validation error"].levels == {"guessing": 0.8}
    assert found["Training loss"].levels == {"guessing": pytest.approx(math.log(5))}
    assert list(found["Retrieval"].levels) == ["raw pixels", "colour histograms"]


def test_several_runs_have_a_chart_for_each_task(run: Run, uniform_run: Run) -> None:
    found = {chart.title: chart for chart in charts(find_subjects([run.folder, uniform_run.folder]))}
    assert [len(found[f"Validation error, {task}"].series) for task in ("spatial", "temporal")] == [2, 1]
    names = [series.name for series in found["Retrieval"].series]
    assert names == ["finished (reinforce)", "uniform"]
    assert len({series.colour for series in found["Retrieval"].series}) == 2


def test_difficulty_is_in_percent_of_the_draws(run: Run) -> None:
    chart = difficulty_chart(divide_draws(run, read_history(run, "spatial"), "spatial"))
    assert len(chart.series) == 4 and chart.levels == {"by chance": 25.0} and chart.unit == "permutations drawn [%]"
    assert [series.colour for series in chart.series] == ["q1", "q2", "q3", "q4"]
    for values in zip(*(series.points for series in chart.series), strict=True):
        assert sum(value for _, value in values) == pytest.approx(100, abs=0.01)


def test_difficulty_of_pairs_is_that_of_the_groups(pair_run: Run) -> None:
    chart = difficulty_chart(divide_draws(pair_run, read_history(pair_run, "spatial"), "spatial"))
    episodes = [entry for entry in pair_run.metrics("episode") if entry["task"] == "spatial"]
    assert [series.name for series in chart.series] == group_names(5)
    for group, series in enumerate(chart.series):
        by_hand = [(e["iteration"], 100 * e["sampled"][group] / sum(e["sampled"])) for e in episodes]
        assert [at for at, _ in series.points] == [at for at, _ in by_hand] == [2, 4, 6]
        assert [value for _, value in series.points] == pytest.approx([value for _, value in by_hand], abs=1e-4)
    assert chart.unit == "pairs drawn [%]" and chart.levels == {"by chance": 20.0}


def test_groups_that_share_a_colour_share_their_name_in_the_legend() -> None:
    rows = [{"iteration": 1, **{f"group_{number}_percent": 10.0 for number in range(1, 11)}}]
    chart = difficulty_chart(Division("group", group_names(10), rows))
    legends = {series.colour: series.group for series in chart.series}
    assert legends == {
        "q1": "hardest group to group 2",
        "q2": "group 3 to group 5",
        "q3": "group 6 to group 8",
        "q4": "group 9 to easiest group",
    }
    assert difficulty_chart(Division("group", group_names(2), [])).series == []
