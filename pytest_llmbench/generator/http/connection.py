"""A connection to the target: its link, TLS, the stamps of its reads. What is spoken on it stands beside."""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol

from pytest_llmbench.generator.http.links import Link, TlsChannel
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.timing import Clock

_RIGHT_BEHIND_NS = 1_000_000_000
"""A connection closed within this time after a reply was closed because of it: idle limits of servers are
longer."""


class Owner(Protocol):
    """Who knows the open connections."""

    too_early: int
    """How many reads had a stamp earlier than the instant that must precede it; they were given that
    instant."""

    def adopt(self, connection: Connection) -> None:
        """Know a new connection."""

    def drop(self, connection: Connection) -> None:
        """Forget a connection that is gone."""

    def hung_up(self) -> None:
        """The server closed a connection right behind its first reply, without having said that it would."""


class Spoken(Protocol):
    """What is spoken on a connection, as the connection sees it."""

    def established(self) -> None:
        """Bytes can flow. Calls ``ready`` of the connection, now or when the server has agreed."""

    def take(self, data: bytes, at_ns: int, since_ns: int | None) -> None:
        """Take the plain bytes of a read, stamped ``at_ns``; ``since_ns`` as in
        :meth:`~pytest_llmbench.generator.http.links.Linked.received`."""

    def written(self, whole: bool) -> None:
        """The kernel has taken a further part of what was written; with ``whole`` the last one."""

    def ended(self, error: Exception | None) -> None:
        """No more bytes will come. May be called twice."""

    def farewell(self) -> bytes:
        """The last bytes to write before we close."""


