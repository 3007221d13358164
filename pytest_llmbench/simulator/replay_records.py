"""Flights become columns, and columns rows. No work per token in Python: stamps are slices of step ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.outcome import Outcome, Phase, TokenSource
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import (
    MISSING,
    OUTCOMES,
    PHASES,
    TOKEN_SOURCES,
    BoolColumn,
    IntColumn,
    Records,
)
from pytest_llmbench.simulator.replay_chunks import Chunks, Steps, chunks_of
from pytest_llmbench.simulator.replay_flight import Flight
from pytest_llmbench.simulator.stream_quirks import StreamOptions


@dataclass(frozen=True, slots=True)
class Recording:
    """What the records of a plan need beside its flights."""

    phase: Phase
    name: str
    """Begins the request ids."""
    stream: StreamOptions
    seed: int
    prefix_caching: bool


def records_of(flights: Sequence[Flight], steps: Steps, recording: Recording) -> Records:
    """The columns of a plan, in order of submission. A chunk has the stamp of its last token."""
    flights = sorted(flights, key=lambda flight: (flight.submitted_ns, flight.planned.index))
    chunks = chunks_of(flights, steps, recording.stream, recording.seed)
    submitted_ns = _column(flights, "submitted_ns")
    columns: dict[str, Any] = {
        "index": _planned(flights, "index"),
        "request_id": [f"{recording.name}-{flight.planned.index}" for flight in flights],
        "phase": np.full(len(flights), PHASES.index(recording.phase), dtype=np.int8),
        "class_label": [flight.planned.class_label for flight in flights],
        "scheduled_ns": submitted_ns,
        "dispatched_ns": submitted_ns,
        "submitted_ns": submitted_ns,
        "requested_input_tokens": _planned(flights, "input_tokens"),
        "requested_max_tokens": _planned(flights, "max_tokens"),
        "finished_ns": _column(flights, "finished_ns"),
        "http_status": _column(flights, "http_status"),
        **{name: np.zeros(len(flights), dtype=np.int64) for name in _NEVER},
        "outcome": np.array([OUTCOMES.index(flight.outcome) for flight in flights], dtype=np.int8),
        "error": [flight.error for flight in flights],
        "finish_reason": [flight.finish_reason for flight in flights],
    }
    columns |= {
        "shared_prefix_tokens": _planned(flights, "shared_prefix_tokens"),
        "prefix_id": np.array(
            [MISSING if flight.planned.prefix_id is None else flight.planned.prefix_id for flight in flights],
            dtype=np.int64,
        ),
    }
    columns |= _of_engine(flights, steps)
    return Records(**columns, **_of_chunks(chunks), **_of_reply(flights, chunks, steps, recording))


def _of_chunks(chunks: Chunks) -> dict[str, Any]:
    """Instants of first and last chunks: reasoning is output, but no content."""
    first_ns = chunks.at(chunks.offsets[:-1], chunks.counts > 0)
    none = np.zeros_like(chunks.output_tokens)
    return {
        "first_event_ns": first_ns,
        "first_nonempty_ns": first_ns,
        "first_reasoning_ns": np.where(chunks.reasoning_counts > 0, first_ns, MISSING),
        "first_content_ns": chunks.at(
            chunks.offsets[:-1] + chunks.reasoning_counts, chunks.counts > chunks.reasoning_counts
        ),
        "last_content_ns": chunks.at(chunks.offsets[1:] - 1, chunks.counts > 0),
        "chunk_offsets": chunks.offsets,
        "chunk_ns": chunks.stamps_ns,
        "chunk_tokens": chunks.tokens,
        "server_token_offsets": _offsets(chunks.output_tokens if len(chunks.server_ns) else none),
        "server_token_ns": chunks.server_ns,
    }


def _of_engine(flights: Sequence[Flight], steps: Steps) -> dict[str, Any]:
    """What the engine notes about each request that it took in, whatever became of it afterwards."""
    admitted_ns, accepted_ns = _column(flights, "admitted_ns"), _column(flights, "accepted_ns")
    firsts = [None if flight.sequence is None else flight.sequence.first_step for flight in flights]
    first_step = np.array(
        [MISSING if step is None else step - steps.first for step in firsts], dtype=np.int64
    )
    # Ctrl-C may have come before the end of the step was noted.
    begun = (first_step != MISSING) & (first_step < len(steps.read_ns))
    first_ns = np.full(len(flights), MISSING, dtype=np.int64)
    first_ns[begun] = steps.read_ns[first_step[begun]] - steps.to_client_ns
    in_engine = [flight.sequence if flight.http_status == 200 else None for flight in flights]
    return {
        "queue_wait_ns": np.where(admitted_ns != MISSING, admitted_ns - accepted_ns, MISSING),
        "prefill_ns": np.where(begun, first_ns - admitted_ns, MISSING),
        "preemptions": np.array([MISSING if s is None else s.preemptions for s in in_engine], dtype=np.int64),
        "preempted_tokens": np.array(
            [MISSING if s is None else s.lost_tokens for s in in_engine], dtype=np.int64
        ),
    }


def _of_reply(
    flights: Sequence[Flight], chunks: Chunks, steps: Steps, recording: Recording
) -> dict[str, Any]:
    """What the headers, and at the end of a reply its usage, tell."""
    ok = np.array([flight.outcome is Outcome.OK for flight in flights], dtype=bool)
    status = _column(flights, "http_status")
    headers_ns = np.array([_headers_ns(flight, steps.to_client_ns) for flight in flights], dtype=np.int64)
    some = chunks.counts > 0
    cached = [MISSING if flight.sequence is None else flight.sequence.cached_tokens for flight in flights]
    # As served: cached tokens are told where there is a cache, reasoning tokens where there are any.
    return {
        "first_byte_ns": np.where(status != MISSING, headers_ns, MISSING),
        "input_tokens": np.where(status == 200, _planned(flights, "input_tokens"), MISSING),
        "output_tokens": np.where(some | ok, chunks.output_tokens, MISSING),
        "cached_tokens": np.where(ok & recording.prefix_caching, cached, MISSING),
        "reasoning_tokens": np.where(ok & (chunks.think_tokens > 0), chunks.think_tokens, MISSING),
        "token_source": _sources(ok, some),
    }


def rows_of(records: Records) -> Iterator[RequestRecord]:
    """The records as rows, in the order in which the requests ended."""
    numbers: dict[str, list[int | None]] = {
        name: [None if value == MISSING else value for value in getattr(records, name).tolist()]
        for name in _ROW_NUMBERS
    }
    offsets, server_offsets = records.chunk_offsets.tolist(), records.server_token_offsets.tolist()
    for i in np.argsort(records.finished_ns, kind="stable").tolist():
        chunks = slice(offsets[i], offsets[i + 1])
        values: dict[str, Any] = {name: column[i] for name, column in numbers.items()}
        yield RequestRecord(
            request_id=records.request_id[i],
            phase=PHASES[records.phase[i]],
            class_label=records.class_label[i],
            chunk_ns=records.chunk_ns[chunks].tolist(),
            chunk_tokens=records.chunk_tokens[chunks].tolist(),
            server_token_ns=records.server_token_ns[server_offsets[i] : server_offsets[i + 1]].tolist(),
            token_source=TOKEN_SOURCES[records.token_source[i]],
            attribution="exact" if chunks.stop > chunks.start else "none",
            outcome=OUTCOMES[records.outcome[i]],
            error=records.error[i],
            finish_reason=records.finish_reason[i],
            **values,
        )


_NEVER = ("coalesced_chunks", "unresolved_chunks", "first_content_early_ns", "stale_retries")
"""What does not happen in virtual time."""
_ROW_NUMBERS = (
    "index", "scheduled_ns", "dispatched_ns", "submitted_ns", "first_byte_ns", "first_event_ns",
    "first_nonempty_ns", "first_reasoning_ns", "first_content_ns", "last_content_ns", "finished_ns",
    "input_tokens", "output_tokens", "requested_input_tokens", "requested_max_tokens", "cached_tokens",
    "reasoning_tokens", "http_status", *_NEVER, "shared_prefix_tokens", "prefix_id",
    "queue_wait_ns", "prefill_ns", "preemptions", "preempted_tokens",
)  # fmt: skip


def _column(flights: Sequence[Flight], name: str) -> IntColumn:
    return np.array([getattr(flight, name) for flight in flights], dtype=np.int64)


def _offsets(counts: IntColumn) -> IntColumn:
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _planned(flights: Sequence[Flight], name: str) -> IntColumn:
    return np.array([getattr(flight.planned, name) for flight in flights], dtype=np.int64)


def _headers_ns(flight: Flight, to_client_ns: int) -> int:
    """The headers leave as the request is accepted; a refusal, and a buffered reply, comes in one piece."""
    if flight.http_status != 200:
        return flight.finished_ns
    if flight.fate == "buffering" and flight.read_ns is not None and len(flight.read_ns):
        return int(flight.read_ns[0])
    return flight.accepted_ns + to_client_ns


def _sources(ok: BoolColumn, some: BoolColumn) -> npt.NDArray[np.int8]:
    """The usage comes with the end of a reply; of one that was broken off only the chunks can be counted."""
    usage, counted, none = (
        TOKEN_SOURCES.index(source)
        for source in (TokenSource.SERVER_USAGE, TokenSource.CHUNK_COUNT, TokenSource.NONE)
    )
    return np.where(ok, usage, np.where(some, counted, none)).astype(np.int8)


__all__ = ["Recording", "records_of", "rows_of"]
