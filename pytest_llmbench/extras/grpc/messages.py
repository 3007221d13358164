"""Messages of a gRPC call, what they hold of protobuf, and the status with which it ended.

A message is a flag, a length of four bytes, and so many bytes.

As with server-sent events, a message that the end of the call cut off is an event that is not terminated, and
events do not depend on how the bytes were cut into reads; only their stamps do. Source: gRPC over HTTP2,
``Length-Prefixed-Message``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.dialect import not_utf8
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.wire.openai_chat import text_prompt
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
            compressed = "a compressed message, although the client requested identity"
            problem = compressed if flag == _COMPRESSED else ""
            if flag > _COMPRESSED or length > self.max_message_bytes:  # nothing after it can be read
                problem = f"a message of {length} bytes, more than {self.max_message_bytes}"
                if flag > _COMPRESSED:
                    problem = f"bytes that are not a gRPC message (its flag is {flag}, not 0 or 1)"
                self._lost = True
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


_OWN = "stream"
"""A field that every dialect sets itself; it may be given as an extra field only with the same value."""


def message_in(event: SSEEvent, kind: type[Message], chunk: Chunk) -> Any | None:
    """The protobuf message in an event; ``None`` where there is none, with the reason in ``chunk``.

    A message that the end of the stream cut off is an empty chunk: the reply is truncated.
    """
    if event.problem or not event.terminated:
        chunk.problem = event.problem if event.terminated else ""
        return None
    try:
        return kind.FromString(event.data.encode("latin-1"))
    except (DecodeError, UnicodeEncodeError):
        chunk.problem = f"a message that is not a {kind.DESCRIPTOR.name}"
        return None


def utf8_prompt(request: PlannedRequest) -> str:
    """The prompt as text that can be sent as UTF-8.

    :raises GeneratorError: there is none, or it is none of UTF-8.
    """
    text = text_prompt(request)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise not_utf8(request, error) from error
    return text


def refuse_no_stream(extra: Mapping[str, Any]) -> None:
    """Check that the extra fields leave streaming on. :raises SuiteError: they switch it off."""
    if extra.get(_OWN, True) is not True:
        raise SuiteError(
            f"extra request fields set {_OWN} to " + json.dumps(extra[_OWN]),
            remedy=f"leave {_OWN} out: every figure is taken from the stream",
        )


def add_fields(
    request: Message, sampling: Message, extra: Mapping[str, Any], own: Collection[str], dialect: str
) -> None:
    """Put each extra field where the proto has it: in the sampling parameters, else in the request.

    A field that is ``None`` is not sent. ``own``: fields of the request that the load generator sets.

    :raises SuiteError: every field that the proto has nowhere, or not in this form, and ``stream`` that is
        not true.
    """
    refuse_no_stream(extra)
    mistakes = []
    for name, value in extra.items():
        if value is None or name == _OWN:
            continue
        place = sampling
        if name not in sampling.DESCRIPTOR.fields_by_name:
            if name not in request.DESCRIPTOR.fields_by_name or name in own:
                mistakes.append(f"{dialect} has no field {name}")
                continue
            place = request
        try:
            ParseDict({name: value}, place)
        except (ParseError, ValueError, TypeError) as error:
            mistakes.append(f"{dialect} cannot send {name}: {shorten(str(error), 160)}")
    if mistakes:
        raise SuiteError.from_mistakes(
            mistakes,
            where="request.extra_body",
            remedy=f"take out what it does not have; fields are those of {request.DESCRIPTOR.full_name} and "
            f"{sampling.DESCRIPTOR.full_name}",
        )


_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
    "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
HTTP_STATUS: Mapping[str, int] = {
    "OK": 200,
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}
"""Status of gRPC → the HTTP status that means the same; 500 for any other."""
_OTHERWISE = 500
_TOO_LARGE = 413
_PUSHBACK = "grpc-retry-pushback-ms"


@dataclass(frozen=True, slots=True)
class CallStatus:
    """The status of a call that has ended."""

    code: str
    """The number, as the server wrote it; empty: it gave none, which a client reads as UNKNOWN."""
    message: str = ""
    retry_after: str = ""
    """Seconds to wait, as in ``Retry-After``; empty: the server does not say."""

    @property
    def is_ok(self) -> bool:
        """Whether the call has succeeded."""
        return self._name == "OK"

    @property
    def http_status(self) -> int:
        """The corresponding HTTP status."""
        # gRPC's own libraries, C++ and Go, refuse a request above their limit so: no server is busy there.
        if self._name == "RESOURCE_EXHAUSTED" and "message larger than max" in self.message:
            return _TOO_LARGE
        return HTTP_STATUS.get(self._name, _OTHERWISE)

    @property
    def text(self) -> str:
        """The status in words, on one line."""
        if not self.code:
            return "the call ended without a gRPC status"
        said = f"gRPC status {shorten(f'{self.code} {self._name}', 60)}"
        return f"{said}: {shorten(self.message)}" if self.message else said

    @property
    def _name(self) -> str:
        number = int(self.code) if self.code.isascii() and self.code.isdigit() else -1
        return _NAMES[number] if 0 <= number < len(_NAMES) else "UNKNOWN"


def status_of(trailers: Iterable[tuple[bytes, bytes]]) -> CallStatus:
    """The status in the trailers of a call. Never raises."""
    held = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in trailers}
    pushback = held.get(_PUSHBACK, "")[:12]
    wait = str(int(pushback) / 1000).removesuffix(".0") if pushback.isascii() and pushback.isdigit() else ""
    code = held.get("grpc-status", "").strip()[:12]
    return CallStatus(code, unquote(held.get("grpc-message", ""), errors="replace"), wait)
