"""The values that looks judge, request by request: latencies in ms, and the used share of the limits.

The same formulas as ``metrics/latency.py``, over the few columns that a look needs, since the load generator
computes them while load is running. NaN: the request is no sample of the quantity. Infinity: it was given up
on, or did not end well and counts as slower than any limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from pytest_llmbench.model.plan import Quantity, Watched
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.stats.backlog import Backlog
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


def values(watched: Watched, ends: Ends) -> FloatArray:
    """One value for each request. For a share it is a score: 1 or less where the request counts as good."""
    return np.where(ends.judged, _values(watched, ends), np.nan)


def _values(watched: Watched, ends: Ends) -> FloatArray:
    if watched.quantity == "ok":
        return np.where(ends.ok, 0.0, np.inf)
    if watched.quantity == "good":
        return scores(watched.limits_ms, ends)
    found = _latency(watched.quantity, ends)
    over = ~ends.ok if watched.failures_over_limit else ends.given_up
    if watched.quantity == "tpot" and not watched.failures_over_limit:  # of a reply that had not begun
        over = over & (ends.first_nonempty_ns != MISSING)
    found = np.where(over, np.inf, found)
    # Of a request that failed early only what was asked for is known, so its bucket may not be.
    inside = ends.input_tokens >= watched.least_tokens
    if watched.below_tokens is not None:
        inside &= ends.input_tokens < watched.below_tokens
    elif watched.least_tokens == 0:
        return found
    return np.where(inside & (ends.input_tokens != MISSING), found, np.nan)


def scores(limits_ms: Sequence[tuple[Quantity, float]], ends: Ends) -> FloatArray:
    """The largest share of its limits that each request used; infinity for one that did not end well and
    where a limited latency was not observed; NaN for one that its user was to cut. TPOT is no limit for a
    reply of fewer than two tokens."""
    worst = np.zeros(len(ends.index))
    for quantity, limit in limits_ms:
        used = _latency(quantity, ends) / limit
        short = (quantity == "tpot") & (ends.output_tokens != MISSING) & (_streamed_tokens(ends) < 2)
        worst = np.maximum(worst, np.where(np.isnan(used), np.where(short, 0.0, np.inf), used))
    return np.where(ends.judged, np.where(ends.ok, worst, np.inf), np.nan)


def waited(watched: Watched, backlog: Backlog | None) -> Backlog | None:
    """The waits, given in ms, in the unit of the watched values; ``None`` where they are not part of
    these."""
    if watched.quantity == "good":
        return waited_of_scores(watched.limits_ms, backlog)
    return backlog if watched.quantity in _SPANS else None


def waited_of_scores(limits_ms: Sequence[tuple[Quantity, float]], backlog: Backlog | None) -> Backlog | None:
    """The waits in the unit of scores: shares of the tightest limit on a latency that contains a wait."""
    limits = [limit for quantity, limit in limits_ms if quantity in _SPANS]
    return backlog.scaled(1 / min(limits)) if backlog is not None and limits else None


def _latency(quantity: Quantity, ends: Ends) -> FloatArray:
    if quantity == "tpot":
        content, reasoning = ends.first_content_ns, ends.first_reasoning_ns
        both = (reasoning != MISSING) & (content != MISSING)
        span = _between(ends, np.where(both, np.minimum(content, reasoning), content), ends.last_content_ns)
        tokens = _streamed_tokens(ends)
        return np.where(tokens >= 2, span / np.maximum(tokens - 1, 1), np.nan)
    start, end = _SPANS[quantity](ends)
    return _between(ends, start, end)


def _between(ends: Ends, start_ns: IntColumn, end_ns: IntColumn) -> FloatArray:
    seen = ends.ok & (start_ns != MISSING) & (end_ns != MISSING)
    return np.where(seen, (end_ns - start_ns) / 1e6, np.nan)


def _streamed_tokens(ends: Ends) -> IntColumn:
    hidden = (ends.first_reasoning_ns == MISSING) & (ends.reasoning_tokens != MISSING)
    less = np.where(hidden, ends.reasoning_tokens, 0)
    return np.where(ends.output_tokens != MISSING, ends.output_tokens - less, MISSING)


_SPANS: Mapping[str, Callable[[Ends], tuple[IntColumn, IntColumn]]] = MappingProxyType(
    {
        "ttft": lambda ends: (ends.submitted_ns, ends.first_content_ns),
        "ttft_scheduled": lambda ends: (ends.scheduled_ns, ends.first_content_ns),
        "ttft_any": lambda ends: (ends.submitted_ns, ends.first_nonempty_ns),
        "ttft_first_event": lambda ends: (ends.submitted_ns, ends.first_event_ns),
        "e2e": lambda ends: (ends.submitted_ns, ends.last_content_ns),
        "e2e_scheduled": lambda ends: (ends.scheduled_ns, ends.last_content_ns),
        "latency": lambda ends: (ends.submitted_ns, ends.finished_ns),
        "latency_scheduled": lambda ends: (ends.scheduled_ns, ends.finished_ns),
    }
)
