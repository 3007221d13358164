"""OpenTelemetry spans of the GenAI semantic conventions, as exporters write them.

Three shapes: OTLP/JSON (``resourceSpans``), a document with ``spans``, and a span in each line. Only spans of
a call to a model count; those around them (agents, tools) and beside them (embeddings) are left out. Tokens
are those that the span states, ``gen_ai.usage.*``; else those of its messages, counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from pytest_llmbench.errors import shown
from pytest_llmbench.input_files import parse_json
from pytest_llmbench.store.traces.conversations import Blocks, prompt_tokens
from pytest_llmbench.store.traces.request import TraceRequest, name_of, number_of, tokens_of

OPERATIONS: Final = ("chat", "text_completion", "generate_content", "")
"""Operations that generate; empty for a span that names none."""
_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
_OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_CALL = (*_INPUT, "gen_ai.input.messages")
"""Attributes of which a call to a model has at least one."""
_SESSIONS = ("gen_ai.conversation.id", "session.id")

Row = Mapping[str, Any]


def is_span(row: Row) -> bool:
    return "resourceSpans" in row or "spans" in row or ("attributes" in row and "name" in row)


def spans_of(row: Row) -> Iterator[Row]:
    """The spans of a row of any of the three shapes. ValueError in words."""
    if "resourceSpans" in row:
        for resource in _objects(row, "resourceSpans"):
            for scope in _objects(resource, "scopeSpans"):
                yield from _objects(scope, "spans")
    elif "spans" in row:
        yield from _objects(row, "spans")
    else:
        yield row


def _objects(row: Row, name: str) -> list[Row]:
    found = row.get(name, [])
    if not isinstance(found, list) or not all(isinstance(each, Mapping) for each in found):
        raise ValueError(f"{name} must be a list of objects")
    return found


class SpanReader:
    """Makes requests of spans, and remembers when those of a session ended, for the pauses between them."""

    def __init__(self) -> None:
        self._blocks = Blocks()
        self._found: list[TraceRequest] = []
        self.others = 0
        """Number of spans that are no call to a model."""

    def read(self, place: str, span: Row) -> None:
        """Read a span. ValueError, in words, for an invalid one."""
        told = _attributes(span)
        if name_of(told, "gen_ai.operation.name") not in OPERATIONS or not any(map(told.__contains__, _CALL)):
            self.others += 1
            return
        prompt = _messages(told, "gen_ai.input.messages")
        start, end = _instant(span, "start"), _instant(span, "end")
        if end < start:
            raise ValueError("it ends before it starts")
        ids = prompt_tokens(prompt) if prompt is not None else None
        tokens = _stated(told, _INPUT)
        context = span.get("context")
        trace = name_of(context if isinstance(context, Mapping) else span, "trace_id")
        session = next((text for name in _SESSIONS if (text := name_of(told, name))), "")
        request = TraceRequest(
            place,
            tokens if tokens is not None else len(ids or ()),
            _output_tokens(told),
            start,
            () if ids is None else self._blocks.ids(ids, tokens),
            session=session or trace or name_of(span, "traceId"),
            end_ms=end,
        )
        self._found.append(request)

    def requests(self) -> list[TraceRequest]:
        """The requests in order of their start, with the pause since the last reply of their session; without
        one where they overlap."""
        ended: dict[str, float] = {}
        found = []
        for request in sorted(self._found, key=lambda each: each.offset_ms or 0.0):
            before, end_ms = ended.get(request.session), request.end_ms or 0.0
            pause = None if before is None else (request.offset_ms or 0.0) - before
            found.append(replace(request, pause_ms=pause if pause is not None and pause >= 0 else None))
            ended[request.session] = max(end_ms, before if before is not None else end_ms)
        return found


def _attributes(span: Row) -> dict[str, Any]:
    """The attributes of a span as a mapping; OTLP writes ``[{"key": …, "value": {"intValue": "12"}}]``."""
    given = span.get("attributes", {})
    if isinstance(given, Mapping):
        return dict(given)
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise ValueError(f"attributes is {shown(given)}: give an object, or a list of keys and values")
    values = ((str(each.get("key")), each.get("value")) for each in given)
    return {
        key: next(iter(value.values()), None) if isinstance(value, Mapping) else value
        for key, value in values
    }


def _stated(told: Row, names: tuple[str, ...]) -> int | None:
    name = next((name for name in names if told.get(name) is not None), None)
    return None if name is None else tokens_of(told, name)


def _output_tokens(told: Row) -> int:
    tokens = _stated(told, _OUTPUT)
    if tokens is not None:
        return tokens
    replies = _messages(told, "gen_ai.output.messages")
    if replies is None and isinstance(told.get("gen_ai.output.text"), str):
        replies = [{"content": told["gen_ai.output.text"]}]
    if replies is None:
        raise ValueError(f"it states neither {_OUTPUT[0]} nor gen_ai.output.messages")
    return len(prompt_tokens(replies))


def _messages(told: Row, name: str) -> list[Row] | None:
    given = told.get(name)
    if isinstance(given, str):
        try:
            given = parse_json(given)
        except ValueError:
            raise ValueError(f"{name} is not JSON") from None
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise ValueError(f"{name} must be a list of messages")
    return given


def _instant(span: Row, which: str) -> float:
    """Milliseconds of ``startTimeUnixNano`` or ``start_time``, since 1970."""
    nanos = f"{which}TimeUnixNano"
    if nanos in span:
        value = number_of(span, nanos)
        if value < 0:
            raise ValueError(f"{nanos} is {shown(span[nanos])}: it is negative")
        return value / 1e6
    given = span.get(f"{which}_time")
    try:
        at = datetime.fromisoformat(str(given))
    except ValueError:
        raise ValueError(f"{which}_time is {shown(given)}: give a date and a time") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000.0
