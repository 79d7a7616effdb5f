"""Signals that ask the program to stop: raised at once, recorded for later, or deferred; and bus errors explained."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Ctrl-C, termination by the system, a closed terminal."""


class Stopped(KeyboardInterrupt):
    """The program was asked to stop; the text says how far it came."""

    def __init__(self, signum: int, text: str = "", iteration: int = 0) -> None:
        super().__init__(text)
        self.signum, self.iteration = signum, iteration


class StopRequest:
    """The first signal that was received, if any."""

    signum: int | None = None


@contextmanager
def stop_requests(*, patient: bool = False) -> Iterator[StopRequest]:
    """Record the signal; the training loop checks it between steps. A second signal stops at once, unless patient."""
    request = StopRequest()

    def record(signum: int, frame: FrameType | None) -> None:
        if request.signum is not None and not patient:
            raise KeyboardInterrupt
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

    def explain(signum: int) -> None:
        names = ", ".join(_truncated_maps()) or "a file that is read through a memory map"
        sentence = f"unshuffle: {names} was truncated while it was read, or its disk failed: restore it, then try again"
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
