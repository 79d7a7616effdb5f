from pathlib import Path

import pytest

from unshuffle.analysis.history import choose_tasks, open_run, read_history, run_labels, state_files
from unshuffle.run import Run


def test_errors_and_draws_of_every_validation(run: Run) -> None:
    history = read_history(run, "temporal")
    assert history.iterations.tolist() == [0, 2, 4, 6, 8, 10, 12]
    logged = [entry["error"] for entry in run.metrics("validation") if entry["task"] == "temporal"]
    assert history.errors.mean(axis=1).tolist() == pytest.approx(logged)
    assert history.draws.sum(axis=1).tolist() == [0] + 6 * [2 * 4 * 2]  # iterations, samples, permutations of each


def test_a_run_that_was_killed_while_it_wrote(copied: Run) -> None:
    half = copied.states / "spatial-00000012.npz"
    half.write_bytes(half.read_bytes()[:100])
    (copied.states / "spatial-00000006.npz").write_bytes(b"")
    with copied.metrics_file.open("a") as file:
        file.write('{"iteration": 14, "kind": "valida')
    assert read_history(copied, "spatial").iterations.tolist() == [0, 2, 4, 8, 10]


def test_states_from_before_a_run_was_resumed_are_left_out(copied: Run) -> None:
    (copied.states / "spatial-00000099.npz").write_bytes((copied.states / "spatial-00000012.npz").read_bytes())
    assert [file.name for file in state_files(copied, "spatial")][-1] == "spatial-00000012.npz"


def test_without_states(copied: Run) -> None:
    for file in copied.states.iterdir():
        file.unlink()
    with pytest.raises(ValueError, match="was it deleted"):
        read_history(copied, "spatial")


def test_tasks(run: Run) -> None:
    assert choose_tasks(run, None) == ["spatial", "temporal"] and choose_tasks(run, "temporal") == ["temporal"]
    with pytest.raises(ValueError, match="has no vertical task; it has spatial, temporal"):
        choose_tasks(run, "vertical")


def test_labels_tell_runs_apart(run: Run, copied: Run, tmp_path: Path) -> None:
    assert run_labels([run, copied]) == ["policy (reinforce)", "copied (reinforce)"]
    other = Run(copied.folder.rename(tmp_path / "policy"))
    assert run_labels([run, other]) == [f"{one.folder.parent.name}/policy (reinforce)" for one in (run, other)]
    with pytest.raises(ValueError, match="the same is given twice"):
        run_labels([run, run])


def test_open_run_wants_a_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a run folder"):
        open_run(tmp_path)
