import math
from collections.abc import Callable
from pathlib import Path

import pytest

from unshuffle.analysis.difficulty import Division, divide_samples, group_names
from unshuffle.report.charts import charts, difficulty_chart, thin
from unshuffle.runs.folders import find_runs
from unshuffle.runs.history import read_history
from unshuffle.runs.run import Run


def test_thin_keeps_few_points_as_they_are() -> None:
    assert thin([(0, 1.0), (10, 0.5)]) == [(0, 1.0), (10, 0.5)]


def test_thin_takes_means_of_neighbours() -> None:
    points = [(step, float(step % 2)) for step in range(102)]
    kept = thin(points, limit=12)
    assert len(kept) == 12 and kept[0] == points[0] and kept[-1] == points[-1]
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    assert all(value == 0.5 for _, value in kept[1:-1])  # ten bunches of ten


def test_one_run_has_its_tasks_in_one_chart(run: Run) -> None:
    by_title = {chart.title: chart for chart in charts(find_runs([run.folder]))}
    assert list(by_title) == ["Validation and test error", "Retrieval", "Own data", "Training loss", "Effective rank"]
    errors = by_title["Validation and test error"]
    named = [(series.name, series.dashed) for series in errors.series]
    assert named == [("spatial", False), ("temporal", False), ("spatial, test", True), ("temporal, test", True)]
    for kind, series in (("validation", errors.series[1]), ("test", errors.series[3])):
        logged = [(entry["iteration"], round(entry["error"], 5)) for entry in run.metrics(kind, "temporal")]
        assert series.points == logged and logged
    assert errors.levels == {"chance": 0.8}
    assert by_title["Training loss"].levels == {"chance": pytest.approx(math.log(5))}
    assert list(by_title["Retrieval"].levels) == ["raw pixels", "colour histograms"]


def test_several_runs_have_a_chart_for_each_task(run: Run, uniform_run: Run) -> None:
    by_title = {chart.title: chart for chart in charts(find_runs([run.folder, uniform_run.folder]))}
    assert [len(by_title[f"Validation and test error, {task}"].series) for task in ("spatial", "temporal")] == [4, 2]
    names = [series.name for series in by_title["Retrieval"].series]
    assert names == ["finished (reinforce)", "uniform"]
    assert len({series.colour for series in by_title["Retrieval"].series}) == 2


def test_a_run_without_labels_hides_no_baselines(run: Run, hostile_run: Run) -> None:
    by_title = {chart.title: chart for chart in charts(find_runs([run.folder, hostile_run.folder]))}
    assert len(by_title["Retrieval"].series) == 1
    assert list(by_title["Retrieval"].levels) == ["raw pixels", "colour histograms"]


def test_difficulty_is_in_percent_of_the_samples(run: Run) -> None:
    chart = difficulty_chart(divide_samples(run, read_history(run, "spatial"), "spatial"))
    assert len(chart.series) == 4 and chart.levels == {"uniform sampling": 25.0}
    assert chart.unit == "permutations sampled [%]"
    assert [series.colour for series in chart.series] == ["q1", "q2", "q3", "q4"]
    for values in zip(*(series.points for series in chart.series), strict=True):
        assert sum(value for _, value in values) == pytest.approx(100, abs=0.01)


def test_difficulty_of_pairs_is_that_of_the_groups(pair_run: Run) -> None:
    chart = difficulty_chart(divide_samples(pair_run, read_history(pair_run, "spatial"), "spatial"))
    episodes = [entry for entry in pair_run.metrics("episode") if entry["task"] == "spatial"]
    assert [series.name for series in chart.series] == group_names(5)
    for group, series in enumerate(chart.series):
        by_hand = [(e["iteration"], 100 * e["sampled"][group] / sum(e["sampled"])) for e in episodes]
        assert [at for at, _ in series.points] == [at for at, _ in by_hand] == [2, 4, 6]
        assert [value for _, value in series.points] == pytest.approx([value for _, value in by_hand], abs=1e-4)
    assert chart.unit == "pairs sampled [%]" and chart.levels == {"uniform sampling": 20.0}


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


