import errno
import io
import json
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unshuffle.errors import UserError
from unshuffle.policy.sampler import Observation
from unshuffle.policy.state import PermutationValidation
from unshuffle.runs.heartbeat import Heartbeat, read_heartbeat
from unshuffle.runs.run import Run
from unshuffle.stopping import Stopped
from unshuffle.tasks.base import SampleErrors
from unshuffle.training.log import NoLog, RunLog

VALIDATION = PermutationValidation(torch.ones(4, 3), torch.tensor([0.5, 0.25, 0.0, 1.0], dtype=torch.float64))


def read(run: Run) -> list[dict[str, object]]:
    """Return all that was logged, less the clock."""
    entries = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert all(entry.pop("seconds") >= 0 and entry.pop("time") > 1e9 for entry in entries)
    return entries


class Clock:
    """A clock that a test sets."""

    now = 1000.0

    def perf_counter(self) -> float:
        return self.now

    def time(self) -> float:
        return 1e9 + self.now


def test_every_line_has_the_seconds_of_training_over_all_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, run = Clock(), Run(tmp_path)
    monkeypatch.setattr("unshuffle.training.log.time", clock)
    with RunLog(run) as log:
        log.write("branch", 0)
        for iteration in (2, 4):
            clock.now += 1.5
            log.write_test(iteration, "spatial", VALIDATION)
    clock.now += 5000  # interrupted after iteration 4; the checkpoint is of iteration 2
    with RunLog(run, 2) as log:
        clock.now += 0.25
        log.write_validation(3, "spatial", VALIDATION)
    assert [(entry["iteration"], entry["seconds"]) for entry in run.metrics()] == [(0, 0), (2, 1.5), (3, 1.75)]
    with RunLog(run) as log:
        log.write("branch", 0)
    assert [(entry["seconds"], entry["time"]) for entry in run.metrics()] == [(0, 1e9 + clock.now)]


def test_the_heartbeat_says_how_a_run_ends(tmp_path: Path) -> None:
    run = Run(tmp_path)
    endings = {"stopped": Stopped(15, "at iteration 3"), "failed": UserError("the disk is full")}
    for state, error in endings.items():
        with pytest.raises(type(error)), RunLog(run):
            raise error
        assert read_heartbeat(run) == Heartbeat(state, mock.ANY, str(error))  # type: ignore[arg-type]
    with RunLog(run):
        pass
    assert read_heartbeat(run) == Heartbeat("finished", mock.ANY)


def test_a_heartbeat_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.heartbeat.mkdir()
    with RunLog(run) as log:
        log.write("branch", 0)
    assert len(read(run)) == 1


def test_each_line_has_its_iteration_and_kind(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with RunLog(run) as log:
        log.write("train", 5, loss={"spatial": 1.5})
        log.write("start", 0, device="cpu")
    assert read(run) == [
        {"iteration": 5, "kind": "train", "loss": {"spatial": 1.5}},
        {"iteration": 0, "kind": "start", "device": "cpu"},
    ]


def test_tensorboard_gets_the_same_numbers(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with RunLog(run) as log:
        log.write("train", 5, loss={"spatial": 1.5})
        log.write_validation(7, "temporal", PermutationValidation(torch.ones(2, 3), torch.tensor([0.5, 0.25])))
        log.write_observation(7, "temporal", VALIDATION, Observation({}, episode={"reward": 0.5, "sampled": [3, 4]}))
    board = EventAccumulator(str(run.tensorboard))
    board.Reload()
    scalar = board.Scalars("train/loss/spatial")[0]
    assert (scalar.step, scalar.value) == (5, 1.5)
    assert board.Scalars("validation/temporal/error")[0].value == 0.375
    assert board.Scalars("episode/temporal/reward")[0].value == 0.5
    assert board.Scalars("episode/temporal/sampled/1")[0].value == 4


def test_tensorboard_gets_the_pictures(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "puzzles.png")
    run = Run(tmp_path)
    with RunLog(run) as log:
        log.write_pictures(9, [tmp_path / "puzzles.png"])
    board = EventAccumulator(str(run.tensorboard))
    board.Reload()
    (picture,) = board.Images("puzzles")
    assert picture.step == 9
    shown = Image.open(io.BytesIO(picture.encoded_image_string))
    np.testing.assert_array_equal(np.asarray(shown), pixels)


def test_a_validation_keeps_the_error_of_every_permutation(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with RunLog(run) as log:
        log.write_validation(7, "spatial", VALIDATION)
        log.write_observation(7, "spatial", VALIDATION, Observation({"sampled": np.arange(4)}))
    (entry,) = read(run)
    assert entry == {"iteration": 7, "kind": "validation", "task": "spatial", "error": 0.4375, "chance": 0.75}
    stored = np.load(run.states / "spatial-00000007.npz")
    assert stored["permutation_errors"].tolist() == VALIDATION.permutation_errors.tolist()
    assert stored["iteration"] == 7
    assert stored["state"].shape == (4, 3)
    assert stored["sampled"].tolist() == [0, 1, 2, 3]


def test_a_task_without_permutations_logs_its_error_alone(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with RunLog(run) as log:
        log.write_validation(7, "rotation", SampleErrors(torch.tensor([0.0, 0.5]), chance=0.75))
    assert read(run) == [
        {"iteration": 7, "kind": "validation", "task": "rotation", "error": 0.25, "chance": 0.75},
    ]
    assert not list(run.states.iterdir())


def test_an_error_on_the_test_set_is_an_entry_of_its_own(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with RunLog(run) as log:
        log.write_test(7, "spatial", VALIDATION)
    assert read(run) == [{"iteration": 7, "kind": "test", "task": "spatial", "error": 0.4375, "chance": 0.75}]
    board = EventAccumulator(str(run.tensorboard))
    board.Reload()
    assert board.Tags()["scalars"] == ["test/spatial/error", "test/spatial/chance"]
    assert not list(run.states.iterdir())


def test_the_other_processes_write_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with NoLog() as log:
        log.write("train", 5, loss={"spatial": 1.5})
        log.write_validation(7, "spatial", VALIDATION)
        log.write_test(7, "spatial", VALIDATION)
        log.write_observation(7, "spatial", VALIDATION, Observation({"sampled": np.arange(4)}))
    assert not list(tmp_path.iterdir())


def test_reopening_drops_what_will_be_written_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with RunLog(run) as log:
        for iteration in (0, 2, 4, 6):
            log.write("branch", iteration)
    with run.metrics_file.open("a") as file:
        file.write('{"iteration": 7, "k')
    with RunLog(run, 4) as log:
        log.write("branch", 5)
    assert [entry["iteration"] for entry in read(run)] == [0, 2, 4, 5]
    with RunLog(run, 0):
        pass
    assert read(run) == []


def test_a_full_disk_is_one_sentence_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path)

    def fail(*args: object, **arrays: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with (
        pytest.raises(UserError, match=r"metrics\.jsonl cannot be written \(No space left.*--resume"),
        RunLog(run) as log,
    ):
        monkeypatch.setattr(log._file, "flush", fail, raising=False)
        log.write("branch", 0)
    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(UserError, match=r"spatial-00000007\.npz cannot be written \(No space"), RunLog(run) as log:
        log.write_observation(7, "spatial", VALIDATION, Observation({"sampled": np.arange(4)}))
