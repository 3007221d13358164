"""What transports without a socket share: each exchange is a task of the load generator's own event loop."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.stamping import Stamping
from pytest_llmbench.timing.clock import Clock

_CLOSE_S = 5.0


class _Call:
    """The task that works on an exchange, as its exchange sees it."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def inspect(self) -> None:
        """Nothing waits here unparsed."""

    def abandon(self) -> None:
        self._task.cancel()


class TaskTransport(ABC):
    """A :class:`~pytest_llmbench.generator.http.transport.Transport` that calls somebody's code.

    A request counts as submitted when the call begins, and each piece has the instant at which this loop got
    it. What the code computes without awaiting holds up this loop, and with it every other request.
    """

    opened = 0
    busy = False
    stamping = Stamping()

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    async def carry(self, exchange: Exchange) -> None:
        """Make the call, hand on what arrives, and finish the exchange."""

    @abstractmethod
    def failed(self, exchange: Exchange, error: BaseException) -> None:
        """The code raised: data of this request, whatever it is. Finishes the exchange."""

    async def prewarm(self, count: int, timeout_s: float) -> int:  # noqa: ARG002 - the protocol's names
        return 0

    def send(self, exchange: Exchange) -> None:
        task = asyncio.get_running_loop().create_task(self._carried(exchange))
        exchange.channel = _Call(task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Cancel every call that is still under way, and wait a little for their ends."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)

    def now_ns(self) -> int:
        return self._clock.monotonic_ns()

    def arrived(self, exchange: Exchange, data: bytes, at_ns: int) -> None:
        """Part of the reply is here. After its end, by a deadline say, it is nobody's any more."""
        if exchange.end is None:
            exchange.stamps.append(at_ns)
            exchange.bodies.append(data)

    def finish(self, exchange: Exchange, end: End, error: str | None = None) -> None:
        exchange.finish(end, self.now_ns(), error)

    async def _carried(self, exchange: Exchange) -> None:
        exchange.submitted_ns = self.now_ns()
        try:
            await self.carry(exchange)
        except asyncio.CancelledError:
            # Ours by a deadline, and then the exchange has ended; else the code gave itself up.
            if exchange.end is None and not _is_being_cancelled():
                self.failed(exchange, asyncio.CancelledError("the call was cancelled by itself"))
                return
            raise
        except BaseException as error:  # noqa: BLE001 - sys.exit() in the code must not end this loop's thread
            self.failed(exchange, error)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def words(error: BaseException) -> str:
    """``ValueError: no such model``, or the type alone."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
