"""Reads a trace from a file: its format, and its requests, or every mistake in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.registry import every, named, names
from pytest_llmbench.store.rows import FileFormat, Rows, numbered_rows
from pytest_llmbench.store.traces import conversations, mooncake, sources, spans
from pytest_llmbench.store.traces.request import (
    Trace,
    TraceRequest,
    instant_of,
    made_trace,
    name_of,
    refuse,
    tokens_of,
)
from pytest_llmbench.store.traces.sources import Meaning, TimeUnit
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.workloads.trace import MOONCAKE_BLOCK

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d(:\d\d)?)(?P<fraction>\.\d{1,12})?"
    r" ?(?P<offset>Z|[+-]\d\d(:?\d\d)?)?"
)


def azure_request(place: str, row: Mapping[str, Any]) -> TraceRequest:
    """A row of Azure's table: ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``. ValueError in words."""
    return TraceRequest(
        place,
        tokens_of(row, "ContextTokens"),
        tokens_of(row, "GeneratedTokens"),
        _azure_instant(row.get("TIMESTAMP")),
    )


def _azure_instant(given: Any) -> float:
    # Azure writes seven digits of a second ("2023-11-16 18:17:03.9799600+00:00"), Python reads six.
    read = _INSTANT.fullmatch(str(given).strip())
    try:
        if read is None:
            raise ValueError
        at = datetime.fromisoformat(f"{read['date']} {read['time']}{read['offset'] or ''}")
    except ValueError:
        raise ValueError(f"TIMESTAMP is {shown(given)}: give a date and a time") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return ((at - _EPOCH).total_seconds() + float(f"0{read['fraction'] or ''}")) * 1000.0


def burst_request(place: str, row: Mapping[str, Any]) -> TraceRequest:
    """A row of BurstGPT's table: ``Timestamp`` in seconds, ``Request tokens``, ``Response tokens``; ``Session
    ID`` in versions that have it. Requests that failed have no tokens. ValueError in words."""
    return TraceRequest(
        place,
        tokens_of(row, "Request tokens"),
        tokens_of(row, "Response tokens"),
        instant_of(row, "Timestamp", 1000.0),
        session=name_of(row, "Session ID"),
    )


FORMATS: Final = (
    "mooncake", "agentic-mooncake", "bailian", "weka", "lmbench", "guidellm", "azure", "burstgpt", "sharegpt",
    "messages", "otel",
)  # fmt: skip

Row = Mapping[str, Any]


class TraceReader(NamedTuple):
    """A format of recorded requests that an extra adds: a row, a request."""

    holds: Callable[[Row], bool]
    """Whether a row looks like one of this format."""
    request: Callable[[str, Row], TraceRequest]
    """Position in the file (``line 3``) and row → the request. ValueError, in words, for a wrong row."""


UNSAID: Final = Meaning()

_KNOWN = (
    "known are Mooncake (timestamp, input_length, output_length), agentic Mooncake (request_id, wait_for), "
    "Bailian (chat_id, parent_chat_id), WEKA (requests with t, in, out), Azure (TIMESTAMP, ContextTokens, "
    "GeneratedTokens), BurstGPT (Timestamp, Request tokens, Response tokens), ShareGPT (conversations), "
    "arrays of messages (messages) and OpenTelemetry spans (gen_ai.*)"
)
_LENGTHS = ("lengths and arrival times only",)
_TEXTS = (conversations.COUNTED, conversations.SHARED, "no arrival times")


def read_trace(
    path: Path,
    format_: FileFormat | None = None,
    trace: str | None = None,
    meaning: Meaning = UNSAID,
) -> Trace:
    """The requests of a trace file; ``trace``: its format, recognised where it is not given.

    Raises SuiteError with the mistakes of all lines.
    """
    return trace_of(numbered_rows(path, format_), str(path), trace, meaning)


def read_conversations(
    path: Path,
    format_: FileFormat | None = None,
    trace: str | None = None,
    meaning: Meaning = UNSAID,
) -> Trace:
    """The requests of a file of conversations or of arrays of messages, with the messages themselves.

    Raises SuiteError with the mistakes of all lines, and for a format without messages.
    """
    rows, where = numbered_rows(path, format_), str(path)
    _refuse_unused(trace, meaning, where)
    chosen = trace or recognised([row for _, row in rows.found], where, rows.mistakes)
    if chosen not in ("messages", "sharegpt"):
        raise SuiteError(
            f"its format, {chosen}, has no messages to send",
            where=where,
            remedy="give arrays of messages or conversations, or leave out messages = true",
        )
    return conversations.conversations_of(rows, where)


def trace_of(rows: Rows, where: str, trace: str | None = None, meaning: Meaning = UNSAID) -> Trace:
    """The trace in rows that have been read."""
    if not rows.found and not rows.mistakes:
        raise SuiteError("holds no requests", where=where, remedy="give the file of a trace")
    chosen = trace or recognised([row for _, row in rows.found], where, rows.mistakes)
    if chosen in _HASHED:
        return _hashed(chosen, rows, where, meaning, named=trace is not None)
    _refuse_unused(chosen, meaning, where)
    if chosen in _READERS:
        return _READERS[chosen](rows, where)
    reader: TraceReader | None = named("trace_formats", chosen)
    if reader is None:
        known = ", ".join((*FORMATS, *names("trace_formats")))
        raise SuiteError(f"there is no trace format {shown(chosen)}", where=where, remedy=f"known: {known}")
    return _plain(chosen, reader.request)(rows, where)


