"""Opens connections to one target and knows those that are open; and a transport with one exchange at a time
on each connection, and no limit on connections: in open loop a request never waits for a free one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from pytest_llmbench.generator.http.connection import Connection, RefusedError
from pytest_llmbench.generator.http.links import LoopLink, SocketLink, TlsChannel, Tunnel
from pytest_llmbench.generator.http.sockets import Sockets, kernel_times
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import End, Exchange, Stamping, TaskChannel
from pytest_llmbench.timing import Clock

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
        exchange.channel = TaskChannel(self._opener.start(self._open_and_submit(exchange)))

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


_AT_ONCE = 64
"""Connections opened side by side when prewarming: more would overrun short accept queues."""
_CLOSE_S = 5.0
_HANG_UPS = 3
"""Number of connections closed by the server right behind their first reply, with no second reply on any,
after which it is taken to close all. Requests on connections that it had not closed yet would be lost."""
_NOTHING_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


S = TypeVar("S")


class Opener:
    """Opens connections to one target. Those that are open it closes at the end."""

    def __init__(self, target: Target, clock: Clock, *, kernel_stamps: bool = True) -> None:
        """``kernel_stamps``: use them where there are any; else reads are stamped in user space."""
        self.target = target
        self.clock = clock
        # The kernel stamps packets, and a Unix socket has none.
        self._times = kernel_times(clock) if kernel_stamps and not target.unix_path else None
        self._sockets: Sockets | None = None
        self._addresses: list[str] = []
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_closed: asyncio.Event | None = None
        self.opened = 0
        self.too_early = 0
        self._keeps = False
        """Whether any connection has had a second reply."""
        self._hang_ups = 0

    @property
    def stamping(self) -> Stamping:
        times = self._times
        if times is None:
            return Stamping(too_early=self.too_early)
        return Stamping(True, times.unstamped, times.distrusted, self.too_early, times.steps)

    @property
    def several(self) -> bool:
        """Whether more than one socket is being read at the moment."""
        return self._sockets is not None and self._sockets.several

    def closes_all(self, connection: Connection) -> bool:
        """Whether the server closes connections right behind their first reply, now that ``connection`` has
        had one more."""
        self._keeps = self._keeps or connection.answered > 1
        return self._hang_ups >= _HANG_UPS and not self._keeps

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that is given up when the opener closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A mistake of ours, not the network's: those are OSErrors and have been dealt with.
            task.get_loop().call_exception_handler({"message": "sending failed", "exception": error})

    async def open_all(
        self, missing: Callable[[], int], add_one: Callable[[], Awaitable[bool]], timeout_s: float
    ) -> None:
        """Open connections until none is ``missing``, one cannot be opened, or the time is over."""
        try:
            async with asyncio.timeout(timeout_s):
                while (wanted := missing()) > 0:
                    found = await asyncio.gather(*(add_one() for _ in range(min(wanted, _AT_ONCE))))
                    if not all(found):
                        break  # the requests will meet the same error, and keep it
        except TimeoutError:
            pass
        if self._times is not None and self._connections:
            await self._times.switched_on()

    async def open(self, speak: Callable[[Connection], S]) -> S:
        """What ``speak`` has made for a new connection, ready for requests, TLS handshake included. Raises
        OSError, and what the opening of the protocol raises."""
        failure: OSError | None = None
        for address in await self._resolved():
            try:
                spoken = await self._connect(address, speak)
            except OSError as error:
                failure = error
                continue
            self._addresses.sort(key=address.__ne__)  # what has worked comes first
            self.opened += 1
            return spoken
        raise failure or OSError(errno.EHOSTUNREACH, f"{self.target.peer[0]} has no address")

    async def _connect(self, address: str, speak: Callable[[Connection], S]) -> S:
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[None] = loop.create_future()
        context = self.target.ssl_context
        tls = TlsChannel(context, self.target.host) if context is not None else None
        connection = Connection(self, self.clock, tls, opened)
        spoken = speak(connection)
        asked = self.target.tunnel_request
        linked = Tunnel(connection, asked) if asked else connection
        port = self.target.peer[1]
        if self._times is not None:
            if self._sockets is None:
                self._sockets = Sockets(loop, self._times)
            await SocketLink.connect(linked, address, port, self._sockets)
        else:
            link = LoopLink(linked, self.clock.monotonic_ns)
            if self.target.unix_path:
                await loop.create_unix_connection(lambda: link, self.target.unix_path)
            else:
                await loop.create_connection(lambda: link, address, port)
        try:
            await opened
        except BaseException:  # cancellation included: a connection that nobody will use must not stay open
            linked.shut()
            raise
        if not connection.alive:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the server as soon as it was open")
        return spoken

    async def _resolved(self) -> list[str]:
        if self.target.unix_path:
            return [self.target.unix_path]
        if not self._addresses:
            found = await asyncio.get_running_loop().getaddrinfo(*self.target.peer, type=socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        return list(self._addresses)

    def not_connected(self, error: OSError) -> tuple[End, str]:
        """The end of a request whose connection could not be opened, and the words for it."""
        # Where IPv6 is switched off, EADDRNOTAVAIL is also the answer for [::1]: then nothing ever connected.
        out_of_ports = error.errno == errno.EADDRNOTAVAIL and self.opened > 0
        end = End.EXHAUSTED if error.errno in _NOTHING_LEFT or out_of_ports else End.UNREACHABLE
        reason = error.strerror or str(error) or type(error).__name__
        own_words = isinstance(error, ssl.SSLError | socket.gaierror | ConnectionResetError)
        if error.errno is not None and not own_words:  # asyncio's text names the address, but not the reason
            reason = os.strerror(error.errno)
        return end, f"cannot connect to {self.target.place}: {reason}"

    async def close(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        self._all_closed = asyncio.Event()
        for connection in self._connections:
            connection.shut()
        try:
            if self._connections:
                async with asyncio.timeout(_CLOSE_S):
                    await self._all_closed.wait()
        finally:
            if self._sockets is not None:
                self._sockets.close()
                self._sockets = None

    # The side that connections see.

    def adopt(self, connection: Connection) -> None:
        self._connections.add(connection)

    def drop(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    def hung_up(self) -> None:
        self._hang_ups += 1
