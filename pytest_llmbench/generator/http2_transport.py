"""The HTTP/2 transport: connections of the HTTP/1.1 transport, each with as many requests at a time as the
server allows, a stream for each; and the bytes of a request, made before anything is timed.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast

from pytest_llmbench.generator.http.http1 import Http1Connection, Http1Transport, Owner
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.tls import TlsChannel
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.request_headers import REQUEST_ID, usual_headers
from pytest_llmbench.timing.clock import Clock
from pytest_llmbench.wire.http2.client import Header, Http2Client, Stream, header_block, request_frames


class Http2Head:
    """The part of an HTTP/2 request that is the same for all requests to one path of a target, with the
    headers of :class:`~pytest_llmbench.generator.http.request_head.RequestHead`.

    Stream ids are set when it is known which connection takes the request.
    """

    def __init__(
        self,
        target: Target,
        path: str,
        further: Mapping[str, str] | None = None,
        session_header: str = "",
    ) -> None:
        """The arguments are those of :class:`~pytest_llmbench.generator.http.request_head.RequestHead`."""
        fixed = {
            ":method": "POST",
            ":scheme": target.scheme,
            ":path": target.request_target(path),
            ":authority": target.authority,
        }
        headers = {
            name.lower(): value for name, value in usual_headers(dict(target.headers), further).items()
        }
        self._fixed = header_block((fixed | headers).items(), first=True)
        self.session_header = session_header

    def wire(self, request_id: str, body: bytes, session_id: str | None = None) -> bytes:
        """Headers and body in frames, for one write.

        ``session_id``: that of the session which the request is a turn of; None: it is of none.
        """
        own = [(REQUEST_ID, request_id), ("content-length", str(len(body)))]
        if session_id is not None and self.session_header:
            own.append((self.session_header.lower(), session_id))
        return request_frames(self._fixed + header_block(own), body)


class NotHTTP2Error(Exception):
    """The server answered the opening of a connection with something that is not HTTP/2."""


@dataclass(slots=True, eq=False)
class Carried:
    """An exchange on its stream; the exchange's channel."""

    connection: Http2Connection
    exchange: Exchange
    stream: Stream
    reused: bool
    """Whether the connection had carried a request before this one."""

    def inspect(self) -> None:
        """Do nothing: reads are parsed as they come."""

    def abandon(self) -> None:
        self.connection.give_up(self)

    def tell_head(self) -> None:
        """Tell the exchange the status and the headers that have come."""
        if self.stream.status is not None:
            self.exchange.status, self.exchange.headers = self.stream.status, self.stream.headers


