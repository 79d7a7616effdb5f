"""The network of a run, from its newest checkpoint and from the trainer."""

import shutil
from pathlib import Path

import pytest
import torch

from unshuffle.models.weights import load_backbone
from unshuffle.report.snapshot import Snapshot
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.history import stored_permutations
from unshuffle.runs.run import Run
from unshuffle.training.checkpoint import save_checkpoint


@pytest.mark.parametrize("name", ["run", "all_tasks_run", "rotation_run"])
def test_the_newest_checkpoint_of_a_run(name: str, request: pytest.FixtureRequest) -> None:
    run: Run = request.getfixturevalue(name)
    snapshot = Snapshot.newest(run)
    assert snapshot is not None and snapshot.iteration == 6
    assert list(snapshot.network.tasks) == list(snapshot.held_out) == run.config.task_names
    trained = load_backbone(run.folder).state_dict()
    assert all(torch.equal(value, trained[key]) for key, value in snapshot.network.backbone.state_dict().items())
    stored = stored_permutations(run)
    assert {task: ordering.permutations.tolist() for task, ordering in snapshot.ordering_tasks.items()} == {
        task: rows.tolist() for task, rows in stored.items()
    }


def test_a_run_without_checkpoint_has_no_snapshot(run: Run, tmp_path: Path) -> None:
    copied = Run(shutil.copytree(run.folder, tmp_path / "copied"))
    shutil.rmtree(copied.checkpoints)
    assert Snapshot.newest(copied) is None


def test_a_damaged_checkpoint_is_passed_over(run: Run, tmp_path: Path) -> None:
    copied = Run(shutil.copytree(run.folder, tmp_path / "copied"))
    *_, newest = files = list_checkpoints(copied.checkpoints)
    newest.write_bytes(newest.read_bytes()[:-100])
    if len(files) == 1:
        save_checkpoint(copied.checkpoints, 2, load_checkpoint(list_checkpoints(run.checkpoints)[-1]), keep=9)
        newest.write_text("damaged")
    snapshot = Snapshot.newest(copied)
    assert snapshot is not None and snapshot.iteration == int(list_checkpoints(copied.checkpoints)[-2].stem)
    assert snapshot.warning is not None and str(newest) in snapshot.warning


def test_parts_for_a_person_to_look_at(all_tasks_run: Run) -> None:
    snapshot = Snapshot.newest(all_tasks_run)
    assert snapshot is not None
    for task, parts in (("spatial", 9), ("temporal", 6), ("rotation", 1)):
        pictures = snapshot.network.tasks[task].pictures(snapshot.held_out[task].pixels[:2], 16)
        assert pictures.shape == (2, parts, 3, 16, 16)
        assert 0 <= pictures.min() < pictures.max() <= 1
