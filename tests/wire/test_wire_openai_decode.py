"""Single events: what each shape that servers send is read as."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_events import ROLE, chat, text, usage

from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.chunk import CallDelta, Chunk, Usage
from pytest_llmbench.wire.server_figures import server_figures
from pytest_llmbench.wire.sse import SSEEvent


def read(payload: Any, *, api: str = "chat", event: str = "message", terminated: bool = True) -> Chunk:
    data = payload if isinstance(payload, str) else json.dumps(payload)
    return dialect(api).decode(SSEEvent(data, event, 7, 2, terminated))


def only(**fields: Any) -> Chunk:
    return Chunk(7, 2, **fields)


@pytest.mark.parametrize(
    ("delta", "said"),
    [
        ({"role": "assistant"}, {}),
        ({"role": "assistant", "content": ""}, {}),
        ({"role": "assistant", "content": None}, {}),
        ({}, {}),
        (None, {}),
        ({"content": None}, {}),
        ({"content": ""}, {"blank": True}),
        ({"content": " a"}, {"text": " a"}),
        ({"role": "assistant", "content": "a"}, {"text": "a"}),
        ({"content": "a", "refusal": None, "tool_calls": None}, {"text": "a"}),
        ({"content": None, "refusal": "I cannot"}, {"text": "I cannot"}),
        ({"content": None, "reasoning_content": None, "reasoning": None}, {}),
        ({"reasoning": "r"}, {"reasoning": "r"}),
        ({"reasoning_content": "r", "content": None}, {"reasoning": "r"}),
        ({"reasoning_content": "r", "reasoning": "r"}, {"reasoning": "r"}),
        ({"reasoning_content": "r", "content": ""}, {"reasoning": "r"}),
        ({"reasoning": "r", "reasoning_details": [{"text": "r"}]}, {"reasoning": "r"}),
        ({"reasoning_details": [{"text": "r"}, {"summary": "s"}, {"data": "x"}, 1]}, {"reasoning": "rs"}),
        (
            {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            {"text": "f{", "calls": (CallDelta(None, "f", "{"),), "called": 2},
        ),
        (
            {"tool_calls": [{"function": {"name": None, "arguments": "1"}}, None]},
            {"text": "1", "calls": (CallDelta(0, "", "1"),), "called": 1},
        ),
        (
            {"tool_calls": [{"custom": {"name": "c", "input": "i"}}]},
            {"text": "ci", "calls": (CallDelta(None, "c", "i"),), "called": 2},
        ),
        (
            {"function_call": {"name": "f", "arguments": "{}"}},
            {"text": "f{}", "calls": (CallDelta(0, "f", "{}"),), "called": 3},
        ),
        (
            {"tool_calls": [{"index": "1", "id": "c", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"text": 'f{"a": 1}', "calls": (CallDelta(1, "f", '{"a": 1}', "c"),), "called": 9},
        ),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"text": "ab"}),
        ({"content": [{"type": "thinking", "thinking": [{"text": "t"}]}]}, {"reasoning": "t"}),
    ],
)
def test_chat_deltas(delta, said):
    assert read(chat(delta)) == only(choice=0, **said)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (text(" a"), {"text": " a", "choice": 0}),
        (text(""), {"blank": True, "choice": 0}),
        ({"choices": [{"text": None, "finish_reason": "stop"}]}, {"choice": 0, "finish_reason": "stop"}),
        ({"choices": [{"text": "a", "token_ids": [1, 2]}]}, {"text": "a", "choice": 0, "tokens": 2}),
        ({"choices": [{"text": "a", "token_ids": None}]}, {"text": "a", "choice": 0}),
        ({"choices": []}, {}),
    ],
)
def test_completions_choices(payload, said):
    assert read(payload, api="completions") == only(**said)


def test_finish_reason_with_text_and_empty_string_for_none():
    assert read(chat({"content": "a"}, "length")) == only(choice=0, text="a", finish_reason="length")
    assert read(chat({"content": "a"}, "")).finish_reason is None


def test_usage_apart_from_any_choice_is_not_a_running_count():
    details = {
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }
    chunk = read({"choices": [], **usage(9, 3, **details)})
    assert chunk == only(usage=Usage(9, 3, 4, 1, 12))


def test_usage_on_a_content_chunk_is_a_running_count():
    chunk = read(chat({"content": "a"}, **usage(9, 3)))
    assert (chunk.tokens_cumulative, chunk.usage) == (3, Usage(9, 3, total_tokens=12))
    assert read(chat({"role": "assistant", "content": ""}, **usage(9, 0))).tokens_cumulative == 0


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        [],
        "12",
        {"completion_tokens": None},
        {"completion_tokens": "3"},
        {"completion_tokens": -1},
        {"completion_tokens": True},
        {"completion_tokens": 1.5},
        {"prompt_tokens_details": None},
    ],
)
def test_usage_that_says_nothing(given):
    chunk = read(chat({"content": "a"}, usage=given))
    assert chunk == only(choice=0, text="a")


def test_usage_under_other_names():
    assert read({"choices": [], "usage": {"input_tokens": 5, "output_tokens": 6.0}}).usage == Usage(5, 6)
    assert read({"choices": [], "usage": {"prompt_cache_hit_tokens": 2}}).usage == Usage(cached_tokens=2)


def test_timings_and_metrics():
    timed = read(chat({"content": "a"}, timings={"predicted_n": 4, "prompt_ms": 1.5}))
    assert timed.tokens_cumulative == 4
    assert timed.server_timings == {"predicted_n": 4, "prompt_ms": 1.5}
    both = read({"choices": [], "timings": {"prompt_ms": 1}, "metrics": {"queue_time_ms": 2}})
    assert both.server_timings == {"prompt_ms": 1, "queue_time_ms": 2}
    assert both.tokens_cumulative is None


def test_progress_of_the_prompt_is_no_output():
    progress = {"total": 20, "cache": 0, "processed": 8, "time_ms": 4}
    assert read({**ROLE, "prompt_progress": progress}) == only(choice=0)


@pytest.mark.parametrize("data", ["[DONE]", " [DONE] ", "[DONE]\r"])
def test_end_marker(data):
    assert read(data) == only(done=True)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"error": {"message": "boom", "type": "T", "code": 500}}, "boom (type T, code 500)"),
        ({"error": "boom"}, "boom"),
        ({"error": {"message": "boom", "code": None}, "choices": []}, "boom"),
        ({"error": {"code": "x"}}, "code x"),
        ({"error": ["a", {"message": "b"}]}, "a; b"),
        ({"error": True, "message": "boom"}, "boom"),
        ({"object": "error", "message": "boom", "code": 400}, "boom (code 400)"),
        (
            {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
            "busy (type overloaded_error)",
        ),
        ({"detail": "boom"}, "boom"),
        ({"errors": [{"message": "boom"}]}, "boom"),
    ],
)
def test_errors_inside_a_stream(payload, message):
    chunk = read(payload)
    assert (chunk.error, chunk.refused, chunk.problem) == (message, False, "")


def test_error_events_by_their_type():
    assert read("it broke", event="error").error == "it broke"
    assert read({"message": "it broke"}, event="error").error == "it broke"
    assert read("{}", event="error").error == "an error without a message"
    assert read('"quoted"', event="error").error == '"quoted"'


@pytest.mark.parametrize("nothing", [None, "", {}, [], False])
def test_an_error_field_that_is_empty_is_no_error(nothing):
    assert read(chat({"content": "a"}, error=nothing)) == only(choice=0, text="a")


def test_a_policy_error_is_a_refusal():
    assert read({"error": {"message": "no", "code": "content_policy_violation"}}).refused
    assert read({"error": {"message": "Violated guardrail policy"}}).refused


@pytest.mark.parametrize(
    ("error", "turned_away"),
    [
        ({"message": "The engine is currently busy and cannot accept new requests.", "code": 503}, True),
        ({"message": "Loading model", "code": 503}, False),
        ({"message": "slow down", "code": "429"}, True),
        ({"message": "Overloaded", "type": "overloaded_error"}, True),
        ({"message": "the queue is broken", "code": 500}, False),
        ("currently busy", False),
    ],
)
def test_an_error_of_a_server_that_takes_no_more(error, turned_away):
    assert read({"error": error}).turned_away is turned_away


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "hello",
        "12",
        "null",
        '"text"',
        "[]",
        '{"choices": 1}',
        '{"choices": [1]}',
        "[" * 100_000,
        "1" * 5000,
        '{"choices": [{"delta": "a"}]}',
        '{"choices": [{"delta": {"content": 1}}]}',
    ],
)
def test_what_cannot_be_read_is_said_so(data):
    chunk = read(data)
    assert chunk.problem
    assert len(chunk.problem) < 200
    assert chunk.text == ""


def test_text_of_another_type_in_completions():
    assert read({"choices": [{"text": 1}]}, api="completions").problem


def test_a_whole_message_inside_an_event_is_no_stream():
    chunk = read({"object": "chat.completion", "choices": [{"message": {"content": "all of it"}}]})
    assert "did not stream" in chunk.problem


@pytest.mark.parametrize("data", ["{", '{"choices":[{"del', "[DO"])
def test_a_piece_left_by_the_end_of_the_stream_is_empty(data):
    assert read(data, terminated=False) == only()


@pytest.mark.parametrize(
    ("data", "event"), [("", "message"), (" ", "message"), ("now", "ping"), ("{}", "message"), ("7", "ping")]
)
def test_keep_alives_say_nothing(data, event):
    assert read(data, event=event) == only()


def test_bytes_that_were_not_text():
    event = SSEEvent("{}", "message", 7, 2, True, "bytes that are not UTF-8")
    assert dialect("chat").decode(event) == only(problem="bytes that are not UTF-8")
    event.terminated = False  # cut inside a character: the reply is truncated, not garbled
    assert dialect("chat").decode(event) == only()


KEYS = st.sampled_from(
    [
        "choices",
        "delta",
        "content",
        "text",
        "finish_reason",
        "index",
        "usage",
        "error",
        "timings",
        "metrics",
        "token_times_ns",
        "message",
        "completion_tokens",
        "prompt_tokens_details",
        "cached_tokens",
        "reasoning",
        "tool_calls",
        "function",
        "name",
        "token_ids",
        "reasoning_details",
        "function_call",
        "refusal",
        "code",
        "thinking",
        "predicted_n",
        "role",
    ]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@settings(max_examples=400)
@given(payload=JSON, api=st.sampled_from(["chat", "completions"]))
def test_no_json_value_makes_a_decoder_raise(payload, api):
    shapes = [payload, {"choices": payload}, {"choices": [payload]}, {"choices": [{"delta": payload}]}]
    shapes += [{"choices": [], "usage": payload, "error": payload}, {"timings": payload, "metrics": payload}]
    shapes += [{"timings": {"prompt_ms": payload, "preemptions": payload}, "token_times_ns": payload}]
    for shape in shapes:
        chunk = read(shape, api=api)
        server_figures([chunk])
        assert isinstance(chunk.text, str)
        assert isinstance(chunk.reasoning, str)
        assert chunk.error is None or 0 < len(chunk.error) <= 300
        assert chunk.tokens_cumulative is None or chunk.tokens_cumulative >= 0
