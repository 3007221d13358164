"""The books of one plan: what has been sent, what is in flight, what has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from http import HTTPStatus

from pytest_llmbench.generator.http.transport import End, Exchange, Transport, abandon
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.timing.clock import Clock

_TIMER_NS = 1_000_000
"""Timers of the loop count in milliseconds."""


class Dispatcher:
    """Hands requests to the transport and hears of their ends. Knows nothing of schedules."""

    def __init__(self, transport: Transport, clock: Clock, on_end: Callable[[Exchange], None]) -> None:
        self._transport = transport
        self._clock = clock
        self._on_end = on_end
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self.in_flight: set[Exchange] = set()
        self.submitted = 0
        self.peak_in_flight = 0
        self.halted: str | None = None
        """Why nothing more is sent, and what was in flight has been given up."""
        self.closed: str | None = None
        """Why nothing more is sent, while what is in flight goes on to its end."""
        self.then: Callable[[Exchange], None] | None = None
        """A function called at each end, before anything else is done with it: the closed loop's
        replacement."""
        self.decoded: Callable[[RequestRecord], None] | None = None
        """A function called with each record, for a load that goes by the replies themselves."""
        self._cuts: dict[Exchange, asyncio.TimerHandle] = {}
        """Those in flight that their users are to cut."""

    def dispatch(self, request: PreparedRequest, scheduled_ns: int) -> None:
        """Send a request now."""
        exchange = Exchange(request, scheduled_ns, self._clock.monotonic_ns(), self._ended)
        self.in_flight.add(exchange)
        self.submitted += 1
        if len(self.in_flight) > self.peak_in_flight:
            self.peak_in_flight = len(self.in_flight)
        self._idle.clear()
        self._transport.send(exchange)
        if request.cut_after_ns is not None:
            self._cut_in(exchange, request.cut_after_ns)

    def cancel(self, reason: str) -> int:
        """Give up everything in flight; returns how many that were."""
        remaining = list(self.in_flight)
        for exchange in remaining:
            abandon(exchange, End.CANCELLED, self._clock.monotonic_ns(), reason)
        return len(remaining)

    def halt(self, reason: str) -> None:
        """Send nothing more and give up what is in flight."""
        self.halted = reason
        self.cancel(reason)

    def close(self, reason: str) -> None:
        """Send nothing more."""
        self.closed = reason

    async def drained(self) -> None:
        """Returns when nothing is in flight."""
        await self._idle.wait()

    def _cut_in(self, exchange: Exchange, ns: int) -> None:
        loop = asyncio.get_running_loop()
        self._cuts[exchange] = loop.call_later(max(ns, _TIMER_NS) / 1e9, self._cut, exchange)

    def _cut(self, exchange: Exchange) -> None:
        """Its user goes away, if it was submitted so long ago: a connection may have had to be made first."""
        after_ns, now_ns = exchange.request.cut_after_ns or 0, self._clock.monotonic_ns()
        left_ns = after_ns if exchange.submitted_ns is None else exchange.submitted_ns + after_ns - now_ns
        if left_ns > 0:
            self._cut_in(exchange, left_ns)
        else:
            abandon(exchange, End.CUT_BY_USER, now_ns)

    def _ended(self, exchange: Exchange) -> None:
        self.in_flight.discard(exchange)
        if self._cuts and (timer := self._cuts.pop(exchange, None)) is not None:
            timer.cancel()
        if self.then is not None and self.halted is None and self.closed is None:
            self.then(exchange)
        if not self.in_flight:
            self._idle.set()
        self._on_end(exchange)


def last_moved_ns(in_flight: Collection[Exchange]) -> int | None:
    """The last instant at which something came in on a response under way."""
    return max((exchange.stamps[-1] for exchange in in_flight if _flows(exchange)), default=None)


def _flows(exchange: Exchange) -> bool:
    """A response is coming in, and it is no error page."""
    return bool(exchange.stamps) and (
        exchange.status is None or exchange.status < HTTPStatus.INTERNAL_SERVER_ERROR
    )
