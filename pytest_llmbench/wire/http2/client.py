"""The client's side of an HTTP/2 connection, without a socket: gRPC calls and requests of HTTP alike.

Frames and header blocks are those of the packages hyperframe and hpack. Bytes of ``DATA`` are handed on as
they come, before their frame is complete, so that each has the stamp of the read that brought it.
Source: RFC 9113 (HTTP/2), RFC 7541 (HPACK), gRPC over HTTP2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from pytest_llmbench.wire.error_replies import shorten

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_MOST_FRAME_BYTES = 16_384
"""Largest frame, which every peer accepts, and we do."""
_WINDOW = 1 << 30
"""Bytes that a server may send ahead, on the connection and in a stream: more than any reply may have, so
that no reply waits for us."""
_USUAL_WINDOW = 65_535
_GIVE_BACK = 1 << 24
_LARGEST = (1 << 31) - 1
_MOST_HEADER_BYTES = 65_536
_DATA, _HEADERS, _SETTINGS, _CONTINUATION = 0, 1, 4, 9
_OF_A_STREAM = (_DATA, _HEADERS, _CONTINUATION)
_STREAM_ID = struct.Struct(">I")
_HEAD = struct.Struct(">IBI")
"""The header of a frame: three bytes of length and one of type, flags, stream id."""
_CODES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
    "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
)  # fmt: skip
_NO_ERROR, _PROTOCOL_ERROR, _REFUSED, _CANCEL = 0, 1, 7, 8

Header = tuple[bytes, bytes]


class _NotForUsError(Exception):
    """The server's bytes are not HTTP/2, or not meant for us."""


