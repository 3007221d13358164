"""Declarations about replies: tags of reasoning, and where the server reports what no client can see."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.wire.error_replies import header
from pytest_llmbench.wire.inline_reasoning import InlineReasoning
from pytest_llmbench.wire.openai_stream import as_count
from pytest_llmbench.wire.server_figures import reason_of
from pytest_llmbench.wire.sse import SSEEvent

FIELD, HEADER = "field:", "header:"
_BEYOND = 2**63
TimeUnit = Literal["s", "ms", "us", "ns"]
_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}


@dataclass(frozen=True, slots=True)
class Declared:
    """Where replies hold what. A place is ``field:a.b.0.c``, a path through the JSON of an event (numbers
    count list entries), ``header:Name`` of the response, or ``header:Server-Timing:entry``, the duration
    of one entry of that header (W3C Server Timing); empty: nothing is declared. Other places are not read
    here."""

    inline: InlineReasoning = field(default_factory=InlineReasoning)
    end_reason: str = ""
    """Place of the reason why the reasoning of a reply ended."""
    critical_evictions: str = ""
    """Place of the number of evictions of the request in its output phase."""
    queue_wait: str = ""
    """Place of the time that the request waited to be scheduled."""
    prefill: str = ""
    """Place of the time from there to the first token."""
    time_unit: TimeUnit = "ms"
    """Unit of both times; an entry of Server-Timing is always in ms."""

    @property
    def tells(self) -> bool:
        """Whether something has to be looked up in each reply."""
        return any(place.startswith((FIELD, HEADER)) for place in self._places)

    @property
    def needs_every_event(self) -> bool:
        """Whether replies have to be read event by event: their text alone does not show what they are."""
        return self.inline.declared or any(place.startswith(FIELD) for place in self._places)

    @property
    def _places(self) -> tuple[str, ...]:
        return self.end_reason, self.critical_evictions, self.queue_wait, self.prefill

    def passing(self, events: Iterable[SSEEvent], held: list[SSEEvent]) -> Iterable[SSEEvent]:
        """The ``events``; those that may have a declared field go to ``held`` as they pass, so that a reply
        is read once."""
        names = [_name_in(place) for place in self._places if place.startswith(FIELD)]
        return _holding(events, names, held) if names else events

    def fill(self, record: RequestRecord, events: Sequence[SSEEvent], headers: Mapping[str, str]) -> None:
        """Put what a reply has at the declared places into its record; what it does not have stays
        unknown. ``events``: its events, or those that :meth:`passing` held."""
        reason = _reason(_at(self.end_reason, events, headers))
        count = _count(_at(self.critical_evictions, events, headers))
        if reason is not None:
            record.thinking_end_reason = reason
        if count is not None:
            record.critical_evictions = count
        for name, place in (("queue_wait_ns", self.queue_wait), ("prefill_ns", self.prefill)):
            took_ns = self._time_ns(place, _at(place, events, headers))
            if took_ns is not None:
                setattr(record, name, took_ns)

    def _time_ns(self, place: str, value: Any) -> int | None:
        if isinstance(value, str):
            try:
                value = float(value)  # as headers are
            except ValueError:
                return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        try:
            took_ns = value * _NS["ms" if _entry_of(place) else self.time_unit]
        except OverflowError:
            return None
        return round(took_ns) if math.isfinite(took_ns) and 0 <= took_ns < _BEYOND else None


def _holding(events: Iterable[SSEEvent], names: Sequence[str], held: list[SSEEvent]) -> Iterator[SSEEvent]:
    for event in events:
        if any(name in event.data for name in names):
            held.append(event)
        yield event


def _name_in(place: str) -> str:
    """The last name in a path: an event without it is not looked into."""
    path = place.removeprefix(FIELD).split(".")
    return next((part for part in reversed(path) if not part.isdecimal()), "")


def _at(place: str, events: Sequence[SSEEvent], headers: Mapping[str, str]) -> Any:
    """The value at a place; that of the last event which has one. None if there is none."""
    if place.startswith(HEADER):
        name, entry = place.removeprefix(HEADER).partition(":")[0].lower(), _entry_of(place)
        said = header(headers, name)
        return _duration(said, entry) if entry and said is not None else said
    if not place.startswith(FIELD):
        return None
    path, name = place.removeprefix(FIELD).split("."), _name_in(place)
    for event in reversed(events):
        if name in event.data:  # most events do not have it, and are not read
            value = _in_text(event.data, path)
            if value is not None:
                return value
    return None


def _entry_of(place: str) -> str:
    return place.removeprefix(HEADER).partition(":")[2] if place.startswith(HEADER) else ""


def _duration(timings: str, entry: str) -> str | None:
    """The ``dur`` of an entry of Server-Timing, as in ``cache;desc="hit", queue;dur=5.2``; None if there is
    none."""
    for one in timings.split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        if name == entry:
            found = (each.partition("=")[2] for each in parameters if each.lower().startswith("dur="))
            return next((value.strip('" ') for value in found), None)
    return None


def _in_text(data: str, path: Sequence[str]) -> Any:
    try:
        return follow(json.loads(data), path)
    except (ValueError, RecursionError):
        return None


def follow(value: Any, path: Sequence[str]) -> Any:
    """The value at a path through JSON, where numbers count list entries; ``None`` if there is none."""
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
