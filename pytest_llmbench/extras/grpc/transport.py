"""The gRPC transport: HTTP/2 with one call at a time on each connection, and the bytes of a call, made before
anything is timed."""

from __future__ import annotations

from collections.abc import Callable

from pytest_llmbench.extras.grpc.messages import prefixed, status_of
from pytest_llmbench.extras.http2.client import Stream
from pytest_llmbench.extras.http2.transport import Http2Head, Http2Pool, Requests
from pytest_llmbench.generator.http.pool import Opener
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.http_client import call_headers
from pytest_llmbench.timing import Clock
from pytest_llmbench.wire.dialect import CallDialect, headers_for
from pytest_llmbench.wire.error_replies import is_stream


class CallHead(Http2Head):
    """The part of a gRPC call that is the same for all calls to one method of a target; the counterpart of
    :class:`~pytest_llmbench.generator.http.request_head.RequestHead`.

    The id of a request is in its message, and the id of a session in its metadata.
    """

    headers_of = staticmethod(call_headers)

    def __init__(self, target: Target, spoken: CallDialect, path: str, session_header: str = "") -> None:
        """``session_header``: the name of the header with the id of the session; empty: it is not sent."""
        super().__init__(target, path, headers_for(spoken, dict(target.headers)), session_header)
        self._spoken = spoken

    def wire(self, request_id: str, body: bytes, session_id: str | None = None) -> bytes:
        return self._written([], prefixed(self._spoken.message(body, request_id)), session_id)


class Calls(Requests):
    """Calls of gRPC, one at a time on each connection: side by side they would wait for the bytes of one
    another, and their stamps with them.

    A status of the call that is an error has, in the place of a reply, the HTTP status that means the same;
    behind messages it is the error of a reply that is complete.
    """

    lone = True
    noun = "call"

    def error_in(self, exchange: Exchange, stream: Stream) -> str | None:
        if stream.status is None or not 200 <= stream.status < 300:
            return None
        # The status of the call tells success from failure; the page of a proxy has none.
        held = {name.decode("latin-1"): value.decode("latin-1") for name, value in stream.headers}
        if not is_stream(held, "grpc") and not any(name == b"grpc-status" for name, _ in stream.trailers):
            return None
        status = status_of(stream.trailers)
        if status.is_ok:
            return None
        if any(exchange.bodies):
            return status.text
        exchange.status = status.http_status
        exchange.bodies[-1] = status.text.encode()
        if status.retry_after:
            exchange.headers = [*exchange.headers, (b"retry-after", status.retry_after.encode())]
        return None


def carry(
    target: Target, spoken: CallDialect, path: str, session_header: str
) -> tuple[CallHead, Callable[[Clock, bool], Http2Pool]]:
    """The form of calls, and what makes the transport, with no limit on connections, as over HTTP/1.1."""

    def made(clock: Clock, kernel_stamps: bool) -> Http2Pool:
        return Http2Pool("grpc", Opener(target, clock, kernel_stamps=kernel_stamps), Calls())

    return CallHead(target, spoken, path, session_header), made
