"""Where the jobs of an ablation run: in this process, in processes of this machine, or on a cluster."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from unshuffle.analysis.job import attempt
from unshuffle.analysis.plan import LOGS, Job, Plan
from unshuffle.errors import UserError

Launcher = Literal["local", "slurm"]
Tell = Callable[[Job, str], None]
"""Is told about every job when it starts and when it ends."""
Failures = dict[str, str]
"""A sentence for each job that failed, by "ARM, seed N"."""
Environment = dict[str, str]

CORES_OF_A_JOB = 4
"""Without a GPU, as many jobs at a time as have this many cores each: small networks hardly gain from more."""
SLURM_DEFAULTS: dict[str, Any] = {"timeout_min": 24 * 60, "gpus_per_node": 1, "cpus_per_task": 8, "tasks_per_node": 1}


def places(jobs: int, device: str, most: int) -> list[Environment]:
    """The environments of the processes that run at a time: a GPU of its own for each, and its share of the cores.

    `jobs` is their number, 0 one for each GPU; there are no more than `most`. GPUs are shared if there are too few.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = _visible_gpus() if device in ("auto", "cuda") else []
    alone = 1 if device not in ("auto", "cpu") else max(1, cores // CORES_OF_A_JOB)
    count = max(1, min(jobs or len(gpus) or alone, most))
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // count)))
    return [
        {"OMP_NUM_THREADS": threads, **({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {})}
        for number in range(count)
    ]


def _visible_gpus() -> list[str]:
    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return names[:count]


def run_here(jobs: Sequence[Job], tell: Tell) -> Failures:
    """One job after another in this process, which pays for its start but once."""
    failures: Failures = {}
    for job in jobs:
        begin = time.monotonic()
        tell(job, started(job))
        problem = attempt(job)
        if problem is not None:
            failures[str(job)] = problem
        tell(job, ended(job, begin, problem))
    return failures


@dataclass
class _Process:
    job: Job
    place: Environment
    process: subprocess.Popen[bytes]
    begin: float

    def problem(self) -> str | None:
        """Why it failed, if it did: the last line of its log, if it lived to write one."""
        code = self.process.returncode
        if code == 0:
            return None
        if code < 0:
            return f"ended by signal {-code}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
        if code > 128:
            return f"stopped by signal {code - 128}"
        lines = self.job.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else f"ended with exit code {code}"


def run_processes(jobs: Sequence[Job], tell: Tell, where: Sequence[Environment]) -> Failures:
    """Each job in a process of its own, one for each place at a time; they stop when this process does."""
    failures: Failures = {}
    waiting, free = deque(jobs), list(where)
    running: list[_Process] = []
    try:
        while waiting or running:
            while waiting and free:
                running.append(_start(waiting.popleft(), free.pop(0), tell))
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                free.append(one.place)
                problem = one.problem()
                if problem is not None:
                    failures[str(one.job)] = problem
                tell(one.job, ended(one.job, one.begin, problem))
            time.sleep(0.1)
    finally:
        for one in running:
            assert one.process.stdin is not None
            one.process.stdin.close()  # asks it to save and stop
        for one in running:
            one.process.wait()
    return failures


def _start(job: Job, place: Environment, tell: Tell) -> _Process:
    gpu = place.get("CUDA_VISIBLE_DEVICES")
    tell(job, started(job) + ("" if gpu is None else f" on GPU {gpu}"))
    with job.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "unshuffle.analysis.job", str(job.plan.out), job.arm, str(job.seed)],
            env={**os.environ, **place},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for this process, which then tells the others
        )
    return _Process(job, place, process, time.monotonic())


class ClusterJob:
    """What submitit sends to a cluster; told to make room for others, it queues up again and goes on."""

    def __init__(self, out: Path, arm: str, seed: int) -> None:
        self.out, self.arm, self.seed = out, arm, seed

    def __call__(self) -> str | None:
        """Do the job; gives a sentence if it fails."""
        return attempt(Job(Plan.read(self.out), self.arm, self.seed))

    def checkpoint(self) -> Any:
        """The same once more: the run has checkpoints of its own."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def run_slurm(jobs: Sequence[Job], tell: Tell, options: Mapping[str, Any]) -> Failures:
    """All jobs as one job array of a cluster; waits for them. Options are those of submitit's AutoExecutor."""
    if not jobs:
        return {}
    executor, completed = _executor(jobs[0].plan.out / LOGS / "slurm", {**SLURM_DEFAULTS, **options})
    begin = time.monotonic()
    with executor.batch():
        sent = [executor.submit(ClusterJob(job.plan.out.absolute(), job.arm, job.seed)) for job in jobs]
    of = dict(zip((id(one) for one in sent), jobs, strict=True))
    for one, job in zip(sent, jobs, strict=True):
        tell(job, f"queued as {one.job_id}")
    failures: Failures = {}
    for one in completed(sent):
        job, problem = of[id(one)], _cluster_problem(one)
        if problem is not None:
            failures[str(job)] = problem
        tell(job, ended(job, begin, problem))
    return failures


def _executor(folder: Path, options: dict[str, Any]) -> tuple[Any, Callable[[list[Any]], Any]]:
    try:
        import submitit
    except ImportError:
        raise UserError("the launcher slurm needs submitit: pip install 'unshuffle[slurm]'") from None
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=options.pop("cluster", "slurm"))
        executor.update_parameters(**options)
    except (RuntimeError, NameError, ValueError, TypeError, AssertionError) as error:
        raise UserError(f"the cluster cannot be used: {' '.join(str(error).split())}") from None
    return executor, lambda sent: submitit.helpers.as_completed(sent, poll_frequency=1)


def _cluster_problem(one: Any) -> str | None:
    try:
        problem: str | None = one.result()
    except Exception as error:  # whatever the cluster did to it
        return " ".join(str(error).split())
    return problem


def started(job: Job) -> str:
    """What a job begins with, in words."""
    if job.is_trained:
        return "evaluating"
    return f"training on from iteration {job.iteration}" if job.run.config_file.exists() else "training"


def ended(job: Job, begin: float, problem: str | None) -> str:
    """How a job ended, in words."""
    seconds = time.monotonic() - begin
    return f"done in {seconds:.0f} s" if problem is None else f"failed after {seconds:.0f} s: {problem}"
