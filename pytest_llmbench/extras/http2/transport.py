"""HTTP/2 on connections of the HTTP transport, each with as many requests at a time as the server allows, a
stream for each; and the bytes of a request, made before anything is timed.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import httpx

from pytest_llmbench.errors import SUTError
from pytest_llmbench.extras.http2.client import Http2Client, Stream, request_bytes
from pytest_llmbench.generator.http.connection import Connection, RefusedError, how_it_broke
from pytest_llmbench.generator.http.pool import Opener
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import End, Exchange, Stamping
from pytest_llmbench.http_client import GRPC_SCHEMES, REQUEST_ID, usual_headers
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import PlainSocket, proxy_to, tls_context, without_query
from pytest_llmbench.timing import Clock
from pytest_llmbench.wire.dialect import Dialect, headers_for


class Http2Head:
    """The part of an HTTP/2 request that is the same for all requests to one path of a target, with the
    headers of :class:`~pytest_llmbench.generator.http.request_head.RequestHead`."""

    headers_of: Callable[[Mapping[str, str], Mapping[str, str] | None], dict[str, str]] = staticmethod(
        usual_headers
    )

    def __init__(
        self,
        target: Target,
        path: str,
        further: Mapping[str, str] | None = None,
        session_header: str = "",
    ) -> None:
        """The arguments are those of :class:`~pytest_llmbench.generator.http.request_head.RequestHead`, but
        for the path, which is the whole of the request's."""
        fixed = {
            ":method": "POST",
            ":scheme": GRPC_SCHEMES.get(target.scheme, target.scheme),
            ":path": path,
            ":authority": target.authority,
        }
        usual = self.headers_of(dict(target.headers), further)
        self._fixed = [*fixed.items(), *((name.lower(), value) for name, value in usual.items())]
        self.session_header = session_header

    def wire(self, request_id: str, body: bytes, session_id: str | None = None) -> bytes:
        """Headers and body, as the connection takes them.

        ``session_id``: that of the session which the request is a turn of; None: it is of none.
        """
        own = [(REQUEST_ID, request_id), ("content-length", str(len(body)))]
        return self._written(own, body, session_id)

    def _written(self, own: list[tuple[str, str]], body: bytes, session_id: str | None) -> bytes:
        if session_id is not None and self.session_header:
            own.append((self.session_header.lower(), session_id))
        return request_bytes([*self._fixed, *own], body)


class Requests:
    """How streams are used: by requests of HTTP."""

    lone = False
    """Whether a connection carries one stream at a time, whatever the server allows."""
    noun = "stream"
    """What a stream is called in errors."""

    def error_in(self, exchange: Exchange, stream: Stream) -> str | None:  # noqa: ARG002 - for gRPC
        """The error in a stream that has come to its end; None for none."""
        return None


@dataclass(slots=True, eq=False)
class Carried:
    """An exchange on its stream; the exchange's channel."""

    on: Http2
    exchange: Exchange
    stream: Stream
    reused: bool
    """Whether the connection had carried a request before this one."""

    def inspect(self) -> None:
        """Do nothing: reads are parsed as they come."""

    def abandon(self) -> None:
        self.on.give_up(self)

    def tell_head(self) -> None:
        """Tell the exchange the status and the headers that have come."""
        if self.stream.status is not None:
            self.exchange.status, self.exchange.headers = self.stream.status, self.stream.headers


