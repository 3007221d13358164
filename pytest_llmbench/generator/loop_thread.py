"""What all load generators have in common: plans run one at a time, in a thread of our own, and waiting for
them while signals are still heard."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def fastest_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed, asyncio's otherwise. The process-wide policy stays as it is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """Runs an event loop in a thread until closed, whether or not the caller is running a loop itself."""

    def __init__(self, factory: LoopFactory = fastest_loop) -> None:
        self.loop = factory()
        self._thread = threading.Thread(target=self._run, name="llmbench-load", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Stop the loop and wait for the thread. Safe to call twice."""
        if self.loop.is_closed():
            return
        self.submit(self.loop.shutdown_default_executor()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


_TICK_S = 0.2


def result_of(future: Future[T]) -> T:
    """The result of the future, or its exception, as ``future.result()``; signals are handled during the
    wait.

    A process's signal may be taken by any of its threads, above all by one that is just starting another.
    Python's handler runs in the main thread, between two of its instructions, and nothing wakes one that
    waits for a lock: such a Ctrl-C was heard when the load had ended, not before. So the main thread wakes up
    now and then.
    """
    if threading.current_thread() is threading.main_thread():
        while not wait([future], timeout=_TICK_S).done:
            pass
    return future.result()


class PlanRunner(ABC):
    """Runs one LoadPlan after another. Use as a context manager, or :meth:`close` it."""

    _stop_reason: str | None = None
    """Why the running plan is to end early; None while nobody has asked for that."""

    def __init__(self) -> None:
        self._busy = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        """Send the plan's requests, wait for their ends, and say what came of them. ``on_record`` is called
        once for each request.

        Ctrl-C while load is running does not raise: the Observation holds what was measured until then and
        says so in ``interrupted``. A second Ctrl-C raises. Raises :class:`SuiteError` for a plan that cannot
        be run, :class:`GeneratorError` when the generator itself fails.
        """
        if not self._busy.acquire(blocking=False):
            raise GeneratorError(
                "a plan is already running", where=plan.label, remedy="one generator runs one plan at a time"
            )
        try:
            self._stop_reason = None
            if mistakes := plan.mistakes():
                raise SuiteError.from_mistakes(mistakes, where=plan.label)
            return self._run(plan, on_record)
        finally:
            self._busy.release()

    @abstractmethod
    def _run(self, plan: LoadPlan, on_record: OnRecord | None) -> Observation: ...

    @abstractmethod
    def close(self) -> None:
        """Give back all that is held; a plan that is still running is stopped. Safe to call twice."""


def broken_off(failure: BaseException) -> GeneratorError:
    """The error for a measurement that an error of ours or of the caller's code ended."""
    return GeneratorError(
        f"the measurement was broken off: {type(failure).__name__}: {failure}",
        remedy="requests measured until then have been handed on; the traceback shows the cause",
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot of a running plan. ``ok`` and ``failed`` count records made, so they trail the wire a
    little."""

    submitted: int
    ok: int
    failed: int
    in_flight: int
    planned: int
    elapsed_s: float
    """The seconds since the start of the schedule; 0 while connections are being opened."""
    still_s: float | None = None
    """Seconds since a part of a response under way last arrived; None where none is under way, or nobody
    asks."""
