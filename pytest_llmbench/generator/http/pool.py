"""A transport with one exchange at a time on each connection, and no limit on connections: in open loop a
request never waits for a free one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pytest_llmbench.generator.http.connection import Connection, RefusedError
from pytest_llmbench.generator.http.opener import Opener
from pytest_llmbench.generator.http.transport import Exchange, Stamping

_LOOKS_NS = 200_000
"""The longest time, in nanoseconds, spent on responses that seem to have ended before more is read."""


class Lone(Protocol):
    """What is spoken on a connection with one exchange at a time."""

    @property
    def connection(self) -> Connection: ...

    def submit(self, exchange: Exchange, *, reused: bool) -> None:
        """Write the request."""

    def look(self, exchange: Exchange) -> None:
        """Recognise or parse a response that seemed to have ended; finish the exchange if it has."""


class Keeper(Protocol):
    """What a protocol needs of the pool that keeps its connection."""

    def release(self, spoken: Lone) -> None:
        """Take back a connection that is idle and may be used again."""

    def retry(self, exchange: Exchange) -> None:
        """Send on a new connection; the kept one had been closed before a byte of the request got there."""

    def look_soon(self, spoken: Lone, exchange: Exchange) -> None:
        """Call ``look`` soon on a connection whose response seems to have ended: now, or when others have
        been read."""


class Pool:
    """Keeps connections open between requests, in a LIFO free list.

    The connection used last is used next, so that idle ones stay idle, and those that the server has closed
    meanwhile are left out without a word.
    """

    holds = True

    def __init__(self, name: str, opener: Opener, speak: Callable[[Connection, Keeper], Lone]) -> None:
        self.name = name
        self._opener = opener
        self._now = opener.clock.monotonic_ns
        self._speak = speak
        self._free: list[Lone] = []
        self._seeming: deque[tuple[Lone, Exchange]] = deque()
        """Responses that seem to have ended and wait to be parsed, with their connections."""
        self.busy = False

    @property
    def opened(self) -> int:
        return self._opener.opened

    @property
    def stamping(self) -> Stamping:
        return self._opener.stamping

    async def prewarm(self, count: int, timeout_s: float) -> int:
        self._free = [spoken for spoken in self._free if spoken.connection.alive]
        await self._opener.open_all(lambda: count - len(self._free), self._add_one, timeout_s)
        return len(self._free)

    def send(self, exchange: Exchange) -> None:
        while self._free:
            spoken = self._free.pop()
            if spoken.connection.alive:
                spoken.submit(exchange, reused=True)
                return
        self._send_on_new(exchange)

    async def close(self) -> None:
        self._free.clear()
        await self._opener.close()

    def _send_on_new(self, exchange: Exchange) -> None:
        exchange.connecting_ns = self._now()
        exchange.due_ns = 0
        exchange.channel = _Opening(self._opener.start(self._open_and_submit(exchange)))

    async def _add_one(self) -> bool:
        try:
            self._free.append(await self._opener.open(self._made))
        except (OSError, RefusedError):
            return False
        return True

    async def _open_and_submit(self, exchange: Exchange) -> None:
        try:
            spoken = await self._opener.open(self._made)
        except OSError as error:
            end, reason = self._opener.not_connected(error)
            exchange.finish(end, self._now(), reason)
        except RefusedError as refused:
            refused.finish(exchange, self._opener.target.place, self._now())
        else:
            spoken.submit(exchange, reused=False)

    def _made(self, connection: Connection) -> Lone:
        return self._speak(connection, self)

    # The side that what is spoken sees.

    def release(self, spoken: Lone) -> None:
        if self._opener.closes_all(spoken.connection):
            spoken.connection.shut()
        else:
            self._free.append(spoken)

    def retry(self, exchange: Exchange) -> None:
        exchange.stale_retries += 1
        exchange.submitted_ns = exchange.sending_ns = exchange.release = None
        self._send_on_new(exchange)

    def look_soon(self, spoken: Lone, exchange: Exchange) -> None:
        if not self.busy and not self._opener.several:
            spoken.look(exchange)
            return
        self._seeming.append((spoken, exchange))
        if not self.busy:
            self.busy = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        until_ns = self._now() + _LOOKS_NS
        try:
            while self._seeming:
                spoken, exchange = self._seeming.popleft()
                spoken.look(exchange)
                if self._now() >= until_ns:
                    break
        finally:
            self.busy = bool(self._seeming)
            if self.busy:
                asyncio.get_running_loop().call_soon(self._look)


class _Opening:
    """The attempt to open a connection for an exchange; the exchange's channel until there is one."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def inspect(self) -> None:
        """Do nothing: nothing has arrived yet."""

    def abandon(self) -> None:
        self._task.cancel()
