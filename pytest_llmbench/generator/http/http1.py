"""HTTP/1.1 on a connection, and the transport of it."""

from __future__ import annotations

from enum import Enum, auto
from functools import partial

import httptools

from pytest_llmbench.generator.http.connection import Connection, how_it_broke
from pytest_llmbench.generator.http.known_replies import KnownReplies
from pytest_llmbench.generator.http.pool import Keeper, Opener, Pool
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.timing import Clock
from pytest_llmbench.wire.uniform import MOST_BYTES


class Framing(Enum):
    """How the end of a body is told (RFC 9112, section 6.3)."""

    UNKNOWN = auto()
    """The headers are not complete yet."""
    CHUNKED = auto()
    LENGTH = auto()
    UNTIL_CLOSE = auto()


_LAST_CHUNK = b"0\r\n\r\n"
_EVENT, _LINE = b"data:", b"}\n"
"""Bytes that every event of a stream contains at least once, for each of the two framings; the second is the
end of a line of JSON."""
_UNKNOWN, _COMPLETE = Framing.UNKNOWN, End.COMPLETE
"""Module-level names, as they are asked for with each reply: a look-up in an enumeration takes 0.2 µs."""


class Lessons:
    """What the connections of one transport have learned of the server."""

    def __init__(self) -> None:
        self.eager = False
        """Parse at every read: set once this server was seen to end replies in an unusual way."""
        self.known = KnownReplies()


