"""The HTTP/1.1 transport: connections to one target, kept open between requests, in a LIFO free list."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections import deque
from functools import partial
from typing import Protocol

from pytest_llmbench.generator.http.kernel_times import kernel_times
from pytest_llmbench.generator.http.known_replies import KnownReplies
from pytest_llmbench.generator.http.links import Link, LoopLink, SocketLink, Tunnel
from pytest_llmbench.generator.http.reply_parser import Framing, NotHTTPError, ReplyParser
from pytest_llmbench.generator.http.sockets import Sockets
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.tls import TlsChannel
from pytest_llmbench.generator.http.transport import End, Exchange, Stamping
from pytest_llmbench.timing.clock import Clock
from pytest_llmbench.wire.uniform import MOST_BYTES

_LAST_CHUNK = b"0\r\n\r\n"
_EVENT, _LINE = b"data:", b"}\n"
"""Bytes that every event of a stream contains at least once, for each of the two framings; the second is the
end of a line of JSON."""
_UNKNOWN, _COMPLETE = Framing.UNKNOWN, End.COMPLETE
"""Module-level names, as they are asked for with each reply: a look-up in an enumeration takes 0.2 µs."""
_RIGHT_BEHIND_NS = 1_000_000_000
"""A connection closed within this time after a reply was closed because of it: idle limits of servers are
longer."""


class Owner(Protocol):
    """What a connection needs of the pool that it belongs to."""

    eager: bool
    """Parse at every read: set once this server was seen to end replies in an unusual way."""
    too_early: int
    """How many reads had a stamp earlier than the instant that must precede it; they were given that
    instant."""
    known: KnownReplies

    def adopt(self, connection: Http1Connection) -> None:
        """Take a new connection into the pool."""

    def release(self, connection: Http1Connection) -> None:
        """Take back a connection that is idle and may be used again."""

    def hung_up(self) -> None:
        """The server closed a connection right behind its first reply, without having said that it would."""

    def drop(self, connection: Http1Connection) -> None:
        """Remove a connection that is gone."""

    def resend(self, exchange: Exchange) -> None:
        """Send on a new connection; the kept one had been closed before a byte of the request got there."""

    def look_soon(self, connection: Http1Connection, exchange: Exchange) -> None:
        """Call ``look`` soon on a connection whose response seems to have ended: now, or when others have
        been read."""


class Http1Connection:
    def __init__(
        self, owner: Owner, clock: Clock, tls: TlsChannel | None, ready: asyncio.Future[None]
    ) -> None:
        self._owner = owner
        self._now = clock.monotonic_ns
        self._tls = tls
        self._ready = ready
        self._parser = ReplyParser()
        self._exchange: Exchange | None = None
        self._parsed: list[bytes] = []
        """Reads of this response that have been parsed, kept as long as a later response may be recognised by
        them."""
        self._room = MOST_BYTES
        self._chunked = False
        self._reused = False
        self._answered_ns = 0
        self.answered = 0
        self.alive = False

    def submit(self, exchange: Exchange, *, reused: bool) -> None:
        """Write the request; T_submit is the instant of the write that gives the kernel its last byte
        (METHODOLOGY §14).

        Of a write that takes everything, the instant before it is kept: waking the server is part of the
        write, so the server may be at work, and we descheduled, before a stamp behind it could be taken.
        """
        self._exchange = exchange
        self._reused = reused
        self._chunked = False
        exchange.channel = self
        exchange.connecting_ns = None
        wire = self._outgoing(exchange)
        payload = wire if self._tls is None else self._tls.encrypt(wire)
        before_ns = self._now()
        if self._link.write(payload):
            exchange.submitted_ns = before_ns

    def inspect(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.unparsed:
            self._parse(exchange)
            if exchange.end is End.COMPLETE:
                self._owner.eager = True

    def look(self, exchange: Exchange) -> None:
        """Recognise or parse a response that seemed to have ended; finish the exchange if it has."""
        if exchange is not self._exchange:
            return  # the connection's end, or the sweep, came before
        if self._parser.framing is _UNKNOWN and self._chunked and exchange.submitted_ns is not None:
            # A reply that has to keep to a schema is read, since what the known one kept to was another; and
            # so is one whose text is asked for.
            asked = exchange.request
            free = asked.structured is None and (asked.turn is None or not asked.turn.live)
            known = self._owner.known.read(exchange.unparsed) if free else None
            if known is not None and self.alive:
                exchange.known, exchange.status = known, known.status
                self._exchange = None
                self._keep(exchange.stamps[-1])
                exchange.finish(_COMPLETE, exchange.stamps[-1])
                return
        self._parse(exchange)

    def abandon(self) -> None:
        if self._exchange is not None:
            self._tell_head(self._exchange)
        self._exchange = None
        self.shut()

    def shut(self) -> None:
        """Close at once, whatever is still on its way."""
        self.alive = False
        self._link.close()

    # What the link tells.

    def attach(self, link: Link) -> None:
        self._link = link
        self._owner.adopt(self)
        if self._tls is None:
            self._established()
        else:
            link.write(self._tls.handshake())

    def received(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        if self._tls is None:
            self._take(data, at_ns, since_ns)
        else:
            self._received_tls(self._tls, data, at_ns, since_ns)

    def written(self) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.submitted_ns is None:
            exchange.submitted_ns = self._now()

    def ended(self, error: Exception | None) -> None:
        now = self._now()
        if self.alive and self.answered == 1 and now - self._answered_ns < _RIGHT_BEHIND_NS:
            self._owner.hung_up()
        self.alive = False
        if not self._ready.done():
            self._ready.set_exception(_while_connecting(error))
        exchange = self._exchange
        if exchange is not None and exchange.unparsed:
            self._parse(exchange)
            exchange = self._exchange
        if exchange is None:
            return
        if error is None and self._ends_by_closing():
            self._give_up(exchange, End.COMPLETE, now)
        elif self._was_stale(exchange):
            self._exchange = None
            exchange.stale_retries += 1
            exchange.submitted_ns = None
            self._owner.resend(exchange)
        else:
            self._give_up(exchange, End.BROKEN, now, self._how_it_broke(error, exchange, self._reused))

    def dropped(self) -> None:
        self._owner.drop(self)

    # What it leads to.

    def _take(self, data: bytes, at_ns: int, since_ns: int | None) -> None:
        exchange = self._exchange
        if exchange is None:
            self.shut()  # bytes that nobody asked for
            return
        if since_ns is not None:
            since_ns = self._came_apart(since_ns) if _holds_several(data) else None
        self._stamp(exchange, at_ns, since_ns)
        exchange.unparsed.append(data)
        if self._chunked:
            # A short read may be the rest of a last chunk that was cut in two. A last chunk with extensions
            # or unannounced trailers is found by the sweep, which inspects quiet exchanges.
            if data.endswith(_LAST_CHUNK) or len(data) < len(_LAST_CHUNK) or self._owner.eager:
                self._owner.look_soon(self, exchange)
        else:
            self._received_unframed(exchange, data)

    def _stamp(self, exchange: Exchange, at_ns: int, since_ns: int | None) -> int:
        """Note the instant of a read of the reply and return it.

        ``since_ns``: when reads were looked for before, of one that is late, came apart and holds several
        events.
        """
        stamps = exchange.stamps
        # Stamps of the kernel come over from another clock, whose error must not make a time negative.
        earliest = stamps[-1] if stamps else exchange.submitted_ns
        if earliest is not None and at_ns < earliest:
            at_ns = earliest
            self._owner.too_early += 1
        if since_ns is not None:
            exchange.late_reads.append((len(stamps), since_ns))
        stamps.append(at_ns)
        return at_ns

    def _came_apart(self, since_ns: int | None) -> int | None:
        """``since_ns`` if the read was late and may have come in several packets, else None. Ask once for
        each read: the link counts packets from call to call."""
        return since_ns if since_ns is not None and self._link.came_apart() else None

    def _received_unframed(self, exchange: Exchange, data: bytes) -> None:
        framing = self._parser.framing
        if framing is _UNKNOWN:
            # The first bytes of a response that was chunked: if this one is not, the parse will find out.
            self._chunked = data.startswith(self._owner.known.openings)
            if not self._chunked or data.endswith(_LAST_CHUNK):
                self._owner.look_soon(self, exchange)
        elif framing is Framing.LENGTH:
            self._parser.missing -= len(data)
            if self._parser.missing <= 0:
                self._parse(exchange)

    def _received_tls(self, tls: TlsChannel, data: bytes, at_ns: int, since_ns: int | None) -> None:
        try:
            if not tls.established:
                if not self._shake_hands(tls, data):
                    return
                data = b""
            plain = tls.decrypt(data)
        except ssl.SSLError as error:
            self._link.write(tls.pending())
            self.ended(error)
            self._link.close()
            return
        if answer := tls.pending():
            self._link.write(answer)
        if plain:
            self._take(plain, at_ns, since_ns)
        if tls.closed:
            self.ended(None)
            self._link.close()

    def _shake_hands(self, tls: TlsChannel, data: bytes) -> bool:
        self._link.write(tls.handshake(data))
        if tls.established:
            self._established()
        return tls.established

    def _established(self) -> None:
        self.alive = True
        if self._ready.done():
            self.shut()  # whoever wanted it has given up
        else:
            self._ready.set_result(None)

    def _parse(self, exchange: Exchange) -> None:
        reads, exchange.unparsed = exchange.unparsed, []
        if self._room > 0:
            self._parsed += reads
            self._room -= sum(map(len, reads))
        parser = self._parser
        try:
            for data in reads:
                if parser.complete:
                    parser.surplus = True
                    break
                exchange.bodies.append(parser.feed(data))
        except NotHTTPError as error:
            self._give_up(exchange, End.GARBAGE, self._now(), str(error))
            return
        if parser.complete:
            self._complete(exchange)
        else:
            self._chunked = parser.framing is Framing.CHUNKED
            exchange.status = parser.status

    def _complete(self, exchange: Exchange) -> None:
        parser = self._parser
        at_ns = exchange.stamps[len(exchange.bodies) - 1]
        exchange.status, exchange.headers = parser.status, parser.headers
        self._exchange = None
        written = exchange.submitted_ns is not None
        if self.alive and written and parser.keep_alive and not parser.surplus:
            if self._room > 0 and parser.framing is Framing.CHUNKED and parser.status is not None:
                learn = self._owner.known.learn
                exchange.teach = partial(learn, self._parsed, exchange.bodies, parser.status)
            parser.begin()
            self._parsed, self._room = [], MOST_BYTES
            self._keep(at_ns)
        else:
            self.shut()
        exchange.finish(End.COMPLETE, at_ns)

    def _keep(self, answered_ns: int) -> None:
        self.answered += 1
        self._answered_ns = answered_ns
        self._owner.release(self)

    # What is different over WebSocket.

    def _outgoing(self, exchange: Exchange) -> bytes:
        """The bytes of the request on this connection."""
        return exchange.request.wire

    def _tell_head(self, exchange: Exchange) -> None:
        """Give the exchange of an incomplete response its status and headers."""
        exchange.status, exchange.headers = self._parser.status, self._parser.headers

    def _ends_by_closing(self) -> bool:
        """Whether the end of the connection, if nothing broke it, is the end of the response."""
        return self._parser.framing is Framing.UNTIL_CLOSE

    def _closing(self) -> str:
        """How the server ended the connection, in words."""
        return "closed the connection"

    def _how_it_broke(self, error: Exception | None, exchange: Exchange, reused: bool) -> str:
        how = self._closing() if error is None else f"broke the connection ({error})"
        when = "before the response was complete" if exchange.stamps else "before the first byte"
        if reused and not exchange.stamps:
            when += "; it was a kept one, and idle ones may be closed by it"
        return f"the server {how} {when}"

    def _give_up(self, exchange: Exchange, end: End, at_ns: int, error: str | None = None) -> None:
        self._tell_head(exchange)
        self._exchange = None
        self.shut()
        exchange.finish(end, at_ns, error)

    def _was_stale(self, exchange: Exchange) -> bool:
        """Whether the server had closed the kept connection before the request came: it has seen nothing of
        it."""
        fresh = not self._reused or bool(exchange.stamps) or exchange.stale_retries > 0
        return not fresh and self._link.nothing_delivered()


def _holds_several(data: bytes) -> bool:
    """Whether the bytes hold two events or more. The search ends at the second."""
    if data.find(_EVENT, data.find(_EVENT) + 1) > 0:
        return True
    return data.find(_LINE, data.find(_LINE) + 1) > 0


def _while_connecting(error: Exception | None) -> OSError:
    if isinstance(error, OSError):  # ssl.SSLError is one
        return error
    return ConnectionResetError(errno.ECONNRESET, "closed by the server while connecting")


_AT_ONCE = 64
"""Connections opened side by side when prewarming: more would overrun short accept queues."""
_CLOSE_S = 5.0
_LOOKS_NS = 200_000
"""The longest time, in nanoseconds, spent on responses that seem to have ended before more is read."""
_HANG_UPS = 3
"""Number of connections closed by the server right behind their first reply, with no second reply on any,
after which it is taken to close all. Requests on connections that it had not closed yet would be lost."""
_NOTHING_LEFT = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Http1Transport:
    """The HTTP/1.1 transport, with no limit on connections: in open loop a request never waits for a free
    one.

    The connection used last is used next, so that idle ones stay idle, and those that the server has closed
    meanwhile are left out without a word.
    """

    name = "http/1.1"

    def __init__(self, target: Target, clock: Clock, *, kernel_stamps: bool = True) -> None:
        """``kernel_stamps``: use them where there are any; else reads are stamped in user space."""
        self._target = target
        self._clock = clock
        # The kernel stamps packets, and a Unix socket has none.
        self._times = kernel_times(clock) if kernel_stamps and not target.unix_path else None
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
        """Responses that seem to have ended and wait to be parsed, with their connections."""
        self.busy = False
        self._keeps = False
        """Whether any connection has had a second reply."""
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
                while (wanted := self._missing(count)) > 0:
                    found = await asyncio.gather(*(self._add_one() for _ in range(min(wanted, _AT_ONCE))))
                    if not all(found):
                        break  # the requests will meet the same error, and keep it
        except TimeoutError:
            pass
        if self._times is not None and self._free:
            await self._times.switched_on()
        return len(self._free)

    def _missing(self, count: int) -> int:
        """How many connections have to be opened until ``count`` requests can be sent at once."""
        return count - len(self._free)

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
        if self._closes_all:
            connection.shut()
        else:
            self._free.append(connection)

    def hung_up(self) -> None:
        self._hang_ups += 1

    @property
    def _closes_all(self) -> bool:
        return self._hang_ups >= _HANG_UPS and not self._keeps

    def drop(self, connection: Http1Connection) -> None:
        self._connections.discard(connection)
        if self._all_closed is not None and not self._connections:
            self._all_closed.set()

    def resend(self, exchange: Exchange) -> None:
        """Send on a new connection of its own."""
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
            end, reason = self._not_connected(error)
            exchange.finish(end, self._clock.monotonic_ns(), reason)
            return
        connection.submit(exchange, reused=False)

    def _not_connected(self, error: OSError) -> tuple[End, str]:
        end = End.EXHAUSTED if self._is_exhaustion(error) else End.UNREACHABLE
        return end, f"cannot connect to {self._target.place}: {_reason(error)}"

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
        raise failure or OSError(errno.EHOSTUNREACH, f"{self._target.peer[0]} has no address")

    async def _connect(self, address: str) -> Http1Connection:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        context = self._target.ssl_context
        tls = TlsChannel(context, self._target.host) if context is not None else None
        connection = self._connection(tls, ready)
        asked = self._target.tunnel_request
        linked = Tunnel(connection, asked) if asked else connection
        port = self._target.peer[1]
        if self._times is not None:
            if self._sockets is None:
                self._sockets = Sockets(loop, self._times)
            await SocketLink.connect(linked, address, port, self._sockets)
        else:
            link = LoopLink(linked, self._clock.monotonic_ns)
            if self._target.unix_path:
                await loop.create_unix_connection(lambda: link, self._target.unix_path)
            else:
                await loop.create_connection(lambda: link, address, port)
        try:
            await ready
        except BaseException:  # cancellation included: a connection that nobody will use must not stay open
            linked.shut()
            raise
        if not connection.alive:
            raise ConnectionResetError(errno.ECONNRESET, "closed by the server as soon as it was open")
        return connection

    def _connection(self, tls: TlsChannel | None, ready: asyncio.Future[None]) -> Http1Connection:
        """The protocol object for a connection that is about to be opened."""
        return Http1Connection(self, self._clock, tls, ready)

    async def _resolved(self) -> list[str]:
        """The addresses of the host, looked up once."""
        if self._target.unix_path:
            return [self._target.unix_path]
        if not self._addresses:
            found = await asyncio.get_running_loop().getaddrinfo(*self._target.peer, type=socket.SOCK_STREAM)
            self._addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        return list(self._addresses)


class _Opening:
    """The attempt to open a connection for an exchange; the exchange's channel until there is one."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def inspect(self) -> None:
        """Do nothing: nothing has arrived yet."""

    def abandon(self) -> None:
        self._task.cancel()


def _reason(error: OSError) -> str:
    own_words = isinstance(error, ssl.SSLError | socket.gaierror | ConnectionResetError)
    if error.errno is not None and not own_words:  # asyncio's text names the address, but not the reason
        return os.strerror(error.errno)
    return error.strerror or str(error) or type(error).__name__
