"""A chunk: the content of one wire event, whatever the dialect; and what every dialect does first with an
event: read its payload as a JSON object, or say what it is instead."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_llmbench.wire.error_replies import error_in, error_text, is_policy_error, is_turned_away, shorten
from pytest_llmbench.wire.sse import SSEEvent

_NOTHING_SEEN = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
"""Unicode categories that show nothing: white space, control characters and those of no width (joiners, marks
of direction)."""
_FILLERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0") | frozenset(
    map(chr, range(0xFE00, 0xFE10))
)
"""Characters of other categories that show nothing: fillers of Hangul, the empty Braille pattern, selectors
of variants (Unicode, ``Default_Ignorable_Code_Point``)."""


def is_visible(text: str | bytes) -> bool:
    """Whether a reader sees something of a non-empty text: more than white space and characters of no width,
    which any server could send ahead of an answer. Bytes have to be printable ASCII."""
    if text.isspace():
        return False
    if isinstance(text, bytes) or (text.isprintable() and not _FILLERS.intersection(text)):
        return True
    return any(unicodedata.category(each) not in _NOTHING_SEEN and each not in _FILLERS for each in text)


@dataclass(slots=True)
class Usage:
    """Token counts as the server reports them; ``None``: it does not."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    """Output tokens, reasoning included."""
    cached_tokens: int | None = None
    """How many of the input tokens came from a prefix cache."""
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    """Input and output together."""


class CallDelta(NamedTuple):
    """What an event adds to one tool call."""

    number: int | None
    """Number of the call in the reply, as the server counts; ``None``: it does not."""
    name: str = ""
    arguments: str = ""
    identity: str = ""
    """Id of the call; most servers send it with the first event of the call alone."""


@dataclass(slots=True)
class Chunk:
    """One event of a reply. A chunk is a wire event, not a token: it may hold none, one or many.

    The text fields hold what this event adds. Token fields are only set where the server gives counts.
    """

    stamp_ns: int
    read_index: int
    text: str = ""
    """Visible output: content, refusal text, tool-call names and arguments."""
    reasoning: str = ""
    """Reasoning sent in a field of its own; it is not content for TTFT (AMB-29)."""
    choice: int | None = None
    """The choice that it belongs to; ``None`` for events that belong to none (usage, end marker, error)."""
    blank: bool = False
    """Whether the output field is present and empty: a token without text, or no token at all. See
    attribution."""
    tokens: int | None = None
    """Number of tokens of this event alone, by the token ids in it."""
    ids_alone: bool = False
    """Whether its tokens come as ids, from an API without text: they are then visible output."""
    tokens_cumulative: int | None = None
    """Output tokens of the reply up to and including this event."""
    results: Sequence[int] = ()
    """Numbers of the inputs whose vectors or scores are in a reply that is one document."""
    finish_reason: str | None = None
    usage: Usage | None = None
    done: bool = False
    """Whether it is the dialect's end marker. That does not mean success: servers send it after an error
    too."""
    error: str | None = None
    refused: bool = False
    """Whether the error is that of a content policy."""
    turned_away: bool = False
    """Whether the error is that of a server which takes no more requests at the moment."""
    problem: str = ""
    """Why the event cannot be read; empty when it can."""
    server_timings: Mapping[str, Any] | None = None
    """The server's own timing figures, with its names and unfiltered."""
    calls: tuple[CallDelta, ...] = ()
    """What the event adds to each tool call."""
    called: int = 0
    """Number of characters at the end of ``text`` that are names and arguments of tool calls."""

    @property
    def content(self) -> str:
        """The text without that of tool calls."""
        return self.text[: len(self.text) - self.called] if self.called else self.text

    @property
    def undecodable(self) -> bool:
        return self.problem != ""


END_MARKER = "[DONE]"
TOKEN_TIMES = "token_times_ns"
"""Key of an event with the server's instant of each of its tokens, in integer nanoseconds of the server's
clock."""
TOKENS_PER_STEP = "avg_decoded_tokens_per_iter"
"""Key of a choice of TensorRT-LLM: tokens of the reply so far / iterations that gave them, the first too."""
_ENUMERATION = re.compile(r"^finish_?reason[._]")
_NO_FINISH = ("null", "none", "unspecified")
_FINISH_LIMIT = 80
"""Most characters of a finish reason that are kept."""


def payload_of(event: SSEEvent, chunk: Chunk) -> dict[str, Any] | None:
    """The JSON object in an event; ``None`` where there is none, with the reason in ``chunk``.

    An event that the end of the stream cut off and that cannot be read is an empty chunk: the reply is
    truncated, which :func:`~pytest_llmbench.wire.reply.read_stream` finds out by itself.
    """
    if event.problem:
        chunk.problem = event.problem if event.terminated else ""
        return None
    try:
        payload = json.loads(event.data)
    except (ValueError, RecursionError):
        payload = None
    if payload.__class__ is dict:
        found: dict[str, Any] = payload
        return found
    read_plain(chunk, event)
    return None


def read_plain(chunk: Chunk, event: SSEEvent) -> None:
    """Read an event that is not a JSON object.

    It is the end marker, a plain error text, a keep-alive, a named event of others, or garbage.
    """
    data = event.data.strip()
    if data == END_MARKER:
        chunk.done = True
    elif event.event == "error":
        set_error(chunk, data)
    elif data and event.terminated and event.event == "message":
        chunk.problem = f"an event that is no JSON object: {shorten(data, 80)}"
        if "\n" in data and _is_object(data.partition("\n")[0]):
            chunk.problem = (
                "several JSON objects in one event: one newline stands between them, where an empty line "
                f"ends an event: {shorten(data, 80)}"
            )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def set_error(chunk: Chunk, error: Any) -> None:
    """Make the chunk an error with this object or text."""
    chunk.error = error_text(error) or "an error without a message"
    chunk.refused = is_policy_error(error)
    chunk.turned_away = is_turned_away(error)


def read_error(chunk: Chunk, payload: dict[str, Any]) -> bool:
    """Read an error in one of its many shapes into ``chunk``. False if the payload is none."""
    error = error_in(payload)
    if error is None:
        return False
    set_error(chunk, error)
    return True


def type_of(payload: dict[str, Any], event_name: str) -> str:
    """The type of an event, which is in its payload and often also its name."""
    kind = payload.get("type", event_name)
    return kind if kind.__class__ is str else ""


def finish_reason(value: Any) -> str | None:
    """A finish reason as it is kept, in lower case and without the name of its enumeration
    (``FinishReason.MAX_TOKENS``); ``None`` for none, which some gateways write as ``""``."""
    if not value:
        return None
    told = shorten(str(value), _FINISH_LIMIT) or "no readable text"
    told = told if told.islower() else _ENUMERATION.sub("", told.lower()) or told
    return None if told in _NO_FINISH else told


def text_in(source: Any, key: str) -> str:
    """The text under ``key`` of what should be an object; ``""`` where there is none."""
    value = source.get(key) if source.__class__ is dict else None
    return value if value.__class__ is str else ""


def written(source: Any, key: str) -> str:
    """The arguments under ``key`` as text: what is no text already is written as JSON; ``""`` for none."""
    value = source.get(key) if source.__class__ is dict else None
    return value if value.__class__ is str else "" if value is None else json.dumps(value)


def as_count(value: Any) -> int | None:
    """``value`` if it is a valid count, else None: 12.0 is one, True, -1 and "12" are not."""
    if value.__class__ is float and value.is_integer():
        value = int(value)
    return value if value.__class__ is int and value >= 0 else None
