import os
from pathlib import Path
from typing import Any

import pytest
import torch

from unshuffle.ablation import launcher
from unshuffle.ablation.ablation import ablate
from unshuffle.ablation.launcher import job_environments
from unshuffle.errors import UserError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Eight cores and no GPU, whatever this machine has."""
    for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return monkeypatch


def test_cores_are_divided_among_jobs(machine: pytest.MonkeyPatch) -> None:
    assert job_environments(0, "auto", limit=9) == [{"OMP_NUM_THREADS": "4"}] * 2
    assert job_environments(3, "cpu", limit=9) == [{"OMP_NUM_THREADS": "2"}] * 3
    assert job_environments(0, "auto", limit=1) == [{"OMP_NUM_THREADS": "8"}]
    assert len(job_environments(50, "cpu", limit=9)) == 9
    machine.setenv("OMP_NUM_THREADS", "1")
    assert job_environments(2, "cpu", limit=9) == [{"OMP_NUM_THREADS": "1"}] * 2


def gpus(jobs: int, device: str) -> list[str]:
    return [environment["CUDA_VISIBLE_DEVICES"] for environment in job_environments(jobs, device, limit=9)]


def test_each_process_has_a_gpu_of_its_own(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(torch.cuda, "device_count", lambda: 2)
    assert gpus(0, "auto") == ["0", "1"]
    assert gpus(3, "cuda") == [
        "0",
        "1",
        "0",
    ]
    machine.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    assert gpus(0, "auto") == ["5", "7"]
    assert job_environments(0, "cuda:1", limit=9) == [{"OMP_NUM_THREADS": "8"}]  # a named device is not divided


def test_jobs_in_processes_of_their_own(tmp_path: Path, tiny: dict[str, Any]) -> None:
    arms = {"fine": {"tasks": "S"}, "broken": {"tasks": "S", "optim": {"backbone": {"lr": 1e30}}}}
    ablation = ablate(tmp_path / "out", arms=arms, jobs=2, **tiny)
    assert list(ablation.failures) == ["broken, seed 0"] and "overflowed" in ablation.failures["broken, seed 0"]
    assert ablation.table.seeds == {"fine": "1", "broken": "0/1"}
    assert "error.spatial" in ablation.figures["fine"][0]


NO_CLUSTER = {"gpus_per_node": 0, "timeout_min": 5}


def test_the_launcher_of_a_cluster(tmp_path: Path, tiny: dict[str, Any]) -> None:
    pytest.importorskip("submitit")
    options = {"cluster": "debug", **NO_CLUSTER}
    arms = {"fine": {"tasks": "S"}, "broken": {"tasks": "S", "optim": {"backbone": {"lr": 1e30}}}}
    ablation = ablate(tmp_path / "out", arms=arms, launcher="slurm", slurm=options, **tiny)
    assert list(ablation.failures) == ["broken, seed 0"] and "overflowed" in ablation.failures["broken, seed 0"]
    assert "error.spatial" in ablation.figures["fine"][0]


def test_a_job_that_submitit_starts_elsewhere(tmp_path: Path, tiny: dict[str, Any]) -> None:
    pytest.importorskip("submitit")
    options = {"cluster": "local", **NO_CLUSTER}
    ablation = ablate(tmp_path / "out", arms=["S"], launcher="slurm", slurm=options, **tiny)
    assert not ablation.failures and "error.spatial" in ablation.figures["S"][0]
    assert list((tmp_path / "out" / "logs" / "slurm").glob("*_log.out"))


def test_a_cluster_that_cannot_be_used(tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=r"the cluster cannot be used: .*srun"):
        ablate(tmp_path / "one", arms=["S"], launcher="slurm", **tiny)
    with pytest.raises(UserError, match=r"the cluster cannot be used: .*colour"):
        ablate(tmp_path / "two", arms=["S"], launcher="slurm", slurm={"cluster": "debug", "colour": 3}, **tiny)
    monkeypatch.setitem(launcher.sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"pip install 'unshuffle\[slurm\]'"):
        ablate(tmp_path / "three", arms=["S"], launcher="slurm", **tiny)
