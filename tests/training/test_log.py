import json
from pathlib import Path

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unshuffle.policy.sampler import Observation
from unshuffle.policy.state import Validation
from unshuffle.runs.run import Run
from unshuffle.training.log import RunLog


def read(run: Run) -> list[dict[str, object]]:
    return [json.loads(line) for line in run.metrics_file.read_text().splitlines()]


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
        log.write_validation(7, "temporal", Validation(torch.ones(2, 3), torch.tensor([0.5, 0.25])), Observation({}))
    board = EventAccumulator(str(run.tensorboard))
    board.Reload()
    scalar = board.Scalars("train/loss/spatial")[0]
    assert (scalar.step, scalar.value) == (5, 1.5)
    assert board.Scalars("validation/temporal/error")[0].value == 0.375


def test_a_validation_keeps_the_error_of_every_permutation(tmp_path: Path) -> None:
    run = Run(tmp_path)
    errors = torch.tensor([0.5, 0.25, 0.0, 1.0], dtype=torch.float64)
    with RunLog(run) as log:
        log.write_validation(7, "spatial", Validation(torch.ones(4, 3), errors), Observation({"sampled": np.arange(4)}))
    assert read(run)[0] == {"iteration": 7, "kind": "validation", "task": "spatial", "error": 0.4375, "chance": 0.75}
    stored = np.load(run.states / "spatial-00000007.npz")
    assert stored["permutation_errors"].tolist() == errors.tolist()
    assert stored["iteration"] == 7
    assert stored["state"].shape == (4, 3)
    assert stored["sampled"].tolist() == [0, 1, 2, 3]


def test_reopening_drops_what_will_be_written_again(tmp_path: Path) -> None:
    run = Run(tmp_path)
    with RunLog(run) as log:
        for iteration in (0, 2, 4, 6):
            log.write("train", iteration)
    with run.metrics_file.open("a") as file:
        file.write('{"iteration": 7, "k')
    with RunLog(run, 4) as log:
        log.write("train", 5)
    assert [entry["iteration"] for entry in read(run)] == [0, 2, 4, 5]
    with RunLog(run, 0):
        pass
    assert read(run) == []
