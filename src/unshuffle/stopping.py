"""Signals that ask the program to stop: raised at once, recorded for later, or deferred."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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
