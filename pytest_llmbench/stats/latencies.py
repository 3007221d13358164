"""Latencies of requests that have ended, over the few columns that a look at a running load needs: the load
generator computes them while load is running, reports from records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.stats.runs import FloatArray

_OURS = frozenset({Outcome.TIMEOUT, Outcome.CANCELLED})
_COLUMNS = (
    "index", "scheduled_ns", "submitted_ns", "first_event_ns", "first_nonempty_ns", "first_reasoning_ns",
    "first_content_ns", "last_content_ns", "finished_ns", "input_tokens", "output_tokens", "reasoning_tokens",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ends:
    """Requests that have ended, as columns, in any order. The columns are those of Records."""

    ok: BoolColumn
    judged: BoolColumn
    given_up: BoolColumn
    index: IntColumn
    scheduled_ns: IntColumn
    submitted_ns: IntColumn
    first_event_ns: IntColumn
    first_nonempty_ns: IntColumn
    first_reasoning_ns: IntColumn
    first_content_ns: IntColumn
    last_content_ns: IntColumn
    finished_ns: IntColumn
    input_tokens: IntColumn
    output_tokens: IntColumn
    reasoning_tokens: IntColumn

    @classmethod
    def of_records(cls, records: Records) -> Ends:
        columns = (getattr(records, name) for name in _COLUMNS)
        return cls(records.ok, records.judged, records.given_up, *columns)

    @classmethod
    def of_rows(cls, rows: Sequence[RequestRecord]) -> Ends:
        columns: list[Any] = []
        for name in _COLUMNS:
            values = [getattr(row, name) for row in rows]
            column = [MISSING if value is None else value for value in values]
            columns.append(np.array(column, dtype=np.int64))
        ok, judged, given_up = (
            np.array([of(row.outcome) for row in rows], dtype=bool)
            for of in (Outcome.OK.__eq__, Outcome.CUT_BY_USER.__ne__, _OURS.__contains__)
        )
        sent = np.array([row.dispatched_ns is not None for row in rows], dtype=bool)
        return cls(ok, judged, given_up & sent, *columns)

    @classmethod
    def none_of(cls, most: int) -> Ends:
        """Ends of requests of which nothing has been heard."""
        unknown = (np.full(most, MISSING, dtype=np.int64) for _ in _COLUMNS)
        return cls(*np.zeros((3, most), dtype=bool), *unknown)

    def note(self, places: IntColumn, heard: Ends) -> None:
        for each in fields(self):
            getattr(self, each.name)[places] = getattr(heard, each.name)

    def first(self, n: int) -> Ends:
        return Ends(*(getattr(self, each.name)[:n] for each in fields(self)))


class Span(NamedTuple):
    """A latency: the time between two instants of a request."""

    start: str
    end: str

    def ms(self, of: Records | Ends) -> FloatArray:
        """That time in ms for each ``ok`` request that has both instants; NaN for all others."""
        return _between(of, getattr(of, self.start), getattr(of, self.end))


def tpot_ms(of: Records | Ends) -> FloatArray:
    """TPOT = (T_last - T_first) / (N_out - 1), requests with N_out of at least 2 (AMB-44); NaN for all
    others.

    Numerator and denominator count the same tokens. Reasoning tokens are output tokens (AMB-29): where their
    stream was seen, T_first is its first token. Where they were billed but not streamed, they all precede
    T_first, and N_out is the rest.
    """
    span, tokens = _between(of, first_output_ns(of), of.last_content_ns), streamed_tokens(of)
    return np.where(tokens >= 2, span / np.maximum(tokens - 1, 1), np.nan)


def latency_ms(quantity: str, of: Records | Ends) -> FloatArray:
    """A latency of each request; NaN for one that is no sample of it."""
    return tpot_ms(of) if quantity == "tpot" else SPANS[quantity].ms(of)


def first_output_ns(of: Records | Ends) -> IntColumn:
    """The first token of a reply with content, that of its reasoning where it was seen before."""
    content, reasoning = of.first_content_ns, of.first_reasoning_ns
    both = (reasoning != MISSING) & (content != MISSING)
    return np.where(both, np.minimum(content, reasoning), content)


def streamed_tokens(of: Records | Ends) -> IntColumn:
    """Output tokens without hidden reasoning; ``MISSING`` where the count is."""
    hidden = (of.first_reasoning_ns == MISSING) & (of.reasoning_tokens != MISSING)
    less = np.where(hidden, of.reasoning_tokens, 0)
    return np.where(of.output_tokens != MISSING, of.output_tokens - less, MISSING)


def _between(of: Records | Ends, start_ns: IntColumn, end_ns: IntColumn) -> FloatArray:
    # Subtract as integers: a monotonic stamp has more digits than a float64 keeps to the nanosecond.
    seen = of.ok & (start_ns != MISSING) & (end_ns != MISSING)
    return np.where(seen, (end_ns - start_ns) / 1e6, np.nan)


SPANS: Mapping[str, Span] = MappingProxyType(
    {
        "ttft": Span("submitted_ns", "first_content_ns"),
        "ttft_scheduled": Span("scheduled_ns", "first_content_ns"),
        "ttft_any": Span("submitted_ns", "first_nonempty_ns"),
        "ttft_first_event": Span("submitted_ns", "first_event_ns"),
        "e2e": Span("submitted_ns", "last_content_ns"),
        "e2e_scheduled": Span("scheduled_ns", "last_content_ns"),
        "latency": Span("submitted_ns", "finished_ns"),
        "latency_scheduled": Span("scheduled_ns", "finished_ns"),
    }
)
"""The latencies that include a wait for a slot."""
