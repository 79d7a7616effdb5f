import json

from unshuffle.analysis.trials import Trials, all_trials, read_trials
from unshuffle.run import Run


def test_trials_of_a_run(run: Run, pair_run: Run) -> None:
    assert list(all_trials(run)) == read_trials(run, "spatial") == []
    both = ("spatial", "temporal")
    assert list(all_trials(pair_run)) == [Trials(iteration, 3, 2, both) for iteration in (2, 4, 6, 8, 10)]
    for entry in read_trials(pair_run, "temporal"):
        assert entry["task"] == "temporal" and len(entry["errors"]) == len(entry["advantage"]) == 3


def test_tasks_share_their_trials(copied: Run) -> None:
    """One training for each group, as many as the task with most groups has."""
    with copied.metrics_file.open("a") as file:
        for iteration, task, errors in ((4, "spatial", [0.5]), (8, "spatial", [0.5, 0.4]), (8, "temporal", [0.5] * 3)):
            entry = {"iteration": iteration, "kind": "rollouts", "task": task, "iterations": 5, "errors": errors}
            file.write(json.dumps(entry) + "\n")
    assert list(all_trials(copied)) == [Trials(4, 1, 5, ("spatial",)), Trials(8, 3, 5, ("spatial", "temporal"))]
