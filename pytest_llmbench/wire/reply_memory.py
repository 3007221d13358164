"""Remembers earlier replies of a run to read later ones faster: they often differ in their id and text
alone.

Exact for the same reason as a text template: where two events are equal but for the value of the JSON string
``id``, of characters that need no escaping, a JSON reader finds the same in both but for that string. No
dialect reads it; that is proved of each event before it is remembered, by decoding it with another id.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.sse import SSEEvent

HOLE = b"\0"
"""The byte that replaces the id; JSON text contains no such byte."""
_OTHER_ID = "another-id"
_LEAST_ID = 8
_MOST_ID = 128
_LOOK_FOR_ID = 256
_ROOM = 512

SummaryKey = tuple[bytes, int, bool]
"""The events around the text with holes for ids, the number of text events, and whether one of them is
visible."""


@dataclass(frozen=True, slots=True)
class KnownShape:
    """The shape of a text event: ``before + id + between + text + tail``."""

    before: bytes
    between: bytes
    tail: bytes
    choice: int | None


@dataclass(slots=True)
class ReplyMemory:
    """What was learnt from the replies of one dialect. Its size is bounded."""

    shape: KnownShape | None = None
    summaries: dict[SummaryKey, dict[str, Any]] = field(default_factory=dict)
    """Key → fields of a StreamSummary; those about instants and text must not be used."""

    def keep(self, key: SummaryKey, summary: dict[str, Any]) -> None:
        if len(self.summaries) >= _ROOM:
            self.summaries.clear()
        self.summaries[key] = summary


def id_of(body: bytes) -> bytes:
    """The id of the first event, if it can be told from other text; else empty."""
    at = body.find(b'"id":', 0, _LOOK_FOR_ID)
    start = body.find(b'"', at + 5, at + 7) + 1
    end = body.find(b'"', start, start + _MOST_ID)
    if at < 0 or start == 0 or end < start + _LEAST_ID:
        return b""
    found = body[start:end]
    return found if found.replace(b"-", b"").replace(b"_", b"").isalnum() else b""


def id_is_alone(
    events: Iterable[tuple[SSEEvent, Chunk]], identity: str, decode: Callable[[SSEEvent], Chunk]
) -> bool:
    """Whether every event with the id has it once, as its ``id``, and reads the same with another one."""
    for event, chunk in events:
        count = event.data.count(identity)
        if count == 0:
            continue
        payload = json.loads(event.data)
        if count > 1 or payload.__class__ is not dict or payload.get("id") != identity:
            return False
        if decode(replace(event, data=event.data.replace(identity, _OTHER_ID))) != chunk:
            return False
    return True
