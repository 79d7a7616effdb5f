import signal
import threading

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