@dataclass(slots=True, eq=False)
class Stream:
    """A stream with a request and its reply, as far as they have come."""

    stream_id: int
    window: int
    """Number of request bytes that the server still accepts."""
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
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    """The part of the request that the windows have not let out yet."""
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
        self.most_streams = _LARGEST
        """Most streams at a time that the server allows (``MAX_CONCURRENT_STREAMS``)."""
        self.problem = ""
        """Why what was received is not HTTP/2, or not meant for us; empty if there is no problem."""
        self.going_away: str | None = None
        """Why the server takes no further stream: the name of its error code, and what else it said. None
        while it does."""
        self._out = bytearray()
        self._window = self._initial_window = _USUAL_WINDOW
        self._next_id = 1
        self._unreturned = 0
        self._cancelled: set[int] = set()
        """Ids of streams that we gave up, which the server may not know yet."""
        self._reads = 0
        self._found = Received()
        self._decoder = Decoder(max_header_list_size=_MOST_HEADER_BYTES)
        self._block = bytearray()
        """A header block in several frames, and what it belongs to."""
        self._block_of: HeadersFrame | None = None
        self._head = bytearray()
        self._frame: Frame | None = None
        """The frame that has begun, and how many of its bytes are missing."""
        self._lacking = 0
        self._body = bytearray()

    @property
    def has_room(self) -> bool:
        """Whether a further stream may begin now."""
        good = self.is_ready and self.going_away is None and not self.problem
        return good and len(self.streams) < self.most_streams and self._next_id <= _LARGEST

    def opening(self) -> bytes:
        """The bytes to send first: preface, settings, and the window of the connection."""
        settings = {
            SettingsFrame.ENABLE_PUSH: 0,
            SettingsFrame.INITIAL_WINDOW_SIZE: _WINDOW,
            SettingsFrame.MAX_HEADER_LIST_SIZE: _MOST_HEADER_BYTES,
        }
        window = WindowUpdateFrame(0, window_increment=_WINDOW - _USUAL_WINDOW)
        return _PREFACE + SettingsFrame(0, settings=settings).serialize() + window.serialize()

    def begin(self, request: bytes) -> Stream:
        """Begin a stream with ``request``, whose id is put in, and send as much as the server's windows let
        out.

        What they do not follows as they open; ``unsent`` of the stream says whether there is any.
        """
        stream_id, self._next_id = self._next_id, self._next_id + 2
        stream = self.streams[stream_id] = Stream(stream_id, self._initial_window)
        frames, bodies, at = bytearray(request), list[tuple[int, int]](), 0
        while at < len(frames):
            size_and_kind, _, _ = _HEAD.unpack_from(frames, at)
            _STREAM_ID.pack_into(frames, at + 5, stream_id)
            start, at = at, at + _HEAD_BYTES + (size_and_kind >> 8)
            if size_and_kind & 0xFF == _DATA:
                bodies.append((start + _HEAD_BYTES, at))
        size = sum(end - start for start, end in bodies)
        if size <= min(stream.window, self._window):
            stream.window -= size
            self._window -= size
            self._out += frames
        else:
            stream.unsent = memoryview(b"".join(frames[start:end] for start, end in bodies))
            self._out += frames[: bodies[0][0] - _HEAD_BYTES]
            self._send_more(stream)
        return stream

    def cancel(self, stream: Stream) -> None:
        """Give a stream up. What the server still sends of it is ignored."""
        if stream.is_over:
            return
        self._out += RstStreamFrame(stream.stream_id, error_code=_CANCEL).serialize()
        self._cancelled.add(stream.stream_id)
        self._leave(stream)

    def feed(self, data: bytes) -> Received:
        """Process a read; returns what was in it."""
        found = self._found = Received()
        self._reads += 1
        if self.problem:
            return found
        try:
            self._consume(data)
        except _NotForUsError as error:
            self.problem = str(error)
        except (HyperframeError, HPACKError) as error:
            self.problem = shorten(f"not HTTP/2: {error}")
        return found

    def to_send(self) -> bytes:
        """The bytes to send now: requests, acknowledgements, windows, further parts of requests."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def closing(self) -> bytes:
        """The bytes to send before the connection is closed, which cancel the streams that are not over."""
        if not self.is_ready:
            return b""
        for stream in list(self.streams.values()):
            self.cancel(stream)
        code = _PROTOCOL_ERROR if self.problem else _NO_ERROR
        self._out += GoAwayFrame(0, last_stream_id=0, error_code=code).serialize()
        return self.to_send()

    def _leave(self, stream: Stream) -> None:
        """Remove a stream that is over."""
        stream.is_over = True
        stream.unsent = memoryview(b"")
        del self.streams[stream.stream_id]

    def _end(self, stream: Stream) -> None:
        """Note that the present read has ended a stream."""
        stream.was_cut = bool(stream.unsent)
        if stream.was_cut and not stream.reset and not stream.unprocessed:
            self._out += RstStreamFrame(stream.stream_id, error_code=_CANCEL).serialize()
        self._leave(stream)
        self._found.over.append(stream)

    def _touch(self, stream: Stream) -> None:
        """Note that the present read has a part of a stream's reply."""
        if stream.read != self._reads:
            stream.read, stream.pieces = self._reads, []
            self._found.progress.append(stream)

    # Frames.

    def _consume(self, data: bytes) -> None:
        if not self.is_ready and self._frame is None and self._is_no_http2(data):
            return
        at = 0
        while at < len(data):
            if self._frame is None:
                if not self._head and (end := self._take_data(data, at)) > at:
                    at = end
                    continue
                taken = _HEAD_BYTES - len(self._head)
                self._head += data[at : at + taken]
                at += taken
                if len(self._head) < _HEAD_BYTES:
                    break
                self._begin_frame(bytes(self._head))
                self._head.clear()
            part = data[at : at + self._lacking]
            at += len(part)
            self._take(part)

    def _take_data(self, data: bytes, at: int) -> int:
        """Take frames of plain data that are whole, which most are; returns where they end.

        It is what ``_begin_frame`` and ``_take`` would do, without an object for each frame.
        """
        if self._block_of is not None:
            return at
        taken, streams = 0, self.streams
        while len(data) - at >= _HEAD_BYTES:
            size_and_kind, flags, stream_id = _HEAD.unpack_from(data, at)
            size = size_and_kind >> 8
            end = at + _HEAD_BYTES + size
            plain = size_and_kind & 0xFF == _DATA and not flags
            if not plain or not size or size > _MOST_FRAME_BYTES or end > len(data):
                break
            stream = streams.get(stream_id)
            if stream is None or stream.status is None:
                break
            if stream.read != self._reads:
                self._touch(stream)
            stream.pieces.append(data[at + _HEAD_BYTES : end])
            taken, at = taken + size, end
        if taken:
            self._return(taken)
        return at

    def _is_no_http2(self, data: bytes) -> bool:
        """Whether the server answers in HTTP/1.1, which is known from its first line."""
        begun = bytes(self._head) + data
        if not b"HTTP/".startswith(begun[:5]):
            return False
        self._head[:] = begun[:1024]
        line, end, _ = begun[:1024].partition(b"\r\n")
        if end or len(begun) >= 1024:
            said = shorten(line.decode("latin-1"), 80)
            raise _NotForUsError(f"the server answers with HTTP/1.1 ({said}), not with HTTP/2")
        return True

    def _begin_frame(self, head: bytes) -> None:
        length = int.from_bytes(head[:3], "big")
        if not self.is_ready and head[3] != _SETTINGS:
            raise _NotForUsError(f"not HTTP/2: the server begins with {head!r}, not with its settings")
        if length > _MOST_FRAME_BYTES:
            raise _NotForUsError(f"not HTTP/2: a frame of {length} bytes, more than {_MOST_FRAME_BYTES}")
        self._frame, self._lacking = Frame.parse_frame_header(memoryview(head))
        if self._block_of is not None and head[3] != _CONTINUATION:
            raise _NotForUsError("not HTTP/2: a header block that is not continued")
        if isinstance(self._frame, DataFrame):
            self._expect(self._frame)

    def _expect(self, frame: DataFrame) -> None:
        stream = self.streams.get(frame.stream_id)
        if (stream is None or stream.status is None) and frame.stream_id not in self._cancelled:
            raise _NotForUsError(f"data on stream {frame.stream_id}, which nothing is expected on")

    def _take(self, part: bytes) -> None:
        """Process a part of a frame, or all of it."""
        frame = self._frame
        assert frame is not None
        self._lacking -= len(part)
        whole = self._lacking == 0
        stream = self.streams.get(frame.stream_id)
        if stream is not None and frame.type in _OF_A_STREAM:
            self._touch(stream)
        if isinstance(frame, DataFrame):
            self._take_part(frame, part, stream, whole=whole)
        else:
            self._body += part
            if whole:
                frame.parse_body(memoryview(bytes(self._body)))
                self._hear(frame)
        if whole:
            self._frame = None
            self._body.clear()

    def _take_part(self, frame: DataFrame, part: bytes, stream: Stream | None, *, whole: bool) -> None:
        """Process a part of a data frame. ``stream``: None if it was given up."""
        self._return(len(part))
        if "PADDED" in frame.flags:
            self._body += part
            if not whole:
                return
            frame.parse_body(memoryview(bytes(self._body)))
            part = frame.data
        is_last = whole and "END_STREAM" in frame.flags
        if stream is None:
            self._pass_over(frame.stream_id, is_last=is_last)
            return
        if part:
            stream.pieces.append(part)
        if is_last:
            self._end(stream)

    def _pass_over(self, stream_id: int, *, is_last: bool) -> None:
        """Ignore a frame of a stream that we gave up."""
        if is_last:
            self._cancelled.discard(stream_id)

    def _return(self, count: int) -> None:
        """Give the window of the connection back; that of a stream is never used up."""
        self._unreturned += count
        if self._unreturned >= _GIVE_BACK:
            self._out += WindowUpdateFrame(0, window_increment=self._unreturned).serialize()
            self._unreturned = 0

    # What the server says.

    def _hear(self, frame: Frame) -> None:
        if isinstance(frame, HeadersFrame | ContinuationFrame):
            self._hear_headers(frame)
        elif isinstance(frame, SettingsFrame):
            self._hear_settings(frame)
        elif isinstance(frame, PingFrame):
            if "ACK" not in frame.flags:
                self._out += PingFrame(0, frame.opaque_data, flags=["ACK"]).serialize()
        elif isinstance(frame, WindowUpdateFrame):
            self._hear_window(frame)
        elif isinstance(frame, RstStreamFrame):
            self._hear_reset(frame)
        elif isinstance(frame, GoAwayFrame):
            self._hear_going_away(frame)
        elif isinstance(frame, PushPromiseFrame):
            raise _NotForUsError("not HTTP/2: the server pushes, although that was switched off")

    def _hear_headers(self, frame: HeadersFrame | ContinuationFrame) -> None:
        if isinstance(frame, HeadersFrame):
            self._block_of = frame
        begun = self._block_of
        if begun is None or begun.stream_id != frame.stream_id:
            raise _NotForUsError("not HTTP/2: a header block that was not begun")
        self._block += frame.data
        if len(self._block) > _MOST_HEADER_BYTES:
            raise _NotForUsError(f"headers of more than {_MOST_HEADER_BYTES} bytes")
        if "END_HEADERS" not in frame.flags:
            return
        block = bytes(self._block)
        self._block_of = None
        self._block.clear()
        self._hear_header_list(begun, self._decoder.decode(block, raw=True))

    def _hear_header_list(self, frame: HeadersFrame, headers: Iterable[Header]) -> None:
        stream, is_last = self.streams.get(frame.stream_id), "END_STREAM" in frame.flags
        if stream is None and frame.stream_id in self._cancelled:
            self._pass_over(frame.stream_id, is_last=is_last)
            return
        if stream is None:
            raise _NotForUsError(f"headers on stream {frame.stream_id}, which nothing is expected on")
        held = [(bytes(name), bytes(value)) for name, value in headers]
        if stream.status is None:
            status = dict(held).get(b":status", b"")
            if not (len(status) == 3 and status.isdigit()):
                raise _NotForUsError("not HTTP/2: headers without a status")
            if status[:1] == b"1" and not is_last:
                return  # there is more to come
            stream.status = int(status)
            stream.headers = [(name, value) for name, value in held if not name.startswith(b":")]
            stream.trailers = stream.headers if is_last else []
        elif is_last:
            stream.trailers = held
        else:
            raise _NotForUsError("not HTTP/2: headers in the midst of a reply")
        if is_last:
            self._end(stream)

    def _hear_settings(self, frame: SettingsFrame) -> None:
        if "ACK" in frame.flags:
            return
        self.is_ready = True
        self.most_streams = frame.settings.get(SettingsFrame.MAX_CONCURRENT_STREAMS, self.most_streams)
        initial = frame.settings.get(SettingsFrame.INITIAL_WINDOW_SIZE)
        if initial is not None:
            if initial > _LARGEST:
                raise _NotForUsError(f"not HTTP/2: a window of {initial} bytes")
            for stream in self.streams.values():
                stream.window += initial - self._initial_window
            self._initial_window = initial
        self._out += SettingsFrame(0, flags=["ACK"]).serialize()
        self._go_on()

    def _hear_window(self, frame: WindowUpdateFrame) -> None:
        stream = self.streams.get(frame.stream_id)
        if frame.stream_id == 0:
            self._window += frame.window_increment
        elif stream is not None:
            stream.window += frame.window_increment
        if max(self._window, 0 if stream is None else stream.window) > _LARGEST:
            raise _NotForUsError("not HTTP/2: a window beyond the largest")
        self._go_on()

    def _hear_reset(self, frame: RstStreamFrame) -> None:
        self._cancelled.discard(frame.stream_id)
        stream = self.streams.get(frame.stream_id)
        if stream is None:
            return  # servers reset streams that they have answered before the request was whole
        stream.reset = code_name(frame.error_code)
        stream.unprocessed = frame.error_code == _REFUSED
        self._end(stream)

    def _hear_going_away(self, frame: GoAwayFrame) -> None:
        said = shorten(frame.additional_data.decode("utf-8", errors="replace"), 120)
        self.going_away = f"{code_name(frame.error_code)} {said}".strip()
        for stream in list(self.streams.values()):
            if stream.stream_id > frame.last_stream_id:
                stream.unprocessed = True
                self._end(stream)

    # The requests.

    def _go_on(self) -> None:
        """Send what new windows allow, of the oldest stream first."""
        for stream in self.streams.values():
            if stream.unsent:
                self._send_more(stream)

    def _send_more(self, stream: Stream) -> None:
        while stream.unsent and (room := min(stream.window, self._window, _MOST_FRAME_BYTES)) > 0:
            part, stream.unsent = bytes(stream.unsent[:room]), stream.unsent[room:]
            stream.window -= len(part)
            self._window -= len(part)
            flags = [] if stream.unsent else ["END_STREAM"]
            self._out += DataFrame(stream.stream_id, part, flags=flags).serialize()