class Http2:
    """HTTP/2 on a connection. Reads are parsed at once, since a ping needs its answer and a request its
    window.

    ``bodies`` of an exchange has the bytes of its stream in each read. As over HTTP/1.1 the head of a reply
    is its first byte, and is stamped; pings, settings and windows are of no reply, and are not. A read that
    has bytes of several streams is a read of each of them, with the same stamp.
    """

    def __init__(self, connection: Connection, keeper: Http2Pool, manner: Requests) -> None:
        self.connection = connection
        self._keeper = keeper
        self._manner = manner
        self._client = Http2Client()
        self._carried: dict[int, Carried] = {}
        self._unsubmitted: list[Carried] = []
        """Requests whose last byte has not left yet."""
        self._written_last: Carried | None = None
        """The request that the last write consisted of; None if it was something else."""
        self._opened = self._used = False
        self._retired = False
        """Whether it takes no further stream, and is closed when the last one has ended."""
        self._heard_ns = 0
        self.offered = False
        """Whether the keeper has it in its list."""
        connection.speak(self)

    @property
    def most(self) -> int:
        """The most streams that it may have at a time."""
        return min(1, self._client.most_streams) if self._manner.lone else self._client.most_streams

    @property
    def room(self) -> int:
        """How many further streams may begin now."""
        if not self.connection.alive or self._retired or not self._client.has_room:
            return 0
        return max(0, self.most - len(self._carried))

    def why_no_room(self) -> tuple[End, str]:
        """The end of a request that a new connection has no room for, and the words for it."""
        if self._client.problem:
            return End.GARBAGE, self._client.problem
        if not self.most:
            return End.GARBAGE, "the server allows no stream (MAX_CONCURRENT_STREAMS 0)"
        away = self._client.going_away
        how = "closed the connection" if away is None else f"went away ({away})"
        return End.BROKEN, f"the server {how} before it took a request"

    def submit(self, exchange: Exchange, *, reused: bool) -> None:
        stream = self._client.begin(exchange.request.wire)
        carried = self._carried[stream.stream_id] = Carried(self, exchange, stream, reused)
        exchange.channel = carried
        left = self.connection.submit(exchange, self._client.to_send())
        if stream.unsent:
            exchange.sending_ns, exchange.submitted_ns = exchange.submitted_ns or exchange.sending_ns, None
        if stream.unsent or not left:
            self._unsubmitted.append(carried)
        self._written_last, self._used = carried, True

    def give_up(self, carried: Carried) -> None:
        """Cancel a stream from our side. If the server has sent nothing since, no further request goes on
        this connection, unless it was the user who did not wait."""
        exchange = carried.exchange
        carried.tell_head()
        if self._carried.pop(carried.stream.stream_id, None) is None:
            return
        self._client.cancel(carried.stream)
        self._write(self._client.to_send())
        silent = exchange.submitted_ns is None or self._heard_ns < exchange.submitted_ns
        if self._manner.lone or (silent and exchange.request.cut_after_ns is None):
            self._retired = True
        self._go_on()

    def retire(self) -> None:
        """Take no further stream."""
        self._retired = True
        self._go_on()

    # What the connection tells.

    def established(self) -> None:
        """Send the connection preface, now that bytes can flow. Requests wait for the server's settings."""
        self._write(self._client.opening())

    def take(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        client = self._client
        read = client.feed(data)
        self._heard_ns = at_ns
        if read.progress:
            self._stamp_all(read.progress, at_ns, since_ns)
        self._send_more(read.taken)
        if not self._opened:
            if self._client.is_ready:
                self._opened = True
                self.connection.ready()
            elif self._client.problem:
                self.connection.refuse(RefusedError(self._client.problem))
        for stream in read.over:
            self._end(self._carried.pop(stream.stream_id))
        if client.problem:
            carried, self._carried = list(self._carried.values()), {}
            self.connection.shut()
            for each in carried:
                each.tell_head()
                each.exchange.finish(End.GARBAGE, self.connection.now(), client.problem)
        elif client.going_away is not None or not (read.progress or self.offered):
            self._go_on()  # it may have said that it allows more

    def written(self, whole: bool) -> None:
        now_ns = self.connection.now()
        for each in self._unsubmitted:
            each.exchange.sending_ns = now_ns
        if whole:
            self._submitted(now_ns)

    def ended(self, error: Exception | None) -> None:
        now = self.connection.now()
        carried, self._carried = list(self._carried.values()), {}
        away = self._client.going_away
        how = "closed the connection" if away is None else f"went away ({away}) and closed the connection"
        for each in carried:
            # A link tells of its last write alone, which has to be that of the request.
            is_last = self._written_last is each
            if is_last and self._may_retry(each) and self.connection.nothing_delivered():
                self._retry(each)
            else:
                each.tell_head()
                reason = how_it_broke(error, each.exchange, reused=each.reused, closing=how)
                each.exchange.finish(End.BROKEN, now, reason)

    def farewell(self) -> bytes:
        """A GOAWAY frame, so that the server need not find out by itself."""
        return self._client.closing()

    # What it leads to.

    def _stamp_all(self, progress: list[Stream], at_ns: int, since_ns: int | None) -> None:
        """Give each stream its part of the read. The stamp is that of the last packet, whichever stream that
        was of."""
        since_ns = self.connection.came_apart(since_ns)
        shared = since_ns is not None and sum(bool(stream.pieces) for stream in progress) > 1
        for stream in progress:
            exchange = self._carried[stream.stream_id].exchange
            if since_ns is not None and shared and stream.pieces:
                exchange.shared_reads.append((len(exchange.stamps), since_ns))
            self.connection.stamp(exchange, at_ns, since_ns if stream.pieces and not shared else None)
            exchange.bodies.append(stream.data)

    def _go_on(self) -> None:
        """Be ready for further requests after something has ended, or close if it was the last."""
        if self._used and self.room:
            self._keeper.release(self)
        elif not self._carried and self.connection.alive:
            # An exchange that waits for this connection to open is told that the server goes away, and
            # retires the connection.
            is_left = self._client.going_away is not None and (self._used or self.offered)
            if self._retired or is_left:
                self.connection.shut()

    def _send_more(self, taken: list[Stream]) -> None:
        """Send the frames that the connection has to send, and what there is room for now of the requests of
        which further parts were ``taken``."""
        data = self._client.to_send()
        if not data:
            return
        before_ns = self.connection.now()
        for stream in taken:
            if (carried := self._carried.get(stream.stream_id)) is not None:
                carried.exchange.sending_ns = before_ns
        if self._write(data):
            self._submitted(before_ns)

    def _submitted(self, at_ns: int) -> None:
        waiting, self._unsubmitted = self._unsubmitted, []
        for each in waiting:
            if each.stream.is_over:
                continue
            if each.stream.unsent:
                self._unsubmitted.append(each)
            else:
                each.exchange.submitted_ns = at_ns

    def _end(self, carried: Carried) -> None:
        exchange, stream, noun = carried.exchange, carried.stream, self._manner.noun
        if stream.unprocessed and self._may_retry(carried):
            self._retired = self._retired or self._manner.lone
            self._retry(carried)
        elif stream.reset:
            self._break(carried, f"reset the {noun} ({stream.reset})")
        elif stream.unprocessed:
            self._break(carried, f"went away ({self._client.going_away}) without having begun the {noun}")
        else:
            carried.tell_head()
            error = self._manner.error_in(exchange, stream)
            at_ns = exchange.stamps[-1]
            if stream.was_cut or exchange.submitted_ns is None:
                self._retired = True  # what was not sent of the request is still in the server's window
            self.connection.kept(at_ns)
            self._go_on()
            exchange.finish(End.COMPLETE, at_ns, error)

    def _break(self, carried: Carried, how: str) -> None:
        exchange = carried.exchange
        when = "before the response was complete" if exchange.stamps else "before the first byte"
        carried.tell_head()
        self._retired = self._retired or self._manner.lone
        self._go_on()
        exchange.finish(End.BROKEN, self.connection.now(), f"the server {how} {when}")

    def _retry(self, carried: Carried) -> None:
        self._go_on()
        self._keeper.retry(carried.exchange)

    def _may_retry(self, carried: Carried) -> bool:
        """Whether a request may be sent once more: as over HTTP/1.1, once and only if the connection was a
        kept one. A server that takes no request on a new connection has refused it."""
        exchange = carried.exchange
        return carried.reused and not exchange.stamps and not exchange.stale_retries

    def _write(self, data: bytes) -> bool:
        """Write what is no request. True if the kernel took everything."""
        if data:
            self._written_last = None
        return self.connection.write(data)


class Http2Pool:
    """A transport of streams. A request goes on the connection used last; if that has as many streams as the
    server allows, on another one, which is opened if there is none.

    Requests that need a new connection share it, as far as the server is known to allow that.
    """

    busy = False
    holds = False
    """Streams share a connection, and one of gRPC answers pings: what is held back would be in the way."""

    def __init__(self, name: str, opener: Opener, manner: Requests) -> None:
        self.name = name
        self._opener = opener
        self._now = opener.clock.monotonic_ns
        self._manner = manner
        self._free: list[Http2] = []
        """Open connections that had room when they were last asked."""
        self._openings: dict[_Opening, None] = {}
        """Connections that are being opened, in the order in which that began."""
        self._most: float = 1 if manner.lone else math.inf
        """How many requests may share a connection, as the last one to open said; infinite until one has."""

    @property
    def opened(self) -> int:
        return self._opener.opened

    @property
    def stamping(self) -> Stamping:
        return self._opener.stamping

    async def prewarm(self, count: int, timeout_s: float) -> int:
        self._free = [http2 for http2 in self._free if http2.connection.alive]
        await self._opener.open_all(lambda: self._missing(count), self._add_one, timeout_s)
        return len(self._free)

    def send(self, exchange: Exchange) -> None:
        free = self._free
        while free:
            http2 = free[-1]
            if http2.room:
                http2.submit(exchange, reused=True)
                if not http2.room:
                    free.pop().offered = False
                return
            free.pop().offered = False
        self._send_on_new(exchange)

    async def close(self) -> None:
        self._free.clear()
        await self._opener.close()

    # The side that connections see.

    def release(self, http2: Http2) -> None:
        """Keep a connection that has room, unless the server closes all behind their first reply."""
        if self._opener.closes_all(http2.connection) and http2.connection.answered:
            http2.retire()
        elif not http2.offered:
            http2.offered = True
            self._free.append(http2)

    def retry(self, exchange: Exchange) -> None:
        exchange.stale_retries += 1
        exchange.submitted_ns = exchange.sending_ns = None
        self._send_on_new(exchange)

    # Opening.

    def _send_on_new(self, exchange: Exchange) -> None:
        exchange.connecting_ns = self._now()
        exchange.due_ns = 0
        opening = next((each for each in self._openings if len(each.waiting) < self._most), None)
        if opening is None:
            opening = _Opening(self._openings)
            self._openings[opening] = None
            opening.task = self._opener.start(self._open_for(opening))
        opening.waiting.append(exchange)
        exchange.channel = _Waiting(opening, exchange)

    def _made(self, connection: Connection) -> Http2:
        return Http2(connection, self, self._manner)

    def _missing(self, count: int) -> int:
        """How many connections must be opened for ``count`` requests at a time. One at first: it tells how
        many requests may share a connection."""
        if self._most == math.inf:
            return 1
        # One that the server has closed meanwhile counts: it would close any further one as well.
        missing = count - sum(http2.most for http2 in self._free)
        return math.ceil(missing / self._most)

    async def _add_one(self) -> bool:
        try:
            http2 = await self._opener.open(self._made)
        except (OSError, RefusedError):
            return False
        self._most = max(1, http2.most)
        if not http2.room:
            http2.retire()
            return False
        self.release(http2)
        return True

    async def _open_for(self, opening: _Opening) -> None:
        try:
            http2 = await self._opener.open(self._made)
        except OSError as error:
            end, reason = self._opener.not_connected(error)
        except RefusedError as refused:
            end, reason = refused.end, f"{self._opener.target.place}: {refused.reason}"
        else:
            self._hand_over(http2, opening)
            return
        finally:
            self._openings.pop(opening, None)
        for exchange in opening.waiting:
            exchange.finish(end, self._now(), reason)

    def _hand_over(self, http2: Http2, opening: _Opening) -> None:
        """Submit the exchanges that wait for a connection that is open now, and find a place for those that
        it has no room for."""
        self._openings.pop(opening, None)
        self._most = max(1, http2.most)
        takes = http2.room > 0
        for exchange in opening.waiting:
            if http2.room:
                http2.submit(exchange, reused=False)
            elif takes:
                self._send_on_new(exchange)
            else:  # a further connection would be of no more use, and one after the other would be opened
                end, reason = http2.why_no_room()
                exchange.finish(end, self._now(), f"{self._opener.target.place}: {reason}")
        if http2.room:
            self.release(http2)
        elif not takes:
            http2.retire()


@dataclass(slots=True, eq=False)
class _Opening:
    """A connection that is being opened, and the exchanges that wait for it."""

    among: dict[_Opening, None]
    waiting: list[Exchange] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class _Waiting:
    """An exchange that waits for a connection; the exchange's channel until there is one."""

    opening: _Opening
    exchange: Exchange

    def inspect(self) -> None:
        """Do nothing: nothing has arrived yet."""

    def abandon(self) -> None:
        """Wait no more. When no exchange is left, the attempt is given up too."""
        opening = self.opening
        opening.waiting.remove(self.exchange)
        if not opening.waiting and opening.task is not None:
            opening.among.pop(opening, None)
            opening.task.cancel()


def carry(
    target: Target, spoken: Dialect, path: str, session_header: str
) -> tuple[Http2Head, Callable[[Clock, bool], Http2Pool]]:
    """The form of requests over HTTP/2, and what makes the transport."""
    further = headers_for(spoken, dict(target.headers))
    head = Http2Head(target, target.request_target(path), further, session_header)

    def made(clock: Clock, kernel_stamps: bool) -> Http2Pool:
        return Http2Pool("http/2", Opener(target, clock, kernel_stamps=kernel_stamps), Requests())

    return head, made


_ANSWER_S = 10.0


def agree_on_http2(url: str, access: Access) -> None:
    """Open a connection as the measured ones are. Raises SUTError where that is not answered in HTTP/2.

    Over TLS the server has to agree to ``h2`` (ALPN, RFC 9113, section 3.2); else it is spoken to at once,
    with prior knowledge (section 3.3).
    """
    tls = tls_context(access)
    tls.set_alpn_protocols(["h2"])
    hasty = replace(access, answer_s=min(access.answer_s, _ANSWER_S))
    try:
        with PlainSocket(url, hasty, tls, proxy_to(url, access)) as sock:
            over_tls = urlsplit(url).scheme == "https"
            why = _refusal(sock, over_tls=over_tls)
    except httpx.RequestError as error:
        why = f"no answer to the opening of a connection ({error or type(error).__name__})"
    if why:
        raise SUTError(
            f"--llm-http=2, but {why}",
            where=without_query(url),
            remedy="leave out --llm-http, or put a server or proxy there that speaks HTTP/2: over TLS it has "
            "to agree to h2 (ALPN), over http:// it is spoken to at once (h2c with prior knowledge)",
        )


def _refusal(sock: PlainSocket, *, over_tls: bool) -> str:
    """Why the server does not speak HTTP/2; empty if it does."""
    if over_tls and sock.protocol != "h2":
        return f"the server did not accept h2 over TLS (ALPN: {sock.protocol or 'none chosen'})"
    client = Http2Client()
    sock.send(client.opening())
    while not client.is_ready and not client.problem:
        data = sock.receive()
        if not data:
            return "the server closed the connection at its opening"
        client.feed(data)
    if not client.problem:
        sock.send(client.to_send() + client.closing())
    return client.problem
