import errno
import io
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from unshuffle.config import Config, LogConfig, Logger, preset_config
from unshuffle.errors import UserError
from unshuffle.options import to_dict
from unshuffle.policy.sampler import Observation
from unshuffle.policy.state import PermutationValidation
from unshuffle.pretraining import run_pretraining
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


# ---- wandb and trackio, read back by their own libraries


@dataclass
class Logged:
    """What another logger holds of a run."""

    name: str
    config: dict[str, Any]
    curves: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    pictures: dict[str, Path] = field(default_factory=dict)


def logged_by(logger: Logger, run: Run) -> Logged:
    return _logged_by_wandb(run) if logger == "wandb" else _logged_by_trackio(run)


def _logged_by_wandb(run: Run) -> Logged:
    logged = Logged("", {})
    for file in sorted(run.folder.glob("wandb/offline-run-*/*.wandb")):
        while not ((records := list(_records(file))) and records[-1].HasField("exit")):
            time.sleep(0.05)  # wandb's own process still writes, or has not begun to
        for record in records:
            if record.HasField("run"):
                logged.name = record.run.display_name
                logged.config = {entry.key: json.loads(entry.value_json) for entry in record.run.config.update}
            if record.HasField("history"):
                for item in record.history.item:
                    (name, *inner), value = item.nested_key, json.loads(item.value_json)
                    if inner == ["path"]:
                        logged.pictures[name] = file.parent / "files" / value
                    elif not inner:
                        logged.curves[name][record.history.step.num] = value
    return logged


def _records(file: Path) -> Iterator[Any]:
    """Yield wandb's messages; they lie in blocks of 32 KiB, in pieces with a checksum, a length and a kind each."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, message = file.read_bytes(), 7, b""
    while position + 7 < len(content):
        if (rest := 2**15 - position % 2**15) < 7:
            position += rest
            continue
        _, length, kind = struct.unpack_from("<IHB", content, position)
        if position + 7 + length > len(content):
            return  # not written to its end yet
        message += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # the whole message, or the last piece of one
            yield Record.FromString(message)
            message = b""


def _logged_by_trackio(run: Run) -> Logged:
    import trackio
    from trackio.sqlite_storage import SQLiteStorage
    from trackio.utils import MEDIA_DIR

    project = run.folder.parent.name
    (stored,) = trackio.Api().runs(project)
    logged = Logged(stored.name, stored.config or {})
    for row in SQLiteStorage.get_logs(project, stored.name):
        for name, value in row.items():
            if isinstance(value, dict):
                logged.pictures[name] = MEDIA_DIR / value["file_path"]
            elif isinstance(value, int | float):
                logged.curves[name][row["step"]] = value
    return logged


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says nothing about loggers."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def with_logger(logger: Logger, project: str) -> Config:
    return replace(preset_config("demo"), log=LogConfig(to=(logger,), project=project))


INSTALLED = [
    pytest.param(logger, marks=pytest.mark.skipif(find_spec(logger) is None, reason=f"needs {logger}"))
    for logger in get_args(Logger)
]


@pytest.mark.parametrize("logger", INSTALLED)
def test_another_logger_gets_curves_pictures_and_config(logger: Logger, tmp_path: Path, offline: None) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "puzzles.png")
    run, config = Run(tmp_path / "mine"), with_logger(logger, tmp_path.name)
    with RunLog(run, config=config) as log:
        log.write("start", 0, device="cpu")
        for iteration in range(1, 100):  # more than one block of wandb's file
            log.write("train", iteration, loss={"spatial": 1.5 / iteration, "temporal": 2.0})
        log.write_validation(99, "spatial", VALIDATION)
        log.write_pictures(99, [tmp_path / "puzzles.png"])
    logged = logged_by(logger, run)
    assert logged.name == "mine"
    assert logged.config.items() >= to_dict(config).items()
    assert logged.curves["train/loss/spatial"] == {iteration: 1.5 / iteration for iteration in range(1, 100)}
    assert logged.curves["validation/spatial/error"] == {99: 0.4375}
    with Image.open(logged.pictures["puzzles"]) as shown:
        np.testing.assert_array_equal(np.asarray(shown), pixels)
    assert len(read(run)) == 101
    assert any(run.tensorboard.iterdir())


@pytest.mark.parametrize("logger", INSTALLED)
def test_a_resumed_run_continues_its_curves_elsewhere(logger: Logger, tmp_path: Path, offline: None) -> None:
    run = Run(tmp_path / "mine")
    for iteration in (0, 4):
        with RunLog(run, iteration, with_logger(logger, tmp_path.name)) as log:
            for step in range(iteration + 1, iteration + 5):
                log.write("train", step, loss={"spatial": 1 / step})
    assert logged_by(logger, run).curves["train/loss/spatial"] == {step: 1 / step for step in range(1, 9)}
    if logger == "wandb":
        files = list(run.folder.glob("wandb/offline-run-*/*.wandb"))
        assert len(files) == 2
        assert len({file.name for file in files}) == 1, "wandb sync would make two runs of them"


@pytest.mark.slow
@pytest.mark.parametrize("logger", INSTALLED)
def test_another_logger_makes_no_network_call(logger: Logger, tmp_path: Path) -> None:
    program = (
        "from dataclasses import replace; from pathlib import Path\n"
        "from unshuffle.config import LogConfig, preset_config\n"
        "from unshuffle.runs.run import Run; from unshuffle.training.log import RunLog\n"
        f"config = replace(preset_config('demo'), log=LogConfig(to=({logger!r},)))\n"
        "with RunLog(Run(Path('mine')), config=config) as log: log.write('train', 1, loss=1.0)\n"
    )
    names = [name for name in os.environ if not name.startswith(("WANDB_", "TRACKIO_"))]
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxies = dict.fromkeys(
            ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), f"http://127.0.0.1:{proxy.getsockname()[1]}"
        )
        environment = {**{name: os.environ[name] for name in names}, **proxies, "TRACKIO_DIR": str(tmp_path)}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, check=True)
        proxy.settimeout(0.1)
        with pytest.raises(TimeoutError):
            proxy.accept()


@pytest.mark.parametrize("logger", get_args(Logger))
def test_a_logger_that_is_missing_is_one_sentence_before_anything_is_read(
    logger: Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    config = replace(with_logger(logger, tmp_path.name), out=tmp_path / "mine", images=str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=rf"^--log.to {logger} needs {logger}: pip install 'unshuffle\[{logger}\]'$"):
        run_pretraining(config)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(find_spec("wandb") is None, reason="needs wandb")
def test_the_error_of_a_logger_is_one_sentence(tmp_path: Path, offline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "sideways")
    with pytest.raises(UserError, match=r"^wandb cannot log this run \(.*\): correct that, or omit --log.to$"):
        RunLog(Run(tmp_path / "mine"), config=with_logger("wandb", "unshuffle"))
