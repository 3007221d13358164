"""The WebSocket transport: connections of the HTTP/1.1 transport, each upgraded when it is opened, with one
request at a time, whose bytes are made before anything is timed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress

from pytest_llmbench.generator.http.http1 import Http1Connection, Http1Transport, Owner
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.tls import TlsChannel
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.request_headers import user_agent
from pytest_llmbench.timing.clock import Clock
from pytest_llmbench.wire.dialect import MessageDialect, headers_for
from pytest_llmbench.wire.sse import as_event
from pytest_llmbench.wire.websocket.messages import MessageReader, Received, Refusal, text_frame

_HEADERS = [(b"content-type", b"text/event-stream")]
_OK = 200


class UpgradeRefusedError(Exception):
    """The server answered the handshake without accepting the WebSocket."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason)
        self.refusal = refusal


class WebSocketConnection(Http1Connection):
    """A WebSocket connection. Reads are parsed at once, since a ping needs its pong and a close its
    answer.

    ``bodies`` of the exchange has the messages that each read completed, as server-sent events; a message has
    the stamp of the read with its last byte. Reads of pings alone are none of the reply: they are not
    stamped, so a server that only pings runs into the deadlines. A status of 200 stands for a reply that has
    begun; that of an error message which refuses the request is told in its place.
    """

    def __init__(
        self,
        owner: Owner,
        clock: Clock,
        tls: TlsChannel | None,
        ready: asyncio.Future[None],
        reader: MessageReader,
        spoken: MessageDialect,
    ) -> None:
        super().__init__(owner, clock, tls, ready)
        self._reader = reader
        self._spoken = spoken
        self._upgraded = False
        self._messages = 0
        """Number of messages of the reply so far."""
        self._has_written = False
        """Whether something was written after the request."""
        self._closed_ns: int | None = None
        """The instant at which the server's close frame arrived; None while it has not."""

    def submit(self, exchange: Exchange, *, reused: bool) -> None:
        self._messages, self._has_written = 0, False
        super().submit(exchange, reused=reused)

    def shut(self) -> None:
        """Close at once, after a close frame, so that the server need not find out by itself."""
        self._write(self._reader.closing() or self._reader.to_send())
        super().shut()

    def ended(self, error: Exception | None) -> None:
        self._reader.end()
        if not self._upgraded:
            self._hear_of_upgrade()
        super().ended(error)

    # What it leads to.

    def _established(self) -> None:
        """Ask for the upgrade, now that bytes can flow."""
        self._write(self._reader.opening())

    def _hear_of_upgrade(self) -> None:
        refusal = self._reader.refusal
        if self._reader.is_open:
            self._upgraded = True
            super()._established()
        elif refusal is not None:
            if not self._ready.done():
                self._ready.set_exception(UpgradeRefusedError(refusal))
            self.shut()

    def _take(self, data: bytes, at_ns: int, since_ns: int | None) -> None:
        read = self._reader.feed(data)
        if not self._upgraded:
            self._hear_of_upgrade()  # messages of greeting that come with it are passed over
        exchange = self._exchange
        if exchange is not None and read.of_messages:
            self._note(exchange, read, at_ns, since_ns)
        elif read.messages and self.answered:
            self.shut()  # messages that nobody asked for
        if self._reader.is_over and self._upgraded:
            self._closed_ns = at_ns
            self._stop()
        self._write(self._reader.to_send())
        if self._reader.is_over:
            self._link.close()

    def _note(self, exchange: Exchange, read: Received, at_ns: int, since_ns: int | None) -> None:
        messages = read.messages
        at_ns = self._stamp(exchange, at_ns, self._came_apart(since_ns) if len(messages) > 1 else None)
        if exchange.status is None:
            exchange.status, exchange.headers = _OK, _HEADERS
        last = next((n for n, message in enumerate(messages) if self._spoken.is_last(message)), None)
        heard = messages if last is None else messages[: last + 1]
        exchange.bodies.append(b"".join(map(as_event, heard)))
        self._messages += len(heard)
        if last is not None:
            self._complete_with(exchange, messages[last], at_ns, surplus=len(messages) > len(heard))

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
        usable = self.alive and not surplus and not self._reader.is_over
        if usable and exchange.submitted_ns is not None and (alone or not self._spoken.is_error(last)):
            self._keep(at_ns)
        else:
            self.shut()
        exchange.finish(End.COMPLETE, at_ns)

    def _stop(self) -> None:
        """End the exchange: the server has closed, or what it sends is no WebSocket, or not for us."""
        exchange, problem = self._exchange, self._reader.problem
        if exchange is not None and problem and self._reader.closed is None:
            self._give_up(exchange, End.GARBAGE, self._now(), problem)
        else:
            super().ended(None)

    def _write(self, data: bytes) -> None:
        if data:
            self._has_written = True
            with suppress(ssl.SSLError):  # the other side has closed its end of TLS
                self._link.write(data if self._tls is None else self._tls.encrypt(data))

    # What is different from HTTP.

    def _tell_head(self, exchange: Exchange) -> None:
        """Do nothing: it was told with the first message."""

    def _ends_by_closing(self) -> bool:
        return self._reader.closed_normally and self._exchange is not None and bool(self._exchange.stamps)

    def _closing(self) -> str:
        closed = self._reader.closed
        return super()._closing() if closed is None else f"closed the WebSocket with code {closed}"

    def _was_stale(self, exchange: Exchange) -> bool:
        if not self._reused or exchange.stamps or exchange.stale_retries:
            return False
        closed_ns, submitted_ns = self._closed_ns, exchange.submitted_ns
        if closed_ns is not None and submitted_ns is not None and closed_ns < submitted_ns:
            return True  # it reads nothing more once it has said so (RFC 6455, section 5.5.1)
        # A link tells of its last write alone, which has to be that of the request.
        return not self._has_written and self._link.nothing_delivered()


