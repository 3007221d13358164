"""WebSocket on connections of the load generator, each upgraded when it is opened, with one request at a
time, whose bytes are made before anything is timed."""

from __future__ import annotations

from collections.abc import Callable

from pytest_llmbench.extras.websocket.messages import MessageReader, Received, Refusal, text_frame
from pytest_llmbench.generator.http.connection import Connection, RefusedError, how_it_broke
from pytest_llmbench.generator.http.opener import Opener
from pytest_llmbench.generator.http.pool import Keeper, Pool
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.http_client import user_agent
from pytest_llmbench.timing import Clock
from pytest_llmbench.wire.dialect import MessageDialect, headers_for
from pytest_llmbench.wire.sse import as_event

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
            self._hear_of_upgrade()  # messages of greeting that come with it are passed over
        exchange = self._exchange
        if exchange is not None and read.of_messages:
            self._note(exchange, read, at_ns, since_ns)
        elif read.messages and self.connection.answered:
            self.connection.shut()  # messages that nobody asked for
        if self._reader.is_over and self._upgraded:
            self._closed_ns = at_ns
            self._stop()
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
            self._hear_of_upgrade()
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

    def _hear_of_upgrade(self) -> None:
        refusal = self._reader.refusal
        if self._reader.is_open:
            self._upgraded = True
            self.connection.ready()
        elif refusal is not None:
            self.connection.refuse(_refused(refusal))
            self.connection.shut()

    def _note(self, exchange: Exchange, read: Received, at_ns: int, since_ns: int | None) -> None:
        messages = read.messages
        since_ns = self.connection.came_apart(since_ns) if len(messages) > 1 else None
        at_ns = self.connection.stamp(exchange, at_ns, since_ns)
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
        usable = self.connection.alive and not surplus and not self._reader.is_over
        if usable and exchange.submitted_ns is not None and (alone or not self._spoken.is_error(last)):
            self.connection.kept(at_ns)
            self._keeper.release(self)
        else:
            self.connection.shut()
        exchange.finish(End.COMPLETE, at_ns)

    def _stop(self) -> None:
        """End the exchange: the server has closed, or what it sends is no WebSocket, or not for us."""
        exchange, problem = self._exchange, self._reader.problem
        if exchange is not None and problem and self._reader.closed is None:
            self._give_up(exchange, End.GARBAGE, problem)
        else:
            self.connection.ended(None)

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


def _refused(refusal: Refusal) -> RefusedError:
    """The error for an answer to the handshake that does not accept it."""
    error = RefusedError(refusal.reason)
    if refusal.status is not None and refusal.status >= 300:
        error.end, error.status, error.body = End.UNREACHABLE, refusal.status, refusal.body
        error.headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in refusal.headers]
    return error


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
