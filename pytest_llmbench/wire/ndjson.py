"""Newline-delimited JSON: bytes to events, one for each line that is not blank.

Lines end with LF or CRLF. As with server-sent events, a line that the end of the stream cut off is an event
that is not terminated, bytes that are not UTF-8 mark their event, and events do not depend on how the stream
was cut into reads; only their stamps do.
"""

from __future__ import annotations

from pytest_llmbench.wire.sse import DEFAULT_MAX_LINE_BYTES, SSEEvent


class NDJSONDecoder:
    """Decodes lines of JSON. Feed it reads in order, then close it once. A line longer than
    ``max_line_bytes`` is cut there and marks its event as undecodable."""

    def __init__(self, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES) -> None:
        self.max_line_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        self._length = 0
        self._too_long = False
        self._stamp_ns = 0
        self._read_index = 0

    def feed(self, data: bytes, stamp_ns: int, read_index: int) -> list[SSEEvent]:
        """The events completed by this read. An event has the stamp of the read that ended its line."""
        *complete, rest = data.split(b"\n")
        events = []
        for line in complete:
            self._take(line)
            events += self._event(stamp_ns, read_index)
        self._take(rest)
        if rest:
            self._stamp_ns, self._read_index = stamp_ns, read_index
        return events

    def close(self) -> list[SSEEvent]:
        """The line that was cut off by the end, if any, with the stamp of its last byte.

        A whole JSON object needs none: some servers leave the last line without it.
        """
        return self._event(self._stamp_ns, self._read_index, terminated=False)

    def _take(self, piece: bytes) -> None:
        room = self.max_line_bytes - self._length
        if len(piece) > room:
            self._too_long = True
            piece = piece[:room]
        if piece:
            self._pieces.append(piece)
            self._length += len(piece)

    def _event(self, stamp_ns: int, read_index: int, *, terminated: bool = True) -> list[SSEEvent]:
        line = b"".join(self._pieces)
        problem = f"a line of more than {self.max_line_bytes} bytes" if self._too_long else ""
        self._pieces, self._length, self._too_long = [], 0, False
        if not line.strip():
            return []
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            problem = problem or f"bytes that are not UTF-8 ({error.reason})"
            text = line.decode(errors="replace")
        return [SSEEvent(text, "message", stamp_ns, read_index, terminated, problem)]
