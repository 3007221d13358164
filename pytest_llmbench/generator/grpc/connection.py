"""A connection of HTTP/2 with one gRPC call at a time, on the sockets of HTTP/1.1."""

from __future__ import annotations

import asyncio
import ssl

from pytest_llmbench.generator.http.http1 import Http1Connection, Owner
from pytest_llmbench.generator.http.tls import TlsChannel
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.timing.clock import Clock
from pytest_llmbench.wire.content_type import is_stream
from pytest_llmbench.wire.grpc.call import Call, CallConnection
from pytest_llmbench.wire.grpc.status import CallStatus, status_of


class NotHTTP2Error(Exception):
    """The server has answered the opening of a connection, and it is no HTTP/2."""


class GrpcConnection(Http1Connection):
    """Reads are parsed as they come, since a ping wants its answer and a request more room.

    ``bodies`` of the exchange has the bytes of messages in each read. As over HTTP/1.1 the head of a reply is
    its first byte, and is stamped; pings, settings and windows are of no reply, and are not. A status of the
    call that is an error has, in the place of a reply, the HTTP status that means the same; behind messages
    it is the error of a reply that is complete.
    """

    def __init__(
        self,
        owner: Owner,
        clock: Clock,
        tls: TlsChannel | None,
        ready: asyncio.Future[None],
        calls: CallConnection,
    ) -> None:
        super().__init__(owner, clock, tls, ready)
        self._calls = calls
        self._opened = False
        self._has_written = False
        """Something was written after the request."""

    def submit(self, exchange: Exchange, *, reused: bool) -> None:
        self._has_written = False
        super().submit(exchange, reused=reused)
        if not self._calls.all_sent:  # the rest goes as the server makes room for it
            exchange.submitted_ns = None

    def shut(self) -> None:
        """Close at once, with a word before it: the server need not find out by itself."""
        self._write(self._calls.closing())
        super().shut()

    def written(self) -> None:
        if self._calls.all_sent:
            super().written()

    # What it leads to.

    def _established(self) -> None:
        """The bytes can flow: say what we speak. Calls wait for the server's answer to that."""
        self._write(self._calls.opening())

    def _outgoing(self, exchange: Exchange) -> bytes:
        return self._calls.begin(exchange.request.wire)

    def _take(self, data: bytes, at_ns: int, since_ns: int | None) -> None:
        calls = self._calls
        read = calls.feed(data)
        if self._exchange is not None and read.of_call:
            self._stamp(self._exchange, at_ns, since_ns if read.data else None)
            self._exchange.bodies.append(read.data)
        self._send_more()
        if not self._opened:
            self._hear_of_opening()
        call = calls.call
        if self._exchange is not None and call is not None and call.is_over:
            self._end(self._exchange, call)
        if calls.problem:
            if self._exchange is not None:
                self._give_up(self._exchange, End.GARBAGE, self._now(), calls.problem)
            self.shut()
        elif calls.going_away is not None and self._exchange is None:
            self.shut()

    def _send_more(self) -> None:
        """Send what the connection wants sent, and of the request what there is room for now."""
        data = self._calls.to_send()
        before_ns = self._now()
        if not data or not self._write(data):
            return
        exchange = self._exchange
        if exchange is not None and exchange.submitted_ns is None and self._calls.all_sent:
            exchange.submitted_ns = before_ns

    def _hear_of_opening(self) -> None:
        if self._calls.is_ready:
            self._opened = True
            super()._established()
        elif self._calls.problem and not self._ready.done():
            self._ready.set_exception(NotHTTP2Error(self._calls.problem))

    def _end(self, exchange: Exchange, call: Call) -> None:
        if call.unprocessed and self._may_retry(exchange):
            self._retry(exchange)
        elif call.reset:
            self._break(exchange, f"reset the call ({call.reset})")
        elif call.unprocessed:
            self._break(exchange, f"went away ({self._calls.going_away}) without having begun the call")
        else:
            self._complete_with(exchange, call)

    def _complete_with(self, exchange: Exchange, call: Call) -> None:
        exchange.status, exchange.headers = call.status, call.headers
        error = None
        if _is_answer_of_grpc(call):
            status = status_of(call.trailers)
            if not status.is_ok and any(exchange.bodies):
                error = status.text
            elif not status.is_ok:
                _refuse(exchange, status)
        at_ns = exchange.stamps[-1]
        self._exchange = None
        calls = self._calls
        sent = calls.all_sent and exchange.submitted_ns is not None
        if self.alive and sent and calls.going_away is None and not calls.problem:
            self._keep(at_ns)
        else:
            self.shut()
        exchange.finish(End.COMPLETE, at_ns, error)

    def _break(self, exchange: Exchange, how: str) -> None:
        when = "before the response was complete" if exchange.stamps else "before the first byte"
        self._give_up(exchange, End.BROKEN, self._now(), f"the server {how} {when}")

    def _retry(self, exchange: Exchange) -> None:
        """Send it once more: the server says that it has done nothing of it."""
        self._exchange = None
        self.shut()
        exchange.stale_retries += 1
        exchange.submitted_ns = None
        self._owner.resend(exchange)

    def _may_retry(self, exchange: Exchange) -> bool:
        """As of a kept connection that was closed meanwhile: once, and only then. A server that takes no call
        on a new connection has refused it."""
        return self._reused and not exchange.stamps and not exchange.stale_retries

    def _write(self, data: bytes) -> bool:
        """Whether the kernel took everything."""
        if not data:
            return True
        self._has_written = True
        try:
            return self._link.write(data if self._tls is None else self._tls.encrypt(data))
        except ssl.SSLError:  # the other side has closed its end of TLS
            return False

    # What is different from HTTP/1.1.

    def _tell_head(self, exchange: Exchange) -> None:
        call = self._calls.call
        if call is not None and call.status is not None:
            exchange.status, exchange.headers = call.status, call.headers

    def _ends_by_closing(self) -> bool:
        return False

    def _closing(self) -> str:
        away = self._calls.going_away
        return super()._closing() if away is None else f"went away ({away}) and closed the connection"

    def _was_stale(self, exchange: Exchange) -> bool:
        # A link tells of its last write alone, which has to be that of the request.
        return self._may_retry(exchange) and not self._has_written and self._link.nothing_delivered()


def _is_answer_of_grpc(call: Call) -> bool:
    """Whether a success of HTTP is for the status of the call to judge. A page of a proxy has none."""
    if call.status is None or not 200 <= call.status < 300:
        return False
    held = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers}
    return is_stream(held, "grpc") or any(name == b"grpc-status" for name, _ in call.trailers)


def _refuse(exchange: Exchange, status: CallStatus) -> None:
    """Give a refusal the form that it has over HTTP."""
    exchange.status = status.http_status
    exchange.bodies[-1] = status.text.encode()
    if status.retry_after:
        exchange.headers = [*exchange.headers, (b"retry-after", status.retry_after.encode())]
