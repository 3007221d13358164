"""The chunks of a reply that has been read: decoder and dialect together make them of its bytes.

Lazy, so that whoever measures beside it can do a little at a time.

Text events are read by comparison: those of a stream differ in the text alone, so one is read as JSON, the
others are compared. Exact, not a guess. Let an event be ``head + text + tail`` where ``head`` ends inside the
JSON string of the text. A JSON reader is in the same state after ``head`` whatever follows; characters that
need no escaping keep it inside the string; and ``tail`` begins with the quote that ends it. So another event
with the same head and tail and such a text reads the same but for the text. Anything else is read as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from json import JSONDecoder
from typing import Any, cast

from pytest_llmbench.registry import named
from pytest_llmbench.wire.chunk import Chunk, increments
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.wire.reply import STREAM_END
from pytest_llmbench.wire.sse import DEFAULT_MAX_LINE_BYTES, NDJSONDecoder, SSEDecoder, SSEEvent

MOST_EVENTS = 1 << 19
"""Most events of a reply: an event without text is 8 bytes to send and hundreds to keep."""
_LESSONS = 8
"""Most attempts per stream at finding a template, so that a stream without one pays little for the search."""


_MakeDecoder = Callable[[int], Any]
_DECODERS: Mapping[str, _MakeDecoder] = {
    "sse": SSEDecoder,
    "websocket": SSEDecoder,
    "in_process": SSEDecoder,
    "ndjson": NDJSONDecoder,
}
"""Framing of a reply → its decoder; an extra may have one for another framing."""


def chunks_of(
    reads: Iterable[tuple[bytes, int]], dialect: Dialect, max_line_bytes: int = DEFAULT_MAX_LINE_BYTES
) -> Iterator[Chunk]:
    """The chunks of one body: ``reads`` are its bytes (HTTP framing removed) with the arrival of each.

    A chunk's ``read_index`` is the position of its read in ``reads``.
    """
    return chunks_in(events_of(reads, max_line_bytes, dialect.protocol), dialect)


def chunks_in(events: Iterable[SSEEvent], dialect: Dialect) -> Iterator[Chunk]:
    """The chunks of the events of one body."""
    chunks = decode(events, dialect)
    return increments(chunks) if dialect.accumulates else chunks


def events_of(
    reads: Iterable[tuple[bytes, int]], max_line_bytes: int = DEFAULT_MAX_LINE_BYTES, protocol: str = "sse"
) -> Iterator[SSEEvent]:
    """The events of one body, including one that its end cut off. ``protocol``: that of the dialect. Behind
    :data:`MOST_EVENTS` there is one that says so, and nothing more is read."""
    made = cast(_MakeDecoder, _DECODERS.get(protocol) or named("decoders", protocol) or SSEDecoder)
    decoder, room = made(max_line_bytes), MOST_EVENTS
    for number, (data, stamp_ns) in enumerate(reads):
        found = decoder.feed(data, stamp_ns, number)
        yield from found[:room]
        room -= len(found)
        if room < 0:
            problem = f"more than {MOST_EVENTS:,} events, and was read no further"
            yield SSEEvent("", "message", stamp_ns, number, problem=problem)
            return
    yield from decoder.close()


def decode(events: Iterable[SSEEvent], dialect: Dialect) -> Iterator[Chunk]:
    """One chunk per event of one reply: equal to ``dialect.decode`` of each, but faster.

    Where the end of the body is the end of the reply there is one more, whose finish reason says so; whether
    the body came to its end, :func:`~pytest_llmbench.wire.reply.read_stream` is told.
    """
    key = dialect.text_key
    lessons = 0 if key is None else _LESSONS
    template: TextTemplate | None = None
    event: SSEEvent | None = None
    for event in events:
        if template is not None and event.problem == "" and event.event == "message":
            text = template.text_of(event.data)
            if text is not None:
                yield Chunk(event.stamp_ns, event.read_index, text, "", template.choice)
                continue
        chunk = dialect.decode(event)
        if lessons > 0 and chunk.text and key is not None:
            lessons -= 1
            template = learn(event, chunk, key, dialect.decode) or template
        yield chunk
    if dialect.ends_with_body and event is not None and event.terminated:
        yield Chunk(event.stamp_ns, event.read_index, finish_reason=STREAM_END)


_OTHER_TEXT = "another"
_JSON = JSONDecoder()


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """The bytes around the text that the text events of one stream have in common."""

    head: str
    tail: str
    choice: int | None

    def text_of(self, data: str) -> str | None:
        """The text of an event of this form; ``None`` if it must be read as JSON."""
        if not (data.startswith(self.head) and data.endswith(self.tail)):
            return None
        text = data[len(self.head) : len(data) - len(self.tail)]
        plain = text != "" and text.isprintable() and '"' not in text and "\\" not in text
        return text if plain else None


def learn(
    event: SSEEvent, chunk: Chunk, key: str, decode: Callable[[SSEEvent], Chunk]
) -> TextTemplate | None:
    """The template from ``event``, read as ``chunk``; ``None`` if the event contains more than plain text.

    ``key`` is the JSON key of the text. Proved before use: the same event with another text must read as
    the same chunk with that text.
    """
    if chunk != Chunk(chunk.stamp_ns, chunk.read_index, text=chunk.text, choice=chunk.choice):
        return None
    data = event.data
    at_value = data.find(f'"{key}":') + len(key) + 3
    start = data.find('"', at_value) + 1
    if chunk.text == "" or start == 0:
        return None
    try:
        value, end = _JSON.raw_decode(data, start - 1)
    except ValueError:  # a quote that begins no string
        return None
    if value != chunk.text:
        return None
    template = TextTemplate(data[:start], data[end - 1 :], chunk.choice)
    proof = decode(replace(event, data=template.head + _OTHER_TEXT + template.tail))
    return template if proof == replace(chunk, text=_OTHER_TEXT) else None
