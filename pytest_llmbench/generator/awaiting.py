"""Waiting for a load without being deaf."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")
_TICK_S = 0.2


def result_of(future: Future[T]) -> T:
    """The result, or the exception, as ``future.result()``; a signal is heard while it is waited for.

    A process's signal may be taken by any of its threads, above all by one that is just starting another.
    Python's handler runs in the main thread, between two of its instructions, and nothing wakes one that
    waits for a lock: such a Ctrl-C was heard when the load had ended, not before. So the main thread wakes up
    now and then.
    """
    if threading.current_thread() is threading.main_thread():
        while not wait([future], timeout=_TICK_S).done:
            pass
    return future.result()
