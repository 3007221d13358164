"""One gRPC call that is not measured, the counterpart of a POST over HTTP.

It goes over a socket and a TLS context like those of every other request, so that certificates, deadlines and
errors are the same. There are no retries, and no proxies.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from pytest_llmbench.errors import SUTError
from pytest_llmbench.extras.grpc.messages import prefixed
from pytest_llmbench.extras.grpc.status import CallStatus, status_of
from pytest_llmbench.extras.http2.client import Header, Http2Client, Stream, request_bytes
from pytest_llmbench.http_client import call_headers
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import CutOffError, PlainSocket

_MOST_BYTES = 4 * 1024 * 1024
_CONTENT_TYPE = "application/grpc"
_TLS_ALERT = b"\x15\x03"

Headers = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class CallReply:
    """The reply to a call, in the form that HTTP would have brought it in.

    A call that failed has the HTTP status that means the same as its own, and its message as a body; any
    other is a stream of messages with status 200.
    """

    status: int
    headers: Headers
    body: bytes
    """Messages, each preceded by its length."""
    ended: bool = True
    """Whether the reply is complete; False if it was still going on when its time or its bytes were used
    up."""


def call(
    url: str, message: bytes, *, headers: Mapping[str, str], access: Access, tls: ssl.SSLContext
) -> CallReply:
    """Open a connection, call the method that is the path of ``url`` with one message, and read the reply to
    its end, or to the limits.

    Raises httpx.RequestError, as a request over HTTP does, and SUTError for a server that speaks no gRPC.
    """
    if urlsplit(url).scheme == "grpcs":
        tls.set_alpn_protocols(["h2"])
    with PlainSocket(url, access, tls) as sock:
        return _Exchange(sock, url).reply_to(message, headers)


@dataclass(slots=True)
class _Exchange:
    """A call that is the only one on its connection."""

    sock: PlainSocket
    url: str
    http2: Http2Client = field(default_factory=Http2Client)
    body: bytearray = field(default_factory=bytearray)

    def reply_to(self, message: bytes, headers: Mapping[str, str]) -> CallReply:
        parts = urlsplit(self.url)
        head = [
            (":method", "POST"),
            (":scheme", _http(parts.scheme)),
            (":authority", parts.netloc),
            (":path", parts.path),
            *call_headers(headers).items(),
        ]
        opening = self.http2.opening()
        made = self.http2.begin(request_bytes(head, prefixed(message)))
        self._send(opening + self.http2.to_send())
        ended = self._heard_out(made)
        self._send(self.http2.closing(), or_not=True)
        return self._reply(made, ended=ended)

    def _heard_out(self, made: Stream) -> bool:
        """Read the reply. True if it was read to its end, False if to a limit."""
        while not made.is_over:
            if len(self.body) > _MOST_BYTES:
                return False
            try:
                data = self.sock.receive()
            except httpx.ReadTimeout:
                if not self.body:
                    raise
                return False
            if not data and made.headers:
                begun = f"HTTP {made.status}, and after {len(self.body)} bytes of the answer"
                raise CutOffError.behind(begun, "the call was not complete")
            if not data:
                raise httpx.ReadError("the connection was closed before the end of the call")
            for stream in self.http2.feed(data).progress:
                self.body += stream.data
            if self.http2.problem and data.startswith(_TLS_ALERT):
                raise httpx.RemoteProtocolError(self.http2.problem)  # which has the port asked for TLS
            if self.http2.problem:
                raise self._no_grpc(self.http2.problem)
            self._send(self.http2.to_send(), or_not=made.is_over)
        if made.reset or made.unprocessed:
            raise httpx.RemoteProtocolError(f"the call was broken off: {made.reset or self.http2.going_away}")
        return True

    def _send(self, data: bytes, *, or_not: bool = False) -> None:
        """Send bytes. ``or_not``: the call is over, so that the server may have left."""
        try:
            self.sock.send(data)
        except (httpx.WriteTimeout, httpx.WriteError):
            if not or_not:
                raise

    def _reply(self, made: Stream, *, ended: bool) -> CallReply:
        headers = _text(made.headers)
        if made.status != 200:  # of something between that is HTTP and no gRPC
            return CallReply(made.status or 502, headers, bytes(self.body))
        kind = dict(headers).get("content-type", "")
        if not kind.startswith(_CONTENT_TYPE):
            raise self._no_grpc(f"its answer is {kind or 'without a content type'}")
        if not ended:
            return CallReply(200, headers, bytes(self.body), ended=False)
        told = status_of(made.trailers)
        return CallReply(200, headers, bytes(self.body)) if told.is_ok else _failed(told, headers)

    def _no_grpc(self, what: str) -> SUTError:
        parts = urlsplit(self.url)
        return SUTError(
            f"no gRPC there: {what}",
            where=self.url,
            remedy="give the port of the server's gRPC; an API over HTTP is "
            f"--llm-endpoint={_http(parts.scheme)}://{parts.netloc}/v1",
        )


def _failed(told: CallStatus, headers: Headers) -> CallReply:
    more = [("grpc-status", told.code)]
    if told.retry_after:
        more.append(("retry-after", told.retry_after))
    kept = [(name, value) for name, value in headers if name not in ("grpc-status", "content-type")]
    return CallReply(told.http_status, (*kept, *more), told.message.encode())


def _http(scheme: str) -> str:
    return "https" if scheme == "grpcs" else "http"


def _text(headers: Iterable[Header]) -> Headers:
    return tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
