"""A connection of HTTP/2 with a stream for each request, on the sockets of HTTP/1.1."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from typing import ClassVar

from pytest_llmbench.generator.http.http1 import Http1Connection, Owner
from pytest_llmbench.generator.http.tls import TlsChannel
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.timing.clock import Clock
from pytest_llmbench.wire.http2.client import Header, Http2Client, Stream


class NotHTTP2Error(Exception):
    """The server has answered the opening of a connection, and it is no HTTP/2."""


@dataclass(slots=True, eq=False)
class Carried:
    """An exchange on its stream: the channel of the exchange."""

    connection: Http2Connection
    exchange: Exchange
    stream: Stream
    reused: bool
    """Whether the connection had been there before."""

    def inspect(self) -> None:
        """Do nothing: reads are parsed as they come."""

    def abandon(self) -> None:
        self.connection.give_up(self)

    def tell_head(self) -> None:
        """Tell the exchange the status and the headers that have come."""
        if self.stream.status is not None:
            self.exchange.status, self.exchange.headers = self.stream.status, self.stream.headers


class Http2Connection(Http1Connection):
    """Reads are parsed as they come, since a ping wants its answer and a request more room.

    ``bodies`` of an exchange has the bytes of its stream in each read. As over HTTP/1.1 the head of a reply
    is its first byte, and is stamped; pings, settings and windows are of no reply, and are not. A read that
    has bytes of several streams is a read of each of them, with the same stamp.
    """

    lone: ClassVar[bool] = False
    """One stream at a time, whatever the server allows."""
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
        """Those whose last byte has not left."""
        self._written_last: Carried | None = None
        """The request that was the last write, if that was one."""
        self._opened = self._used = False
        self._retired = False
        """It takes no further stream, and is closed when the last one has ended."""
        self._heard_ns = 0
        self.offered = False
        """Whether the owner has it in its list."""

    @property
    def most(self) -> int:
        """Streams that it may have at a time."""
        return min(1, self._client.most_streams) if self.lone else self._client.most_streams

    @property
    def room(self) -> int:
        """Streams that may begin now."""
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
        """Cancel a stream from our side. A server that has said nothing since is not asked on here again,
        unless it was the user who did not wait for it."""
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
        """Close at once, with a word before it: the server need not find out by itself."""
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
        """The bytes can flow: say what we speak. Requests wait for the server's answer to that."""
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
        """Give each stream what the read has of it. The stamp is that of the last packet, whosever it was."""
        since_ns = self._came_apart(since_ns)
        shared = since_ns is not None and sum(bool(stream.pieces) for stream in progress) > 1
        for stream in progress:
            exchange = self._carried[stream.stream_id].exchange
            if since_ns is not None and shared and stream.pieces:
                exchange.shared_reads.append((len(exchange.stamps), since_ns))
            self._stamp(exchange, at_ns, since_ns if stream.pieces and not shared else None)
            exchange.bodies.append(stream.data)

    def _fail(self, problem: str) -> None:
        """What the server sends is of no use to any stream."""
        carried, self._carried = list(self._carried.values()), {}
        self.shut()
        for each in carried:
            each.tell_head()
            each.exchange.finish(End.GARBAGE, self._now(), problem)

    def _go_on(self) -> None:
        """After something has ended: be there for further requests, or close behind the last one."""
        if self._used and self.room:
            self._owner.release(self)
        elif not self._carried and self.alive and (self._retired or self._is_left):
            self.shut()

    @property
    def _is_left(self) -> bool:
        """Whether the server goes away, and nobody waits to hear of it: one that does is told, and retires
        the connection."""
        return self._client.going_away is not None and (self._used or self.offered)

    def _send_more(self) -> None:
        """Send what the connection wants sent, and of the requests what there is room for now."""
        data = self._client.to_send()
        if not data:
            return
        before_ns = self._now()
        if self._write(data):
            self._submitted(before_ns)

    def _submitted(self, at_ns: int) -> None:
        """Everything that was handed out has left by now."""
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
        """Send it once more: the server has done nothing of it."""
        self._go_on()
        exchange = carried.exchange
        exchange.stale_retries += 1
        exchange.submitted_ns = None
        self._owner.resend(exchange)

    def _may_retry(self, carried: Carried) -> bool:
        """As of a kept connection that was closed meanwhile: once, and only then. A server that takes no
        request on a new connection has refused it."""
        exchange = carried.exchange
        return carried.reused and not exchange.stamps and not exchange.stale_retries

    def _was_stale_for(self, carried: Carried) -> bool:
        # A link tells of its last write alone, which has to be that of the request.
        is_last = self._written_last is carried
        return is_last and self._may_retry(carried) and self._link.nothing_delivered()

    def _write(self, data: bytes) -> bool:
        """Whether the kernel took everything."""
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
        """The error that the trailers tell, if they do: those of HTTP tell none."""
        return None


def _declared_length(headers: list[Header]) -> int | None:
    said = next((value for name, value in headers if name == b"content-length"), b"")
    return int(said) if said.isdigit() else None
