"""The load of a batch: every request is on its connection but for the last byte, and all of these leave at
one instant.

A server cannot begin a request before its last byte, so what was sent earlier (the opening of connections,
TLS, long bodies) is no part of any latency: T_submit is the instant of the last byte. Where the transport
cannot hold it back, whole requests are sent one after the other.
"""

from __future__ import annotations

import asyncio

from pytest_llmbench.generator.dispatcher import Dispatcher
from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.generator.prepared import PreparedJobs, PreparedRequest
from pytest_llmbench.timing import Clock

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
        while any(map(_on_its_way, self._held)) and self._clock.monotonic_ns() < until_ns:
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


def _on_its_way(exchange: Exchange) -> bool:
    return exchange.end is None and (exchange.release is None or exchange.sending_ns is not None)
