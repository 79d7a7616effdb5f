"""A run that is interrupted and resumed ends exactly where an uninterrupted one does."""

import errno
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from unshuffle import pretraining
from unshuffle.config import Config, with_options
from unshuffle.errors import UserError
from unshuffle.models.weights import read_weights
from unshuffle.options import merge, write_config
from unshuffle.pretraining import run_pretraining
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.run import Run
from unshuffle.stopping import Stopped
from unshuffle.training.trainer import Trainer


def final_state(run: Run) -> dict[str, Any]:
    return load_checkpoint(list_checkpoints(run.checkpoints)[-1])


def assert_same(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}[{index}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


def comparable_metrics(run: Run) -> list[dict[str, Any]]:
    """All that was logged, less what depends on the clock and train averages, whose windows restart."""
    entries = [entry for entry in run.metrics() if entry["kind"] not in ("train", "start", "cost")]
    return [{name: value for name, value in entry.items() if name not in ("seconds", "time")} for entry in entries]


@pytest.fixture
def uninterrupted(small: Any, tmp_path: Path) -> Run:
    return run_pretraining(small(tmp_path / "uninterrupted"))


class Killed(BaseException):
    """As sudden as a SIGKILL: nothing in the program catches it."""


def train_and_die(config: Config, kill_at: int, monkeypatch: pytest.MonkeyPatch, *, resume: bool = False) -> None:
    """Train until the step at some iteration, which kills the run."""
    step = Trainer.step

    def dying_step(self: Trainer, *args: Any) -> None:
        if self.iteration == kill_at:
            raise Killed
        step(self, *args)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "step", dying_step)
        run_pretraining(config, resume=resume)


