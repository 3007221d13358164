"""The client's side of an HTTP/2 connection, without a socket: gRPC calls and requests of HTTP alike.

Frames, header blocks and windows are the package h2's. It hands on the bytes of a ``DATA`` frame when the
frame is whole, so all of them have the stamp of the read that brought its last byte.
Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK), gRPC over HTTP2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from pytest_llmbench.wire.error_replies import shorten

_HEAD_BYTES = 9
_MOST_FRAME_BYTES = 16_384
"""Largest frame, which every peer accepts, and we do."""
_WINDOW = 1 << 30
"""Bytes that a server may send ahead, on the connection and in a stream: more than any reply may have, so
that no reply waits for us."""
_USUAL_WINDOW = 65_535
_GIVE_BACK = 1 << 24
_MOST_HEADER_BYTES = 65_536
_MOST_STREAMS = (1 << 31) - 1
_DATA, _HEADERS, _SETTINGS, _CONTINUATION = 0, 1, 4, 9
_OF_A_STREAM = (_DATA, _HEADERS, _CONTINUATION)
_CONFIGURATION = H2Configuration(client_side=True, header_encoding=None)
_SETTINGS_OF_OURS = {
    SettingCodes.ENABLE_PUSH: 0,
    SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW,
    SettingCodes.MAX_HEADER_LIST_SIZE: _MOST_HEADER_BYTES,
}

Header = tuple[bytes, bytes]


@dataclass(slots=True, eq=False)
class Stream:
    """A stream with a request and its reply, as far as they have come."""

    stream_id: int
    unsent: memoryview
    """The part of the request that the windows have not let out yet."""
    status: int | None = None
    """HTTP status; ``None`` before the headers."""
    headers: list[Header] = field(default_factory=list)
    trailers: list[Header] = field(default_factory=list)
    """The trailers; in an answer of trailers only they are the headers, too."""
    is_over: bool = False
    """Whether nothing more will come."""
    reset: str = ""
    """Name of the error code with which the server broke it off; empty if it did not."""
    unprocessed: bool = False
    """Whether the server says that it has not processed the request."""
    was_cut: bool = False
    """Whether the reply was complete before the request was; the rest of the request is not sent."""
    pieces: list[bytes] = field(default_factory=list)
    """The parts of the reply's body in the last read that had anything of it."""
    read: int = 0
    """Number of the read that ``pieces`` came in."""

    @property
    def data(self) -> bytes:
        """The body bytes in that read."""
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)


@dataclass(slots=True)
class Received:
    """The content of one read."""

    progress: list[Stream] = field(default_factory=list)
    """Streams of whose reply it had anything, even a part: headers, data, trailers. Pings, settings, windows
    and resets belong to no reply."""
    over: list[Stream] = field(default_factory=list)
    """Streams that ended in it, in whatever way."""
    taken: list[Stream] = field(default_factory=list)
    """Streams of whose request it let out a further part."""


