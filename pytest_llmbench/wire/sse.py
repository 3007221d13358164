"""Bytes become events: Server-Sent Events, by the rules of the WHATWG HTML standard, and newline-delimited
JSON.

Lines of server-sent events end with LF, CR or CRLF; a byte order mark at the start is dropped; lines that
start with a colon are comments; several ``data`` lines are joined with LF; one space after the colon is
dropped; an empty line ends an event; an event without a ``data`` line is none. Of newline-delimited JSON each
line that is not blank is an event, and lines end with LF or CRLF.

Two things go beyond the standard, because a measurement must not lose what was sent: an event that the end of
the stream cut off is returned, marked as not terminated (a browser drops it), and bytes that are not UTF-8
mark their event (a browser silently replaces them).

Events do not depend on how the stream was cut into reads; only their stamps do.
"""

from __future__ import annotations

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
_LEAST_CAP = 64
_COLON = ord(":")

DEFAULT_MAX_LINE_BYTES = 16 * 1024 * 1024


def as_event(data: bytes) -> bytes:
    """``data`` as the bytes of an event. Decoding gives ``data`` again, with LF for each line end, which
    means the same in JSON."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.splitlines())
    return b"data: %b\n\n" % data


@dataclass(slots=True)
class SSEEvent:
    """One event, as dispatched by an empty line or by the end of the stream."""

    data: str
    event: str
    """Event type; ``message`` when the stream names none."""
    stamp_ns: int
    """Arrival of the read that completed the last ``data`` line (appendix B.1)."""
    read_index: int
    """Number of that read, so that events of the same read can be recognised."""
    terminated: bool = True
    """Whether the event was ended by an empty line; False if the stream ended before."""
    problem: str = ""
    """Why :attr:`data` is not what was sent; empty if it is."""


class CappedDecoder:
    """What collects a line, or a document, from reads. One longer than ``max_line_bytes`` is cut there and
    marks its event as undecodable, so that memory stays bounded against a server that never ends it."""

    noun = "line"
    blanks: str | None = None
    """What is taken off the ends of a text; None: all that Python calls a blank, more than JSON does."""

    def __init__(self, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> None:
        self.max_line_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        """Those of the line that is not complete yet."""
        self._length = 0
        self._too_long = False
        self._stamp_ns = 0
        self._read_index = 0

    def _take(self, piece: bytes) -> None:
        """Add to the current line, up to the cap."""
        room = self.max_line_bytes - self._length
        if len(piece) > room:
            self._too_long = True
            piece = piece[:room]
        if piece:
            self._pieces.append(piece)
            self._length += len(piece)

    def _taken(self) -> tuple[bytes, str]:
        """The line, with why it is not what was sent; empty if it is. The next one begins."""
        line = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        problem = f"a {self.noun} of more than {self.max_line_bytes} bytes" if self._too_long else ""
        self._pieces, self._length, self._too_long = [], 0, False
        return line, problem

    def _whole(self, *, terminated: bool = True) -> list[SSEEvent]:
        """The line as an event; none if it is blank."""
        line, problem = self._taken()
        if not line.strip():
            return []
        text, garbled = _decoded(line)
        where = self._stamp_ns, self._read_index
        return [SSEEvent(text.strip(self.blanks), "message", *where, terminated, problem or garbled)]


def _decoded(data: bytes) -> tuple[str, str]:
    """The text of bytes, and why it is not what they are; empty if it is."""
    try:
        return data.decode(), ""
    except UnicodeDecodeError as error:
        return data.decode(errors="replace"), f"bytes that are not UTF-8 ({error.reason})"


class SSEDecoder(CappedDecoder):
    """Decodes events. Feed it reads in order, then close it once. Made for replies that have been read
    already."""

    def __init__(self, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> None:
        if max_line_bytes < _LEAST_CAP:
            raise ValueError(f"max_line_bytes must be at least {_LEAST_CAP}, not {max_line_bytes}")
        super().__init__(max_line_bytes)
        self._head: bytes | None = b""  # what may still turn out to be a byte order mark; None: decided
        self._after_cr = False  # a LF that comes next belongs to the line end already seen
        self._clean = True  # between two events, nothing pending
        self._events: list[SSEEvent] = []
        self._reset_event()

    def feed(self, data: bytes, stamp_ns: int, read_index: int) -> list[SSEEvent]:
        """The events completed by this read."""
        if self._head is not None:
            data = self._without_mark(data)
        if not data:
            return []
        self._stamp_ns = stamp_ns
        self._read_index = read_index
        events: list[SSEEvent] = []
        self._events = events
        if data.find(b"\r") >= 0 or len(data) > self.max_line_bytes:
            self._feed_lines(data)
            return events
        if not self._clean:
            # An empty line ends whatever was pending, so all that follows it starts afresh.
            pending, boundary, data = data.partition(b"\n\n")
            self._feed_lines(pending + boundary)
        whole, boundary, tail = data.rpartition(b"\n\n")
        if boundary:
            self._feed_blocks(whole)
        if tail:
            self._feed_lines(tail)
        return events

    def close(self) -> list[SSEEvent]:
        """The event that the end of the stream cut off, if any."""
        events: list[SSEEvent] = []
        self._events = events
        if self._pieces:
            self._end_line()
        self._dispatch(terminated=False)
        return events

    def _without_mark(self, data: bytes) -> bytes:
        """``data`` without a byte order mark at the start of the stream, which may come in several reads."""
        data = (self._head or b"") + data
        if len(data) < len(_BOM) and _BOM.startswith(data):
            self._head = data
            return b""
        self._head = None
        return data.removeprefix(_BOM)

    def _feed_blocks(self, whole: bytes) -> None:
        """Decode complete blocks with LF line ends only, from a clean state: the form that nearly every
        server sends."""
        try:
            text = whole.decode()
        except UnicodeDecodeError:
            self._feed_lines(whole + b"\n\n")  # which finds out which event it was
            return
        stamp_ns, read_index, append = self._stamp_ns, self._read_index, self._events.append
        for block in text.split("\n\n") if "\n" in text else (text,):
            if block[:6] == "data: " and "\n" not in block:
                append(SSEEvent(block[6:], "message", stamp_ns, read_index))
            else:
                self._feed_lines(block.encode() + b"\n\n")

    def _feed_lines(self, data: bytes) -> None:
        """Decode any bytes, in any state."""
        if self._after_cr:
            self._after_cr = False
            data = data.removeprefix(b"\n")
            if not data:
                return
        lines = data.splitlines(keepends=True)  # of bytes: LF, CR and CRLF, nothing else
        self._after_cr = data.endswith(b"\r")
        partial = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
        for line in lines:
            self._take(line.rstrip(b"\r\n"))
            self._end_line()
        self._take(partial)
        self._clean = not (self._pieces or self._data or self._event or self._after_cr)

    def _end_line(self) -> None:
        line, problem = self._taken()
        if not line:
            self._dispatch(terminated=True)
        elif line[0] != _COLON:
            name, _, value = line.partition(b":")
            self._field(name, value.removeprefix(b" "), problem)

    def _field(self, name: bytes, value: bytes, problem: str) -> None:
        if problem and name in (b"data", b"event"):
            self._problem = problem
        if name == b"data":
            self._data.append(value)
            self._data_stamp_ns = self._stamp_ns
            self._data_read_index = self._read_index
        elif name == b"event":
            self._event = value

    def _dispatch(self, *, terminated: bool) -> None:
        if self._data:
            data = self._text(b"\n".join(self._data))
            event = self._text(self._event) or "message"
            stamp = (self._data_stamp_ns, self._data_read_index)
            self._events.append(SSEEvent(data, event, *stamp, terminated, self._problem))
        self._reset_event()

    def _text(self, value: bytes) -> str:
        text, garbled = _decoded(value)
        self._problem = self._problem or garbled
        return text

    def _reset_event(self) -> None:
        self._data: list[bytes] = []
        self._event = b""
        self._problem = ""
        self._data_stamp_ns = 0
        self._data_read_index = 0


class NDJSONDecoder(CappedDecoder):
    """Decodes lines of JSON. Feed it reads in order, then close it once."""

    def feed(self, data: bytes, stamp_ns: int, read_index: int) -> list[SSEEvent]:
        """The events completed by this read. An event has the stamp of the read that ended its line."""
        *complete, rest = data.split(b"\n")
        if complete or rest:
            self._stamp_ns, self._read_index = stamp_ns, read_index
        events = []
        for line in complete:
            self._take(line)
            events += self._whole()
        self._take(rest)
        return events

    def close(self) -> list[SSEEvent]:
        """The line that was cut off by the end, if any, with the stamp of its last byte.

        A whole JSON object needs none: some servers leave the last line without it.
        """
        return self._whole(terminated=False)