@pytest.mark.parametrize("kill_at", [0, 1, 4, 5, 8])
def test_a_killed_run_resumes_bit_exactly(
    small: Any, tmp_path: Path, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    config = small(tmp_path / "interrupted")
    train_and_die(config, kill_at, monkeypatch)
    run = run_pretraining(config, resume=True)
    assert_same(final_state(run), final_state(uninterrupted))
    assert_same(read_weights(run.weights), read_weights(uninterrupted.weights))
    assert comparable_metrics(run) == comparable_metrics(uninterrupted)


def test_a_killed_run_in_bf16_resumes_bit_exactly(
    small: Any, tmp_path: Path, reliable: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CPUs that multiply in bf16; its convolutions are channels-last."""
    values = {**ROLLOUTS, "tasks": "S+T+R+I", "optim": {"precision": "bf16"}}
    config = small(tmp_path / "interrupted", **values)
    with reliable():
        whole = run_pretraining(small(tmp_path / "whole", **values))
        train_and_die(config, 5, monkeypatch)
        run = run_pretraining(config, resume=True)
    assert_same(final_state(run), final_state(whole))
    assert comparable_metrics(run) == comparable_metrics(whole)


class AfterSteps:
    """Something happens before a step; those of rollouts count too."""

    def __init__(self, count: int, happens: Callable[[], None]) -> None:
        self.left, self.happens, self.step = count, happens, Trainer.step

    def __call__(self, trainer: Trainer, *args: Any) -> None:
        if self.left == 0:
            self.happens()
        self.left -= 1
        self.step(trainer, *args)


def die() -> None:
    raise Killed


ROLLOUTS = {
    "policy": {"sampler": "rollouts", "grouping": "pairs", "prior_correction": False, "rollout_iterations": 4},
}
"""Three rollouts of four iterations each at iterations 3 and 6; nine iterations besides."""


@pytest.fixture(scope="module")
def reliable_rollouts(reliable: Any) -> Iterator[None]:
    with reliable():
        yield


@pytest.fixture(scope="module")
def uninterrupted_with_rollouts(small: Any, tmp_path_factory: pytest.TempPathFactory, reliable_rollouts: None) -> Run:
    run = run_pretraining(small(tmp_path_factory.mktemp("uninterrupted") / "run", **ROLLOUTS))
    assert any(advantage for entry in run.metrics("rollouts") for advantage in entry["advantage"]), (
        "a test of something"
    )
    return run


# 7: in a rollout, before the first checkpoint; 17: at iteration 5; 23: in a rollout again, at iteration 6
@pytest.mark.parametrize("steps", [7, 17, 23])
def test_a_run_with_rollouts_resumes_bit_exactly(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted_with_rollouts: Run, steps: int
) -> None:
    config = small(tmp_path / "interrupted", **ROLLOUTS)
    with monkeypatch.context() as patch:
        dying = AfterSteps(steps, die)
        patch.setattr(Trainer, "step", lambda trainer, *args: dying(trainer, *args))
        with pytest.raises(Killed):
            run_pretraining(config)
    run = run_pretraining(config, resume=True)
    assert_same(final_state(run), final_state(uninterrupted_with_rollouts))
    assert_same(read_weights(run.weights), read_weights(uninterrupted_with_rollouts.weights))
    assert comparable_metrics(run) == comparable_metrics(uninterrupted_with_rollouts)
    assert len(list(run.metrics("rollouts"))) == 4


# 8: in a rollout, which continues to its end; 16: between two validations, with counts that are not yet logged;
# 17: at iteration 6, whose checkpoint then holds the advantages of its rollouts
@pytest.mark.parametrize(("steps", "saved"), [(8, 4), (16, 5), (17, 6)])
def test_a_run_with_rollouts_stops_and_resumes(
    small: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uninterrupted_with_rollouts: Run,
    steps: int,
    saved: int,
) -> None:
    config = small(tmp_path / "stopped", **ROLLOUTS)
    with monkeypatch.context() as patch:
        asked = AfterSteps(steps, lambda: os.kill(os.getpid(), signal.SIGTERM))
        patch.setattr(Trainer, "step", lambda trainer, *args: asked(trainer, *args))
        with pytest.raises(Stopped) as stop:
            run_pretraining(config)
    assert stop.value.iteration == saved
    run = run_pretraining(config, resume=True)
    assert_same(final_state(run), final_state(uninterrupted_with_rollouts))
    assert comparable_metrics(run) == comparable_metrics(uninterrupted_with_rollouts)


@pytest.mark.parametrize("kill_at", [3, 8])
def test_a_run_with_all_tasks_resumes_bit_exactly(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    """Four tasks, two crop sizes, different batch sizes."""
    values = {"tasks": "S+T+R+I", "rotation": {"batch_size": 6, "loss_weight": 0.5}}
    whole = run_pretraining(small(tmp_path / "whole", **values))
    config = small(tmp_path / "interrupted", **values)
    train_and_die(config, kill_at, monkeypatch)
    run = run_pretraining(config, resume=True)
    state = final_state(run)
    assert_same(state, final_state(whole))
    names = ["spatial", "temporal", "rotation", "instance"]
    assert list(state["tasks"]) == names == list(state["optimisers"])[1:]
    assert_same(read_weights(run.weights), read_weights(whole.weights))
    assert comparable_metrics(run) == comparable_metrics(whole)
    assert {entry["task"] for entry in run.metrics("validation")} == set(names)


def test_a_run_killed_twice_resumes_bit_exactly_in_sequence(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run_pretraining(small(tmp_path / "whole", tasks="S+R&T"))
    config = small(tmp_path / "interrupted", tasks="S+R&T")
    for number, kill_at in enumerate((5, 7)):
        train_and_die(config, kill_at, monkeypatch, resume=number > 0)
    assert_same(final_state(run_pretraining(config, resume=True)), final_state(whole))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_leaves(
    small: Any, tmp_path: Path, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch, signum: int
) -> None:
    step = Trainer.step

    def interrupted_step(self: Trainer, *args: Any) -> None:
        if self.iteration == 5:
            os.kill(os.getpid(), signum)
        step(self, *args)

    config = small(tmp_path / "stopped")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted_step)
        with pytest.raises(Stopped) as stop:
            run_pretraining(config)
    assert stop.value.iteration == 6
    assert [path.stem for path in list_checkpoints(Run(config.out).checkpoints)] == ["00000004", "00000006"]
    assert_same(final_state(run_pretraining(config, resume=True)), final_state(uninterrupted))


def test_a_signal_while_a_data_worker_hangs_saves_and_leaves(
    small: Any, tmp_path: Path, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, ready = Trainer.load, threading.Event()

    def hanging_load(self: Trainer, iteration: int) -> Any:
        if iteration == 6:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
            ready.wait(60)  # far longer than the test may take
        return load(self, iteration)

    config = small(tmp_path / "stopped")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "load", hanging_load)
        patch.setattr("unshuffle.stopping.GRACE_SECONDS", 0.1)
        with pytest.raises(Stopped) as stop:
            run_pretraining(config)
    assert not ready.is_set() and stop.value.iteration == 6
    ready.set()
    assert [path.stem for path in list_checkpoints(Run(config.out).checkpoints)] == ["00000004", "00000006"]
    assert_same(final_state(run_pretraining(config, resume=True)), final_state(uninterrupted))


def test_a_signal_while_a_data_worker_hangs_in_a_rollout_leaves(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted_with_rollouts: Run
) -> None:
    load, train, ready, inside = Trainer.load, Trainer.train_iterations, threading.Event(), threading.Event()

    def hanging_load(self: Trainer, iteration: int) -> Any:
        if inside.is_set() and iteration > 7:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
            ready.wait(60)  # far longer than the test may take
        return load(self, iteration)

    def train_iterations(self: Trainer, count: int) -> None:
        if self.iteration == 6:
            inside.set()
        train(self, count)

    config = small(tmp_path / "stopped", **ROLLOUTS)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "load", hanging_load)
        patch.setattr(Trainer, "train_iterations", train_iterations)
        patch.setattr("unshuffle.stopping.GRACE_SECONDS", 0.1)
        with pytest.raises(Stopped, match="stopped at iteration 6; the last checkpoint is kept") as stop:
            run_pretraining(config)
    assert not ready.is_set() and stop.value.signum == signal.SIGTERM
    ready.set()
    assert [path.stem for path in list_checkpoints(Run(config.out).checkpoints)] == ["00000004"]
    run = run_pretraining(config, resume=True)
    assert_same(final_state(run), final_state(uninterrupted_with_rollouts))


@pytest.mark.slow
def test_a_process_killed_by_the_system_resumes_bit_exactly(small: Any, tmp_path: Path) -> None:
    options = ["--device", "cpu", "--data.val_size", "6", "--data.workers", "1", "--synthetic.images", "24"]
    options += ["--synthetic.gallery", "24", "--synthetic.queries", "12"]
    options += ["--synthetic.clips", "18", "--optim.batch_size", "4", "--optim.iterations", "40"]
    options += ["--log.checkpoint_every", "5", "--spatial.permutations", "6", "--temporal.permutations", "6"]
    options += ["--tasks", "S+T+R", "--rotation.crop_size", "24"]
    options += [
        "--policy.num_groups",
        "3",
        "--policy.interval",
        "7",
        "--policy.batches",
        "4",
        "--policy.start_below",
        "2",
    ]
    command = [sys.executable, "-m", "unshuffle", "pretrain", *options, "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, interrupted = Run(tmp_path / "whole"), Run(tmp_path / "interrupted")
    subprocess.run([*command, str(whole.folder)], check=True, env=environment, capture_output=True)
    process = subprocess.Popen([*command, str(interrupted.folder)], env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list_checkpoints(interrupted.checkpoints) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    resume = [sys.executable, "-m", "unshuffle", "pretrain", "--out", str(interrupted.folder), "--resume"]
    subprocess.run(resume, check=True, env=environment, capture_output=True)
    assert_same(final_state(interrupted), final_state(whole))


# ---- damage


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def resumed_text(config: Config) -> str:
    text = io.StringIO()
    run_pretraining(config, resume=True, console=Console(file=text, width=1000))
    return text.getvalue()


def test_a_damaged_checkpoint_is_replaced_by_resuming_from_the_one_before(
    small: Any, tmp_path: Path, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path / "run")
    train_and_die(config, 8, monkeypatch)
    run = Run(config.out)
    assert [path.stem for path in list_checkpoints(run.checkpoints)] == ["00000004", "00000008"]
    flip_a_bit(run.checkpoints / "00000008.pt")
    text = resumed_text(config)
    (said,) = [line for line in text.splitlines() if "is damaged" in line]
    assert said.startswith(f"checkpoint {run.checkpoints / '00000008.pt'} is damaged (wrong checksum of ")
    assert said.endswith(": using the newest that is not, 00000004.pt")
    (warning,) = run.metrics("warning")
    assert (warning["iteration"], warning["concern"], warning["sentence"]) == (4, "damaged_checkpoint", said)
    assert_same(final_state(run), final_state(uninterrupted))
    assert [entry for entry in comparable_metrics(run) if entry["kind"] != "warning"] == comparable_metrics(
        uninterrupted
    )


def test_without_a_sound_checkpoint_a_run_is_not_resumed(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path / "run")
    train_and_die(config, 8, monkeypatch)
    for path in list_checkpoints(Run(config.out).checkpoints):
        flip_a_bit(path)
    with pytest.raises(UserError, match=r"^all 2 checkpoints in .*; start the training again with another --out$"):
        run_pretraining(config, resume=True)


def test_a_checkpoint_that_does_not_fit_is_one_sentence(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path / "run")
    train_and_die(config, 5, monkeypatch)
    (path,) = list_checkpoints(Run(config.out).checkpoints)
    state = load_checkpoint(path)
    for key in ("optimisers", "random", "network"):
        torch.save({name: value for name, value in state.items() if name != key}, path)
        with pytest.raises(UserError, match=rf"00000004.pt does not fit \(it lacks '{key}'\)"):
            run_pretraining(config, resume=True)


def test_another_number_of_threads_is_said(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(tmp_path / "run")
    train_and_die(config, 5, monkeypatch)
    run = Run(config.out)
    lines = run.metrics_file.read_text()
    assert '"threads": 1,' in lines
    run.metrics_file.write_text(lines.replace('"threads": 1,', '"threads": 3,'))
    text = resumed_text(config)
    assert "the run began with 3 threads and continues with 1" in text and "set OMP_NUM_THREADS=3" in text
    assert [entry["concern"] for entry in run.metrics("warning")] == ["threads"]


def test_another_precision_is_said(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same config means bf16 on one CPU and fp32 on another."""
    config = small(tmp_path / "run", optim={"precision": "auto"})
    monkeypatch.setattr("unshuffle.training.trainer.choose_precision", lambda name, device: "bf16")
    train_and_die(config, 5, monkeypatch)
    monkeypatch.setattr("unshuffle.training.trainer.choose_precision", lambda name, device: "fp32")
    assert "the run began in bf16 and continues in fp32, which optim.precision auto means here" in resumed_text(config)
    run = Run(config.out)
    assert [entry["precision"] for entry in run.metrics("start")] == ["bf16"]
    assert [entry["concern"] for entry in run.metrics("warning")] == ["precision"]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("name", ["mkdir", "save", "write", "rename", "rename twice"])
def test_a_run_killed_as_it_begins_can_be_started_again(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, resume: bool
) -> None:
    config = small(tmp_path / "run")
    target, count = {
        "mkdir": ("unshuffle.pretraining.save_permutations", 0),
        "save": ("unshuffle.pretraining.save_permutations", 1),
        "write": ("unshuffle.pretraining.write_config", 0),
        "rename": ("pathlib.Path.rename", 0),
        "rename twice": ("pathlib.Path.rename", 1),
    }[name]
    calls: list[object] = []
    real = Path.rename if target.startswith("pathlib") else getattr(pretraining, target.rpartition(".")[2])

    def killed(*args: Any) -> Any:
        if len(calls) == count:
            raise Killed
        calls.append(args)
        return real(*args)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(target, killed)
        run_pretraining(config)
    assert not Run(config.out).config_file.exists()
    run = run_pretraining(config, resume=resume)
    assert run.weights.exists() and not (run.folder / ".starting").exists()
    assert sorted(path.name for path in run.permutations.iterdir()) == ["spatial.npy", "temporal.npy"]


def test_permutations_that_the_program_did_not_leave_there_are_not_overwritten(small: Any, tmp_path: Path) -> None:
    own = tmp_path / "run" / "permutations" / "spatial.npy"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"mine")
    with pytest.raises(UserError, match="is not empty"):
        run_pretraining(small(tmp_path / "run"))
    assert own.read_bytes() == b"mine"


def test_a_full_disk_is_one_sentence_and_the_run_resumes(
    small: Any, tmp_path: Path, uninterrupted: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path / "run")
    save = torch.save

    def full(state: Any, file: Any) -> None:
        if state["iteration"] == 8:
            file.write(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(state, file)

    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"No space left.* iteration 4 is kept"):
        patch.setattr(torch, "save", full)
        run_pretraining(config)
    assert [path.name for path in Run(config.out).checkpoints.iterdir()] == ["00000004.pt"]
    assert_same(final_state(run_pretraining(config, resume=True)), final_state(uninterrupted))


def test_only_what_does_not_change_the_result_may_change_on_resume(small: Any, tmp_path: Path) -> None:
    config = small(tmp_path / "run")
    run_pretraining(config)
    run_pretraining(small(tmp_path / "run", log={"train_every": 1}), resume=True)
    with pytest.raises(UserError, match=r"optim\.batch_size would change"):
        run_pretraining(small(tmp_path / "run", optim={"batch_size": 2}), resume=True)


def test_a_finished_or_foreign_folder_is_not_overwritten(small: Any, tmp_path: Path) -> None:
    run_pretraining(small(tmp_path / "run"))
    with pytest.raises(UserError, match="already holds a run"):
        run_pretraining(small(tmp_path / "run"))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"mine")
    with pytest.raises(UserError, match="not empty"):
        run_pretraining(small(tmp_path / "photos"))
    assert (tmp_path / "photos" / "a.jpg").read_bytes() == b"mine"