class Http2Client:
    """The state of a connection. Feed it reads in order; send what ``to_send`` gives after everything that is
    asked of it. Never raises because of what a server sends.

    ``problem`` and ``going_away`` say why there are no further streams.
    """

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        """Stream id → stream, for those that are not over."""
        self.is_ready = False
        """Whether the server has sent its settings, and so speaks HTTP/2."""
        self.problem = ""
        """Why what was received is not HTTP/2, or not meant for us; empty if there is no problem."""
        self.going_away: str | None = None
        """Why the server takes no further stream: the name of its error code, and what else it said. None
        while it does."""
        self.most_streams = _MOST_STREAMS
        """Most streams at a time that the server allows (``MAX_CONCURRENT_STREAMS``)."""
        self._h2 = H2Connection(_CONFIGURATION)
        self._h2.local_settings = Settings(client=True, initial_values=_SETTINGS_OF_OURS)
        self._next_id = 1
        self._unreturned = 0
        self._reads = 0
        self._found = Received()
        self._buffer = b""
        """The bytes of a frame that is not whole."""
        self._header_bytes = 0
        """Length of the present header block, which h2 bounds when it is whole alone."""

    @property
    def has_room(self) -> bool:
        """Whether a further stream may begin now."""
        good = self.is_ready and self.going_away is None and not self.problem
        return good and len(self.streams) < self.most_streams and self._next_id < _MOST_STREAMS

    def opening(self) -> bytes:
        """The bytes to send first: preface, settings, and the window of the connection."""
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(_WINDOW - _USUAL_WINDOW)
        return self._h2.data_to_send()

    def begin(self, request: bytes) -> Stream:
        """Begin a stream with a request of :func:`request_bytes`, and send as much as the server's windows
        let out.

        What they do not follows as they open; ``unsent`` of the stream says whether there is any.
        """
        stream_id, self._next_id = self._next_id, self._next_id + 2
        head, _, body = request.partition(_END)
        stream = self.streams[stream_id] = Stream(stream_id, memoryview(body))
        headers = [(name, value) for name, _, value in (line.partition(_IS) for line in head.split(_NEXT))]
        self._h2.send_headers(stream_id, headers, end_stream=not body)
        self._send_more(stream)
        return stream

    def cancel(self, stream: Stream) -> None:
        """Give a stream up. What the server still sends of it is ignored."""
        if not stream.is_over:
            self._reset(stream)
            self._leave(stream)

    def feed(self, data: bytes) -> Received:
        """Process a read; returns what was in it."""
        found = self._found = Received()
        self._reads += 1
        if self.problem:
            return found
        try:
            for frame in self._frames(data):
                for event in self._h2.receive_data(frame):
                    self._receive(event)
        except _NotForUsError as error:
            self.problem = str(error)
            self._h2.close_connection(ErrorCodes.PROTOCOL_ERROR)
        except ProtocolError as error:
            self.problem = shorten(f"not HTTP/2: {error}")
        except (ValueError, KeyError, TypeError, IndexError) as error:
            # h2 leaves what it did not foresee as it is: no server may end the load by that.
            self.problem = shorten(f"not HTTP/2: {error or type(error).__name__}")
        return found

    def to_send(self) -> bytes:
        """The bytes to send now: requests, acknowledgements, windows, further parts of requests."""
        return self._h2.data_to_send()

    def closing(self) -> bytes:
        """The bytes to send before the connection is closed, which cancel the streams that are not over."""
        if not self.is_ready:
            return b""
        if not self.problem:  # where there is one, h2 has said so
            for stream in list(self.streams.values()):
                self.cancel(stream)
            self._h2.close_connection()
        return self.to_send()

    # What the server says.

    def _frames(self, data: bytes) -> Iterator[bytes]:
        """The bytes by frames. h2 forgets what came in front of an error in the same read, and takes nothing
        behind a GOAWAY, after which a server finishes what it has begun."""
        data = self._buffer + data if self._buffer else data
        at = 0
        if not self.is_ready and _may_be_http1(data):
            self._buffer = data
            return
        while len(data) - at >= _HEAD_BYTES:
            length, kind = int.from_bytes(data[at : at + 3], "big"), data[at + 3]
            if length > _MOST_FRAME_BYTES:
                raise _NotForUsError(f"not HTTP/2: a frame of {length} bytes, more than {_MOST_FRAME_BYTES}")
            end = at + _HEAD_BYTES + length
            stream = self.streams.get(int.from_bytes(data[at + 5 : at + 9], "big"))
            if stream is not None and kind in _OF_A_STREAM and stream.read != self._reads:
                stream.read, stream.pieces = self._reads, []
                self._found.progress.append(stream)
            if end > len(data):
                break
            if kind in (_HEADERS, _CONTINUATION):
                self._header_bytes = length + (self._header_bytes if kind == _CONTINUATION else 0)
                if self._header_bytes > _MOST_HEADER_BYTES:
                    raise _NotForUsError(f"headers of more than {_MOST_HEADER_BYTES} bytes")
            yield data[at:end]
            at = end
        self._buffer = data[at:]

    def _receive(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            # The window of the connection is given back; that of a stream is never used up.
            self._unreturned += event.flow_controlled_length or 0
            if self._unreturned >= _GIVE_BACK:
                self._h2.increment_flow_control_window(self._unreturned)
                self._unreturned = 0
            if event.data and (stream := self.streams.get(event.stream_id)) is not None:
                stream.pieces.append(event.data)
        elif isinstance(event, ResponseReceived | TrailersReceived):
            self._receive_headers(event)
        elif isinstance(event, StreamEnded):
            if (stream := self.streams.get(event.stream_id)) is not None:
                self._end(stream)
        elif isinstance(event, StreamReset):
            # Servers also reset streams that they have answered before the request was whole.
            if (stream := self.streams.get(event.stream_id)) is not None:
                stream.reset = _name(event.error_code)
                stream.unprocessed = event.error_code == ErrorCodes.REFUSED_STREAM
                self._end(stream)
        elif isinstance(event, ConnectionTerminated):
            said = shorten((event.additional_data or b"").decode("utf-8", errors="replace"), 120)
            self.going_away = f"{_name(event.error_code)} {said}".strip()
            # h2 takes the connection for closed, but streams that have begun are still to come to their end.
            self._h2.state_machine.state = ConnectionState.CLIENT_OPEN
            for stream in list(self.streams.values()):
                if stream.stream_id > (event.last_stream_id or 0):
                    stream.unprocessed = True
                    self._end(stream)
        elif isinstance(event, RemoteSettingsChanged):
            self.is_ready = True
            self.most_streams = self._h2.remote_settings.max_concurrent_streams
        if isinstance(event, RemoteSettingsChanged | WindowUpdated):
            for stream in self.streams.values():  # the oldest first
                if stream.unsent:
                    self._send_more(stream)

    def _receive_headers(self, event: ResponseReceived | TrailersReceived) -> None:
        stream = self.streams.get(event.stream_id)
        if stream is None:
            return
        held = [(bytes(name), bytes(value)) for name, value in event.headers or ()]
        if stream.status is None:
            status = dict(held).get(b":status", b"")
            if not (len(status) == 3 and status.isdigit()):
                raise _NotForUsError("not HTTP/2: headers without a status")
            stream.status = int(status)
            stream.headers = [(name, value) for name, value in held if not name.startswith(b":")]
            stream.trailers = stream.headers if event.stream_ended else []
        else:
            stream.trailers = held

    def _end(self, stream: Stream) -> None:
        stream.was_cut = bool(stream.unsent)
        if stream.was_cut and not stream.reset and not stream.unprocessed:
            self._reset(stream)
        self._leave(stream)
        self._found.over.append(stream)

    def _leave(self, stream: Stream) -> None:
        stream.is_over = True
        stream.unsent = memoryview(b"")
        self.streams.pop(stream.stream_id, None)

    # The requests.

    def _reset(self, stream: Stream) -> None:
        self._h2.reset_stream(stream.stream_id, ErrorCodes.CANCEL)

    def _send_more(self, stream: Stream) -> None:
        before = len(stream.unsent)
        while stream.unsent:
            window = self._h2.local_flow_control_window(stream.stream_id)
            room = min(window, self._h2.max_outbound_frame_size)
            if room <= 0:
                break
            part, stream.unsent = bytes(stream.unsent[:room]), stream.unsent[room:]
            self._h2.send_data(stream.stream_id, part, end_stream=not stream.unsent)
        if len(stream.unsent) < before:
            self._found.taken.append(stream)


class _NotForUsError(Exception):
    """The server's bytes are not HTTP/2, or not meant for us."""


def _may_be_http1(data: bytes) -> bool:
    """Whether the first bytes of a server begin an answer in HTTP/1.1 of which more is to come. Raises for an
    answer in that or another protocol."""
    if b"HTTP/".startswith(data[:5]):
        line, end, _ = data[:1024].partition(b"\r\n")
        if end or len(data) >= 1024:
            said = shorten(line.decode("latin-1"), 80)
            raise _NotForUsError(f"the server answers with HTTP/1.1 ({said}), not with HTTP/2")
        return True
    if len(data) >= _HEAD_BYTES and data[3] != _SETTINGS:
        head = bytes(data[:_HEAD_BYTES])
        raise _NotForUsError(f"not HTTP/2: the server begins with {head!r}, not with its settings")
    return False


def _name(code: ErrorCodes | int | None) -> str:
    return code.name if isinstance(code, ErrorCodes) else f"error code {code}"


_IS, _NEXT, _END = b"\0", b"\r\n", b"\r\n\r\n"
"""What stands between name and value, headers, and headers and body: no header may hold any of it."""


def request_bytes(headers: Iterable[tuple[str, str]], body: bytes = b"") -> bytes:
    """The form in which a request is handed to :meth:`Http2Client.begin`. ``headers``: those with a colon
    first."""
    lines = (name.encode("ascii") + _IS + value.encode("ascii") for name, value in headers)
    return _NEXT.join(lines) + _END + body
