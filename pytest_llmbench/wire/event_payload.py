"""The payload of an event as a JSON object, or what the event is instead: the first step of every decoder."""

from __future__ import annotations

import json
import re
from typing import Any

from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.error_replies import error_in, error_text, is_policy_error, is_turned_away, shorten
from pytest_llmbench.wire.sse import SSEEvent

END_MARKER = "[DONE]"
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
