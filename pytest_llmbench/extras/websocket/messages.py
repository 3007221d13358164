"""The client's side of a WebSocket connection (RFC 6455), without a socket: bytes in, messages out.

Framing, handshake and closing are those of the package websockets. Compression is never offered, as it is not
over HTTP: what is compressed arrives in lumps. Messages do not depend on how the bytes were cut into reads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.wire.sse import DEFAULT_MAX_LINE_BYTES

# Not a logger of the tree: one that is set to DEBUG there would be told every prompt and every key.
_SILENT = logging.Logger("websocket", logging.CRITICAL + 1)

_CONTROL = 0x08
"""The bit of an opcode that says that a frame is one of control (RFC 6455, section 5.5)."""
_LENGTHS = ((1 << 16, 8), (126, 2))
"""Least bytes of content → bytes of length that follow a frame's head of two."""
_DATA = (Opcode.TEXT, Opcode.BINARY, Opcode.CONT)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server answered the handshake without accepting the WebSocket."""

    reason: str
    status: int | None = None
    """HTTP status of its answer; None: the answer is not HTTP, or a wrong handshake."""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(slots=True)
class Received:
    """The content of one read."""

    messages: list[bytes] = field(default_factory=list)
    """The text messages that it completed, in order; not checked to be UTF-8."""
    of_messages: bool = False
    """Whether it had anything of a message, even a part. Pings, pongs and closes are no messages."""


class MessageReader:
    """The state of a connection. Feed it reads in order; send what ``to_send`` gives after each. Never raises
    because of what a server sends.

    ``refusal``, ``closed`` and ``problem`` say why there is no WebSocket, or none any more.
    """

    def __init__(
        self,
        url: str,
        headers: Iterable[tuple[str, str]] = (),
        *,
        max_message_bytes: int = DEFAULT_MAX_LINE_BYTES,
    ) -> None:
        """``headers``: further headers of the handshake."""
        self._protocol = ClientProtocol(parse_uri(url), max_size=max_message_bytes, logger=_SILENT)
        self._headers = tuple(headers)
        self._parts: list[bytes] = []
        """The frames so far of a message in several frames."""
        self._ended = False
        self._unfinished = 0
        """Number of bytes so far of a frame that is not complete, and whether it is one of control."""
        self._of_control = False
        self.refusal: Refusal | None = None
        self.closed: str | None = None
        """The server's close frame in words: its code, the meaning, and the stated reason; None before
        one."""
        self.closed_normally = False
        """Whether its code was 1000: the server has sent everything."""
        self.problem = ""
        """Why what was received is not WebSocket, or not meant for us; empty if there is no problem."""

    @property
    def is_open(self) -> bool:
        """Whether the handshake has succeeded and nobody has closed."""
        return self._protocol.state is State.OPEN and not self._ended

    @property
    def is_over(self) -> bool:
        """Whether no further message can come."""
        return self.closed is not None or bool(self.problem) or self.refusal is not None

    def opening(self) -> bytes:
        """The bytes of the handshake, to be sent first."""
        request = self._protocol.connect()
        for name, value in self._headers:
            request.headers[name] = value
        self._protocol.send_request(request)
        return self.to_send()

    def feed(self, data: bytes) -> Received:
        """Process a read; returns what was in it."""
        self._protocol.receive_data(data)
        return self._received(data)

    def end(self) -> None:
        """Note the end of the stream. Safe to call twice."""
        if not self._ended:
            self._ended = True
            self._protocol.receive_eof()
            self._received()

    def to_send(self) -> bytes:
        """The bytes that the protocol has to send now: pongs, the answer to a close, the reason for giving
        up."""
        return b"".join(self._protocol.data_to_send())  # its sign for half a close is no byte

    def closing(self) -> bytes:
        """The close frame to send before the connection is closed; empty where there is no WebSocket."""
        if not self.is_open:
            return b""
        self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        return self.to_send()

    def _received(self, data: bytes = b"") -> Received:
        protocol, found = self._protocol, Received()
        events = protocol.events_received()
        for event in events:
            if isinstance(event, Frame) and event.opcode in _DATA:
                self._take(event, found)
        frames = [event for event in events if isinstance(event, Frame)]
        left = self._unfinished + len(data) - sum(map(_size, frames)) if frames == events else 0
        if 0 < left <= len(data):
            self._of_control = data[-left] & _CONTROL != 0
        self._unfinished = left if self.is_open and left > 0 else 0
        if not events and self.is_open and data and not self._of_control:
            found.of_messages = True  # a part of a frame
        if protocol.handshake_exc is not None and self.refusal is None:
            self.refusal = self._refusal(protocol.handshake_exc)
        if protocol.close_rcvd is not None:
            self.closed = shorten(str(protocol.close_rcvd))
            self.closed_normally = protocol.close_rcvd.code == CloseCode.NORMAL_CLOSURE
        elif protocol.parser_exc is not None and not self._ended:
            self.problem = self.problem or shorten(f"not WebSocket: {protocol.parser_exc}")
        return found

    def _take(self, frame: Frame, found: Received) -> None:
        found.of_messages = True
        if frame.opcode is Opcode.BINARY:
            self.problem = self.problem or "a binary message, where messages are JSON text"
        if self.problem:
            return
        self._parts.append(bytes(frame.data))
        if frame.fin:
            found.messages.append(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
            self._parts = []

    def _refusal(self, error: Exception) -> Refusal | None:
        """The refusal in a failed handshake; ``None`` for a connection that ended without an answer."""
        if isinstance(error, InvalidStatus):
            answer: Response = error.response
            reason = f"HTTP {answer.status_code} in place of a WebSocket (101)"
            headers = tuple(answer.headers.raw_items())
            return Refusal(reason, answer.status_code, headers, bytes(answer.body or b""))
        cause = error.__cause__ or error
        if isinstance(cause, EOFError):  # which also stands for lines that end like those of no HTTP
            return None if self._ended else Refusal("no WebSocket handshake: not HTTP")
        return Refusal(shorten(f"no WebSocket handshake: {cause}"))


def text_frame(message: bytes) -> bytes:
    """A message as a client sends it: one frame, masked."""
    return Frame(Opcode.TEXT, message).serialize(mask=True)


def _size(frame: Frame) -> int:
    """Length of a frame of a server as it is sent."""
    length = len(frame.data)
    return 2 + length + next((more for least, more in _LENGTHS if length >= least), 0)
