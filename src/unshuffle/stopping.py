"""Signals that ask a program to stop, and where it lets itself be stopped."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Ctrl-C, an end asked for by the system, a lost terminal."""


class Stopped(KeyboardInterrupt):
    """The program was asked to stop; the text says where it stood."""

    def __init__(self, signum: int, text: str = "", iteration: int = 0) -> None:
        super().__init__(text)
        self.signum, self.iteration = signum, iteration


class StopWish:
    """Whether there was a signal."""

    signum: int | None = None


@contextmanager
def stop_wishes(*, patient: bool = False) -> Iterator[StopWish]:
    """A signal only leaves a wish, for whoever looks between two steps; a second one stops at once, unless patient."""
    wish = StopWish()

    def leave(signum: int, frame: FrameType | None) -> None:
        if wish.signum is not None and not patient:
            raise KeyboardInterrupt
        wish.signum = signum

    with _handling(leave):
        yield wish


@contextmanager
def stopping_at_once() -> Iterator[None]:
    """Every signal does what Ctrl-C does, and is told apart."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stopped(signum)

    with _handling(stop):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals wait until this is done."""
    waiting: list[int] = []
    with _handling(lambda signum, frame: waiting.append(signum)):
        yield
    for signum in waiting[:1]:
        signal.raise_signal(signum)


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    try:
        before = {signum: signal.signal(signum, handler) for signum in STOP_SIGNALS}
    except ValueError:  # not the main thread: signals are somebody else's business
        yield
        return
    try:
        yield
    finally:
        for signum, old in before.items():
            signal.signal(signum, old)