def _refuse_unused(format_: str | None, meaning: Meaning, where: str) -> None:
    given = [name for name, value in meaning._asdict().items() if value is not None]
    if given:
        raise SuiteError(
            f"{' and '.join(given)} do not apply to the format {format_}",
            where=where,
            remedy=f"leave them out: they apply to {', '.join(_HASHED)}",
        )


def recognised(rows: Sequence[Row], where: str = "trace", mistakes: Sequence[str] = ()) -> str:
    """The trace format of the first row that has one. SuiteError, with the broken lines, if none has."""
    of_extras = {name: reader.holds for name, reader in every("trace_formats").items()} if rows else {}
    for row in rows:
        for format_, holds in (*_MARKS.items(), *of_extras.items()):
            if holds(row):
                return format_
    names = shorten(", ".join(map(str, rows[0])), 200) if rows else "nothing"
    refuse(mistakes, where)
    raise SuiteError(f"the first row is not a request of a trace; it has {names}", where=where, remedy=_KNOWN)


_MARKS: Mapping[str, Callable[[Row], bool]] = {
    "agentic-mooncake": mooncake.is_agentic,
    "bailian": lambda row: "chat_id" in row and "input_length" in row,
    "weka": sources.is_weka,
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


def _plain(format_: str, make: Callable[[str, Row], TraceRequest]) -> Callable[[Rows, str], Trace]:
    def read(rows: Rows, where: str) -> Trace:
        found, mistakes = _each(rows, lambda place, row: [make(place, row)])
        refuse(mistakes, where)
        return made_trace(format_, found, block_tokens=MOONCAKE_BLOCK, steps=_LENGTHS, where=where)

    return read


_HASHED: Final[Mapping[str, tuple[int | None, TimeUnit | None]]] = {
    "mooncake": (MOONCAKE_BLOCK, "ms"),
    "agentic-mooncake": (MOONCAKE_BLOCK, "ms"),
    "bailian": (16, "s"),
    "weka": (None, "s"),
    "lmbench": (None, None),
    "guidellm": (MOONCAKE_BLOCK, "s"),
}
"""Format → tokens of a block and unit of time, where all of its files have the same."""


def _hashed(chosen: str, rows: Rows, where: str, meaning: Meaning, *, named: bool) -> Trace:
    """A trace of lengths, instants and hash ids. ``named``: somebody says that it is of this format; rows
    that look like Mooncake's may be anyone's."""
    block, unit = _HASHED[chosen]
    found, mistakes = _each(rows, _maker_of(chosen, rows))
    sure = named or chosen in ("bailian", "weka") or any("wait_for" in row for _, row in rows.found)
    told: list[str] = []
    steps = list(_LENGTHS)
    if chosen == "agentic-mooncake":
        read = {each.request_id for each in found}
        broken = {name_of(row, "request_id") for _, row in rows.found} - read if mistakes else ()
        found, told = mooncake.with_instants(found, broken)
        steps.append(mooncake.EARLIEST)
    refuse([*mistakes, *told], where)
    found = sources.with_roots(found) if chosen == "bailian" else found
    if chosen == "weka":
        block = meaning.block_tokens or max(sources.weka_block(row) for _, row in rows.found)
    timed, had = sources.timed(found, meaning.time_unit, unit if sure else None, where)
    kept = [each for each in timed if each.input_tokens > 0 and each.output_tokens > 0]
    size = sources.blocks_of(kept, meaning.block_tokens, block, where) or MOONCAKE_BLOCK
    steps.append(f"timestamp in {had}, hash ids of blocks of {size} tokens")
    return made_trace(chosen, timed, block_tokens=size, steps=steps, where=where)


def _maker_of(chosen: str, rows: Rows) -> Callable[[str, Row], Iterable[TraceRequest]]:
    if chosen == "weka":
        places = {place: number for number, (place, _) in enumerate(rows.found)}
        alone = len(places) == 1
        return lambda place, row: sources.weka_requests(place, row, places[place], alone=alone)
    make = {"agentic-mooncake": mooncake.agentic_request, "bailian": sources.bailian_request}.get(
        chosen, mooncake.plain_request
    )
    return lambda place, row: [make(place, row)]


def _conversations(rows: Rows, where: str) -> Trace:
    blocks = conversations.Blocks()

    def make(place: str, row: Row) -> Iterator[TraceRequest]:
        return conversations.conversation_requests(place, row, blocks)

    found, mistakes = _each(rows, make)
    refuse(mistakes, where)
    steps = ("every assistant turn is a request, all turns before it its prompt", *_TEXTS)
    return made_trace("sharegpt", found, block_tokens=conversations.BLOCK_TOKENS, steps=steps, where=where)


def _messages(rows: Rows, where: str) -> Trace:
    blocks = conversations.Blocks()
    found, mistakes = _each(rows, lambda place, row: [conversations.message_request(place, row, blocks)])
    refuse(mistakes, where)
    steps = ("every array of messages is a request", conversations.COUNTED, conversations.SHARED)
    return made_trace("messages", found, block_tokens=conversations.BLOCK_TOKENS, steps=steps, where=where)


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
        f"{conversations.SHARED}; of a span that states another length cut, or filled up, to it",
        f"{reader.others} other spans left out",
    )
    return made_trace(
        "otel", reader.requests(), block_tokens=conversations.BLOCK_TOKENS, steps=steps, where=where
    )


_READERS: Mapping[str, Callable[[Rows, str], Trace]] = {
    "azure": _plain("azure", azure_request),
    "burstgpt": _plain("burstgpt", burst_request),
    "sharegpt": _conversations,
    "messages": _messages,
    "otel": _spans,
}
