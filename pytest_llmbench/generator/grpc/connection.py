"""A connection of HTTP/2 with one gRPC call at a time."""

from __future__ import annotations

from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.generator.http2.connection import Http2Connection
from pytest_llmbench.wire.content_type import is_stream
from pytest_llmbench.wire.grpc.status import CallStatus, status_of
from pytest_llmbench.wire.http2.client import Stream


class GrpcConnection(Http2Connection):
    """``bodies`` of the exchange has the bytes of messages in each read.

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
