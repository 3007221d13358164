"""Statuses, error bodies and answers that are no stream."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from pytest_llmbench.model.record import Outcome
from pytest_llmbench.wire.error_replies import (
    ERROR_TEXT_LIMIT,
    classify_status,
    classify_unstreamed,
    is_stream,
    shorten,
)


def body(payload: Any) -> bytes:
    return payload if isinstance(payload, bytes) else json.dumps(payload).encode()


GUARD = {"error": {"message": "Blocked", "provider_specific_fields": {"guardrail_mode": "pre_call"}}}
FULL = {"error": {"type": "rate_limit_error", "code": "admission_queue_full"}}
TOO_LONG = {"error": {"message": "too long", "param": "input_tokens", "code": 400}}
BUSY = "The engine is currently busy and cannot accept new requests."
BACKLOG = "The engine has reached its prefill token backlog limit."
AZURE = {
    "error": {"message": "filtered", "code": "x", "innererror": {"code": "ResponsibleAIPolicyViolation"}}
}


@pytest.mark.parametrize(
    ("status", "headers", "payload", "outcome"),
    [
        (429, {}, b"", Outcome.RATE_LIMITED),
        (429, {}, FULL, Outcome.RATE_LIMITED),
        (429, {}, {"error": {"message": "content_policy"}}, Outcome.RATE_LIMITED),
        (503, {"Retry-After": "3"}, b"", Outcome.RATE_LIMITED),
        (529, {}, {"type": "error", "error": {"type": "overloaded_error"}}, Outcome.RATE_LIMITED),
        (503, {}, {"error": "Server overloaded, please retry shortly"}, Outcome.RATE_LIMITED),
        (503, {}, {"error": {"message": "The request queue is full", "code": 503}}, Outcome.RATE_LIMITED),
        (503, {}, {"error": {"message": BUSY}}, Outcome.RATE_LIMITED),
        (503, {}, {"error": {"message": BACKLOG}}, Outcome.RATE_LIMITED),
        (503, {}, {"error": {"message": "Request failed; please retry"}}, Outcome.HTTP_ERROR),
        (503, {}, {"error": {"code": 503, "message": "Loading model"}}, Outcome.HTTP_ERROR),
        (503, {}, b"no healthy upstream", Outcome.HTTP_ERROR),
        (500, {"Retry-After": "3"}, b"overloaded", Outcome.HTTP_ERROR),
        (408, {}, b"", Outcome.HTTP_ERROR),
        (400, {}, {"error": {"code": "content_policy_violation", "message": "no"}}, Outcome.REFUSED),
        (400, {}, {"error": {"type": "content_filter", "message": "no"}}, Outcome.REFUSED),
        (400, {}, {"error": {"message": "litellm.ContentPolicyViolationError: no"}}, Outcome.REFUSED),
        (400, {}, {"error": "Violated guardrail policy"}, Outcome.REFUSED),
        (400, {}, {"error": {"message": {"error": "Content blocked by guardrail"}}}, Outcome.REFUSED),
        (403, {}, GUARD, Outcome.REFUSED),
        (400, {}, AZURE, Outcome.REFUSED),
        (400, {}, {"error": {"message": "Guardrail regexx not found"}}, Outcome.HTTP_ERROR),
        (400, {}, TOO_LONG, Outcome.HTTP_ERROR),
        (401, {}, {"error": {"message": "bad key"}}, Outcome.HTTP_ERROR),
        (404, {}, {"detail": "Not Found"}, Outcome.HTTP_ERROR),
        (404, {}, {"error": "no such content policy"}, Outcome.HTTP_ERROR),
        (302, {}, b"", Outcome.HTTP_ERROR),
        (599, {}, b"\xff\xfe", Outcome.HTTP_ERROR),
    ],
)
def test_outcome_of_a_status(status, headers, payload, outcome):
    found, reason = classify_status(status, headers, body(payload))
    assert found is outcome
    assert reason.startswith(f"HTTP {status}")


@pytest.mark.parametrize(
    ("status", "payload", "reason"),
    [
        (400, {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}},
         "HTTP 400 Bad Request: too long (type BadRequestError, code 400)"),
        (400, {"error": {"message": "litellm.ContextWindowExceededError: too long", "code": "400"}},
         "HTTP 400 Bad Request: litellm.ContextWindowExceededError: too long (code 400)"),
        (400, {"error": "no"}, "HTTP 400 Bad Request: no"),
        (404, {"object": "error", "message": "no model", "type": "NotFoundError", "code": 404},
         "HTTP 404 Not Found: no model (type NotFoundError, code 404)"),
        (404, {"detail": "Not Found"}, "HTTP 404 Not Found: Not Found"),
        (422, {"detail": [{"loc": ["body", "model"], "msg": "field required", "type": "missing"}]},
         "HTTP 422 Unprocessable Entity: field required (type missing)"),
        (500, {"message": "boom"}, "HTTP 500 Internal Server Error: boom"),
        (500, {"error": {}}, "HTTP 500 Internal Server Error, empty body"),
        (502, b"<html><head><title>502 Bad Gateway</title><style>h1 {}</style></head><body>\n</body></html>",
         "HTTP 502 Bad Gateway: 502 Bad Gateway"),
        (502, b"<p>out of memory<script>log(1)<b>disk full</b>",
         "HTTP 502 Bad Gateway: out of memory log(1) disk full"),
        (502, b"<STYLE>a</style >full<script src='x'>b</SCRIPT>disk", "HTTP 502 Bad Gateway: full disk"),
        (502, b"<script>full<style>b</style>disk<script", "HTTP 502 Bad Gateway: full disk<script"),
        (500, b"plain\r\n  text\x1b[31m", "HTTP 500 Internal Server Error: plain text [31m"),
        (408, b"", "HTTP 408 Request Timeout, empty body"),
        (599, b"x", "HTTP 599: x"),
    ],
)  # fmt: skip
def test_reason_of_a_status(status, payload, reason):
    seen = classify_status(status, {}, body(payload))[1]
    # the standard library renamed the phrase of 422
    assert seen.replace("Unprocessable Content", "Unprocessable Entity") == reason


def test_header_names_in_any_case():
    for name in ("retry-after", "Retry-After", "RETRY-AFTER"):
        assert classify_status(503, {name: "1"}, b"")[0] is Outcome.RATE_LIMITED


@pytest.mark.parametrize(
    "payload", [{"error": {"message": "x" * 5000}}, b"<p>" + b"word " * 5000, b"[" * 200_000]
)
def test_reasons_are_short(payload):
    assert len(classify_status(500, {}, body(payload))[1]) == ERROR_TEXT_LIMIT


def test_a_hostile_page_takes_no_time():
    before = time.process_time()
    classify_status(500, {}, b"<script" * 100_000)
    assert time.process_time() - before < 5


def test_shortened_text_is_one_printable_line():
    assert shorten("a\n\tb\x00c\u2028d") == "a b c d"
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abcd", 4) == "abcd"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"content-type": "text/event-stream"}, True),
        ({"Content-Type": "text/event-stream; charset=utf-8"}, True),
        ({"CONTENT-TYPE": " Text/Event-Stream ;charset=utf-8"}, True),
        ({"content-type": "application/json"}, False),
        ({"content-type": "text/event-streams"}, False),
        ({}, False),
    ],
)
def test_event_stream_by_content_type(headers, expected):
    assert is_stream(headers) is expected


WHOLE = {"object": "chat.completion", "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("payload", "outcome", "reason"),
    [
        (WHOLE, Outcome.UNDECODABLE, "answered without streaming: application/json with a whole completion"),
        ({"status": "ok"}, Outcome.UNDECODABLE, "with JSON that is not a completion"),
        ([1], Outcome.UNDECODABLE, "with JSON that is not a completion"),
        (b"<html>login</html>", Outcome.UNDECODABLE, "not text/event-stream: <html>login"),
        (b"  ", Outcome.EMPTY, "empty body"),
        ({"error": {"message": "boom"}}, Outcome.IN_BAND_ERROR, "boom"),
        ({"error": {"code": "content_filter", "message": "no"}}, Outcome.REFUSED, "no (code content_filter)"),
    ],
)
def test_answers_that_are_no_stream(payload, outcome, reason):
    found, text = classify_unstreamed({"Content-Type": "application/json"}, body(payload))
    assert found is outcome
    assert reason in text
    assert len(text) <= ERROR_TEXT_LIMIT
