"""What is declared of a model's reasoning: its tags, and where the server reports what no client can see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.wire.http_status import header
from pytest_llmbench.wire.inline_reasoning import InlineReasoning
from pytest_llmbench.wire.openai_stream import as_count
from pytest_llmbench.wire.server_figures import reason_of
from pytest_llmbench.wire.sse import SSEEvent

FIELD, HEADER = "field:", "header:"
_BEYOND = 2**63


@dataclass(frozen=True, slots=True)
class ReasoningDeclared:
    """Places are ``field:a.b.0.c``, a path through the JSON of an event (numbers count list entries), or
    ``header:Name`` of the response; empty: nothing is declared. Others are not ours to read."""

    inline: InlineReasoning = field(default_factory=InlineReasoning)
    end_reason: str = ""
    """The place that says why the reasoning of a reply ended."""
    critical_evictions: str = ""
    """The place that counts how often the request was evicted in its output phase."""

    @property
    def tells(self) -> bool:
        """Whether something has to be looked up in each reply."""
        return any(place.startswith((FIELD, HEADER)) for place in (self.end_reason, self.critical_evictions))

    @property
    def needs_every_event(self) -> bool:
        """Whether replies have to be read event by event: their text alone does not show what they are."""
        return self.inline.declared or self.tells

    def fill(self, record: RequestRecord, events: Iterable[SSEEvent], headers: Mapping[str, str]) -> None:
        """Puts what a reply says at the declared places into its record; what is not said stays unknown."""
        seen = list(events)
        reason = _reason(_at(self.end_reason, seen, headers))
        count = _count(_at(self.critical_evictions, seen, headers))
        if reason is not None:
            record.thinking_end_reason = reason
        if count is not None:
            record.critical_evictions = count


def _at(place: str, events: list[SSEEvent], headers: Mapping[str, str]) -> Any:
    """What stands at the place; in several events the last."""
    if place.startswith(HEADER):
        return header(headers, place.removeprefix(HEADER).lower())
    if not place.startswith(FIELD):
        return None
    path = place.removeprefix(FIELD).split(".")
    name = next((part for part in reversed(path) if not part.isdecimal()), "")
    for event in reversed(events):
        if name in event.data:  # most events do not have it, and are not read
            value = _follow(event.data, path)
            if value is not None:
                return value
    return None


def _follow(data: str, path: list[str]) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and len(part) < 6 and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _reason(value: Any) -> str | None:
    return reason_of(str(value).lower() if isinstance(value, bool) else value)


def _count(value: Any) -> int | None:
    if isinstance(value, str) and len(value) <= 20 and value.strip().isdecimal():
        value = int(value)  # as headers are
    count = as_count(value)
    return count if count is not None and count < _BEYOND else None
