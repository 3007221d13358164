"""Keeps account of one plan: what has been sent, what is in flight, what has ended. Every wait is bounded,
and every reply: one sweep over what is in flight, not a timer for each request.

In a batch every request is on its connection but for the last byte, and all of these leave at one instant. A
server cannot begin a request before its last byte, so what was sent earlier (the opening of connections,
TLS, long bodies) is no part of any latency: T_submit is the instant of the last byte. Where the transport
cannot hold it back, whole requests are sent one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from http import HTTPStatus

from pytest_llmbench.generator.http.sockets import READ_BYTES
from pytest_llmbench.generator.http.transport import End, Exchange, Transport, abandon
from pytest_llmbench.generator.prepared import PreparedJobs, PreparedRequest
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.plan import Deadlines
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.timing import Clock

_TIMER_NS = 1_000_000
"""Resolution of the event loop's timers, in nanoseconds."""


class Dispatcher:
    """Hands requests to the transport and is told of their ends. Knows nothing of schedules."""

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
        """Why sending was stopped and what was in flight was given up; None while neither has happened."""
        self.closed: str | None = None
        """Why sending was stopped, while what is in flight goes on to its end; None while it has not been."""
        self.then: Callable[[Exchange], None] | None = None
        """A function called at each end, before anything else is done with it: the closed loop sends the
        replacement there."""
        self.decoded: Callable[[RequestRecord], None] | None = None
        """A function called with each record, for a load that goes by the replies themselves."""
        self._cuts: dict[Exchange, asyncio.TimerHandle] = {}
        """Timers of the requests in flight that their users are to cut."""

    def dispatch(self, request: PreparedRequest, scheduled_ns: int, *, holds: bool = False) -> Exchange:
        """Send a request now; with ``holds`` all but its last byte."""
        exchange = Exchange(request, scheduled_ns, self._clock.monotonic_ns(), self._ended)
        exchange.holds = holds
        self.in_flight.add(exchange)
        self.submitted += 1
        if len(self.in_flight) > self.peak_in_flight:
            self.peak_in_flight = len(self.in_flight)
        self._idle.clear()
        self._transport.send(exchange)
        if request.cut_after_ns is not None:
            self._cut_in(exchange, request.cut_after_ns)
        return exchange

    def cancel(self, reason: str) -> int:
        """Give up everything in flight; returns how many requests that were."""
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
        """Wait until nothing is in flight."""
        await self._idle.wait()

    def _cut_in(self, exchange: Exchange, ns: int) -> None:
        loop = asyncio.get_running_loop()
        self._cuts[exchange] = loop.call_later(max(ns, _TIMER_NS) / 1e9, self._cut, exchange)

    def _cut(self, exchange: Exchange) -> None:
        """Cut a request off for its user, if ``cut_after_ns`` has passed since its submission. Otherwise set
        the timer again: a connection may have had to be opened first."""
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
    """The last instant at which a part of a response under way arrived; None where no response is under
    way."""
    return max(
        (
            exchange.stamps[-1]
            for exchange in in_flight
            # An error page is no response that could go on.
            if exchange.stamps and (exchange.status or 0) < HTTPStatus.INTERNAL_SERVER_ERROR
        ),
        default=None,
    )


_LOOK_AGAIN_NS = 250_000_000
"""The longest time between two looks at an exchange, for replies with an unusual end."""
_QUIET_NS = 100_000_000
"""The silence after which a stream is parsed: it may be complete, or its end was not recognised."""


