"""One HTTP/2 connection with one gRPC call at a time, the client's side of it, without a socket.

Frames and header blocks are those of the packages hyperframe and hpack. Bytes of ``DATA`` are handed on as
they come, before their frame is complete, so that a message has the stamp of the read with its last byte.
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

from pytest_llmbench.wire.error_text import shorten

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES = 9
_MOST_FRAME_BYTES = 16_384
"""What every peer takes, and we."""
_WINDOW = 1 << 30
"""What a server may send ahead, on the connection and in a call: more than any reply may have, so that no
reply waits for us."""
_USUAL_WINDOW = 65_535
_GIVE_BACK = 1 << 24
_LARGEST = (1 << 31) - 1
_MOST_HEADER_BYTES = 65_536
_DATA, _HEADERS, _SETTINGS, _CONTINUATION = 0, 1, 4, 9
_OF_A_CALL = (_DATA, _HEADERS, _CONTINUATION)
_STREAM_ID = struct.Struct(">I")
_HEAD = struct.Struct(">IBI")
"""Of a frame: three bytes of length and one of kind, flags, stream id."""
_CODES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT",
    "STREAM_CLOSED", "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR",
    "ENHANCE_YOUR_CALM", "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
)  # fmt: skip
_NO_ERROR, _PROTOCOL_ERROR, _REFUSED, _CANCEL = 0, 1, 7, 8

Header = tuple[bytes, bytes]


class _NotForUsError(Exception):
    """What the server sends is no HTTP/2, or not for us."""


@dataclass(slots=True)
class Received:
    """What one read brought."""

    data: bytes = b""
    """The bytes of messages in it."""
    of_call: bool = False
    """Whether it brought anything of the reply, be it a part: headers, messages, trailers. Pings, settings,
    windows and resets are of no reply."""


@dataclass(slots=True)
class Call:
    """The call on a connection, as far as it has come."""

    stream_id: int
    window: int
    """Bytes of the request that its peer still takes."""
    status: int | None = None
    """The HTTP status; ``None``: no headers yet."""
    headers: list[Header] = field(default_factory=list)
    trailers: list[Header] = field(default_factory=list)
    """Those of an answer that is trailers only are its headers, too."""
    is_over: bool = False
    """Nothing more comes of it."""
    reset: str = ""
    """The server has broken it off: the name of its error code."""
    unprocessed: bool = False
    """The server says that it has done nothing of it."""


class CallConnection:
    """Feed it reads in order; send what ``to_send`` gives after each. Never raises for what a server sends.

    ``problem`` and ``going_away`` say why there are no further calls.
    """

    def __init__(self) -> None:
        self.call: Call | None = None
        self.is_ready = False
        """The server has sent its settings: it speaks HTTP/2."""
        self.problem = ""
        """Why what was received is not HTTP/2, or not for us."""
        self.going_away: str | None = None
        """The server takes no further call: the name of its error code, and what else it said."""
        self._out = bytearray()
        self._unsent = memoryview(b"")
        """Of the request's message, what the windows did not let out yet."""
        self._window = self._initial_window = _USUAL_WINDOW
        self._next_id = 1
        self._unreturned = 0
        self._decoder = Decoder(max_header_list_size=_MOST_HEADER_BYTES)
        self._block = bytearray()
        """Header block in several frames, and what it belongs to."""
        self._block_of: HeadersFrame | None = None
        self._head = bytearray()
        self._frame: Frame | None = None
        """The frame that has begun, and how many bytes it still lacks."""
        self._lacking = 0
        self._body = bytearray()

    @property
    def all_sent(self) -> bool:
        """Whether the request has been handed out to its end."""
        return not self._unsent

    def opening(self) -> bytes:
        """What is sent first: preface, settings, and the window of the connection."""
        settings = {
            SettingsFrame.ENABLE_PUSH: 0,
            SettingsFrame.INITIAL_WINDOW_SIZE: _WINDOW,
            SettingsFrame.MAX_HEADER_LIST_SIZE: _MOST_HEADER_BYTES,
        }
        window = WindowUpdateFrame(0, window_increment=_WINDOW - _USUAL_WINDOW)
        return _PREFACE + SettingsFrame(0, settings=settings).serialize() + window.serialize()

    def begin(self, request: bytes) -> bytes:
        """Begin a call: ``request`` with its stream id in it, as far as the windows of the server let it out.

        What they do not is sent by ``to_send`` as they open.
        """
        stream_id, self._next_id = self._next_id, self._next_id + 2
        call = self.call = Call(stream_id, self._initial_window)
        frames, bodies, at = bytearray(request), list[tuple[int, int]](), 0
        while at < len(frames):
            size_and_kind, _, _ = _HEAD.unpack_from(frames, at)
            _STREAM_ID.pack_into(frames, at + 5, stream_id)
            start, at = at, at + _HEAD_BYTES + (size_and_kind >> 8)
            if size_and_kind & 0xFF == _DATA:
                bodies.append((start + _HEAD_BYTES, at))
        size = sum(end - start for start, end in bodies)
        if size <= min(call.window, self._window):
            call.window -= size
            self._window -= size
            return bytes(frames)
        self._unsent = memoryview(b"".join(frames[start:end] for start, end in bodies))
        self._out += frames[: bodies[0][0] - _HEAD_BYTES]
        self._send_more(call)
        return self.to_send()

    def feed(self, data: bytes) -> Received:
        """What this read brought."""
        found, pieces = Received(), list[bytes]()
        if self.problem:
            return found
        try:
            self._consume(data, found, pieces)
        except _NotForUsError as error:
            self.problem = str(error)
        except (HyperframeError, HPACKError) as error:
            self.problem = shorten(f"not HTTP/2: {error}")
        found.data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return found

    def to_send(self) -> bytes:
        """What is to be sent: acknowledgements, windows, further parts of the request."""
        out = bytes(self._out)
        self._out.clear()
        return out

    def closing(self) -> bytes:
        """To be sent before the connection is closed: a call that is not over is cancelled."""
        if not self.is_ready:
            return b""
        if self.call is not None and not self.call.is_over:
            self._out += RstStreamFrame(self.call.stream_id, error_code=_CANCEL).serialize()
            self.call.is_over = True
        code = _PROTOCOL_ERROR if self.problem else _NO_ERROR
        self._out += GoAwayFrame(0, last_stream_id=0, error_code=code).serialize()
        return self.to_send()

    # Frames.

    def _consume(self, data: bytes, found: Received, pieces: list[bytes]) -> None:
        if not self.is_ready and self._frame is None and self._is_no_http2(data):
            return
        at = 0
        while at < len(data):
            if self._frame is None:
                if not self._head and (end := self._take_data(data, at, pieces)) > at:
                    found.of_call, at = True, end
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
            self._take(part, found, pieces)

    def _take_data(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Take frames of plain data of the call that are whole, which most are; returns where they end.

        It is what ``_begin_frame`` and ``_take`` would do, without an object for each frame.
        """
        call = self.call
        if call is None or call.is_over or call.status is None or self._block_of is not None:
            return at
        taken = 0
        while len(data) - at >= _HEAD_BYTES:
            size_and_kind, flags, stream_id = _HEAD.unpack_from(data, at)
            size = size_and_kind >> 8
            end = at + _HEAD_BYTES + size
            plain = size_and_kind & 0xFF == _DATA and not flags and stream_id == call.stream_id
            if not plain or not size or size > _MOST_FRAME_BYTES or end > len(data):
                break
            pieces.append(data[at + _HEAD_BYTES : end])
            taken, at = taken + size, end
        if taken:
            self._return(taken)
        return at

    def _is_no_http2(self, data: bytes) -> bool:
        """An answer of HTTP/1.1 is told with its first line, as soon as that has come."""
        begun = bytes(self._head) + data
        if not b"HTTP/".startswith(begun[:5]):
            return False
        self._head[:] = begun[:1024]
        line, end, _ = begun[:1024].partition(b"\r\n")
        if end or len(begun) >= 1024:
            said = shorten(line.decode("latin-1"), 80)
            raise _NotForUsError(f"the server answers with HTTP/1.1 ({said}), where gRPC is HTTP/2")
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
        call = self.call
        if call is None or call.is_over or call.status is None or call.stream_id != frame.stream_id:
            raise _NotForUsError(f"data on stream {frame.stream_id}, which nothing is expected on")

    def _take(self, part: bytes, found: Received, pieces: list[bytes]) -> None:
        """A part of a frame, or all of it."""
        frame, call = self._frame, self.call
        assert frame is not None
        self._lacking -= len(part)
        whole = self._lacking == 0
        if call is not None and frame.stream_id == call.stream_id and frame.type in _OF_A_CALL:
            found.of_call = found.of_call or not call.is_over
        if isinstance(frame, DataFrame):
            self._return(len(part))
            if "PADDED" not in frame.flags:
                if part:
                    pieces.append(part)
            else:
                self._body += part
                if whole:
                    frame.parse_body(memoryview(bytes(self._body)))
                    pieces.append(frame.data)
            if whole and call is not None:
                call.is_over = call.is_over or "END_STREAM" in frame.flags
        else:
            self._body += part
            if whole:
                frame.parse_body(memoryview(bytes(self._body)))
                self._hear(frame)
        if whole:
            self._frame = None
            self._body.clear()

    def _return(self, count: int) -> None:
        """Give the window back, of the connection: that of a call is never used up."""
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
            said = shorten(frame.additional_data.decode("utf-8", errors="replace"), 120)
            self.going_away = f"{code_name(frame.error_code)} {said}".strip()
            call = self.call
            if call is not None and not call.is_over and call.stream_id > frame.last_stream_id:
                call.is_over = call.unprocessed = True
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
        call = self.call
        if call is None or call.is_over or call.stream_id != frame.stream_id:
            raise _NotForUsError(f"headers on stream {frame.stream_id}, which nothing is expected on")
        held = [(bytes(name), bytes(value)) for name, value in headers]
        is_last = "END_STREAM" in frame.flags
        if call.status is None:
            status = dict(held).get(b":status", b"")
            if not (len(status) == 3 and status.isdigit()):
                raise _NotForUsError("not HTTP/2: headers without a status")
            if status[:1] == b"1" and not is_last:
                return  # there is more to come
            call.status = int(status)
            call.headers = [(name, value) for name, value in held if not name.startswith(b":")]
            call.trailers = call.headers if is_last else []
        elif is_last:
            call.trailers = held
        else:
            raise _NotForUsError("not HTTP/2: headers in the midst of a reply")
        call.is_over = is_last

    def _hear_settings(self, frame: SettingsFrame) -> None:
        if "ACK" in frame.flags:
            return
        self.is_ready = True
        initial = frame.settings.get(SettingsFrame.INITIAL_WINDOW_SIZE)
        if initial is not None:
            if initial > _LARGEST:
                raise _NotForUsError(f"not HTTP/2: a window of {initial} bytes")
            if self.call is not None:
                self.call.window += initial - self._initial_window
            self._initial_window = initial
        self._out += SettingsFrame(0, flags=["ACK"]).serialize()
        self._go_on()

    def _hear_window(self, frame: WindowUpdateFrame) -> None:
        call = self.call
        if frame.stream_id == 0:
            self._window += frame.window_increment
        elif call is not None and frame.stream_id == call.stream_id:
            call.window += frame.window_increment
        if max(self._window, 0 if call is None else call.window) > _LARGEST:
            raise _NotForUsError("not HTTP/2: a window beyond the largest")
        self._go_on()

    def _hear_reset(self, frame: RstStreamFrame) -> None:
        call = self.call
        if call is None or call.is_over or call.stream_id != frame.stream_id:
            return  # servers reset calls that they have answered before the request was whole
        call.is_over, call.reset = True, code_name(frame.error_code)
        call.unprocessed = frame.error_code == _REFUSED

    # The request.

    def _go_on(self) -> None:
        if self.call is not None and not self.call.is_over and self._unsent:
            self._send_more(self.call)

    def _send_more(self, call: Call) -> None:
        """Let out what the windows allow."""
        while self._unsent and (room := min(call.window, self._window, _MOST_FRAME_BYTES)) > 0:
            part, self._unsent = bytes(self._unsent[:room]), self._unsent[room:]
            call.window -= len(part)
            self._window -= len(part)
            flags = [] if self._unsent else ["END_STREAM"]
            self._out += DataFrame(call.stream_id, part, flags=flags).serialize()


def code_name(code: int) -> str:
    """The name of an error code of HTTP/2."""
    return _CODES[code] if code < len(_CODES) else f"error code {code}"


def header_block(headers: Iterable[tuple[str, str]], *, first: bool = False) -> bytes:
    """The headers as literals that no table keeps (RFC 7541, section 6.2.3): the same on any connection.

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
