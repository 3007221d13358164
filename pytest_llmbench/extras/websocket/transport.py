"""WebSocket on connections of the load generator, each upgraded when it is opened, with one request at a
time, whose bytes are made before anything is timed.

The client's side of a WebSocket connection (RFC 6455), without a socket: bytes in, messages out.

Framing, handshake and closing are those of the package websockets. Compression is never offered, as it is not
over HTTP: what is compressed arrives in lumps. Messages do not depend on how the bytes were cut into reads.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import httpx
from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.uri import parse_uri

from pytest_llmbench.errors import SUTError
from pytest_llmbench.generator.http.connection import Connection, RefusedError, how_it_broke
from pytest_llmbench.generator.http.pool import Keeper, Opener, Pool
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.http_client import user_agent
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import CutOffError, PlainSocket, TransportReply
from pytest_llmbench.timing import Clock
from pytest_llmbench.wire.dialect import MessageDialect, headers_for
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.wire.sse import DEFAULT_MAX_LINE_BYTES, as_event

_HEADERS = [(b"content-type", b"text/event-stream")]
_OK = 200


class WebSocket:
    """A WebSocket on a connection. Reads are parsed at once, since a ping needs its pong and a close its
    answer.

    ``bodies`` of the exchange has the messages that each read completed, as server-sent events; a message has
    the stamp of the read with its last byte. Reads of pings alone are none of the reply: they are not
    stamped, so a server that only pings runs into the deadlines. A status of 200 stands for a reply that has
    begun; that of an error message which refuses the request is told in its place.
    """

    def __init__(
        self, connection: Connection, keeper: Keeper, reader: MessageReader, spoken: MessageDialect
    ) -> None:
        self.connection = connection
        self._keeper = keeper
        self._reader = reader
        self._spoken = spoken
        self._exchange: Exchange | None = None
        self._upgraded = self._reused = False
        self._messages = 0
        """Number of messages of the reply so far."""
        self._has_written = False
        """Whether something was written after the request."""
        self._closed_ns: int | None = None
        """The instant at which the server's close frame arrived; None while it has not."""
        connection.speak(self)

    def submit(self, exchange: Exchange, *, reused: bool) -> None:
        self._messages, self._has_written = 0, False
        self._exchange, self._reused = exchange, reused
        exchange.channel = self
        self.connection.submit(exchange, exchange.request.wire)

    def inspect(self) -> None:
        """Do nothing: reads are parsed as they come."""

    def look(self, exchange: Exchange) -> None:
        """Do nothing, for the same reason."""

    def abandon(self) -> None:
        self._exchange = None
        self.connection.shut()

    # What the connection tells.

    def established(self) -> None:
        """Ask for the upgrade, now that bytes can flow."""
        self._write(self._reader.opening())

    def take(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        read = self._reader.feed(data)
        if not self._upgraded:
            self._check_upgrade()  # messages of greeting that come with it are passed over
        exchange = self._exchange
        if exchange is not None and read.of_messages:
            self._note(exchange, read, at_ns, since_ns)
        elif read.messages and self.connection.answered:
            self.connection.shut()  # messages that nobody asked for
        if (
            self._reader.is_over and self._upgraded
        ):  # it has closed, or sends what is not WebSocket or not for us
            self._closed_ns, problem = at_ns, self._reader.problem
            if self._exchange is not None and problem and self._reader.closed is None:
                self._give_up(self._exchange, End.GARBAGE, problem)
            else:
                self.connection.ended(None)
        self._write(self._reader.to_send())
        if self._reader.is_over:
            self.connection.close_link()

    def written(self, whole: bool) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.submitted_ns is None:
            exchange.sending_ns = self.connection.now()
            if whole:
                exchange.submitted_ns = exchange.sending_ns

    def ended(self, error: Exception | None) -> None:
        self._reader.end()
        if not self._upgraded:
            self._check_upgrade()
        exchange = self._exchange
        if exchange is None:
            return
        if error is None and self._reader.closed_normally and exchange.stamps:
            self._give_up(exchange, End.COMPLETE)
        elif self._was_stale(exchange):
            self._exchange = None
            self._keeper.retry(exchange)
        else:
            closed = self._reader.closed
            how = "closed the connection" if closed is None else f"closed the WebSocket with code {closed}"
            reason = how_it_broke(error, exchange, reused=self._reused, closing=how)
            self._give_up(exchange, End.BROKEN, reason)

    def farewell(self) -> bytes:
        """A close frame, so that the server need not find out by itself."""
        return self._reader.closing() or self._reader.to_send()

    # What it leads to.

    def _check_upgrade(self) -> None:
        refusal = self._reader.refusal
        if self._reader.is_open:
            self._upgraded = True
            self.connection.ready()
        elif refusal is not None:
            error = RefusedError(refusal.reason)
            if refusal.status is not None and refusal.status >= 300:
                error.end, error.status, error.body = End.UNREACHABLE, refusal.status, refusal.body
                error.headers = [
                    (name.encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers
                ]
            self.connection.refuse(error)
            self.connection.shut()

    def _note(self, exchange: Exchange, read: Received, at_ns: int, since_ns: int | None) -> None:
        messages = read.messages
        since_ns = self.connection.came_apart(since_ns) if len(messages) > 1 else None
        at_ns = self.connection.stamp(exchange, at_ns, since_ns)
        if exchange.status is None:
            exchange.status, exchange.headers = _OK, _HEADERS
        last = next((n for n, message in enumerate(messages) if self._spoken.is_last(message)), None)
        own = messages if last is None else messages[: last + 1]
        exchange.bodies.append(b"".join(map(as_event, own)))
        self._messages += len(own)
        if last is not None:
            self._complete_with(exchange, messages[last], at_ns, surplus=len(messages) > len(own))

    def _complete_with(self, exchange: Exchange, last: bytes, at_ns: int, *, surplus: bool) -> None:
        """Finish the exchange with a complete reply; a refusal consists of its status and its message
        alone.

        After an error in the midst of a reply nobody knows whether the rest is still to come.
        """
        self._exchange = None
        alone = self._messages == 1
        status = self._spoken.refusal_status(last) if alone else None
        if status is not None:
            exchange.status, exchange.bodies[-1] = status, last
        usable = self.connection.alive and not surplus and not self._reader.is_over
        if usable and exchange.submitted_ns is not None and (alone or not self._spoken.is_error(last)):
            self.connection.kept(at_ns)
            self._keeper.release(self)
        else:
            self.connection.shut()
        exchange.finish(End.COMPLETE, at_ns)

    def _give_up(self, exchange: Exchange, end: End, error: str | None = None) -> None:
        self._exchange = None
        self.connection.shut()
        exchange.finish(end, self.connection.now(), error)

    def _was_stale(self, exchange: Exchange) -> bool:
        if not self._reused or exchange.stamps or exchange.stale_retries:
            return False
        closed_ns, submitted_ns = self._closed_ns, exchange.submitted_ns
        if closed_ns is not None and submitted_ns is not None and closed_ns < submitted_ns:
            return True  # it reads nothing more once it has said so (RFC 6455, section 5.5.1)
        # A link tells of its last write alone, which has to be that of the request.
        return not self._has_written and self.connection.nothing_delivered()

    def _write(self, data: bytes) -> None:
        self._has_written = self._has_written or bool(data)
        self.connection.write(data)


def carry(
    target: Target, spoken: MessageDialect, path: str, session_header: str
) -> tuple[RequestFrame, Callable[[Clock, bool], Pool]]:
    """The form of requests over WebSocket and what makes the transport: one request at a time on each
    connection.

    The handshake belongs to opening a connection: it comes before the submission of a request that needs a
    new one, and is in no TTFT. ``session_header`` is not sent, since connections carry many sessions.
    """
    del session_header
    url = f"{target.scheme}://{target.authority}{target.request_target(path)}"
    given = dict(target.headers)
    own = {} if "user-agent" in map(str.lower, given) else {"User-Agent": user_agent()}
    headers = {**own, **given, **headers_for(spoken, given)}

    def speak(connection: Connection, keeper: Keeper) -> WebSocket:
        return WebSocket(connection, keeper, MessageReader(url, headers.items()), spoken)

    def made(clock: Clock, kernel_stamps: bool) -> Pool:
        return Pool("websocket", Opener(target, clock, kernel_stamps=kernel_stamps), speak)

    return RequestFrame(spoken), made


class RequestFrame:
    """The form of requests over WebSocket; the counterpart of
    :class:`~pytest_llmbench.generator.http.request_head.RequestHead`."""

    session_header = ""
    """Empty: headers belong to the connection, which carries the turns of many sessions."""

    def __init__(self, spoken: MessageDialect) -> None:
        self._spoken = spoken

    def wire(self, request_id: str, body: bytes, _: str | None = None) -> bytes:
        """The message in one masked frame, for one write. The id of a session has no place in it."""
        return text_frame(self._spoken.message(body, request_id))


_MOST_BYTES = 4 * 1024 * 1024
_STREAM = (("content-type", "text/event-stream"),)
_PLAIN = (("content-type", "application/json"),)


def ask(
    url: str,
    spoken: MessageDialect,
    body: bytes,
    request_id: str,
    *,
    headers: Mapping[str, str],
    access: Access,
    tls: ssl.SSLContext,
) -> TransportReply:
    """Open a WebSocket, send the message with ``body`` and read the reply to its last message, or to the
    limits. A refused handshake has its own status, headers and body.

    Raises httpx.RequestError, as a request over HTTP does, and SUTError for a server that speaks no
    WebSocket, or not ours.
    """
    with PlainSocket(url, access, tls) as sock:
        talk = _Talk(sock, url, MessageReader(url, headers.items()))
        return talk.open() or talk.ask(spoken, spoken.message(body, request_id))


@dataclass(slots=True)
class _Talk:
    sock: PlainSocket
    url: str
    reader: MessageReader
    messages: list[bytes] = field(default_factory=list)
    """Messages that have been received and not looked at yet."""

    def open(self) -> TransportReply | None:
        """Make the handshake; returns the answer if that refuses it, else None."""
        self._send(self.reader.opening())
        while not self.reader.is_open:
            refusal = self.reader.refusal
            if refusal is not None and refusal.status is not None and refusal.status >= 300:
                return TransportReply(refusal.status, refusal.headers, refusal.body)
            if refusal is not None:
                self._fail(refusal.reason)
            if not self._read():
                raise httpx.ReadError("the connection was closed within the handshake")
        self.messages.clear()  # a greeting
        return None

    def ask(self, spoken: MessageDialect, message: bytes) -> TransportReply:
        """The reply to one message."""
        self._send(text_frame(message))
        messages, ended = self._messages_read(spoken)
        self._send(self.reader.closing())
        status = spoken.refusal_status(messages[0]) if len(messages) == 1 else None
        if status is not None:
            return TransportReply(status, _PLAIN, messages[0])
        return TransportReply(_OK, _STREAM, b"".join(map(as_event, messages)), ended)

    def _messages_read(self, spoken: MessageDialect) -> tuple[list[bytes], bool]:
        """The messages up to the last one, or to the end of the connection; with False, up to a limit."""
        messages: list[bytes] = []
        while True:
            for message in self.messages:
                messages.append(message)
                if spoken.is_last(message):
                    return messages, True
            self.messages.clear()
            if self.reader.problem:
                self._fail(self.reader.problem)
            if self.reader.is_over and not messages:
                what = f"it closed the WebSocket with code {self.reader.closed}"
                raise SUTError(what, where=self.url, remedy="look into the server's log")
            if self.reader.is_over or sum(map(len, messages)) > _MOST_BYTES:
                return messages, self.reader.is_over
            try:
                more = self._read()
            except httpx.ReadTimeout:
                if not messages:
                    raise
                return messages, False
            if not more and not messages:
                raise CutOffError.behind("a WebSocket, and before any message", "the reply was not complete")
            if not more:
                return messages, True

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
        raise SUTError(what, where=self.url, remedy="check the path: it must be a WebSocket of the API")


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
        for frame in events:
            if not isinstance(frame, Frame) or frame.opcode not in _DATA:
                continue
            found.of_messages = True
            if frame.opcode is Opcode.BINARY:
                self.problem = self.problem or "a binary message, where messages are JSON text"
            if self.problem:
                continue
            self._parts.append(bytes(frame.data))
            if frame.fin:
                found.messages.append(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
                self._parts = []
        frames = [event for event in events if isinstance(event, Frame)]
        sizes = (
            2 + len(frame.data) + next((more for least, more in _LENGTHS if len(frame.data) >= least), 0)
            for frame in frames
        )
        left = self._unfinished + len(data) - sum(sizes) if frames == events else 0
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