def overdue(exchange: Exchange, deadlines: Deadlines, now_ns: int) -> tuple[str | None, int]:
    """The deadline that has run out, in words, if one has; and the earliest instant at which one could run
    out.

    Before its submission a request has ``connect_s`` for each connection, and ``total_s``, from its dispatch,
    until its last byte has left. While only a part of it has left, as where a server shuts the window of
    HTTP/2 or reads no more, the next part has ``between_chunks_s``.
    """
    began_ns = exchange.dispatched_ns if exchange.submitted_ns is None else exchange.submitted_ns
    waits = [(began_ns, deadlines.total_s, "the response was not complete", "total")]
    if exchange.connecting_ns is not None:
        waits.append((exchange.connecting_ns, deadlines.connect_s, "no connection", "connect"))
    elif exchange.stamps:
        waits.append(
            (exchange.stamps[-1], deadlines.between_chunks_s, "the stream fell silent", "between-chunks")
        )
    elif exchange.submitted_ns is not None:
        waits.append((exchange.submitted_ns, deadlines.first_byte_s, "no response", "first-byte"))
    elif exchange.sending_ns is not None:
        what = "the server stopped reading the request"
        waits.append((exchange.sending_ns, deadlines.between_chunks_s, what, "between-chunks"))
    earliest = now_ns + _LOOK_AGAIN_NS
    for since_ns, limit_s, what, name in waits:
        ends_ns = since_ns + round(limit_s * 1e9)
        if ends_ns <= now_ns:
            return f"{what} within {trimmed(limit_s)} s ({name} deadline)", ends_ns
        earliest = min(earliest, ends_ns)
    return None, earliest


def sweep(
    in_flight: Collection[Exchange], deadlines: Deadlines, now_ns: int, *, most_reply_bytes: int
) -> None:
    """End overdue exchanges as TIMEOUT and too large replies as garbage, and parse replies that have fallen
    silent."""
    for exchange in [exchange for exchange in in_flight if exchange.due_ns <= now_ns]:
        if exchange.stamps and now_ns - exchange.stamps[-1] > _QUIET_NS and exchange.channel is not None:
            exchange.channel.inspect()
        if exchange.end is not None:
            continue
        # A few reads cannot hold so much, and are not counted.
        many = len(exchange.stamps) >= most_reply_bytes // READ_BYTES
        if many and sum(map(len, (*exchange.unparsed, *exchange.bodies))) > most_reply_bytes:
            exchange.unparsed.clear()  # which is not worth parsing any more
            abandon(
                exchange,
                End.GARBAGE,
                now_ns,
                f"the reply has more than {most_reply_bytes // 1024**2} MiB and was cut off: "
                "a measured reply is kept whole until its end",
            )
            continue
        reason, exchange.due_ns = overdue(exchange, deadlines, now_ns)
        if reason is not None:
            abandon(exchange, End.TIMEOUT, now_ns, reason)


_AT_ONCE = 16
_LOOK_S = 0.001
SETTLE_S = 0.05
"""The time that a server has to read what has come before the last bytes follow."""


class Barrier:
    """Holds the requests of a plan back, and sends all at its start."""

    def __init__(self, supply: PreparedJobs, clock: Clock, most_s: float) -> None:
        """``most_s``: how long it waits for connections, and for the server to take what it is sent. What is
        not taken by then goes as soon as it is."""
        self._supply, self._clock, self._most_ns = supply, clock, round(most_s * 1e9)
        self._held: list[Exchange] = []

    async def hold(self, dispatcher: Dispatcher) -> None:
        """Send all but the last bytes. Returns when the server, or its kernel, has taken that. Not to be
        called where the transport cannot hold them back."""
        until_ns = self._clock.monotonic_ns() + self._most_ns
        while not self._supply.exhausted:
            now_ns = self._clock.monotonic_ns()
            self._held.append(dispatcher.dispatch(self._next(), now_ns, holds=True))
            if not len(self._held) % _AT_ONCE:
                await asyncio.sleep(0)  # lets connections open, and refusals be read
        while self._clock.monotonic_ns() < until_ns and any(
            each.end is None and (each.release is None or each.sending_ns is not None) for each in self._held
        ):
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(SETTLE_S)

    async def __call__(self, dispatcher: Dispatcher, start_ns: int) -> int:
        """Send the last bytes, without a look at anything else in between: the kernel stamps what comes."""
        there = [each for each in self._held if each.end is None]
        for release in [each.release for each in there if each.release is not None]:
            release()
        for each in there:
            each.holds = False  # of one without a connection yet, and of one that is sent again
            each.scheduled_ns = start_ns
            each.dispatched_ns = each.submitted_ns or each.sending_ns or start_ns
        while not self._supply.exhausted:
            dispatcher.dispatch(self._next(), start_ns)
        return self._clock.monotonic_ns()

    def _next(self) -> PreparedRequest:
        job = self._supply.take()
        assert isinstance(job, PreparedRequest)  # a plan of sessions is refused
        return job
