"""Messages of a gRPC call: a flag, a length of four bytes, and so many bytes of message.

As with server-sent events, a message that the end of the call cut off is an event that is not terminated, and
events do not depend on how the bytes were cut into reads; only their stamps do. Source: gRPC over HTTP2,
``Length-Prefixed-Message``.
"""

from __future__ import annotations

import struct

from pytest_llmbench.wire.sse import DEFAULT_MAX_LINE_BYTES, SSEEvent

_PREFIX = struct.Struct(">BI")
_PLAIN, _COMPRESSED = 0, 1


def prefixed(message: bytes) -> bytes:
    """The message as a call carries it, not compressed."""
    return _PREFIX.pack(_PLAIN, len(message)) + message


class MessageDecoder:
    """Decodes the messages of a call. Feed it reads in order, then close it once. ``data`` of an event is a
    message, as Latin-1.

    A message longer than ``max_message_bytes``, or a flag that is none, marks its event, which is the last:
    no byte behind it can be trusted to begin a message. A compressed message marks its event alone.
    """

    def __init__(self, max_message_bytes: int = DEFAULT_MAX_LINE_BYTES) -> None:
        self.max_message_bytes = max_message_bytes
        self._rest = bytearray()
        """The bytes of a message that is not complete yet."""
        self._lost = False
        self._stamp_ns = 0
        self._read_index = 0

    def feed(self, data: bytes, stamp_ns: int, read_index: int) -> list[SSEEvent]:
        """The events completed by this read. An event has the stamp of the read with its last byte."""
        events: list[SSEEvent] = []
        if self._lost or not data:
            return events
        self._stamp_ns, self._read_index = stamp_ns, read_index
        rest, at = self._rest, 0
        rest += data
        while len(rest) - at >= _PREFIX.size:
            flag, length = _PREFIX.unpack_from(rest, at)
            problem, self._lost = self._problem(flag, length)
            if self._lost:
                events.append(SSEEvent("", "message", stamp_ns, read_index, problem=problem))
                rest.clear()
                return events
            start = at + _PREFIX.size
            if len(rest) < start + length:
                break
            at = start + length
            text = "" if problem else rest[start:at].decode("latin-1")
            events.append(SSEEvent(text, "message", stamp_ns, read_index, problem=problem))
        del rest[:at]
        return events

    def close(self) -> list[SSEEvent]:
        """The message that was cut off by the end, if any, with the stamp of its last byte."""
        if not self._rest:
            return []
        text = self._rest[_PREFIX.size :].decode("latin-1")
        self._rest.clear()
        where = self._stamp_ns, self._read_index
        return [SSEEvent(text, "message", *where, terminated=False, problem="a message that was cut off")]

    def _problem(self, flag: int, length: int) -> tuple[str, bool]:
        """The problem of a message, and whether nothing after it can be read."""
        if flag > _COMPRESSED:
            return f"bytes that are no gRPC message (its flag is {flag}, not 0 or 1)", True
        if length > self.max_message_bytes:
            return f"a message of {length} bytes, more than {self.max_message_bytes}", True
        return "a compressed message, although identity was asked for" if flag == _COMPRESSED else "", False