class Http1:
    """HTTP/1.1 on a connection, one exchange at a time."""

    def __init__(self, connection: Connection, keeper: Keeper, lessons: Lessons) -> None:
        self.connection = connection
        self._keeper = keeper
        self._lessons = lessons
        self._parser = ReplyParser()
        self._exchange: Exchange | None = None
        self._parsed: list[bytes] = []
        """Reads of this response that have been parsed, kept as long as a later response may be recognised by
        them."""
        self._room = MOST_BYTES
        self._chunked = False
        self._reused = False
        connection.speak(self)

    def submit(self, exchange: Exchange, *, reused: bool) -> None:
        self._exchange = exchange
        self._reused = reused
        self._chunked = False
        exchange.channel = self
        self.connection.submit(exchange, exchange.request.wire)

    def inspect(self) -> None:
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.unparsed:
            self._parse(exchange)
            if exchange.end is End.COMPLETE:
                self._lessons.eager = True

    def look(self, exchange: Exchange) -> None:
        if exchange is not self._exchange:
            return  # the connection's end, or the sweep, came before
        if self._parser.framing is _UNKNOWN and self._chunked and exchange.submitted_ns is not None:
            # A reply that has to keep to a schema is read, since what the known one kept to was another; and
            # so is one whose text is asked for, or scored.
            asked = exchange.request
            free = (
                asked.structured is None
                and asked.expected is None
                and (asked.turn is None or not asked.turn.live)
            )
            known = self._lessons.known.read(exchange.unparsed) if free else None
            if known is not None and self.connection.alive:
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
        self.connection.shut()

    # What the connection tells.

    def established(self) -> None:
        self.connection.ready()

    def take(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        exchange = self._exchange
        if exchange is None:
            self.connection.shut()  # bytes that nobody asked for
            return
        if since_ns is not None:
            since_ns = self.connection.came_apart(since_ns) if _holds_several(data) else None
        self.connection.stamp(exchange, at_ns, since_ns)
        exchange.unparsed.append(data)
        if self._chunked:
            # A short read may be the rest of a last chunk that was cut in two. A last chunk with extensions
            # or unannounced trailers is found by the sweep, which inspects quiet exchanges.
            if data.endswith(_LAST_CHUNK) or len(data) < len(_LAST_CHUNK) or self._lessons.eager:
                self._keeper.look_soon(self, exchange)
        elif self._parser.framing is _UNKNOWN:
            # The first bytes of a response that was chunked: if this one is not, the parse will find out.
            self._chunked = data.startswith(self._lessons.known.openings)
            if not self._chunked or data.endswith(_LAST_CHUNK):
                self._keeper.look_soon(self, exchange)
        elif self._parser.framing is Framing.LENGTH:
            self._parser.missing -= len(data)
            if self._parser.missing <= 0:
                self._parse(exchange)

    def written(self, whole: bool) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.submitted_ns is None:
            exchange.sending_ns = self.connection.now()
            if whole:
                exchange.submitted_ns = exchange.sending_ns

    def ended(self, error: Exception | None) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.unparsed:
            self._parse(exchange)
            exchange = self._exchange
        if exchange is None:
            return
        now_ns = self.connection.now()
        if error is None and self._parser.framing is Framing.UNTIL_CLOSE:
            self._give_up(exchange, End.COMPLETE, now_ns)
        elif (
            # The server had closed the kept connection before the request came, and has seen nothing of it.
            self._reused
            and not exchange.stamps
            and not exchange.stale_retries
            and self.connection.nothing_delivered()
        ):
            self._exchange = None
            self._keeper.retry(exchange)
        else:
            self._give_up(exchange, End.BROKEN, now_ns, how_it_broke(error, exchange, reused=self._reused))

    def farewell(self) -> bytes:
        return b""

    # What it leads to.

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
            self._give_up(exchange, End.GARBAGE, self.connection.now(), str(error))
            return
        if parser.complete:
            self._complete(exchange)
        else:
            self._chunked = parser.framing is Framing.CHUNKED
            exchange.status = parser.status

    def _complete(self, exchange: Exchange) -> None:
        parser = self._parser
        at_ns = exchange.stamps[len(exchange.bodies) - 1]
        self._tell_head(exchange)
        self._exchange = None
        written = exchange.submitted_ns is not None
        if self.connection.alive and written and parser.keep_alive and not parser.surplus:
            if self._room > 0 and parser.framing is Framing.CHUNKED and parser.status is not None:
                learn = self._lessons.known.learn
                exchange.teach = partial(learn, self._parsed, exchange.bodies, parser.status)
            parser.begin()
            self._parsed, self._room = [], MOST_BYTES
            self._keep(at_ns)
        else:
            self.connection.shut()
        exchange.finish(End.COMPLETE, at_ns)

    def _keep(self, answered_ns: int) -> None:
        self.connection.kept(answered_ns)
        self._keeper.release(self)

    def _tell_head(self, exchange: Exchange) -> None:
        exchange.status, exchange.headers = self._parser.status, self._parser.headers

    def _give_up(self, exchange: Exchange, end: End, at_ns: int, error: str | None = None) -> None:
        self._tell_head(exchange)
        self._exchange = None
        self.connection.shut()
        exchange.finish(end, at_ns, error)


def _holds_several(data: bytes) -> bool:
    """Whether the bytes hold two events or more. The search ends at the second."""
    if data.find(_EVENT, data.find(_EVENT) + 1) > 0:
        return True
    return data.find(_LINE, data.find(_LINE) + 1) > 0


def http1_transport(target: Target, clock: Clock, *, kernel_stamps: bool = True) -> Pool:
    """The HTTP/1.1 transport of a target. ``kernel_stamps``: use them where there are any."""
    lessons = Lessons()
    opener = Opener(target, clock, kernel_stamps=kernel_stamps)
    return Pool("http/1.1", opener, lambda connection, keeper: Http1(connection, keeper, lessons))


MOST_HEAD_BYTES = 1024 * 1024
"""The most bytes of a response's head, with the interim responses before it: what has no end is no HTTP."""


class NotHTTPError(ValueError):
    """The bytes are not an HTTP response."""


class ReplyParser:
    """Parses the responses of one connection, one at a time: feed bytes, read the fields, ``begin`` the
    next.

    Interim responses (1xx) are passed over. Bytes after the end of the response make it ``surplus``: the
    response stands, but the connection must not be used again.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.on_body = self._pieces.append
        """Callback of httptools, as are the methods below; called for every chunk, so it is no Python
        function."""
        self._pieces_of_body = 0
        """How many of the pieces belong to a complete response; those behind it are surplus."""
        self._parser = httptools.HttpResponseParser(self)
        self._began = False
        self.begin()

    def begin(self) -> None:
        """Make ready for the next response on the same connection."""
        self.complete = False
        self.surplus = False
        self.keep_alive = False
        self.framing = Framing.UNKNOWN
        self._head_bytes = 0
        self.missing = 0
        """Bytes of the body still to come, when ``framing`` is LENGTH."""
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        """The headers as received; trailers are not among them."""
        self._began = False

    def feed(self, data: bytes) -> bytes:
        """Parse ``data``; returns the part of the body that was in it. Raises :class:`NotHTTPError`."""
        if self.framing is Framing.UNKNOWN:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            raise NotHTTPError("the server switched protocols (status 101)") from error
        except httptools.HttpParserError as error:
            if not self.complete:
                raise NotHTTPError(f"not an HTTP response: {error}") from error
            self.surplus = True
        if self.framing is Framing.UNKNOWN and self._head_bytes > MOST_HEAD_BYTES:
            raise NotHTTPError("the head of the response has more than 1 MiB")
        pieces = self._pieces
        if self.complete:
            del pieces[self._pieces_of_body :]
        if not pieces:
            return b""
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._pieces_of_body = 0
        if self.framing is Framing.LENGTH:
            self.missing -= len(body)
        return body

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        self.surplus = self._began and self.complete
        self._began = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.framing is Framing.UNKNOWN:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.complete:
            return
        self.status = self._parser.get_status_code()
        self.framing = Framing.UNTIL_CLOSE
        for name, value in self.headers:
            lowered = name.lower()
            if lowered == b"transfer-encoding" and value.rpartition(b",")[2].strip().lower() == b"chunked":
                self.framing = Framing.CHUNKED
                return
            if lowered == b"content-length":
                self.framing = Framing.LENGTH
                self.missing = int(value)

    def on_message_complete(self) -> None:
        if self.complete:
            return
        if self.status is not None and self.status < 200:
            so_far = self._head_bytes
            self.begin()
            self._head_bytes = so_far
            return
        self.keep_alive = self._parser.should_keep_alive()
        self._pieces_of_body = len(self._pieces)
        self.complete = True