class Http2Connection(Http1Connection):
    """An HTTP/2 connection. Reads are parsed at once, since a ping needs its answer and a request its
    window.

    ``bodies`` of an exchange has the bytes of its stream in each read. As over HTTP/1.1 the head of a reply
    is its first byte, and is stamped; pings, settings and windows are of no reply, and are not. A read that
    has bytes of several streams is a read of each of them, with the same stamp.
    """

    lone: ClassVar[bool] = False
    """Whether it carries one stream at a time, whatever the server allows."""
    noun: ClassVar[str] = "stream"
    """What a stream is called in errors."""

    def __init__(
        self,
        owner: Owner,
        clock: Clock,
        tls: TlsChannel | None,
        ready: asyncio.Future[None],
        client: Http2Client,
    ) -> None:
        super().__init__(owner, clock, tls, ready)
        self._client = client
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
        """Whether the owner has it in its list."""

    @property
    def most(self) -> int:
        """The most streams that it may have at a time."""
        return min(1, self._client.most_streams) if self.lone else self._client.most_streams

    @property
    def room(self) -> int:
        """How many further streams may begin now."""
        if not self.alive or self._retired or not self._client.has_room:
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
        exchange.connecting_ns = None
        out = self._client.to_send()
        payload = out if self._tls is None else self._tls.encrypt(out)
        before_ns = self._now()
        if self._link.write(payload) and not stream.unsent:
            exchange.submitted_ns = before_ns
        else:
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
        if self.lone or (silent and exchange.request.cut_after_ns is None):
            self._retired = True
        self._go_on()

    def retire(self) -> None:
        """Take no further stream."""
        self._retired = True
        self._go_on()

    def shut(self) -> None:
        """Close at once, after a GOAWAY frame, so that the server need not find out by itself."""
        self._write(self._client.closing())
        super().shut()

    def written(self) -> None:
        self._submitted(self._now())

    def ended(self, error: Exception | None) -> None:
        super().ended(error)
        now = self._now()
        carried, self._carried = list(self._carried.values()), {}
        for each in carried:
            if self._was_stale_for(each):
                self._retry(each)
            else:
                reason = self._how_it_broke(error, each.exchange, each.reused)
                each.tell_head()
                each.exchange.finish(End.BROKEN, now, reason)

    # What it leads to.

    def _established(self) -> None:
        """Send the connection preface, now that bytes can flow. Requests wait for the server's settings."""
        self._write(self._client.opening())

    def _take(self, data: bytes, at_ns: int, since_ns: int | None) -> None:
        client = self._client
        read = client.feed(data)
        self._heard_ns = at_ns
        if read.progress:
            self._stamp_all(read.progress, at_ns, since_ns)
        self._send_more()
        if not self._opened:
            self._hear_of_opening()
        for stream in read.over:
            self._end(self._carried.pop(stream.stream_id))
        if client.problem:
            self._fail(client.problem)
        elif client.going_away is not None or not (read.progress or self.offered):
            self._go_on()  # it may have said that it allows more

    def _stamp_all(self, progress: list[Stream], at_ns: int, since_ns: int | None) -> None:
        """Give each stream its part of the read. The stamp is that of the last packet, whichever stream that
        was of."""
        since_ns = self._came_apart(since_ns)
        shared = since_ns is not None and sum(bool(stream.pieces) for stream in progress) > 1
        for stream in progress:
            exchange = self._carried[stream.stream_id].exchange
            if since_ns is not None and shared and stream.pieces:
                exchange.shared_reads.append((len(exchange.stamps), since_ns))
            self._stamp(exchange, at_ns, since_ns if stream.pieces and not shared else None)
            exchange.bodies.append(stream.data)

    def _fail(self, problem: str) -> None:
        """End all exchanges: the server has broken the protocol."""
        carried, self._carried = list(self._carried.values()), {}
        self.shut()
        for each in carried:
            each.tell_head()
            each.exchange.finish(End.GARBAGE, self._now(), problem)

    def _go_on(self) -> None:
        """Be ready for further requests after something has ended, or close if it was the last."""
        if self._used and self.room:
            self._owner.release(self)
        elif not self._carried and self.alive and (self._retired or self._is_left):
            self.shut()

    @property
    def _is_left(self) -> bool:
        """Whether the server is going away and no exchange waits for this connection to open: one that does
        is told, and retires the connection."""
        return self._client.going_away is not None and (self._used or self.offered)

    def _send_more(self) -> None:
        """Send the frames that the connection has to send, and as much of the requests as there is room for
        now."""
        data = self._client.to_send()
        if not data:
            return
        before_ns = self._now()
        if self._write(data):
            self._submitted(before_ns)

    def _submitted(self, at_ns: int) -> None:
        """Note that all bytes handed out so far have left."""
        waiting, self._unsubmitted = self._unsubmitted, []
        for each in waiting:
            if each.stream.is_over:
                continue
            if each.stream.unsent:
                self._unsubmitted.append(each)
            else:
                each.exchange.submitted_ns = at_ns

    def _hear_of_opening(self) -> None:
        if self._client.is_ready:
            self._opened = True
            super()._established()
        elif self._client.problem and not self._ready.done():
            self._ready.set_exception(NotHTTP2Error(self._client.problem))

    def _end(self, carried: Carried) -> None:
        stream = carried.stream
        if stream.unprocessed and self._may_retry(carried):
            self._retired = self._retired or self.lone
            self._retry(carried)
        elif stream.reset:
            self._break(carried, f"reset the {self.noun} ({stream.reset})")
        elif stream.unprocessed:
            away = self._client.going_away
            self._break(carried, f"went away ({away}) without having begun the {self.noun}")
        else:
            self._complete_with(carried)

    def _complete_with(self, carried: Carried) -> None:
        exchange, stream = carried.exchange, carried.stream
        carried.tell_head()
        wrong = self._wrong_length(exchange, stream)
        error = self._read_trailers(exchange, stream) if wrong is None else wrong
        at_ns = exchange.stamps[-1]
        if stream.was_cut or exchange.submitted_ns is None:
            self._retired = True  # what was not sent of the request is still in the server's window
        self.answered += 1
        self._answered_ns = at_ns
        self._go_on()
        exchange.finish(End.COMPLETE if wrong is None else End.GARBAGE, at_ns, error)

    def _break(self, carried: Carried, how: str) -> None:
        exchange = carried.exchange
        when = "before the response was complete" if exchange.stamps else "before the first byte"
        carried.tell_head()
        self._retired = self._retired or self.lone
        self._go_on()
        exchange.finish(End.BROKEN, self._now(), f"the server {how} {when}")

    def _retry(self, carried: Carried) -> None:
        """Send a request once more: the server has not processed it."""
        self._go_on()
        exchange = carried.exchange
        exchange.stale_retries += 1
        exchange.submitted_ns = None
        self._owner.resend(exchange)

    def _may_retry(self, carried: Carried) -> bool:
        """Whether a request may be sent once more: as over HTTP/1.1, once and only if the connection was a
        kept one. A server that takes no request on a new connection has refused it."""
        exchange = carried.exchange
        return carried.reused and not exchange.stamps and not exchange.stale_retries

    def _was_stale_for(self, carried: Carried) -> bool:
        # A link tells of its last write alone, which has to be that of the request.
        is_last = self._written_last is carried
        return is_last and self._may_retry(carried) and self._link.nothing_delivered()

    def _write(self, data: bytes) -> bool:
        """Write to the link. True if the kernel took everything."""
        if not data:
            return True
        self._written_last = None
        try:
            return self._link.write(data if self._tls is None else self._tls.encrypt(data))
        except ssl.SSLError:  # the other side has closed its end of TLS
            return False

    def _closing(self) -> str:
        away = self._client.going_away
        return super()._closing() if away is None else f"went away ({away}) and closed the connection"

    # What is different over gRPC.

    def _wrong_length(self, exchange: Exchange, stream: Stream) -> str | None:
        """What is wrong with a body that is not as long as its headers say (RFC 9113, section 8.1.1)."""
        said = _declared_length(stream.headers)
        got = sum(map(len, exchange.bodies))
        if said is None or said == got:
            return None
        return f"not HTTP/2: a reply of {got} bytes, whose headers say {said}"

    def _read_trailers(self, exchange: Exchange, stream: Stream) -> str | None:  # noqa: ARG002 - for gRPC
        """The error that the trailers report, or None: those of HTTP report none."""
        return None


