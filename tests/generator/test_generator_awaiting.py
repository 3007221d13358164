"""Waiting for a load: a signal is heard, whichever thread the kernel gives it to."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import Future

import pytest

from pytest_llmbench.generator.loop_thread import result_of


class HeardError(Exception):
    """Raised by the handler of the test."""


def test_a_signal_that_another_thread_has_taken_is_heard():
    def handler(*_: object) -> None:
        raise HeardError

    waited_for: Future[None] = Future()
    too_late = threading.Timer(20, waited_for.set_result, [None])
    taker = threading.Timer(0.1, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR1))
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        too_late.start()
        taker.start()
        with pytest.raises(HeardError):
            result_of(waited_for)
        assert not waited_for.done()
    finally:
        too_late.cancel()
        taker.join()
        signal.signal(signal.SIGUSR1, before)


def test_results_and_errors_are_those_of_the_future():
    good: Future[int] = Future()
    good.set_result(3)
    assert result_of(good) == 3
    bad: Future[int] = Future()
    bad.set_exception(TimeoutError("of the load"))
    with pytest.raises(TimeoutError, match="of the load"):
        result_of(bad)
