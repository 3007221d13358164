"""One message over WebSocket with its reply, not measured: the counterpart of a POST over HTTP."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx

from pytest_llmbench.errors import SUTError
from pytest_llmbench.extras.websocket.messages import MessageReader, text_frame
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import CutOffError, PlainSocket
from pytest_llmbench.wire.dialect import MessageDialect
from pytest_llmbench.wire.sse import as_event

_MOST_BYTES = 4 * 1024 * 1024
_STREAM = (("content-type", "text/event-stream"),)
_PLAIN = (("content-type", "application/json"),)


@dataclass(slots=True)
class MessageReply:
    """The reply to a message, in the form that HTTP would have brought it in.

    A refused handshake has its own status, headers and body, an error message that refuses the request its
    status; any other reply is a stream of events with status 200.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = _STREAM
    body: bytes = b""
    ended: bool = True
    """Whether the reply is complete; False if it was still going on when its time or its bytes were used
    up."""


def ask(
    url: str,
    spoken: MessageDialect,
    body: bytes,
    request_id: str,
    *,
    headers: Mapping[str, str],
    access: Access,
    tls: ssl.SSLContext,
) -> MessageReply:
    """Open a WebSocket, send the message with ``body`` and read the reply to its last message, or to the
    limits.

    Raises httpx.RequestError, as a request over HTTP does, and SUTError for a server that speaks no
    WebSocket, or not ours.
    """
    with PlainSocket(url, access, tls) as sock:
        talk = _Talk(sock, url, MessageReader(url, headers.items()))
        return talk.open() or talk.ask(spoken, spoken.message(body, request_id))


@dataclass(slots=True)
class _Talk:
    """The conversation on one connection."""

    sock: PlainSocket
    url: str
    reader: MessageReader
    messages: list[bytes] = field(default_factory=list)
    """Messages that have been received and not looked at yet."""

    def open(self) -> MessageReply | None:
        """Make the handshake; returns the answer if that refuses it, else None."""
        self._send(self.reader.opening())
        while not self.reader.is_open:
            refusal = self.reader.refusal
            if refusal is not None and refusal.status is not None and refusal.status >= 300:
                return MessageReply(refusal.status, refusal.headers, refusal.body)
            if refusal is not None:
                self._fail(refusal.reason)
            if not self._read():
                raise httpx.ReadError("the connection was closed within the handshake")
        self.messages.clear()  # a greeting
        return None

    def ask(self, spoken: MessageDialect, message: bytes) -> MessageReply:
        """The reply to one message."""
        self._send(text_frame(message))
        heard, ended = self._heard(spoken)
        self._send(self.reader.closing())
        status = spoken.refusal_status(heard[0]) if len(heard) == 1 else None
        if status is not None:
            return MessageReply(status, _PLAIN, heard[0])
        return MessageReply(body=b"".join(map(as_event, heard)), ended=ended)

    def _heard(self, spoken: MessageDialect) -> tuple[list[bytes], bool]:
        """The messages up to the last one, or to the end of the connection; with False, up to a limit."""
        heard: list[bytes] = []
        while True:
            for message in self.messages:
                heard.append(message)
                if spoken.is_last(message):
                    return heard, True
            self.messages.clear()
            if self.reader.problem:
                self._fail(self.reader.problem)
            if self.reader.is_over and not heard:
                what = f"it closed the WebSocket with code {self.reader.closed}"
                raise SUTError(what, where=self.url, remedy="look into the server's log")
            if self.reader.is_over or sum(map(len, heard)) > _MOST_BYTES:
                return heard, self.reader.is_over
            try:
                more = self._read()
            except httpx.ReadTimeout:
                if not heard:
                    raise
                return heard, False
            if not more and not heard:
                raise CutOffError.behind("a WebSocket, and before any message", "the reply was not complete")
            if not more:
                return heard, True

    def _read(self) -> bool:
        """Read once. False at the end of the connection."""
        data = self.sock.receive()
        if data:
            self.messages += self.reader.feed(data).messages
            self._send(self.reader.to_send())
        else:
            self.reader.end()
        return bool(data) or self.reader.refusal is not None

    def _send(self, data: bytes) -> None:
        try:
            self.sock.send(data)
        except httpx.WriteError:
            if not self.reader.is_over:
                raise

    def _fail(self, what: str) -> None:
        raise SUTError(what, where=self.url, remedy="check the path: it has to be a WebSocket of the API")
