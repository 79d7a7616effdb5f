"""Part b: processes that are killed, stopped or paused, alone and under torchrun, and data workers that hang or die."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from errno import EIO
from pathlib import Path
from random import Random

from soak.campaign import Campaign, Row
from soak.commands import SECONDS, Child, Ended, run, start, succeed
from soak.samples import NO_PICTURES, differences, training_options, write_images, write_videos
from unshuffle.data.batches import BatchStream
from unshuffle.data.squares import WHOLE, RankSlice
from unshuffle.runs.checkpoints import list_checkpoints
from unshuffle.runs.run import Run
from unshuffle.stopping import GRACE_SECONDS

ITERATIONS = 40
LAUNCHER = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--max-restarts", "2")
STOP_SECONDS = 3 * GRACE_SECONDS + 5
"""A process that is asked to stop must end within this time, even if a data worker hangs: it is waited for by the pool
of a rollout, by that of the training and at the end of the program."""


def command(out: str) -> list[object]:
    """Return the command that starts or resumes a run."""
    return ["pretrain", "--resume", "--out", out, *training_options(ITERATIONS), *NO_PICTURES]


def check(campaign: Campaign) -> None:
    """Disturb processes in every way, and compare each run with an undisturbed one."""
    folder = campaign.new_folder("processes")
    write_images(folder / "images", 40, campaign.seed)
    write_videos(folder / "videos", 20, campaign.seed)
    faults: dict[str, Callable[[Path, str, Random], Sequence[str]]] = {
        "SIGTERM at a random moment, then --resume": _terminated,
        "SIGSTOP and SIGCONT at random moments": _paused,
        "a data worker that dies (input/output error), then --resume": _dying_worker,
        "a data worker that hangs, SIGTERM, then --resume": _hanging_worker,
    }
    succeed(command("whole"), folder)
    for tried, disturb in faults.items():
        with campaign.row("b", tried) as row:
            _repeat(campaign, row, folder, disturb, Run(folder / "whole"), campaign.counts.rounds)
    if not campaign.counts.torchrun:
        return
    with _torchrun(folder, "whole-2") as whole:
        code = whole.wait(SECONDS)
    ranks: dict[str, Callable[[Path, str, Random], Sequence[str]]] = {
        "torchrun, 2 processes, one killed, restarted by torchrun": _killed_rank,
        "torchrun, SIGSTOP and SIGCONT for one process": _paused_rank,
        "torchrun, SIGTERM, then the same command": _terminated_torchrun,
    }
    for tried, disturb in ranks.items():
        with campaign.row("b", tried) as row:
            if code:
                row.lost.append(f"undisturbed, torchrun ended with code {code}")
                continue
            _repeat(campaign, row, folder, disturb, Run(folder / "whole-2"), campaign.counts.torchrun)


def _repeat(
    campaign: Campaign,
    row: Row,
    folder: Path,
    disturb: Callable[[Path, str, Random], Sequence[str]],
    whole: Run,
    count: int,
) -> None:
    """Disturb several runs and compare each with the whole one."""
    outcomes: list[str] = []
    for number in range(count):
        out = f"{disturb.__name__.strip('_')}-{number}"
        rng = campaign.rng("processes", out)
        problems = [*disturb(folder, out, rng)]
        problems += differences(Run(folder / out), whole, averages=False)
        outcomes += problems
        row.lost += [f"{out}: {problem} (--only b --seed {campaign.seed})" for problem in problems]
        row.count += 1
    row.result = "as undisturbed" if not outcomes else "see below"


# ---- one process


def _when_trained(child: Child, folder: Path, out: str, rng: Random) -> None:
    """Wait for the first checkpoint, and a random time more."""
    child.until(lambda: bool(list_checkpoints(Run(folder / out).checkpoints)))
    time.sleep(rng.uniform(0, 0.5))


def _resume(folder: Path, out: str) -> Iterator[str]:
    ended = run(command(out), folder)
    if ended.code:
        yield f"not resumed: {ended.problem or ended.sentence}"


def _terminated(folder: Path, out: str, rng: Random) -> Sequence[str]:
    child = start(command(out), folder)
    time.sleep(rng.uniform(0, 3))
    child.signal(signal.SIGTERM)
    ended = child.wait(STOP_SECONDS)
    return [*_stopped(ended), *_resume(folder, out)]


def _stopped(ended: Ended) -> Iterator[str]:
    """Yield what is wrong with the way a process ended that was asked to."""
    # before the command line handles signals, and after it, the system ends the process
    if ended.hung or ended.code not in (128 + signal.SIGTERM, 130, -signal.SIGTERM, 0):
        yield f"SIGTERM: {ended.problem or f'exit code {ended.code}'}"
    if "Traceback" in ended.errors:
        yield f"SIGTERM: {ended.problem}"


def _paused(folder: Path, out: str, rng: Random) -> Sequence[str]:
    child = start(command(out), folder)
    for _ in range(5):
        time.sleep(rng.uniform(0, 0.6))
        child.signal(signal.SIGSTOP)
        time.sleep(rng.uniform(0, 0.4))
        child.signal(signal.SIGCONT)
    ended = child.wait()
    return [] if ended.code == 0 else [str(ended.problem)]


def _failing_batch(iteration: int, fail: Callable[[], object]) -> None:
    """Let the data worker of an iteration do something else first."""
    batch = BatchStream.batch

    def failing(stream: BatchStream, step: int, part: RankSlice = WHOLE) -> object:
        if step == iteration:
            fail()
        return batch(stream, step, part)

    BatchStream.batch = failing  # type: ignore[method-assign, assignment]


def _dying_worker(folder: Path, out: str, rng: Random) -> Sequence[str]:
    def fail() -> None:
        raise OSError(EIO, os.strerror(EIO))

    iteration = rng.randrange(ITERATIONS)
    ended = run(command(out), folder, lambda: _failing_batch(iteration, fail))
    refused = [] if ended.sentence else [f"iteration {iteration}: {ended.problem or 'it continued'}"]
    return [*refused, *_resume(folder, out)]


def _hanging_worker(folder: Path, out: str, rng: Random) -> Sequence[str]:
    iteration = rng.randrange(8, ITERATIONS)
    child = start(command(out), folder, lambda: _failing_batch(iteration, lambda: time.sleep(10 * SECONDS)))
    _when_trained(child, folder, out, rng)
    time.sleep(2)  # until it waits for the worker
    child.signal(signal.SIGTERM)
    ended = child.wait(STOP_SECONDS)
    return [*_stopped(ended), *_resume(folder, out)]


# ---- torchrun


@contextmanager
def _torchrun(folder: Path, out: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start two processes of a run; all end with the block."""
    words = [sys.executable, *LAUNCHER, "-m", "unshuffle", *map(str, command(out))]
    with (folder / f"{out}.stderr").open("ab") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _ranks(launcher: int) -> list[int]:
    """Return the processes that torchrun has started."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(child) for child in children if b"unshuffle" in Path(f"/proc/{child}/cmdline").read_bytes()]


def _until_trained(process: subprocess.Popen[bytes], folder: Path, out: str, rng: Random) -> None:
    deadline = time.monotonic() + SECONDS
    while not list_checkpoints(Run(folder / out).checkpoints) and process.poll() is None:
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)
    time.sleep(rng.uniform(0, 0.5))


def _wait(process: subprocess.Popen[bytes], log: Path, expected: Sequence[int] = (0,)) -> Iterator[str]:
    try:
        code = process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        yield "torchrun hangs"
        return
    if code not in expected:
        yield f"torchrun ended with code {code}: {log.read_text(errors='replace')[-300:]!r}"


def _killed_rank(folder: Path, out: str, rng: Random) -> Sequence[str]:
    with _torchrun(folder, out) as process:
        _until_trained(process, folder, out, rng)
        ranks = _ranks(process.pid)
        if len(ranks) != 2:
            return [f"there are {len(ranks)} processes to kill"]
        os.kill(rng.choice(ranks), signal.SIGKILL)
        return [*_wait(process, folder / f"{out}.stderr")]


def _paused_rank(folder: Path, out: str, rng: Random) -> Sequence[str]:
    with _torchrun(folder, out) as process:
        _until_trained(process, folder, out, rng)
        for _ in range(3):
            rank = rng.choice(_ranks(process.pid) or [process.pid])
            os.kill(rank, signal.SIGSTOP)
            time.sleep(rng.uniform(0, 1))
            os.kill(rank, signal.SIGCONT)
        return [*_wait(process, folder / f"{out}.stderr")]


def _terminated_torchrun(folder: Path, out: str, rng: Random) -> Sequence[str]:
    with _torchrun(folder, out) as process:
        _until_trained(process, folder, out, rng)
        process.send_signal(signal.SIGTERM)
        # torchrun's own code; 0 if the run ended just before
        problems = [*_wait(process, folder / f"{out}.stderr", expected=(0, 1, 128 + signal.SIGTERM, -signal.SIGTERM))]
    with _torchrun(folder, out) as process:
        return [*problems, *_wait(process, folder / f"{out}.stderr")]
