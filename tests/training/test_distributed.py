"""Training with two processes gives the same results as with one."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from unshuffle.errors import UserError
from unshuffle.pretraining import run_pretraining
from unshuffle.runs.checkpoints import list_checkpoints, load_checkpoint
from unshuffle.runs.run import Run
from unshuffle.training import distributed

WORKER = Path(__file__).with_name("worker.py")
TINY = [
    *("--device", "cpu", "--data.val_size", "4", "--data.workers", "1", "--log.no_pictures"),
    *("--synthetic.images", "16", "--synthetic.clips", "12", "--synthetic.gallery", "12", "--synthetic.queries", "6"),
    *("--optim.iterations", "2", "--optim.batch_size", "4", "--spatial.permutations", "4"),
    *("--temporal.permutations", "4", "--permutations.per_sample", "1", "--policy.num_groups", "2"),
]


def test_a_single_process_is_rank_0_of_1() -> None:
    with distributed.started():
        assert (distributed.rank(), distributed.size(), distributed.is_main()) == (0, 1, True)
    assert distributed.gather("a") == ["a"]
    assert (distributed.broadcast("a"), distributed.largest(3), distributed.means([1.0, 2.0])) == ("a", 3, [1.0, 2.0])
    assert distributed.total(torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]
    network = torch.nn.Linear(1, 1)
    assert distributed.parallel(network, some_unused=False) is network
    with pytest.raises(OSError, match="gone"), distributed.together():
        raise OSError("gone")


def test_a_batch_that_cannot_be_split_among_the_processes_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "size", lambda: 3)
    distributed.check_divisible({"optim.batch_size": 6, "rotation.batch_size": 9}, 3)
    with pytest.raises(UserError, match=r"optim\.batch_size 8 must be a multiple of the number of processes, 3"):
        distributed.check_divisible({"optim.batch_size": 8}, 3)
    with pytest.raises(UserError, match=r"rotation\.batch_size 4 must be a multiple of the number of processes, 3"):
        distributed.check_divisible({"optim.batch_size": 6, "rotation.batch_size": 4}, 3)
    with pytest.raises(UserError, match="2 validation samples are too few for 3 processes"):
        distributed.check_divisible({"optim.batch_size": 6}, 2)


def test_launcher_starts_the_same_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert distributed.launcher() == "unshuffle"
    monkeypatch.setattr(distributed, "size", lambda: 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert distributed.launcher() == "torchrun --standalone --nproc_per_node 4 -m unshuffle"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert distributed.launcher() == "torchrun [as before] -m unshuffle"


def side_by_side(commands: list[list[str]], folder: Path) -> list[tuple[int, str]]:
    """Run a command as each rank; return exit codes and standard errors."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for rank, command in enumerate(commands):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": len(commands), "MASTER_PORT": port}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
        environment |= {name: str(value) for name, value in variables.items()}
        processes.append(
            subprocess.Popen(
                [sys.executable, *command],
                cwd=folder,
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        return [(process.wait(), text) for process in processes for _, text in [process.communicate(timeout=120)]]
    finally:
        for process in processes:
            process.kill()


@dataclass(frozen=True)
class Outcomes:
    """The results of one process, and of each of two."""

    folder: Path
    alone: dict[str, Any]
    ranks: list[dict[str, Any]]


def assert_close(one: Any, other: Any, where: str = "", rtol: float = 1e-5, atol: float = 1e-7) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_close(one[key], other[key], f"{where}.{key}", rtol, atol)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_close(left, right, f"{where}[{index}]", rtol, atol)
    elif isinstance(one, torch.Tensor | float):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=lambda text: f"{where}: {text}")
    else:
        assert one == other, where


@pytest.mark.slow
def test_two_processes_do_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One test for all that two processes do, so that they are started once."""
    for count in (1, 2):
        for code, text in side_by_side([[str(WORKER), str(tmp_path)]] * count, tmp_path):
            assert code == 0, text
    alone, *ranks = (torch.load(tmp_path / f"{name}.pt") for name in ("1-0", "2-0", "2-1"))
    outcomes = Outcomes(tmp_path, alone, ranks)
    same_as_one_with_the_same_batch(outcomes)
    the_same_permutations_and_decisions_to_the_bit(outcomes)
    what_both_trained_on_is_counted_together(outcomes)
    one_network_with_their_own_normalisation_and_dropout(outcomes)
    a_step_that_is_not_finite_in_one_is_skipped_by_all(outcomes)
    a_signal_to_one_stops_all_after_the_same_step(outcomes)
    a_run_stopped_by_a_signal_resumes_to_the_bit(outcomes)
    an_error_of_one_process_ends_all_and_is_reported_once(outcomes)
    monkeypatch.syspath_prepend(WORKER.parent)
    a_run_continues_with_another_number_of_processes(outcomes)


def same_as_one_with_the_same_batch(outcomes: Outcomes) -> None:
    """Weights, running statistics, crops, permutations, validations and the samplers' states."""
    for scenario in ("normalised", "frozen", "synchronised", "instance", "in turn", "rollouts"):
        for results in outcomes.ranks:
            assert_close(results[scenario], outcomes.alone[scenario], scenario)


def the_same_permutations_and_decisions_to_the_bit(outcomes: Outcomes) -> None:
    first, second = (results["synchronised"] for results in outcomes.ranks)
    for name in ("steps", "tasks", "validations"):
        assert_close(first[name], second[name], name, rtol=0, atol=0)
    for step, whole in zip(first["steps"], outcomes.alone["synchronised"]["steps"], strict=True):
        for task in ("spatial", "temporal"):
            assert torch.equal(step[f"{task} permutations"], whole[f"{task} permutations"])
            assert len(step[f"{task} crops"]) == 4
        assert step["rotation crops"].shape == (6, 4, 3, 24, 24)
    assert first["tasks"]["spatial"]["sampler"]["episodes"] > 0
    assert first["validations"]["rotation"]["errors"].shape == (4,), "X_val of all processes"


def what_both_trained_on_is_counted_together(outcomes: Outcomes) -> None:
    """Two permutations of each of four samples, and their groups: those of the steps, without those of the rollouts."""
    first, second = (results["rollouts"] for results in outcomes.ranks)
    for name in ("steps", "tasks", "validations", "log"):
        assert_close(first[name], second[name], name, rtol=0, atol=0)
    compared = [(entry["iteration"], entry["task"]) for entry in first["log"] if "advantage" in entry]
    assert compared == [(step, task) for step in (3, 6) for task in ("spatial", "temporal")]
    assert any(advantage for entry in first["log"] for advantage in entry.get("advantage", ())), "a test of something"
    steps = first["steps"]
    of_the_run = steps[:3] + steps[12:15] + steps[24:]  # three rollouts of three iterations after each three
    assert len(of_the_run) == 9
    for task, count in (("spatial", 6), ("temporal", 5)):
        observed = [entry for entry in first["log"] if entry["task"] == task and "sampled" in entry]
        before = 0
        for entry in observed:
            now = entry["iteration"]
            none, steps_since = torch.empty(0, dtype=torch.int64), of_the_run[before:now]
            permutations = torch.cat([none, *(step[f"{task} sampled permutations"].flatten() for step in steps_since)])
            groups = torch.cat([none, *(step[f"{task} sampled groups"].flatten() for step in steps_since)])
            assert len(permutations) == 8 * (now - before)
            assert entry["sampled"].tolist() == torch.bincount(permutations, minlength=count).tolist()
            if now in (3, 6, 9):
                assert entry["episode"]["sampled"] == torch.bincount(groups, minlength=3).tolist()
            before = now
        assert before == 9


def one_network_with_their_own_normalisation_and_dropout(outcomes: Outcomes) -> None:
    first, second = (results["plain batch norm"] for results in outcomes.ranks)
    for name in ("network", "tasks", "validations", "log"):
        assert_close(first[name], second[name], name, rtol=0, atol=0)
    with pytest.raises(AssertionError, match="conv1"):
        assert_close(first["network"], outcomes.alone["plain batch norm"]["network"])


def a_step_that_is_not_finite_in_one_is_skipped_by_all(outcomes: Outcomes) -> None:
    first, second = (results["not finite"] for results in outcomes.ranks)
    assert_close(first["network"], second["network"], rtol=0, atol=0)
    for name in ("network", "tasks", "skipped", "validations", "log"):
        assert_close(first[name], outcomes.alone["not finite"][name], name)
    assert first["skipped"]["total"] == second["skipped"]["total"] == 2
    sentence, elsewhere = outcomes.ranks[0]["often not finite"]
    assert sentence == outcomes.alone["often not finite"][0] and elsewhere == "ReportedElsewhere: rank 0 has failed"
    assert sentence.startswith("UserError: 2 steps in a row were skipped")


def a_signal_to_one_stops_all_after_the_same_step(outcomes: Outcomes) -> None:
    assert [results["stopped"] for results in outcomes.ranks] == [5, 5]


def a_run_stopped_by_a_signal_resumes_to_the_bit(outcomes: Outcomes) -> None:
    """With running statistics of their own, which an uninterrupted run does not average where it was stopped."""
    for count in (1, 2):
        folders = [outcomes.folder / f"by-{count}" / name for name in ("own-statistics", "own-statistics-resumed")]
        whole, resumed = (load_checkpoint(list_checkpoints(Run(folder).checkpoints)[-1]) for folder in folders)
        assert_close(resumed, whole, rtol=0, atol=0)


def an_error_of_one_process_ends_all_and_is_reported_once(outcomes: Outcomes) -> None:
    assert outcomes.ranks[0]["unreadable"] == ["ReportedElsewhere: rank 1 has failed", "UserError: the disk is gone"]
    assert outcomes.alone["unreadable"] == ["UserError: the disk is gone"]
    assert outcomes.ranks[0]["unreadable in a rollout"] == outcomes.ranks[0]["unreadable"]
    first, second = outcomes.ranks[0]["refused"]  # both find it
    assert first == outcomes.alone["refused"][0] == "UserError: policy.num_groups is 1, but must be 2 or more"
    assert second == "ReportedElsewhere: rank 0 has failed"


def a_run_continues_with_another_number_of_processes(outcomes: Outcomes) -> None:
    def last(folder: Path) -> dict[str, Any]:
        state = load_checkpoint(list_checkpoints(Run(folder).checkpoints)[-1])
        return {name: state[name] for name in ("iteration", "network", "optimisers", "tasks", "data")}

    whole = last(outcomes.folder / "by-1" / "whole")
    assert whole["iteration"] == 9
    assert_close(last(outcomes.folder / "by-1" / "stopped"), whole)  # two processes continued it
    assert last(outcomes.folder / "by-2" / "stopped")["iteration"] == 5
    worker = importlib.import_module("worker")
    with worker.in_double():
        run_pretraining(worker.config(outcomes.folder / "by-2" / "stopped"), resume=True)
    assert_close(last(outcomes.folder / "by-2" / "stopped"), whole)


@pytest.mark.slow
def test_a_mistake_on_one_machine_is_one_sentence_and_exit_code_2_of_all(tmp_path: Path) -> None:
    commands = [["-m", "unshuffle", "pretrain", *TINY, *options] for options in ([], ["--optim.iteratons", "3"])]
    (first, nothing), (second, sentence) = side_by_side(commands, tmp_path)
    assert (first, second) == (2, 2)
    assert nothing == ""
    assert sentence.startswith("unshuffle: ")
    assert "did you mean --optim.iterations?" in sentence
    assert len(sentence.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_torchrun_writes_one_run(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    finished = subprocess.run(
        [*launcher, "-m", "unshuffle", "pretrain", *TINY],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("Results:") == 1
    run = Run.open(tmp_path / "runs" / "demo-1")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["demo-1"]
    assert [path.name for path in run.checkpoints.iterdir()] == ["00000002.pt"]
    assert [entry["processes"] for entry in run.metrics("start")] == [2]
    assert [(entry["task"], entry["iteration"]) for entry in run.metrics("validation")] == [
        (task, iteration) for iteration in (0, 2) for task in ("spatial", "temporal")
    ]
    assert [(entry["task"], entry["iteration"]) for entry in run.metrics("test")] == [
        (task, iteration) for iteration in (0, 2) for task in ("spatial", "temporal")
    ], "with fewer samples than processes too"
    assert run.weights.exists()


def workers(launcher: int) -> dict[str, int]:
    """The processes that torchrun has started, by their rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children")
    found = {}
    for pid in children.read_text().split() if children.exists() else ():
        with suppress(OSError):  # it may have ended
            variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
            found |= {value.removeprefix("RANK="): int(pid) for value in variables if value.startswith("RANK=")}
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in /proc")
def test_torchrun_restarts_after_a_killed_rank_with_the_same_result(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    options = [*TINY, "--resume", "--optim.iterations", "20", "--log.checkpoint_every", "4"]

    def start(out: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*launcher, "--max-restarts", "2", "-m", "unshuffle", "pretrain", *options, "--out", out],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    whole, broken = start("whole"), start("broken")
    checkpoints = Run(tmp_path / "broken").checkpoints
    try:
        while not list_checkpoints(checkpoints):
            assert broken.poll() is None, broken.communicate()[1]
            time.sleep(0.05)
        os.kill(workers(broken.pid)["1"], signal.SIGKILL)
        for process in (whole, broken):
            messages = process.communicate(timeout=200)[1]
            assert process.returncode == 0, messages
            assert ("exitcode: -9" in messages) == (process is broken), "only one of them was restarted"
    finally:
        for process in (whole, broken):
            process.kill()
    last = [load_checkpoint(list_checkpoints(Run(tmp_path / name).checkpoints)[-1]) for name in ("whole", "broken")]
    assert_close(last[0]["network"], last[1]["network"], rtol=0, atol=0)
    assert Run(tmp_path / "whole").weights.read_bytes() == Run(tmp_path / "broken").weights.read_bytes()
