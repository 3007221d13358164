"""One HTTP/1.1 connection on the measured path: one exchange at a time.

In the read callback there is only: the stamp, the bytes into a list, a test for the end. When the response
seems to have ended it is recognised as a whole or, failing that, parsed: either is exact. Where other sockets
have something too, they are read first: many responses may end at once, and chunks that wait too long in
their sockets run together and lose their instants.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from functools import partial
from typing import Protocol

from pytest_llmbench.generator.clock import Clock
from pytest_llmbench.generator.http_reply import Framing, NotHTTPError, ReplyParser
from pytest_llmbench.generator.known_replies import KnownReplies
from pytest_llmbench.generator.link import Link
from pytest_llmbench.generator.tls import TlsChannel
from pytest_llmbench.generator.transport import End, Exchange
from pytest_llmbench.wire.uniform import MOST_BYTES

_LAST_CHUNK = b"0\r\n\r\n"
_EVENT = b"data:"
"""What each event of a stream has once at least."""
_RIGHT_BEHIND_NS = 1_000_000_000
"""Idle limits of servers are longer."""


class Owner(Protocol):
    """What a connection needs of the pool that it belongs to."""

    eager: bool
    """Parse at every read: set once this server was seen to end replies in an unusual way."""
    too_early: int
    """Reads whose stamp lay before what must have come first; they have been given its instant."""
    known: KnownReplies

    def adopt(self, connection: Http1Connection) -> None:
        """A connection has come into being."""

    def release(self, connection: Http1Connection) -> None:
        """It is idle and may be used again."""

    def hung_up(self) -> None:
        """The server closed a connection right behind its first reply, without having said that it would."""

    def drop(self, connection: Http1Connection) -> None:
        """It is no more."""

    def resend(self, exchange: Exchange) -> None:
        """Send on a fresh connection; the kept one had been closed before a byte of the request got there."""

    def look_soon(self, connection: Http1Connection, exchange: Exchange) -> None:
        """Its response seems to have ended: have ``look`` called, now or when others have been read."""


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
        """Reads of this response that have been parsed, as long as something may be learnt from them."""
        self._room = MOST_BYTES
        self._chunked = False
        self._reused = False
        self._answered_ns = 0
        self.answered = 0
        self.alive = False

    def submit(self, exchange: Exchange, *, reused: bool) -> None:
        """Write the request; T_submit is the write that gives the kernel its last byte (METHODOLOGY §14).

        Of a write that takes everything, the instant before it is kept: waking the server is part of the
        write, so the server may be at work, and we descheduled, before a stamp behind it could be taken.
        """
        self._exchange = exchange
        self._reused = reused
        self._chunked = False
        exchange.channel = self
        exchange.connecting_ns = None
        wire = exchange.request.wire
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
        """Whether the response has ended, as it seemed to when the owner was told."""
        if exchange is not self._exchange:
            return  # the connection's end, or the sweep, came before
        if self._parser.framing is Framing.UNKNOWN and self._chunked and exchange.submitted_ns is not None:
            known = self._owner.known.read(exchange.unparsed)
            if known is not None and self.alive:
                exchange.known, exchange.status = known, known.status
                self._exchange = None
                self._keep(exchange.stamps[-1])
                exchange.finish(End.COMPLETE, exchange.stamps[-1])
                return
        self._parse(exchange)

    def abandon(self) -> None:
        if self._exchange is not None:
            self._exchange.status, self._exchange.headers = self._parser.status, self._parser.headers
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
        if error is None and self._parser.framing is Framing.UNTIL_CLOSE:
            self._give_up(exchange, End.COMPLETE, now)
        elif self._was_stale(exchange):
            self._exchange = None
            exchange.stale_retries += 1
            exchange.submitted_ns = None
            self._owner.resend(exchange)
        else:
            how = "closed the connection" if error is None else f"broke the connection ({error})"
            when = "before the response was complete" if exchange.stamps else "before the first byte"
            if self._reused and not exchange.stamps:
                when += "; it was a kept one, and idle ones may be closed by it"
            self._give_up(exchange, End.BROKEN, now, f"the server {how} {when}")

    def dropped(self) -> None:
        self._owner.drop(self)

    # What it leads to.

    def _take(self, data: bytes, at_ns: int, since_ns: int | None) -> None:
        exchange = self._exchange
        if exchange is None:
            self.shut()  # bytes that nobody asked for
            return
        stamps = exchange.stamps
        # Stamps of the kernel come over from another clock, whose error must not make a time negative.
        earliest = stamps[-1] if stamps else exchange.submitted_ns
        if earliest is not None and at_ns < earliest:
            at_ns = earliest
            self._owner.too_early += 1
        if since_ns is not None and _holds_several(data) and self._link.came_apart():
            exchange.late_reads.append((len(stamps), since_ns))
        stamps.append(at_ns)
        exchange.unparsed.append(data)
        if self._chunked:
            # A short read may be the rest of a last chunk that was cut in two. A last chunk with extensions
            # or unannounced trailers is found by the sweep, which inspects quiet exchanges.
            if data.endswith(_LAST_CHUNK) or len(data) < len(_LAST_CHUNK) or self._owner.eager:
                self._owner.look_soon(self, exchange)
        else:
            self._received_unframed(exchange, data)

    def _received_unframed(self, exchange: Exchange, data: bytes) -> None:
        framing = self._parser.framing
        if framing is Framing.LENGTH:
            self._parser.missing -= len(data)
            if self._parser.missing <= 0:
                self._parse(exchange)
        elif framing is Framing.UNKNOWN:
            # The first bytes of a response that was chunked: if this one is not, the parse will find out.
            self._chunked = data.startswith(self._owner.known.openings)
            if not self._chunked or data.endswith(_LAST_CHUNK):
                self._owner.look_soon(self, exchange)

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

    def _give_up(self, exchange: Exchange, end: End, at_ns: int, error: str | None = None) -> None:
        exchange.status, exchange.headers = self._parser.status, self._parser.headers
        self._exchange = None
        self.shut()
        exchange.finish(end, at_ns, error)

    def _was_stale(self, exchange: Exchange) -> bool:
        """The server had closed the kept connection before: it has seen nothing of this request."""
        fresh = not self._reused or bool(exchange.stamps) or exchange.stale_retries > 0
        return not fresh and self._link.nothing_delivered()


def _holds_several(data: bytes) -> bool:
    """Events; looks no further than to the second."""
    return data.find(_EVENT, data.find(_EVENT) + 1) > 0


def _while_connecting(error: Exception | None) -> OSError:
    if isinstance(error, OSError):  # ssl.SSLError is one
        return error
    return ConnectionResetError(errno.ECONNRESET, "closed by the server while connecting")


__all__ = ["Http1Connection", "Owner"]