def test_a_task_that_orders_nothing_has_curves(all_tasks_run: Run) -> None:
    by_title = {chart.title: chart for chart in charts(find_runs([all_tasks_run.folder]))}
    errors, losses = by_title["Validation and test error"], by_title["Training loss"]
    assert len({series.colour for series in errors.series}) == len({series.colour for series in losses.series}) == 3
    assert [len(series.points) for series in errors.series[:3]] == [4, 4, 4]
    assert losses.levels == {
        "chance, spatial and temporal": pytest.approx(math.log(5)),
        "chance, rotation": pytest.approx(math.log(4)),
    }
    assert [series.name for series in errors.series[:3]] == ["spatial", "temporal", "rotation"]
    assert errors.levels == {"chance, spatial and temporal": 0.8, "chance, rotation": 0.75}


def test_a_run_of_one_task_has_one_chance_line(rotation_run: Run) -> None:
    by_title = {chart.title: chart for chart in charts(find_runs([rotation_run.folder]))}
    errors = by_title["Validation and test error"]
    assert [series.name for series in errors.series] == ["rotation", "rotation, test"]
    assert errors.levels == {"chance": 0.75}
    assert by_title["Training loss"].levels == {"chance": pytest.approx(math.log(4))}


def test_runs_with_other_tasks_have_the_charts_of_all(run: Run, rotation_run: Run) -> None:
    by_title = {chart.title: chart for chart in charts(find_runs([run.folder, rotation_run.folder]))}
    tasks = ("spatial", "temporal", "rotation")
    series = {task: by_title[f"Validation and test error, {task}"].series for task in tasks}
    assert {task: [each.name for each in of_task] for task, of_task in series.items()} == {
        "spatial": ["finished (reinforce)", "finished (reinforce), test"],
        "temporal": ["finished (reinforce)", "finished (reinforce), test"],
        "rotation": ["rotation", "rotation, test"],
    }


def test_a_run_without_a_test_set_shows_its_validation_errors(tiny_run: Callable[..., Run], tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", data={"test_size": 0}, optim={"iterations": 2, "milestones": []})
    first, *_ = charts(find_runs([run.folder]))
    assert first.title == "Validation error"
    assert [(series.name, series.dashed) for series in first.series] == [("spatial", False), ("temporal", False)]


def test_the_loss_of_instance_discrimination_has_no_chance_line(instance_run: Run) -> None:
    """Training compares with the batch, validation with X_val, so they have different chance levels."""
    by_title = {chart.title: chart for chart in charts(find_runs([instance_run.folder]))}
    assert list(by_title["Training loss"].levels) == ["chance"], "of the spatial task"
    assert "chance, instance" in by_title["Validation and test error"].levels


def test_own_data_has_a_chart_with_and_without_labels(run: Run, uniform_run: Run, hostile_run: Run) -> None:
    by_title = {chart.title: chart for chart in charts(find_runs([run.folder]))}
    own, rank = by_title["Own data"], by_title["Effective rank"]
    logged = list(run.metrics("monitor"))
    assert [series.name for series in own.series] == ["two crops of an image", "two frames of a clip"]
    for series, key in zip([*own.series, *rank.series], ("crops_top1", "frames_top1", "own_rankme"), strict=True):
        assert series.points == [(entry["iteration"], round(entry[key], 5)) for entry in logged]
    assert own.levels == {"chance": pytest.approx(100 / 11)} and "Higher is better" in own.note
    unlabelled = {chart.title: chart for chart in charts(find_runs([hostile_run.folder]))}
    assert "Own data" in unlabelled and "Retrieval" not in unlabelled
    several = {chart.title: chart for chart in charts(find_runs([run.folder, uniform_run.folder]))}
    assert [len(several[f"Own data, two {kind}"].series) for kind in ("crops of an image", "frames of a clip")] == [
        2,
        1,
    ]


def test_every_chart_says_what_to_see(run: Run) -> None:
    assert all(chart.note.endswith(".") and chart.unit for chart in charts(find_runs([run.folder])))
    difficulty = difficulty_chart(divide_samples(run, read_history(run, "spatial"), "spatial"))
    assert difficulty.note and not difficulty.from_zero, "four lines near 25 % need a scale of their own"
