"""Reads text events by comparison: those of a stream differ in the text alone, so one is read as JSON, the
others are compared.

Exact, not a guess. Let an event be ``head + text + tail`` where ``head`` ends inside the JSON string of the
text. A JSON reader is in the same state after ``head`` whatever follows; characters that need no escaping
keep it inside the string; and ``tail`` begins with the quote that ends it. So another event with the same
head and tail and such a text reads the same but for the text. Anything else is read as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from json import JSONDecoder

from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.sse import SSEEvent

_OTHER_TEXT = "another"
_JSON = JSONDecoder()


@dataclass(frozen=True, slots=True)
class TextTemplate:
    """The bytes around the text that the text events of one stream have in common."""

    head: str
    tail: str
    choice: int | None

    def text_of(self, data: str) -> str | None:
        """The text of an event of this form; ``None`` if it has to be read as JSON."""
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
