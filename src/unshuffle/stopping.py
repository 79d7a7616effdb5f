"""Signals that ask the program to stop, threads that stop with it, and bus errors explained."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Ctrl-C, termination by the system, a closed terminal."""

GRACE_SECONDS = 5.0  # a thread inside a library cannot be stopped; it is waited for no longer than this
_thread = threading.local()


class Stopped(KeyboardInterrupt):
    """The program was asked to stop; the text says how far it came."""

    def __init__(self, signum: int, text: str = "", iteration: int = 0) -> None:
        super().__init__(text)
        self.signum, self.iteration = signum, iteration


class StopRequest:
    """The first signal that was received, if any."""

    signum: int | None = None


@contextmanager
def stop_requests(*, patient: bool = False, announce: Callable[[], None] | None = None) -> Iterator[StopRequest]:
    """Record the signal; the training loop checks it between steps. A second signal stops at once, unless patient.

    `announce` is called at the first signal, as the current step may take long.
    """
    request = StopRequest()

    def record(signum: int, frame: FrameType | None) -> None:
        if request.signum is not None and not patient:
            raise KeyboardInterrupt
        if request.signum is None and announce is not None:
            announce()
        request.signum = signum

    with _handling(record):
        yield request


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Raise `Stopped` at the first signal."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stopped(signum)

    with _handling(stop):
        yield


@contextmanager
def signals_deferred() -> Iterator[None]:
    """Defer signals until the block ends."""
    waiting: list[int] = []
    with _handling(lambda signum, frame: waiting.append(signum)):
        yield
    for signum in waiting[:1]:
        signal.raise_signal(signum)


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    try:
        before = {signum: signal.signal(signum, handler) for signum in STOP_SIGNALS}
    except ValueError:  # not the main thread: signals cannot be handled here
        yield
        return
    try:
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)


# ---- bus errors

_bus_handler: Any = None  # the system calls it: it must outlive this module's functions


def explain_bus_errors() -> None:
    """End the process with one sentence and code 2 on a bus error: a mapped file was truncated, or its disk failed.

    Python's own signal handlers run between instructions of Python and would never be reached, because the failing
    access is repeated for ever. So the system calls this one directly, in the thread that failed; as that thread was
    reading mapped memory, it holds none of the locks that the handler needs.
    """
    global _bus_handler
    if sys.platform == "win32":
        return
    import ctypes

    explaining = threading.Lock()

    def explain(signum: int) -> None:
        if not explaining.acquire(blocking=False):
            time.sleep(60)  # another thread failed as well and is ending the process
        names = ", ".join(_truncated_maps())
        cause = f"{names} was truncated while it was read, or its disk failed: restore it, then try again"
        unknown = "a file in memory cannot be read: is a disk failing, or the shared memory (/dev/shm) full?"
        sentence = f"unshuffle: {cause if names else unknown}"
        os.write(2, f"\n{sentence}\n".encode(errors="backslashreplace"))
        os._exit(2)

    _bus_handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(explain)
    system_signal = ctypes.CDLL(None).signal
    system_signal.argtypes, system_signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    system_signal(signal.SIGBUS, ctypes.cast(_bus_handler, ctypes.c_void_p))


def _truncated_maps() -> list[str]:
    """Return the files of which more is mapped into memory than they have; none where the system does not list maps."""
    names: list[str] = []
    page = os.sysconf("SC_PAGESIZE")
    try:
        for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
            span, permissions, offset, _, _, *name = line.split(maxsplit=5)
            # data is mapped as shared; the private maps are those of libraries, whose sections may end in zeros
            if name and permissions.endswith("s") and Path(name[0]).is_file():
                begin, end = (int(address, 16) for address in span.split("-"))
                if int(offset, 16) + end - begin >= Path(name[0]).stat().st_size + page:
                    names.append(name[0])
    except (OSError, ValueError):
        pass
    return list(dict.fromkeys(names))


class ThreadStopped(BaseException):
    """The pool of this thread is no longer needed; no decoder's `except Exception` may catch it."""


@contextmanager
def worker_pool(workers: int | None = None, name: str = "worker") -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of threads that end within seconds of the block, whatever they are doing then.

    Without this, Ctrl-C would wait until the last file is decoded. The threads stop where they call `check_stopped`.
    """
    stop = threading.Event()
    threads: list[threading.Thread] = []

    def begin() -> None:
        _thread.stop = stop
        threads.append(threading.current_thread())

    pool = ThreadPoolExecutor(workers, thread_name_prefix=name, initializer=begin)
    try:
        yield pool
    finally:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        join(threads)


def check_stopped() -> None:
    """Raise `ThreadStopped` in a thread of a pool that is no longer needed; called between pieces of work."""
    stop: threading.Event | None = getattr(_thread, "stop", None)
    if stop is not None and stop.is_set():
        raise ThreadStopped


def join(threads: list[threading.Thread]) -> bool:
    """Wait for threads to end, for at most `GRACE_SECONDS`; return whether all have."""
    deadline = time.monotonic() + GRACE_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)
