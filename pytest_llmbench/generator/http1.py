"""The HTTP/1.1 transport: connections to one target, kept open between requests, in a LIFO free list."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections import deque

from pytest_llmbench.generator.clock import Clock
from pytest_llmbench.generator.http1_connection import Http1Connection
from pytest_llmbench.generator.kernel_times import kernel_times
from pytest_llmbench.generator.known_replies import KnownReplies
from pytest_llmbench.generator.link import LoopLink
from pytest_llmbench.generator.socket_link import SocketLink
from pytest_llmbench.generator.sockets import Sockets
from pytest_llmbench.generator.stamping import Stamping
from pytest_llmbench.generator.target import Target
from pytest_llmbench.generator.tls import TlsChannel
from pytest_llmbench.generator.transport import End, Exchange

_AT_ONCE = 64
"""Connections opened side by side when prewarming: more would overrun short accept queues."""
_CLOSE_S = 5.0
_LOOKS_NS = 200_000
"""Spent on responses that seem to have ended before more is read."""
_HANG_UPS = 3
"""A server that closes so many connections right behind their first reply, and answered on none twice, closes
all. Requests on connections that it had not closed yet would be lost."""
_NOTHING_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Http1Transport:
    """No limit on the number of connections: in open loop a request never waits for a free one.

    The connection used last is used next, so that idle ones stay idle, and those that the server has closed
    meanwhile are left out without a word.
    """

    name = "http/1.1"

    def __init__(self, target: Target, clock: Clock, *, kernel_stamps: bool = True) -> None:
        """``kernel_stamps``: use them where there are any; else reads are stamped in user space."""
        self._target = target
        self._clock = clock
        self._times = kernel_times(clock) if kernel_stamps else None
        self._sockets: Sockets | None = None
        self._addresses: list[str] = []
        self._connections: set[Http1Connection] = set()
        self._free: list[Http1Connection] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_closed: asyncio.Event | None = None
        self.opened = 0
        self.eager = False
        self.too_early = 0
        self.known = KnownReplies()
        self._seeming: deque[tuple[Http1Connection, Exchange]] = deque()
        """Responses that seem to have ended."""
        self.busy = False
        self._keeps = False
        """A connection has had a second reply."""
        self._hang_ups = 0

    @property
    def stamping(self) -> Stamping:
        times = self._times
        if times is None:
            return Stamping(too_early=self.too_early)
        return Stamping(True, times.unstamped, times.distrusted, self.too_early, times.steps)

    async def prewarm(self, count: int, timeout_s: float) -> int:
        self._free = [connection for connection in self._free if connection.alive]
        try:
            async with asyncio.timeout(timeout_s):
                while (wanted := count - len(self._free)) > 0:
                    found = await asyncio.gather(*(self._add_one() for _ in range(min(wanted, _AT_ONCE))))
                    if not all(found):
                        break  # the requests will meet the same error, and keep it
        except TimeoutError:
            pass
        return len(self._free)

    def send(self, exchange: Exchange) -> None:
        while self._free:
            connection = self._free.pop()
            if connection.alive:
                connection.submit(exchange, reused=True)
                return
        self.resend(exchange)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._free.clear()
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

    def adopt(self, connection: Http1Connection) -> None:
        self._connections.add(connection)

    def release(self, connection: Http1Connection) -> None:
        self._keeps = self._keeps or connection.answered > 1
        if self._hang_ups >= _HANG_UPS and not self._keeps:
            connection.shut()
        else:
            self._free.append(connection)

    def hung_up(self) -> None:
        self._hang_ups += 1

    def drop(self, connection: Http1Connection) -> None:
        self._connections.discard(connection)
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    def resend(self, exchange: Exchange) -> None:
        """Send on a connection of its own, yet to be opened."""
        exchange.connecting_ns = self._clock.monotonic_ns()
        exchange.due_ns = 0
        task = asyncio.get_running_loop().create_task(self._open_and_submit(exchange))
        exchange.channel = _Opening(task)
        self._tasks.add(task)
        task.add_done_callback(self._sent)

    def look_soon(self, connection: Http1Connection, exchange: Exchange) -> None:
        others_wait = self._sockets is not None and self._sockets.several
        if not self.busy and not others_wait:
            connection.look(exchange)
            return
        self._seeming.append((connection, exchange))
        if not self.busy:
            self.busy = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        until_ns = self._clock.monotonic_ns() + _LOOKS_NS
        try:
            while self._seeming:
                connection, exchange = self._seeming.popleft()
                connection.look(exchange)
                if self._clock.monotonic_ns() >= until_ns:
                    break
        finally:
            self.busy = bool(self._seeming)
            if self.busy:
                asyncio.get_running_loop().call_soon(self._look)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # A mistake of ours, not the network's: those are OSErrors and have been dealt with.
            task.get_loop().call_exception_handler({"message": "sending failed", "exception": error})

    # Opening.

    async def _add_one(self) -> bool:
        try:
            connection = await self._open()
        except OSError:
            return False
        self._free.append(connection)
        return True

    async def _open_and_submit(self, exchange: Exchange) -> None:
        try:
            connection = await self._open()
        except OSError as error:
            end = End.EXHAUSTED if self._is_exhaustion(error) else End.UNREACHABLE
            where = f"{self._target.host}:{self._target.port}"
            exchange.finish(end, self._clock.monotonic_ns(), f"cannot connect to {where}: {_reason(error)}")
            return
        connection.submit(exchange, reused=False)

    def _is_exhaustion(self, error: OSError) -> bool:
        # Where IPv6 is switched off, EADDRNOTAVAIL is also the answer for [::1]: then nothing ever connected.
        out_of_ports = error.errno == errno.EADDRNOTAVAIL and self.opened > 0
        return error.errno in _NOTHING_LEFT or out_of_ports

    async def _open(self) -> Http1Connection:
        """A new connection, TLS handshake included. Raises OSError."""
        failure: OSError | None = None
        for address in await self._resolved():
            try:
                connection = await self._connect(address)
            except OSError as error:
                failure = error
                continue
            self._addresses.sort(key=address.__ne__)  # what has worked comes first
            self.opened += 1
            return connection
        raise failure or OSError(errno.EHOSTUNREACH, f"{self._target.host} has no address")

    async def _connect(self, address: str) -> Http1Connection:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        context = self._target.ssl_context
        tls = TlsChannel(context, self._target.host) if context is not None else None
        connection = Http1Connection(self, self._clock, tls, ready)
        port = self._target.port
        if self._times is not None:
            if self._sockets is None:
                self._sockets = Sockets(loop, self._times)
            await SocketLink.connect(connection, address, port, self._sockets)
        else:
            link = LoopLink(connection, self._clock.monotonic_ns)
            await loop.create_connection(lambda: link, address, port)
        try:
            await ready
        except BaseException:  # cancellation included: a connection that nobody will use must not stay open
            connection.shut()
            raise
        if not connection.alive:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the server as soon as it was open")
        return connection

    async def _resolved(self) -> list[str]:
        """The host's addresses, looked up once."""
        if not self._addresses:
            found = await asyncio.get_running_loop().getaddrinfo(
                self._target.host, self._target.port, type=socket.SOCK_STREAM
            )
            self._addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        return list(self._addresses)


class _Opening:
    """The attempt to open a connection for an exchange: its channel until there is one."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def inspect(self) -> None:
        """Nothing has arrived yet."""

    def abandon(self) -> None:
        self._task.cancel()


def _reason(error: OSError) -> str:
    own_words = isinstance(error, ssl.SSLError | socket.gaierror | ConnectionResetError)
    if error.errno is not None and not own_words:  # asyncio's text names the address, but not the reason
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__


__all__ = ["Http1Transport"]