def code_name(code: int) -> str:
    """The name of an HTTP/2 error code."""
    return _CODES[code] if code < len(_CODES) else f"error code {code}"


def header_block(headers: Iterable[tuple[str, str]], *, first: bool = False) -> bytes:
    """Headers as literals that no table keeps (RFC 7541, section 6.2.3), so that they are the same on any
    connection.

    ``first``: they begin a block, which says that no table is kept, whatever the peer would allow.
    """
    encoder = Encoder()
    if first:
        encoder.header_table_size = 0
    pairs = (NeverIndexedHeaderTuple(name.encode("ascii"), value.encode("ascii")) for name, value in headers)
    return encoder.encode(pairs, huffman=False)


def request_frames(block: bytes, data: bytes) -> bytes:
    """The frames of one request: headers, and ``data`` to the end of the stream. Its id is yet to be set."""
    blocks = [block[at : at + _MOST_FRAME_BYTES] for at in range(0, len(block), _MOST_FRAME_BYTES)]
    parts = [data[at : at + _MOST_FRAME_BYTES] for at in range(0, len(data), _MOST_FRAME_BYTES)]
    last = len(blocks) - 1
    headers = [
        _frame(_CONTINUATION if at else _HEADERS, 0x4 if at == last else 0, each)  # 0x4: END_HEADERS
        for at, each in enumerate(blocks)
    ]
    bodies = [
        _frame(_DATA, 0x1 if at == len(parts) - 1 else 0, each)  # 0x1: END_STREAM
        for at, each in enumerate(parts)
    ]
    return b"".join(headers + bodies)


def _frame(kind: int, flags: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + bytes(4) + payload
