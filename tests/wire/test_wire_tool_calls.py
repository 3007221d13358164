"""Tool calls of a stream, put together from pieces of any size and held against what was asked for."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.structured import Call, StructuredOutput
from pytest_llmbench.wire.catalogue import DIALECTS
from pytest_llmbench.wire.dialect import EncodeOptions
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.wire.reply import calls_of, checked, read_stream
from pytest_llmbench.wire.stream import chunks_of

CHAT = OpenAIChat()
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
CALL = StructuredOutput.of(TOOLS)
JSON = StructuredOutput.of(schema=SCHEMA)
ARGUMENTS = '{"city":"Köln \\"am\\" Rhein"}'


def event(delta: dict[str, Any], finish: str | None = None, choice: int = 0) -> bytes:
    body = {"choices": [{"index": choice, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps(body)}\n\n".encode()


def call_events(pieces: list[str], name: str = "weather", number: int = 0) -> list[bytes]:
    first = {"index": number, "id": "c", "type": "function", "function": {"name": name, "arguments": ""}}
    rest = [{"index": number, "function": {"arguments": piece}} for piece in pieces]
    return [event({"tool_calls": [call]}) for call in (first, *rest)]


def read(events: list[bytes], asked: StructuredOutput, finish: str = "tool_calls") -> tuple[list[Call], str]:
    body = b"".join([*events, event({}, finish), b"data: [DONE]\n\n"])
    chunks = list(chunks_of([(body, 1)], CHAT))
    return calls_of(chunks), checked(asked, read_stream(chunks), chunks)


def cut_at(text: str, places: list[int]) -> list[str]:
    return [text[a:b] for a, b in pairwise([0, *sorted({at % len(text) for at in places} - {0}), len(text)])]


@given(st.lists(st.integers(0, 100)), st.lists(st.integers(1, 2000)))
def test_arguments_come_together_however_tokens_and_bytes_are_cut(
    tokens: list[int], places: list[int]
) -> None:
    body = b"".join([*call_events(cut_at(ARGUMENTS, tokens)), event({}, "tool_calls")])
    cuts = [0, *sorted({at % len(body) for at in places} - {0}), len(body)]
    reads = [(body[a:b], at) for at, (a, b) in enumerate(pairwise(cuts), 1)]
    chunks = list(chunks_of(reads, CHAT))
    assert calls_of(chunks) == [Call("weather", ARGUMENTS)]
    summary = read_stream(chunks)
    assert (summary.text, checked(CALL, summary, chunks)) == ("weather" + ARGUMENTS, "valid")


def test_calls_that_take_turns_are_told_apart() -> None:
    one, other = call_events(['{"city"', ':"A"}']), call_events(['{"city"', ":7}"], number=1)
    mixed = [each for pair in zip(one, other, strict=True) for each in pair]
    calls, found = read(mixed, CALL)
    assert calls == [Call("weather", '{"city":"A"}'), Call("weather", '{"city":7}')]
    assert found == "wrong_type"


@pytest.mark.parametrize(
    ("events", "asked", "finish", "found"),
    [
        (call_events(['{"city":"A"']), CALL, "length", "cut_by_limit"),
        (call_events(['{"city":"A"}']), CALL, "length", "valid"),
        (call_events(['{"city":"A"'], "weathr"), CALL, "tool_calls", "unknown_tool"),
        ([event({"content": "It rains."})], CALL, "stop", "no_call"),
        ([event({"content": '{"city":'}), event({"content": '"A"}'})], JSON, "stop", "valid"),
        ([event({"content": "```json"})], JSON, "stop", "not_json"),
        ([event({"content": "{}"})], JSON, "stop", "missing_key"),
        ([event({"reasoning": "so"}), event({"content": '{"city":"A"}'})], JSON, "stop", "valid"),
        ([event({"content": '<think>{</think>{"city":"A"}'})], JSON, "stop", "valid"),
    ],
)
def test_replies_are_checked(events: list[bytes], asked: StructuredOutput, finish: str, found: str) -> None:
    assert read(events, asked, finish)[1] == found


def test_of_several_choices_the_first_is_checked() -> None:
    events = [event({"content": '{"city":"A"}'}), event({"content": "no"}, choice=1)]
    assert read([*events, event({}, "stop", 1)], JSON, "stop")[1] == "valid"


def test_a_server_that_numbers_no_calls_has_one() -> None:
    events = [event({"tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]})]
    assert read(events, CALL)[0] == [Call("weather", "{}")]
    assert read([event({"function_call": {"name": "weather"}})], CALL)[0] == [Call("weather", "")]


def body_of(asked: StructuredOutput | None, prompt: str = " hello") -> dict[str, Any]:
    text = (asked.tools if asked else "") + prompt
    request = PlannedRequest(3, max_tokens=9, input_tokens=1, text=text, structured=asked)
    found: dict[str, Any] = json.loads(CHAT.encode(request, EncodeOptions("m")))
    return found


def test_a_chat_request_asks_for_a_call_or_for_a_form() -> None:
    plain = body_of(None)
    assert not plain.keys() & {"tools", "tool_choice", "response_format"}
    called = body_of(CALL)
    assert called == plain | {"tools": TOOLS, "tool_choice": "required"}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    assert body_of(JSON) == plain | {"response_format": form}
    both = body_of(StructuredOutput.of(TOOLS, SCHEMA))
    assert both == plain | {"tools": TOOLS, "tool_choice": "none", "response_format": form}


def test_tools_that_are_not_in_the_prompt_are_an_error() -> None:
    request = PlannedRequest(3, max_tokens=9, input_tokens=1, text="hello", structured=CALL)
    with pytest.raises(GeneratorError, match="does not begin with the tools"):
        CHAT.encode(request, EncodeOptions("m"))


def test_other_dialects_send_the_tools_as_words() -> None:
    assert [name for name, each in DIALECTS.items() if each.structured_output] == ["openai-chat"]
    request = PlannedRequest(3, max_tokens=16, input_tokens=1, text=CALL.tools + " hello", structured=CALL)
    body = json.loads(DIALECTS["openai-completions"].encode(request, EncodeOptions("m")))
    assert body["prompt"] == CALL.tools + " hello"
    assert "tools" not in body
