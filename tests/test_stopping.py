import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from unshuffle.stopping import (
    STOP_SIGNALS,
    Stopped,
    ThreadStopped,
    check_stopped,
    signals_deferred,
    stop_requests,
    stopping_at_once,
    worker_pool,
)


@pytest.mark.parametrize("signum", STOP_SIGNALS)
def test_a_signal_leaves_a_wish_and_a_second_one_stops(signum: int) -> None:
    before = signal.getsignal(signum)
    with pytest.raises(KeyboardInterrupt), stop_requests() as request:
        assert request.signum is None
        signal.raise_signal(signum)
        assert request.signum == signum
        signal.raise_signal(signum)
        pytest.fail("it went on")
    assert signal.getsignal(signum) == before


def test_the_first_signal_is_announced() -> None:
    announced: list[str] = []
    with stop_requests(patient=True, announce=lambda: announced.append("stopping")):
        assert not announced
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert announced == ["stopping"]


def test_the_patient_take_any_number_of_signals() -> None:
    with stop_requests(patient=True) as request:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            signal.raise_signal(signum)
    assert request.signum == signal.SIGTERM


@pytest.mark.parametrize("signum", STOP_SIGNALS)
def test_stopping_at_once_tells_the_signal(signum: int) -> None:
    with pytest.raises(Stopped) as stop, stopping_at_once():
        signal.raise_signal(signum)
    assert stop.value.signum == signum


def test_signals_wait_for_what_must_not_be_disturbed() -> None:
    done = []
    with pytest.raises(Stopped) as stop, stopping_at_once():
        with signals_deferred():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            done.append("written")
        done.append("never")
    assert done == ["written"] and stop.value.signum == signal.SIGTERM


def test_other_threads_are_left_alone() -> None:
    done = []

    def work() -> None:
        with stop_requests(), signals_deferred():
            done.append(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [1]


BUS_ERROR = """
import os, sys, threading, zlib
from pathlib import Path
import numpy as np
from unshuffle.stopping import explain_bus_errors
explain_bus_errors()
file = Path(sys.argv[1])
file.write_bytes(bytes(1 << 20))
mapped = np.memmap(file, np.uint8, mode="r")
os.truncate(file, 4096)
reads = {"item": lambda: mapped[1 << 19], "copy": mapped.copy, "checksum": lambda: zlib.crc32(mapped.data)}
if sys.argv[2] == "thread":
    thread = threading.Thread(target=reads["checksum"])
    thread.start()
    while thread.is_alive():
        sum(range(1000))
else:
    reads[sys.argv[2]]()
print("survived")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the file is named where the system lists maps")
@pytest.mark.parametrize("read", ["item", "copy", "checksum", "thread"])
def test_a_bus_error_is_one_sentence(tmp_path: Path, read: str) -> None:
    """With and without the interpreter's lock, in the main thread and in another."""
    file = tmp_path / "data.bin"
    command = [sys.executable, "-c", BUS_ERROR, str(file), read]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout) == (2, "")
    sentence = f"unshuffle: {file} was truncated while it was read, or its disk failed: restore it, then try again"
    assert process.stderr.strip() == sentence


def test_the_threads_of_a_pool_end_with_its_block() -> None:
    began = threading.Event()

    def work() -> None:
        began.set()
        while True:
            check_stopped()

    with pytest.raises(KeyboardInterrupt), worker_pool(1) as pool:
        future, waiting = pool.submit(work), pool.submit(work)
        began.wait()
        raise KeyboardInterrupt
    assert isinstance(future.exception(timeout=0), ThreadStopped) and waiting.cancelled()
    check_stopped()  # other threads continue


def test_a_thread_that_does_not_stop_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unshuffle.stopping.GRACE_SECONDS", 0.05)
    release = threading.Event()
    with worker_pool(1) as pool:
        future = pool.submit(release.wait)
    assert not future.done()
    release.set()
    assert future.result()
