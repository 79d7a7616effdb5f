"""Launching the jobs of an ablation: in this process, in processes of this machine, or on a cluster."""

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

from unshuffle.ablation.job import run_job
from unshuffle.ablation.plan import LOGS, Job, Plan
from unshuffle.errors import UserError
from unshuffle.wording import duration

Launcher = Literal["local", "slurm"]
Notify = Callable[[Job, str], None]
"""Called with a status for every job when it starts and when it ends."""
Failures = dict[str, str]
"""A sentence per job that failed, by "ARM, seed N"."""
Environment = dict[str, str]

CORES_PER_JOB = 4
"""Cores per job where there is no GPU: small networks hardly gain from more."""
SLURM_DEFAULTS: dict[str, Any] = {"timeout_min": 24 * 60, "gpus_per_node": 1, "cpus_per_task": 8, "tasks_per_node": 1}


def job_environments(jobs: int, device: str, limit: int) -> list[Environment]:
    """Return the environments of the processes that run at a time: a GPU for each, and its fraction of the cores.

    `jobs` is their number, 0 one per GPU; there are no more than `limit`. GPUs are shared if there are too few.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    gpus = _visible_gpus() if device in ("auto", "cuda") else []
    without_gpu = 1 if device not in ("auto", "cpu") else max(1, cores // CORES_PER_JOB)
    count = max(1, min(jobs or len(gpus) or without_gpu, limit))
    threads = os.environ.get("OMP_NUM_THREADS", str(max(1, cores // count)))
    return [
        {"OMP_NUM_THREADS": threads, **({"CUDA_VISIBLE_DEVICES": gpus[number % len(gpus)]} if gpus else {})}
        for number in range(count)
    ]


def _visible_gpus() -> list[str]:
    count, visible = torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(count)]
    return names[:count]


def run_in_process(jobs: Sequence[Job], notify: Notify) -> Failures:
    """Run one job after another in this process, which saves the start-up time of the others."""
    failures: Failures = {}
    for job in jobs:
        start = time.monotonic()
        notify(job, start_status(job))
        _end(job, start, run_job(job), failures, notify)
    return failures


def _end(job: Job, start: float, problem: str | None, failures: Failures, notify: Notify) -> None:
    """Record how a job ended, and how long it took."""
    time_taken = duration(time.monotonic() - start)
    if problem is not None:
        failures[str(job)] = problem
    notify(job, f"done in {time_taken}" if problem is None else f"failed after {time_taken}: {problem}")


@dataclass
class _Process:
    job: Job
    environment: Environment
    process: subprocess.Popen[bytes]
    start: float

    def problem(self) -> str | None:
        """Return why it failed, by the last line of its log; None if it succeeded."""
        code = self.process.returncode
        if code == 0:
            return None
        if code < 0:
            return f"ended by signal {-code}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
        if code > 128:
            return f"stopped by signal {code - 128}"
        lines = self.job.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[-1] if lines else f"ended with exit code {code}"


def run_processes(jobs: Sequence[Job], notify: Notify, environments: Sequence[Environment]) -> Failures:
    """Run each job in a process of its own, one per environment at a time; they stop when this process does."""
    failures: Failures = {}
    waiting, free = deque(jobs), list(environments)
    running: list[_Process] = []
    try:
        while waiting or running:
            while waiting and free:
                running.append(_start(waiting.popleft(), free.pop(0), notify))
            for ended in [running_job for running_job in running if running_job.process.poll() is not None]:
                running.remove(ended)
                free.append(ended.environment)
                _end(ended.job, ended.start, ended.problem(), failures, notify)
            time.sleep(0.1)
    finally:
        for unfinished in running:
            assert unfinished.process.stdin is not None
            unfinished.process.stdin.close()  # asks it to save and stop
        for unfinished in running:
            unfinished.process.wait()
    return failures


def _start(job: Job, environment: Environment, notify: Notify) -> _Process:
    gpu = environment.get("CUDA_VISIBLE_DEVICES")
    notify(job, start_status(job) + ("" if gpu is None else f" on GPU {gpu}"))
    with job.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 (our own module; no shell reads the arm's name)
            [sys.executable, "-m", "unshuffle.ablation.job", str(job.plan.out), job.arm, str(job.seed)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others
        )
    return _Process(job, environment, process, time.monotonic())


class ClusterJob:
    """A job as submitit sends it to a cluster; preempted, it is queued again and continues."""

    def __init__(self, out: Path, arm: str, seed: int) -> None:
        self.out, self.arm, self.seed = out, arm, seed

    def __call__(self) -> str | None:
        """Run the job; return a sentence if it fails."""
        return run_job(Job(Plan.read(self.out), self.arm, self.seed))

    def checkpoint(self) -> Any:
        """Return the same job for resubmission: the run has checkpoints of its own."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


def run_slurm(jobs: Sequence[Job], notify: Notify, options: Mapping[str, Any]) -> Failures:
    """Submit all jobs as one job array and wait for them; options are those of submitit's AutoExecutor."""
    if not jobs:
        return {}
    executor, completed = _executor(jobs[0].plan.out / LOGS / "slurm", {**SLURM_DEFAULTS, **options})
    start = time.monotonic()
    with executor.batch():
        submitted = [executor.submit(ClusterJob(job.plan.out.absolute(), job.arm, job.seed)) for job in jobs]
    by_submission = dict(zip(map(id, submitted), jobs, strict=True))
    for submission, job in zip(submitted, jobs, strict=True):
        notify(job, f"queued as {submission.job_id}")
    failures: Failures = {}
    for submission in completed(submitted):
        _end(by_submission[id(submission)], start, _cluster_problem(submission), failures, notify)
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
    return executor, lambda submitted: submitit.helpers.as_completed(submitted, poll_frequency=1)


def _cluster_problem(submission: Any) -> str | None:
    try:
        problem: str | None = submission.result()
    except Exception as error:  # preemption, time limits, a node that failed ...
        return " ".join(str(error).split())
    return problem


def start_status(job: Job) -> str:
    """Return what a job does first."""
    if job.is_trained:
        return "evaluating"
    return f"resuming at iteration {job.iteration}" if job.run.config_file.exists() else "training"
