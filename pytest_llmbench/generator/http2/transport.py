"""The HTTP/2 transport: connections of the HTTP/1.1 transport, each with as many requests at a time as the
server allows."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from typing import cast

from pytest_llmbench.generator.http.http1 import Http1Connection, Http1Transport
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.tls import TlsChannel
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.http2.connection import Http2Connection, NotHTTP2Error
from pytest_llmbench.timing.clock import Clock
from pytest_llmbench.wire.http2.client import Http2Client


class Http2Transport(Http1Transport):
    """A request goes on the connection used last, unless that has as many streams as the server allows: then
    on another one, which is opened if there is none.

    Requests that need a new connection share it, as far as the server is known to allow that.
    """

    name = "http/2"

    def __init__(self, target: Target, clock: Clock, *, kernel_stamps: bool = True) -> None:
        super().__init__(target, clock, kernel_stamps=kernel_stamps)
        self._openings: dict[_Opening, None] = {}
        """In the order of their beginning."""
        self._most: float = math.inf
        """Requests that may share a connection, by the one that was opened last."""

    def send(self, exchange: Exchange) -> None:
        free = self._with_room
        while free:
            connection = free[-1]
            if connection.room:
                connection.submit(exchange, reused=True)
                if not connection.room:
                    free.pop().offered = False
                return
            free.pop().offered = False
        self.resend(exchange)

    def release(self, connection: Http1Connection) -> None:
        """Keep a connection that has room, unless the server closes all behind their first reply."""
        kept = cast(Http2Connection, connection)
        self._keeps = self._keeps or kept.answered > 1
        if self._closes_all and kept.answered:
            kept.retire()
        elif not kept.offered:
            kept.offered = True
            self._free.append(kept)

    def resend(self, exchange: Exchange) -> None:
        """Send on a connection that is yet to be opened."""
        exchange.connecting_ns = self._clock.monotonic_ns()
        exchange.due_ns = 0
        opening = next((each for each in self._openings if len(each.waiting) < self._most), None)
        if opening is None:
            opening = _Opening(self._openings)
            self._openings[opening] = None
            task = opening.task = asyncio.get_running_loop().create_task(self._open_for(opening))
            self._tasks.add(task)
            task.add_done_callback(self._sent)
        opening.waiting.append(exchange)
        exchange.channel = _Waiting(opening, exchange)

    @property
    def _with_room(self) -> list[Http2Connection]:
        """Those that had room when they were last asked."""
        return cast(list[Http2Connection], self._free)

    # Opening.

    def _connection(self, tls: TlsChannel | None, ready: asyncio.Future[None]) -> Http2Connection:
        return Http2Connection(self, self._clock, tls, ready, Http2Client())

    def _missing(self, count: int) -> int:
        """The first one is to tell how many more there have to be."""
        if self._most == math.inf:
            return 1
        # One that the server has closed meanwhile counts: it would close any further one as well.
        missing = count - sum(connection.most for connection in self._with_room)
        return math.ceil(missing / self._most)

    async def _add_one(self) -> bool:
        try:
            connection = cast(Http2Connection, await self._open())
        except (OSError, NotHTTP2Error):
            return False
        self._most = max(1, connection.most)
        if not connection.room:
            connection.retire()
            return False
        self.release(connection)
        return True

    async def _open_for(self, opening: _Opening) -> None:
        try:
            connection = cast(Http2Connection, await self._open())
        except OSError as error:
            end, reason = self._not_connected(error)
        except NotHTTP2Error as error:
            end, reason = End.GARBAGE, f"{self._target.place}: {error}"
        else:
            self._hand_over(connection, opening)
            return
        finally:
            self._openings.pop(opening, None)
        for exchange in opening.waiting:
            exchange.finish(end, self._clock.monotonic_ns(), reason)

    def _hand_over(self, connection: Http2Connection, opening: _Opening) -> None:
        """Submit what waits for a connection that is open now, and see to what it has no room for."""
        self._openings.pop(opening, None)
        self._most = max(1, connection.most)
        takes = connection.room > 0
        for exchange in opening.waiting:
            if connection.room:
                connection.submit(exchange, reused=False)
            elif takes:
                self.resend(exchange)
            else:  # a further connection would be of no more use, and one after the other would be opened
                end, reason = connection.why_no_room()
                exchange.finish(end, self._clock.monotonic_ns(), f"{self._target.place}: {reason}")
        if connection.room:
            self.release(connection)
        elif not takes:
            connection.retire()


@dataclass(slots=True, eq=False)
class _Opening:
    """A connection that is being opened, and the exchanges that wait for it."""

    among: dict[_Opening, None]
    waiting: list[Exchange] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def leave(self, exchange: Exchange) -> None:
        """The exchange has given up; with the last one goes the attempt."""
        self.waiting.remove(exchange)
        if not self.waiting and self.task is not None:
            self.among.pop(self, None)
            self.task.cancel()


@dataclass(slots=True, eq=False)
class _Waiting:
    """An exchange that waits for a connection: its channel until there is one."""

    opening: _Opening
    exchange: Exchange

    def inspect(self) -> None:
        """Do nothing: nothing has arrived yet."""

    def abandon(self) -> None:
        self.opening.leave(self.exchange)
