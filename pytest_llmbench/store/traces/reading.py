"""Reads a trace from a file: its format, and its requests, or every mistake in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.store.datasets import FileFormat
from pytest_llmbench.store.traces import conversations, messages, mooncake, spans, tables
from pytest_llmbench.store.traces.request import Trace, TraceRequest, made_trace, name_of, refuse
from pytest_llmbench.store.traces.rows import Rows, numbered_rows
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.workloads.trace import MOONCAKE_BLOCK

TraceFormat = Literal["mooncake", "agentic-mooncake", "azure", "burstgpt", "sharegpt", "messages", "otel"]
FORMATS: Final[tuple[str, ...]] = get_args(TraceFormat)
Row = Mapping[str, Any]

_KNOWN = (
    "known are Mooncake (timestamp, input_length, output_length), agentic Mooncake (request_id, wait_for), "
    "Azure (TIMESTAMP, ContextTokens, GeneratedTokens), BurstGPT (Timestamp, Request tokens, Response "
    "tokens), ShareGPT (conversations), arrays of messages (messages) and OpenTelemetry spans (gen_ai.*)"
)
_LENGTHS = ("lengths and arrival times only",)
_TEXTS = (messages.COUNTED, messages.SHARED, "no arrival times")


def read_trace(path: Path, format_: FileFormat | None = None, trace: TraceFormat | None = None) -> Trace:
    """The requests of a trace file; ``trace``: its format, recognised where it is not given.

    Raises SuiteError with the mistakes of all lines.
    """
    return trace_of(numbered_rows(path, format_), str(path), trace)


def read_conversations(
    path: Path, format_: FileFormat | None = None, trace: TraceFormat | None = None
) -> Trace:
    """The requests of a file of conversations or of arrays of messages, with the messages themselves.

    Raises SuiteError with the mistakes of all lines, and for a format without messages.
    """
    rows, where = numbered_rows(path, format_), str(path)
    chosen = trace or recognised([row for _, row in rows.found], where, rows.mistakes)
    if chosen not in ("messages", "sharegpt"):
        raise SuiteError(
            f"its format, {chosen}, has no messages to send",
            where=where,
            remedy="give arrays of messages or conversations, or leave out messages = true",
        )
    return conversations.conversations_of(rows, where)


def trace_of(rows: Rows, where: str, trace: TraceFormat | None = None) -> Trace:
    """The trace in rows that have been read."""
    if not rows.found and not rows.mistakes:
        raise SuiteError("holds no requests", where=where, remedy="give the file of a trace")
    chosen = trace or recognised([row for _, row in rows.found], where, rows.mistakes)
    return _READERS[chosen](rows, where)


def recognised(rows: Sequence[Row], where: str = "trace", mistakes: Sequence[str] = ()) -> TraceFormat:
    """The trace format of the first row that has one. SuiteError, with the broken lines, if none has."""
    for row in rows:
        for format_, holds in _MARKS.items():
            if holds(row):
                return format_
    names = shorten(", ".join(map(str, rows[0])), 200) if rows else "nothing"
    refuse(mistakes, where)
    raise SuiteError(f"the first row is no request of a trace; it has {names}", where=where, remedy=_KNOWN)


_MARKS: Mapping[TraceFormat, Callable[[Row], bool]] = {
    "agentic-mooncake": mooncake.is_agentic,
    "mooncake": lambda row: "input_length" in row and "timestamp" in row,
    "azure": lambda row: "ContextTokens" in row,
    "burstgpt": lambda row: "Request tokens" in row,
    "sharegpt": lambda row: "conversations" in row,
    "messages": lambda row: "messages" in row,
    "otel": spans.is_span,
}


def _each(
    rows: Rows, make: Callable[[str, Row], Iterable[TraceRequest]]
) -> tuple[list[TraceRequest], list[str]]:
    found: list[TraceRequest] = []
    mistakes = list(rows.mistakes)
    for place, row in rows.found:
        try:
            found += make(place, row)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            mistakes.append(f"{place}: {error}")
    return found, mistakes


def _plain(format_: TraceFormat, make: Callable[[str, Row], TraceRequest]) -> Callable[[Rows, str], Trace]:
    def read(rows: Rows, where: str) -> Trace:
        found, mistakes = _each(rows, lambda place, row: [make(place, row)])
        refuse(mistakes, where)
        return made_trace(format_, found, block_tokens=MOONCAKE_BLOCK, steps=_LENGTHS, where=where)

    return read


def _agentic(rows: Rows, where: str) -> Trace:
    found, mistakes = _each(rows, lambda place, row: [mooncake.agentic_request(place, row)])
    read = {each.request_id for each in found}
    broken = {name_of(row, "request_id") for _, row in rows.found} - read if mistakes else ()
    timed, between = mooncake.with_instants(found, broken)
    refuse([*mistakes, *between], where)
    steps = (*_LENGTHS, mooncake.EARLIEST)
    return made_trace("agentic-mooncake", timed, block_tokens=MOONCAKE_BLOCK, steps=steps, where=where)


def _conversations(rows: Rows, where: str) -> Trace:
    blocks = messages.Blocks()

    def make(place: str, row: Row) -> Iterator[TraceRequest]:
        return messages.conversation_requests(place, row, blocks)

    found, mistakes = _each(rows, make)
    refuse(mistakes, where)
    steps = ("every assistant turn is a request, all turns before it its prompt", *_TEXTS)
    return made_trace("sharegpt", found, block_tokens=messages.BLOCK_TOKENS, steps=steps, where=where)


def _messages(rows: Rows, where: str) -> Trace:
    blocks = messages.Blocks()
    found, mistakes = _each(rows, lambda place, row: [messages.message_request(place, row, blocks)])
    refuse(mistakes, where)
    steps = ("every array of messages is a request", messages.COUNTED, messages.SHARED)
    return made_trace("messages", found, block_tokens=messages.BLOCK_TOKENS, steps=steps, where=where)


def _spans(rows: Rows, where: str) -> Trace:
    reader = spans.SpanReader()
    single: list[tuple[str, Row]] = []
    mistakes = list(rows.mistakes)
    for place, row in rows.found:
        try:
            own = list(spans.spans_of(row))
        except ValueError as error:
            mistakes.append(f"{place}: {error}")
            continue
        single += [
            (f"{place}, span {n}" if span is not row else place, span) for n, span in enumerate(own, 1)
        ]

    def make(place: str, span: Row) -> Sequence[TraceRequest]:
        reader.read(place, span)
        return ()

    _, wrong = _each(Rows(tuple(single), tuple(mistakes)), make)
    refuse(wrong, where)
    steps = (
        "spans of calls to a model; their own token counts, else those of their messages, counted",
        f"{messages.SHARED}; of a span that states another length cut, or filled up, to it",
        f"{reader.others} other spans left out",
    )
    return made_trace("otel", reader.requests(), block_tokens=messages.BLOCK_TOKENS, steps=steps, where=where)


_READERS: Mapping[TraceFormat, Callable[[Rows, str], Trace]] = {
    "mooncake": _plain("mooncake", mooncake.plain_request),
    "agentic-mooncake": _agentic,
    "azure": _plain("azure", tables.azure_request),
    "burstgpt": _plain("burstgpt", tables.burst_request),
    "sharegpt": _conversations,
    "messages": _messages,
    "otel": _spans,
}
