"""What a server reports of a reply's reasoning, at the places that the SUT file declares."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.wire.inline_reasoning import InlineReasoning
from pytest_llmbench.wire.reasoning_declared import ReasoningDeclared
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
    ReasoningDeclared(InlineReasoning(), end_reason, critical_evictions).fill(record, events, HEADERS)
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
def test_why_thinking_ended(place: str, reason: str | None) -> None:
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
def test_evictions_while_it_answers(place: str, count: int | None) -> None:
    """What is not said, or is no count, is unknown: never zero."""
    assert told(critical_evictions=place) == (None, count)


def test_replies_are_read_event_by_event_only_where_that_is_needed() -> None:
    assert not ReasoningDeclared().needs_every_event
    assert not ReasoningDeclared(critical_evictions="metric:x").needs_every_event
    assert ReasoningDeclared(end_reason="field:x").needs_every_event
    assert ReasoningDeclared(InlineReasoning("think")).needs_every_event