class WebSocketTransport(Http1Transport):
    """The WebSocket transport: one request at a time on each connection, and no limit on connections, as over
    HTTP/1.1.

    The handshake belongs to opening a connection: it comes before the submission of a request that needs a
    new one, and is in no TTFT.
    """

    name = "websocket"

    def __init__(
        self, target: Target, clock: Clock, spoken: MessageDialect, path: str, *, kernel_stamps: bool = True
    ) -> None:
        """``path``: the path of the dialect for this model."""
        super().__init__(target, clock, kernel_stamps=kernel_stamps)
        self._spoken = spoken
        self._url = f"{target.scheme}://{target.authority}{target.request_target(path)}"
        given = dict(target.headers)
        self._headers: Mapping[str, str] = {
            **({} if "user-agent" in map(str.lower, given) else {"User-Agent": user_agent()}),
            **given,
            **headers_for(spoken, given),
        }

    def _connection(self, tls: TlsChannel | None, ready: asyncio.Future[None]) -> WebSocketConnection:
        reader = MessageReader(self._url, self._headers.items())
        return WebSocketConnection(self, self._clock, tls, ready, reader, self._spoken)

    async def _add_one(self) -> bool:
        try:
            return await super()._add_one()
        except UpgradeRefusedError:
            return False

    async def _open_and_submit(self, exchange: Exchange) -> None:
        try:
            await super()._open_and_submit(exchange)
        except UpgradeRefusedError as error:
            self._refuse(exchange, error.refusal)

    def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        """Finish an exchange whose handshake was refused. The status of the answer says more than that there
        was no connection."""
        now_ns, reason = self._clock.monotonic_ns(), f"{self._target.place}: {refusal.reason}"
        if refusal.status is None or refusal.status < 300:
            exchange.finish(End.GARBAGE, now_ns, reason)
            return
        exchange.status, exchange.bodies = refusal.status, [refusal.body]
        exchange.headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers
        ]
        exchange.finish(End.UNREACHABLE, now_ns, reason)


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