@pytest.mark.parametrize("resumed", [False, True])
def test_a_run_that_is_being_trained_is_not_resumed(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resumed: bool
) -> None:
    config = small(tmp_path / "run")
    step = Trainer.step

    def intruded_step(self: Trainer, *args: Any) -> None:
        if self.iteration == 6:
            before = Run(config.out).metrics_file.read_bytes()
            with pytest.raises(UserError, match="is being trained by another process"):
                run_pretraining(config, resume=True)
            assert Run(config.out).metrics_file.read_bytes() == before
        step(self, *args)

    if resumed:
        train_and_die(config, 5, monkeypatch)
    monkeypatch.setattr(Trainer, "step", intruded_step)
    assert run_pretraining(config, resume=resumed).weights.exists()


def test_a_finished_run_is_said_to_be_finished_and_left_alone(small: Any, tmp_path: Path) -> None:
    config = small(tmp_path / "run")
    run = run_pretraining(config)
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")}
    text = io.StringIO()
    run_pretraining(config, resume=True, console=Console(file=text))
    assert text.getvalue().startswith(f"{run.folder} is finished, with all its 9 iterations")
    assert text.getvalue().count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*")} == before


def test_metrics_hold_no_line_twice_after_a_resume(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small(tmp_path / "run")
    train_and_die(config, 7, monkeypatch)
    run = Run(config.out)
    with run.metrics_file.open("a") as file:
        file.write('{"iteration": 7, "ki')  # killed in the middle of a line
    run_pretraining(config, resume=True)
    entries = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    keys = [(entry["kind"], entry["iteration"], entry.get("task"), entry.get("name")) for entry in entries]
    assert len(keys) == len(set(keys))


def make_photos(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(rng.integers(0, 256, (96, 96, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


def test_a_resumed_run_needs_the_data_it_began_with(small: Any, tmp_path: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    config = small(tmp_path / "run", images=str(photos), data={"cache": str(tmp_path / "cache")})
    run_pretraining(config).weights.unlink()  # as if it had been killed just before its end
    run_pretraining(config, resume=True).weights.unlink()
    (photos / "11.png").rename(photos / "one more.png")
    with pytest.raises(UserError, match="the data has changed since the run began"):
        run_pretraining(config, resume=True)


def test_a_resumed_run_does_not_need_the_weights_it_began_with(small: Any, tmp_path: Path) -> None:
    first = run_pretraining(small(tmp_path / "first"))
    config = small(tmp_path / "second", init=str(first.weights), seed=3)
    second = run_pretraining(config)
    first.weights.unlink()
    second.weights.unlink()  # as if it had been killed just before its end
    assert_same(final_state(run_pretraining(config, resume=True)), final_state(second))
    assert second.weights.exists()


def test_a_start_that_fails_leaves_no_folder_behind(small: Any, tmp_path: Path) -> None:
    for wrong in (
        {"monitor": {"gallery": "nowhere", "queries": "nowhere"}},
        {"spatial": {"permutation_file": "no.npy"}},
    ):
        with pytest.raises(UserError):
            run_pretraining(small(tmp_path / "run", **wrong))
        assert not (tmp_path / "run").exists()
    run_pretraining(small(tmp_path / "run"))


# longer runs


@pytest.mark.parametrize("options", [{}, {"policy": {"sampler": "rollouts", "rollout_iterations": 1}}])
def test_a_longer_run_ends_where_one_of_that_length_does(small: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    long = small(tmp_path / "long", optim={"iterations": 14}, **options)
    run_pretraining(small(tmp_path / "run", **options))
    text = io.StringIO()
    longer = small(tmp_path / "run", optim={"iterations": 14}, **options)
    run = run_pretraining(longer, resume=True, console=Console(file=text, width=300))
    other = run_pretraining(long)
    assert_same(final_state(run), final_state(other))
    rollouts = [[(entry["task"], entry["iteration"]) for entry in each.metrics("rollouts")] for each in (run, other)]
    assert rollouts[0] == rollouts[1] and bool(rollouts[0]) == bool(options)
    assert (
        "14 iterations instead of 9: warm-up and milestones (6) stay at their iterations, so the learning rates "
        "continue at 10 % of their peak values; --optim.milestones sets further drops\n"
    ) in text.getvalue()
    assert run.config.optim.iterations == 14
    assert [(entry["iteration"], entry["before"], entry["iterations"]) for entry in run.metrics("extended")] == [
        (9, 9, 14)
    ]
    again = io.StringIO()
    run_pretraining(longer, resume=True, console=Console(file=again))
    assert "is finished, with all its 14 iterations" in again.getvalue()


def test_a_longer_run_with_a_cosine_says_how_the_learning_rates_continue(small: Any, tmp_path: Path) -> None:
    cosine = {"schedule": "cosine", "warmup": 0}
    run_pretraining(small(tmp_path / "run", optim=cosine))
    text = io.StringIO()
    longer = small(tmp_path / "run", optim={**cosine, "iterations": 18})
    run = run_pretraining(longer, resume=True, console=Console(file=text, width=300))
    assert (
        "18 iterations instead of 9: the cosine now ends there, so the learning rates continue at 50 % of their peak "
        "values instead of 0 %\n"
    ) in text.getvalue()
    lrs = [entry["lr"]["backbone"] for entry in run.metrics("train")]
    assert lrs[0] > lrs[3] and lrs[5] > lrs[4] > lrs[-1], "falls, rises where it continues, and falls again"


def test_a_run_interrupted_and_made_longer(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_and_die(small(tmp_path / "run"), 5, monkeypatch)
    longer = {"optim": {"iterations": 12, "milestones": [8, 10]}}
    run = run_pretraining(small(tmp_path / "run", **longer), resume=True)
    assert (run.config.optim.iterations, run.config.optim.milestones) == (12, (8, 10))
    assert_same(final_state(run), final_state(run_pretraining(small(tmp_path / "other", **longer))))


def test_what_a_run_cannot_become(small: Any, tmp_path: Path) -> None:
    run_pretraining(small(tmp_path / "run"))
    config = (tmp_path / "run" / "config.yaml").read_bytes()
    for optim, sentence in (
        ({"iterations": 8}, "has 9 iterations and cannot become shorter: give more than that instead of 8"),
        ({"iterations": 12, "milestones": [7]}, r"milestones before that cannot change; they are 6$"),
        ({"iterations": 12, "batch_size": 2}, r"keeps its config, but optim\.batch_size would change"),
    ):
        with pytest.raises(UserError, match=sentence):
            run_pretraining(small(tmp_path / "run", optim=optim), resume=True)
    run_pretraining(small(tmp_path / "stages", tasks="S&T"))
    with pytest.raises(UserError, match=r"tasks S&T divides the iterations among its stages, .* --init"):
        run_pretraining(small(tmp_path / "stages", tasks="S&T", optim={"iterations": 12}), resume=True)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == config


def test_a_longer_run_is_locked_while_it_trains(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_pretraining(small(tmp_path / "run"))
    longer, step, refused = small(tmp_path / "run", optim={"iterations": 12}), Trainer.step, []

    def intruded_step(self: Trainer, *args: Any) -> None:
        with pytest.raises(UserError, match="is being trained by another process"):
            run_pretraining(longer, resume=True)
        refused.append(self.iteration)
        step(self, *args)

    monkeypatch.setattr(Trainer, "step", intruded_step)
    run_pretraining(longer, resume=True)
    assert refused == [9, 10, 11]


def test_epochs_of_a_resumed_run(small: Any, tmp_path: Path) -> None:
    run = run_pretraining(small(tmp_path / "run", optim={"epochs": 2.0}))
    steps = run.config.optim.iterations
    assert (run.config.optim.epochs, final_state(run)["iteration"]) == (2, steps)
    assert run.config.optim.milestones == (round(6 * steps / 9),)
    text = io.StringIO()
    run_pretraining(small(run.folder, optim={"epochs": 2.0}), resume=True, console=Console(file=text))
    assert "is finished" in text.getvalue(), "the same epochs are the same iterations"
    longer = merge(Run(run.folder).config, {"optim": {"epochs": 3.0}})
    again = run_pretraining(longer, resume=True)
    assert again.config.optim.iterations == pytest.approx(1.5 * steps, abs=1)
    assert again.config.optim.milestones == run.config.optim.milestones
    with pytest.raises(UserError, match="cannot become shorter"):
        run_pretraining(merge(again.config, {"optim": {"epochs": 1.0}}), resume=True)


# other folders


def test_a_run_resumes_from_another_directory(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    photos = make_photos(tmp_path / "photos")
    options = {"images": "photos", "data": {"cache": "cache"}}
    run = run_pretraining(small(Path("runs/a"), **options))
    assert Run(tmp_path / run.folder).config.images == str(photos)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved = Run(Path("../runs/a"))
    longer = with_options(replace(moved.config, out=moved.folder), {"iterations": 11})
    assert final_state(run_pretraining(longer, resume=True))["iteration"] == 11

    photos.rename(tmp_path / "elsewhere" / "moved")
    longer = with_options(replace(moved.config, out=moved.folder), {"iterations": 13})
    with pytest.raises(UserError, match=r"photos does not exist: if the run's data was moved, give --images again"):
        run_pretraining(longer, resume=True)
    run_pretraining(replace(longer, images="moved"), resume=True)
    assert Run(moved.folder).config.images == str(tmp_path / "elsewhere" / "moved")


def test_a_run_with_relative_paths_resumes_from_its_directory(
    small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_photos(tmp_path / "photos")
    make_photos(tmp_path / "val")
    config = small(Path("run"), images="photos", data={"val_images": "val", "cache": "cache"})
    run = run_pretraining(config)
    write_config(replace(run.config, images="photos", data=config.data), run.config_file)  # as older versions wrote it
    stored = replace(Run(run.folder).config, out=Path("run"))
    assert stored.data.val_images == "val"
    again = run_pretraining(with_options(stored, {"iterations": 11}), resume=True)
    assert Run(again.folder).config.data.val_images == str(tmp_path / "val")
