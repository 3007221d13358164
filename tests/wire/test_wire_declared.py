"""What a server reports of a reply, at the places that the SUT file declares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmbench.model.record import Phase, RequestRecord
from pytest_llmbench.wire.inline_reasoning import InlineReasoning
from pytest_llmbench.wire.server_figures import Declared
from pytest_llmbench.wire.sse import SSEEvent

EVENTS: list[Any] = [
    {"choices": [{"delta": {"content": "a"}, "end": None}]},
    {
        "choices": [{"delta": {}, "end": "hard_cap", "forced": True}],
        "kv": {"evicted": 2, "e2": -1, "e3": 1e30},
    },
    "[DONE]",
]
HEADERS = {"X-Think-End": "budget", "x-evictions": " 3 "}


def told(end_reason: str = "", critical_evictions: str = "") -> tuple[str | None, int | None]:
    record = RequestRecord(0, "r", Phase.MEASURE)
    events = [SSEEvent(e if isinstance(e, str) else json.dumps(e), "message", 0, 0) for e in EVENTS]
    declared, held = Declared(InlineReasoning(), end_reason, critical_evictions), list[SSEEvent]()
    assert list(declared.passing(events, held)) == events
    declared.fill(record, held, HEADERS)
    return record.thinking_end_reason, record.critical_evictions


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("field:choices.0.end", "hard_cap"),
        ("field:choices.0.forced", "true"),
        ("header:x-think-end", "budget"),
        ("field:choices.1.end", None),
        ("field:choices.0.delta", None),
        ("field:kv.evicted", None),
        ("header:nothing", None),
        ("", None),
    ],
)
def test_why_thinking_ended(place, reason):
    assert told(end_reason=place) == (reason, None)


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("field:kv.evicted", 2),
        ("header:X-Evictions", 3),
        ("field:kv.e2", None),
        ("field:kv.e3", None),
        ("field:kv", None),
        ("header:x-think-end", None),
        ("metric:engine:evictions_total", None),
    ],
)
def test_evictions_while_it_answers(place, count):
    """What is not said, or is no count, is unknown: never zero."""
    assert told(critical_evictions=place) == (None, count)


def test_replies_are_read_event_by_event_only_where_that_is_needed():
    assert not Declared().needs_every_event
    assert not Declared(critical_evictions="metric:x").needs_every_event
    assert Declared(end_reason="field:x").needs_every_event
    assert Declared(InlineReasoning("think")).needs_every_event


TIMED = {
    "x-queue-time": "12.5",
    "x-slow": "1e300",
    "x-late": "-1",
    "x-never": "nan",
    "Server-Timing": 'cache;desc="hit", queue;dur=5.25, prefill;desc=x;dur="31", app',
}


@pytest.mark.parametrize(
    ("place", "unit", "took_ns"),
    [
        ("header:X-Queue-Time", "ms", 12_500_000),
        ("header:X-Queue-Time", "s", 12_500_000_000),
        ("header:X-Queue-Time", "us", 12_500),
        ("header:Server-Timing:queue", "s", 5_250_000),  # that header is always in ms
        ("header:server-timing:prefill", "ms", 31_000_000),
        ("header:server-timing:cache", "ms", None),
        ("header:server-timing:app", "ms", None),
        ("header:server-timing:none", "ms", None),
        ("header:x-slow", "s", None),
        ("header:x-late", "ms", None),
        ("header:x-never", "ms", None),
        ("header:absent", "ms", None),
        ("field:kv.evicted", "ns", 2),
        ("field:kv.e2", "ms", None),
        ("field:choices.0.forced", "ms", None),
        ("metric:x", "ms", None),
    ],
)
def test_the_times_of_a_server(place, unit, took_ns):
    record = RequestRecord(0, "r", Phase.MEASURE)
    events = [SSEEvent(e if isinstance(e, str) else json.dumps(e), "message", 0, 0) for e in EVENTS]
    Declared(queue_wait=place, time_unit=unit).fill(record, events, TIMED)
    assert (record.queue_wait_ns, record.prefill_ns) == (took_ns, None)
    Declared(prefill=place, time_unit=unit).fill(record, events, TIMED)
    assert record.prefill_ns == took_ns


def test_headers_need_no_event():
    of_header = Declared(queue_wait="header:x-queue-time")
    assert of_header.tells
    assert not of_header.needs_every_event
    assert Declared(prefill="field:usage.prefill").needs_every_event