def _declared_length(headers: list[Header]) -> int | None:
    said = next((value for name, value in headers if name == b"content-length"), b"")
    return int(said) if said.isdigit() else None


class Http2Transport(Http1Transport):
    """The HTTP/2 transport. A request goes on the connection used last; if that has as many streams as the
    server allows, on another one, which is opened if there is none.

    Requests that need a new connection share it, as far as the server is known to allow that.
    """

    name = "http/2"

    def __init__(self, target: Target, clock: Clock, *, kernel_stamps: bool = True) -> None:
        super().__init__(target, clock, kernel_stamps=kernel_stamps)
        self._openings: dict[_Opening, None] = {}
        """Connections that are being opened, in the order in which that began."""
        self._most: float = math.inf
        """How many requests may share a connection, as the last one to open said; infinite until one has."""

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
        """Open connections that had room when they were last asked."""
        return cast(list[Http2Connection], self._free)

    # Opening.

    def _connection(self, tls: TlsChannel | None, ready: asyncio.Future[None]) -> Http2Connection:
        return Http2Connection(self, self._clock, tls, ready, Http2Client())

    def _missing(self, count: int) -> int:
        """How many connections have to be opened for ``count`` requests at a time. One at first: it tells how
        many requests may share a connection."""
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
        """Submit the exchanges that wait for a connection that is open now, and find a place for those that
        it has no room for."""
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
        """Remove an exchange that has given up. When none is left, the attempt is given up too."""
        self.waiting.remove(exchange)
        if not self.waiting and self.task is not None:
            self.among.pop(self, None)
            self.task.cancel()


@dataclass(slots=True, eq=False)
class _Waiting:
    """An exchange that waits for a connection; the exchange's channel until there is one."""

    opening: _Opening
    exchange: Exchange

    def inspect(self) -> None:
        """Do nothing: nothing has arrived yet."""

    def abandon(self) -> None:
        self.opening.leave(self.exchange)