class Connection:
    """Carries what is spoken on it; attached to a link below."""

    received: Callable[[bytes, int, int | None], None]
    """Called by the link with each read. Without TLS it is ``take`` of what is spoken, since every call on
    the way of a read costs."""

    def __init__(
        self, owner: Owner, clock: Clock, tls: TlsChannel | None, opened: asyncio.Future[None]
    ) -> None:
        """``opened``: gets its result when requests can be sent, and an error if they never can."""
        self._owner = owner
        self.now = clock.monotonic_ns
        self._tls = tls
        self._opened = opened
        self._answered_ns = 0
        self._held: Exchange | None = None
        """The exchange whose last byte is held back."""
        self._kept = b""
        """That byte as it will be written, and what has to follow it."""
        self.answered = 0
        """Number of replies so far after which it was kept."""
        self.alive = False

    def speak(self, spoken: Spoken) -> None:
        """Say what is spoken on it, before it is attached."""
        self._spoken = spoken
        self.received = spoken.take if self._tls is None else self._received_tls

    def submit(self, exchange: Exchange, wire: bytes) -> bool:
        """Write a request; T_submit is the instant of the write that gives the kernel its last byte. True if
        that was this one.

        Of a write that takes everything, the instant before it is kept: waking the server is part of the
        write, so the server may be at work, and we descheduled, before a stamp behind it could be taken.
        """
        exchange.connecting_ns = None
        if exchange.holds:
            first, last = wire[:-1], wire[-1:]
            if self._tls is not None:
                first, last = self._tls.encrypt(first), self._tls.encrypt(last)
            self._held, self._kept = exchange, last
            exchange.release = partial(self._release, exchange)
            # Until its release None once the kernel has taken all of that.
            exchange.sending_ns = None if self._link.write(first) else self.now()
            return False
        payload = wire if self._tls is None else self._tls.encrypt(wire)
        before_ns = self.now()
        if self._link.write(payload):
            exchange.submitted_ns = before_ns
            return True
        exchange.sending_ns = before_ns
        return False

    def _release(self, exchange: Exchange) -> None:
        payload, self._kept, self._held = self._kept, b"", None
        before_ns = self.now()
        if self._link.write(payload):
            exchange.submitted_ns = before_ns
        else:
            exchange.sending_ns = before_ns

    def write(self, data: bytes) -> bool:
        """Write what is no request. True if the kernel took everything."""
        if not data:
            return True
        try:
            return self._put(data if self._tls is None else self._tls.encrypt(data))
        except ssl.SSLError:  # the other side has closed its end of TLS
            return False

    def _put(self, payload: bytes) -> bool:
        """Write, behind a byte that is held back."""
        if self._held is None:
            return self._link.write(payload)
        self._kept += payload
        return False

    def stamp(self, exchange: Exchange, at_ns: int, since_ns: int | None) -> int:
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

    def came_apart(self, since_ns: int | None) -> int | None:
        """``since_ns`` if the read was late and may have come in several packets, else None. Ask once for
        each read: the link counts packets from call to call."""
        return since_ns if since_ns is not None and self._link.came_apart() else None

    def nothing_delivered(self) -> bool:
        """Whether, at the end of the stream, the peer cannot have read a byte of what was written last."""
        return self._link.nothing_delivered()

    def kept(self, answered_ns: int) -> None:
        """Note that a reply is complete and the connection may be used again."""
        self.answered += 1
        self._answered_ns = answered_ns

    def ready(self) -> None:
        """Note that requests can be sent."""
        self.alive = True
        if self._opened.done():
            self.shut()  # whoever wanted it has given up
        else:
            self._opened.set_result(None)

    def refuse(self, error: Exception) -> None:
        """Tell whoever waits for it that requests can never be sent."""
        if not self._opened.done():
            self._opened.set_exception(error)

    def shut(self) -> None:
        """Close at once, whatever is still on its way."""
        self.write(self._spoken.farewell())
        self.alive = False
        self._link.close()

    def close_link(self) -> None:
        """Close without a further word: the other side has said the last one."""
        self._link.close()

    # What the link tells.

    def attach(self, link: Link) -> None:
        self._link = link
        self._owner.adopt(self)
        if self._tls is None:
            self._spoken.established()
        else:
            link.write(self._tls.handshake())

    def written(self, whole: bool) -> None:
        if self._held is None:
            self._spoken.written(whole)
        else:
            self._held.sending_ns = None if whole else self.now()

    def ended(self, error: Exception | None) -> None:
        if self.alive and self.answered == 1 and self.now() - self._answered_ns < _RIGHT_BEHIND_NS:
            self._owner.hung_up()
        self.alive = False
        self._spoken.ended(error)
        if not isinstance(error, OSError):  # ssl.SSLError is one
            error = ConnectionResetError(errno.ECONNRESET, "closed by the server while connecting")
        self.refuse(error)

    def dropped(self) -> None:
        self._owner.drop(self)

    def _received_tls(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        tls = self._tls
        assert tls is not None
        try:
            shaken = tls.established
            if not shaken:
                self._link.write(tls.handshake(data))
                if not tls.established:
                    return
                self._spoken.established()
                data = b""
            plain = tls.decrypt(data)
        except ssl.SSLError as error:
            self._link.write(tls.pending())
            self.ended(error)
            self._link.close()
            return
        if answer := tls.pending():
            self._put(answer)
        if plain:
            self._spoken.take(plain, at_ns, since_ns)
        if tls.closed:
            self.ended(None)
            self._link.close()


class RefusedError(Exception):
    """The server refused the opening of a connection, or does not speak what it was asked to."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason, self.end = reason, End.GARBAGE
        self.status: int | None = None
        """HTTP status of its answer; None where it is none."""
        self.headers: list[tuple[bytes, bytes]] = []
        self.body = b""

    def finish(self, exchange: Exchange, place: str, at_ns: int) -> None:
        """End an exchange that waited for the connection. The status of an answer says more than that there
        was none."""
        if self.status is not None:
            exchange.status, exchange.headers, exchange.bodies = self.status, self.headers, [self.body]
        exchange.finish(self.end, at_ns, f"{place}: {self.reason}")


def how_it_broke(
    error: Exception | None, exchange: Exchange, *, reused: bool, closing: str = "closed the connection"
) -> str:
    """Why a response was not complete, in words. ``closing``: how the server ended the connection."""
    how = closing if error is None else f"broke the connection ({error})"
    when = "before the response was complete" if exchange.stamps else "before the first byte"
    if exchange.holds:
        return f"the server {how} while the last byte of the request was held back"
    if reused and not exchange.stamps:
        when += "; it was a kept one, and idle ones may be closed by it"
    return f"the server {how} {when}"
