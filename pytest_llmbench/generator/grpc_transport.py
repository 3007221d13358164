"""The gRPC transport: connections of HTTP/2, each with one call at a time, and the bytes of a call, made
before anything is timed.
"""

from __future__ import annotations

import asyncio

from pytest_llmbench.endpoint_urls import GRPC_SCHEMES
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.tls import TlsChannel
from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.generator.http2_transport import Http2Connection, Http2Transport
from pytest_llmbench.request_headers import call_headers
from pytest_llmbench.timing.clock import Clock
from pytest_llmbench.wire.content_type import is_stream
from pytest_llmbench.wire.dialect import CallDialect, headers_for
from pytest_llmbench.wire.grpc.messages import prefixed
from pytest_llmbench.wire.grpc.status import CallStatus, status_of
from pytest_llmbench.wire.http2.client import Http2Client, Stream, header_block, request_frames


class CallHead:
    """The part of a gRPC call that is the same for all calls to one method of a target; the counterpart of
    :class:`~pytest_llmbench.generator.http.request_head.RequestHead`.

    The id of a request is in its message, and the id of a session in its metadata. Stream ids are set when it
    is known which connection takes the call.
    """

    def __init__(self, target: Target, spoken: CallDialect, path: str, session_header: str = "") -> None:
        """``session_header``: the name of the header with the id of the session; empty: it is not sent."""
        given = dict(target.headers)
        headers = call_headers(given, headers_for(spoken, given))
        fixed = {
            ":method": "POST",
            ":scheme": GRPC_SCHEMES[target.scheme],
            ":path": path,
            ":authority": target.authority,
        }
        self._spoken = spoken
        self._fixed = header_block((fixed | headers).items(), first=True)
        self.session_header = session_header

    def wire(self, request_id: str, body: bytes, session_id: str | None = None) -> bytes:
        """Headers and message in frames, for one write.

        ``session_id``: that of the session which the request is a turn of; None: it is of none.
        """
        block = self._fixed
        if session_id is not None and self.session_header:
            block += header_block([(self.session_header.lower(), session_id)])
        return request_frames(block, prefixed(self._spoken.message(body, request_id)))


class GrpcConnection(Http2Connection):
    """An HTTP/2 connection with gRPC calls. ``bodies`` of the exchange has the bytes of messages in each
    read.

    A status of the call that is an error has, in the place of a reply, the HTTP status that means the same;
    behind messages it is the error of a reply that is complete.
    """

    lone = True
    noun = "call"

    def _wrong_length(self, exchange: Exchange, stream: Stream) -> str | None:  # noqa: ARG002 - for HTTP
        return None

    def _read_trailers(self, exchange: Exchange, stream: Stream) -> str | None:
        if not _is_answer_of_grpc(stream):
            return None
        status = status_of(stream.trailers)
        if status.is_ok:
            return None
        if any(exchange.bodies):
            return status.text
        _refuse(exchange, status)
        return None


def _is_answer_of_grpc(call: Stream) -> bool:
    """Whether the reply is one of gRPC, whose call status tells success from failure. A proxy's page has
    none."""
    if call.status is None or not 200 <= call.status < 300:
        return False
    held = {name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers}
    return is_stream(held, "grpc") or any(name == b"grpc-status" for name, _ in call.trailers)


def _refuse(exchange: Exchange, status: CallStatus) -> None:
    """Give a refused call the form that a refusal has over HTTP."""
    exchange.status = status.http_status
    exchange.bodies[-1] = status.text.encode()
    if status.retry_after:
        exchange.headers = [*exchange.headers, (b"retry-after", status.retry_after.encode())]


class GrpcTransport(Http2Transport):
    """The gRPC transport: one call at a time on each connection, and no limit on connections, as over
    HTTP/1.1.

    Calls side by side on one connection would wait for the bytes of one another, and their stamps with them.
    """

    name = "grpc"

    def __init__(self, target: Target, clock: Clock, *, kernel_stamps: bool = True) -> None:
        super().__init__(target, clock, kernel_stamps=kernel_stamps)
        self._most = 1

    def _connection(self, tls: TlsChannel | None, ready: asyncio.Future[None]) -> GrpcConnection:
        return GrpcConnection(self, self._clock, tls, ready, Http2Client())
