"""Commands of unshuffle in child processes that can be killed, stopped and sabotaged.

The children are forked, so that none of them has to import torch again; what they run is the command line itself.
"""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from unshuffle import cli

SECONDS = 240.0
"""A command that takes longer counts as one that hangs."""


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    """Its exit code; negative if a signal ended it."""
    errors: str
    """What it wrote to the standard error stream."""
    megabytes: float
    """The most memory that it used."""
    hung: bool = False
    """Whether it had to be killed because it took too long."""

    @property
    def sentence(self) -> str:
        """The sentence with which it refused its input; empty if there is none."""
        sentences = [line for line in self.errors.splitlines() if line.startswith("unshuffle: ")]
        return sentences[0] if self.code == 2 and len(sentences) == 1 else ""

    @property
    def problem(self) -> str | None:
        """What is wrong with the way it ended; None if it succeeded, or refused its input in one sentence."""
        if self.hung:
            return "hangs"
        if "Traceback (most recent call last)" in self.errors:
            return f"traceback: {self.errors.splitlines()[-1]}"
        if self.code == 0 or self.sentence:
            return None
        return f"exit code {self.code}: {self.errors[-300:]!r}"


@dataclass
class Child:
    """A command that runs."""

    pid: int
    log: Path
    ended: Ended | None = None

    def poll(self) -> Ended | None:
        """Return how it ended; None if it still runs."""
        if self.ended is None:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
            if pid:
                errors = self.log.read_text(encoding="utf-8", errors="replace")
                self.ended = Ended(os.waitstatus_to_exitcode(status), errors, usage.ru_maxrss / 1024)
        return self.ended

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Wait until it ends; kill it if that takes longer."""
        deadline = time.monotonic() + seconds
        while (ended := self.poll()) is None:
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
                ended = self.wait()
                self.ended = Ended(ended.code, ended.errors, ended.megabytes, hung=True)
                return self.ended
            time.sleep(0.005)
        return ended

    def signal(self, signum: int) -> None:
        """Send a signal, if it still runs."""
        if self.ended is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signum)

    def until(self, condition: Callable[[], bool]) -> bool:
        """Wait until something holds; return False if the command ends, or takes too long, before it does."""
        deadline = time.monotonic() + SECONDS
        while not condition():
            if self.poll() is not None or time.monotonic() > deadline:
                return False
            time.sleep(0.005)
        return True


def start(args: Sequence[object], folder: Path, sabotage: Callable[[], object] | None = None) -> Child:
    """Start `unshuffle ARGS` in a folder; `sabotage` runs first in the new process and may change anything there."""
    logs = folder.parent / "logs"  # not in the folder, whose disk may be full
    logs.mkdir(exist_ok=True)
    log = logs / f"{time.monotonic_ns()}.stderr"
    log.touch()  # the process may be killed before it opens it

    def command() -> None:
        os.chdir(folder)
        sys.argv = ["unshuffle", *map(str, args)]
        if sabotage is not None:
            sabotage()
        cli.main()

    return Child(fork(command, log), log)


def run(args: Sequence[object], folder: Path, sabotage: Callable[[], object] | None = None) -> Ended:
    """Run `unshuffle ARGS` in a folder until it ends."""
    return start(args, folder, sabotage).wait()


def succeed(args: Sequence[object], folder: Path) -> None:
    """Run `unshuffle ARGS`, undisturbed; nothing can be compared if it fails."""
    ended = run(args, folder)
    if ended.code:
        raise RuntimeError(f"undisturbed, {args[0]} failed: {ended.errors}")


def fork(work: Callable[[], object], log: Path) -> int:
    """Run a function in a new process that ends with it, its errors in a file; return the process's number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        # new objects: those of the parent may be pytest's, or closed
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
