"""Tool calls of a stream, put together from pieces of any size and held against what was asked for."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.model.reply_checks import Call, StructuredOutput
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.catalogue import DIALECTS
from pytest_llmbench.wire.dialect import EncodeOptions
from pytest_llmbench.wire.inline_reasoning import InlineReasoning
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.wire.reply import answer_of, calls_of, checked, read_stream
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
def test_arguments_come_together_however_tokens_and_bytes_are_cut(tokens, places):
    body = b"".join([*call_events(cut_at(ARGUMENTS, tokens)), event({}, "tool_calls")])
    cuts = [0, *sorted({at % len(body) for at in places} - {0}), len(body)]
    reads = [(body[a:b], at) for at, (a, b) in enumerate(pairwise(cuts), 1)]
    chunks = list(chunks_of(reads, CHAT))
    assert calls_of(chunks) == [Call("weather", ARGUMENTS)]
    summary = read_stream(chunks)
    assert (summary.text, checked(CALL, summary, chunks)) == ("weather" + ARGUMENTS, "valid")


def test_calls_that_take_turns_are_told_apart():
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
def test_replies_are_checked(events, asked, finish, found):
    assert read(events, asked, finish)[1] == found


def test_of_several_choices_the_first_is_checked():
    events = [event({"content": '{"city":"A"}'}), event({"content": "no"}, choice=1)]
    assert read([*events, event({}, "stop", 1)], JSON, "stop")[1] == "valid"


def block(what: str, number: int, said: dict[str, Any]) -> dict[str, Any]:
    key = {"delta": "delta", "start": "content_block"}[what]
    return {"type": f"content_block_{what}", "index": number, key: said}


OLLAMA_TEXT = b'{"message": {"content": "It depends."}, "done": false}\n'
OLLAMA_CALL = (
    b'{"message": {"content": "", "tool_calls": [{"function": {"name": "weather", "arguments": {}}}]},'
    b' "done": false}\n'
)


def sse(*payloads: Any) -> bytes:
    return b"".join(f"data: {json.dumps(payload)}\n\n".encode() for payload in payloads)


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("openai-chat", event({"content": "It depends."}) + b"".join(call_events(["{", "}"]))),
        ("openai-chat", event({"content": "It depends.", "function_call": {"name": "weather{}"}})),
        (
            "anthropic-messages",
            sse(
                block("delta", 0, {"type": "text_delta", "text": "It "}),
                block("delta", 0, {"type": "text_delta", "text": "depends."}),
                block("start", 1, {"type": "tool_use", "name": "weather"}),
                block("delta", 1, {"partial_json": "{}"}),
            ),
        ),
        (
            "openai-responses",
            sse(
                {"type": "response.output_text.delta", "delta": "It depends."},
                {"type": "response.output_item.added", "output_index": 1, "item": {"name": "weather"}},
                {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": "{}"},
            ),
        ),
        ("ollama-chat", OLLAMA_TEXT + OLLAMA_CALL),
    ],
)
def test_an_answer_is_without_the_calls_behind_it(api, body):
    chunks = list(chunks_of([(body, 1)], DIALECTS[api]))
    summary = read_stream(chunks)
    assert summary.text in ("It depends.weather{}", "It depends.{}")
    text, share = answer_of(summary, chunks, InlineReasoning())
    assert (text, share) == ("It depends.", 11 / len(summary.text))


def test_a_server_that_numbers_no_calls_has_one():
    events = [event({"tool_calls": [{"function": {"name": "weather", "arguments": "{}"}}]})]
    assert read(events, CALL)[0] == [Call("weather", "{}")]
    assert read([event({"function_call": {"name": "weather"}})], CALL)[0] == [Call("weather", "")]


def body_of(asked: StructuredOutput | None, prompt: str = " hello") -> dict[str, Any]:
    text = (asked.tools if asked else "") + prompt
    request = PlannedRequest(3, max_tokens=9, input_tokens=1, text=text, structured=asked)
    found: dict[str, Any] = json.loads(CHAT.encode(request, EncodeOptions("m")))
    return found


def test_a_chat_request_asks_for_a_call_or_for_a_form():
    plain = body_of(None)
    assert not plain.keys() & {"tools", "tool_choice", "response_format"}
    called = body_of(CALL)
    assert called == plain | {"tools": TOOLS, "tool_choice": "required"}
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": False}}
    assert body_of(JSON) == plain | {"response_format": form}
    both = body_of(StructuredOutput.of(TOOLS, SCHEMA))
    assert both == plain | {"tools": TOOLS, "tool_choice": "none", "response_format": form}


def test_tools_that_are_not_in_the_prompt_are_an_error():
    request = PlannedRequest(3, max_tokens=9, input_tokens=1, text="hello", structured=CALL)
    with pytest.raises(GeneratorError, match="does not begin with the tools"):
        CHAT.encode(request, EncodeOptions("m"))


def test_other_dialects_send_the_tools_as_words():
    able = {name for name, each in DIALECTS.items() if each.structured_output}
    assert able == {"openai-chat", "openai-responses", "anthropic-messages"}
    request = PlannedRequest(3, max_tokens=16, input_tokens=1, text=CALL.tools + " hello", structured=CALL)
    body = json.loads(DIALECTS["openai-completions"].encode(request, EncodeOptions("m")))
    assert body["prompt"] == CALL.tools + " hello"
    assert "tools" not in body


def asked(api: str, form: StructuredOutput) -> dict[str, Any]:
    request = PlannedRequest(3, max_tokens=16, input_tokens=1, text=form.tools + " hello", structured=form)
    found: dict[str, Any] = json.loads(DIALECTS[api].encode(request, EncodeOptions("m")))
    return found


def test_responses_have_flat_tools_and_a_format_of_the_text():
    called = asked("openai-responses", CALL)
    flat = {"type": "function", "strict": False, "name": "weather", "parameters": SCHEMA}
    assert (called["tools"], called["tool_choice"], called["input"]) == ([flat], "required", " hello")
    form = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": False}
    assert asked("openai-responses", JSON)["text"] == {"format": form}
    both = asked("openai-responses", StructuredOutput.of(TOOLS, SCHEMA))
    assert (both["tool_choice"], both["text"]["format"]) == ("none", form)


def test_messages_have_input_schemas_and_an_output_config():
    called = asked("anthropic-messages", CALL)
    assert called["tools"] == [{"name": "weather", "input_schema": SCHEMA}]
    assert called["tool_choice"] == {"type": "any"}
    assert called["messages"] == [{"role": "user", "content": " hello"}]
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    assert asked("anthropic-messages", JSON)["output_config"] == form
    assert asked("anthropic-messages", StructuredOutput.of(TOOLS, SCHEMA))["tool_choice"] == {"type": "none"}


CALLED = {"type": "function_call", "name": "weather"}
RESPONSES = [
    {"type": "response.output_item.added", "output_index": 1, "item": CALLED},
    {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '{"city":'},
    {"type": "response.function_call_arguments.delta", "output_index": 1, "delta": '"A"}'},
    {"type": "response.completed", "response": {"status": "completed"}},
]
MESSAGES = [
    block("start", 1, {"type": "tool_use", "name": "weather", "input": {}}),
    block("delta", 1, {"type": "input_json_delta", "partial_json": '{"city":'}),
    block("delta", 1, {"type": "input_json_delta", "partial_json": '"A"}'}),
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
    {"type": "message_stop"},
]


@pytest.mark.parametrize(
    ("api", "events"), [("openai-responses", RESPONSES), ("anthropic-messages", MESSAGES)]
)
@given(places=st.lists(st.integers(1, 1000)))
def test_calls_of_other_apis_come_together_too(api, events, places):
    body = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
    reads = [(part.encode(), at) for at, part in enumerate(cut_at(body, places), 1)]
    chunks = list(chunks_of(reads, DIALECTS[api]))
    assert calls_of(chunks) == [Call("weather", '{"city":"A"}')]
    summary = read_stream(chunks)
    assert (summary.text, checked(CALL, summary, chunks)) == ('{"city":"A"}', "valid")


def test_extra_fields_change_one_request_and_not_the_next():
    request = PlannedRequest(3, max_tokens=16, input_tokens=1, text="hello", structured=JSON)
    deeper = {"response_format": {"json_schema": {"schema": {"title": "x"}}}}
    changed = json.loads(CHAT.encode(request, EncodeOptions("m", extra_body=deeper)))
    assert changed["response_format"]["json_schema"]["schema"] == {**SCHEMA, "title": "x"}
    assert body_of(JSON)["response_format"]["json_schema"]["schema"] == SCHEMA


ONE, OTHER = '{"city":"Köln"}', '{"city":"Bonn"}'


def piece(arguments: Any = None, name: str | None = None, **told: Any) -> dict[str, Any]:
    """An entry of ``tool_calls``."""
    function = {"name": name, "arguments": arguments}
    return {**told, "function": {key: value for key, value in function.items() if value is not None}}


@pytest.mark.parametrize(
    "calls",
    [
        # the same number, other ids
        [
            [piece("", "weather", index=0, id="a")],
            [piece(ONE[:9], index=0)],
            [piece(ONE[9:], index=0)],
            [piece("", "weather", index=0, id="b")],
            [piece(OTHER, index=0)],
        ],
        [[piece(ONE, "weather", index=0, id="a")], [piece(OTHER, "weather", index=0, id="b")]],
        # the same number, no ids
        [[piece(ONE, "weather", index=0)], [piece(OTHER, "weather", index=0)]],
        # no numbers
        [
            [piece("", "weather", id="a")],
            [piece(ONE[:9])],
            [piece(ONE[9:])],
            [piece(OTHER[:5], "weather", id="b")],
            [piece(OTHER[5:])],
        ],
        [[piece(ONE, "weather")], [piece(OTHER, "weather")]],
        [[piece(ONE, "weather"), piece(OTHER, "weather")]],
        [[piece(ONE[:5], "weather"), piece(OTHER[:5], "weather")], [piece(ONE[5:]), piece(OTHER[5:])]],
        # name and id with every event
        [
            *[[piece(part, "weather", index=0, id="a")] for part in (ONE[:4], ONE[4:9], ONE[9:])],
            *[[piece(part, "weather", index=1, id="b")] for part in (OTHER[:4], OTHER[4:9], OTHER[9:])],
        ],
        [
            *[[piece(part, "weather")] for part in (ONE[:4], ONE[4:9], ONE[9:])],
            *[[piece(part, "weather")] for part in (OTHER[:4], OTHER[4:9], OTHER[9:])],
        ],
        # arguments as objects, once and with every event
        [[piece(json.loads(ONE), "weather", index=0)], [piece(json.loads(OTHER), "weather", index=1)]],
        [
            [piece({"city": "K"}, "weather", index=0, id="a")],
            [piece(json.loads(ONE), "weather", index=0, id="a")],
            [piece(json.loads(OTHER), "weather", index=1, id="b")],
        ],
        # all arguments so far with each event, and all of them once more at the end
        [
            *[[piece(ONE[:end], "weather", index=0, id="a")] for end in (1, 4, 9, 15)],
            *[[piece(OTHER[:end], index=1, id="b", name="weather")] for end in (5, 15, 15)],
        ],
        [
            *[[piece(part, index=0)] for part in (ONE[:4], ONE[4:])],
            [piece(ONE, "weather", index=0)],
            [piece(OTHER, "weather", index=1)],
        ],
        # one call as an object in place of a list
        [piece(ONE, "weather", index=0), piece(OTHER, "weather", index=1)],
    ],
)
def test_calls_of_servers_that_number_or_send_them_otherwise(calls):
    found, check = read([event({"tool_calls": each}) for each in calls], CALL)
    assert [(call.name, json.loads(call.arguments)["city"]) for call in found] == [
        ("weather", "Köln"),
        ("weather", "Bonn"),
    ]
    assert check == "valid"


def test_names_in_pieces_and_calls_without_arguments():
    two = [[piece(None, "wea", index=0)], [piece(None, "ther", index=0)], [piece(ONE, index=0)]]
    assert read([event({"tool_calls": each}) for each in two], CALL) == ([Call("weather", ONE)], "valid")
    none = [[piece("", "weather")], [piece("", "time")]]
    assert read([event({"tool_calls": each}) for each in none], CALL)[0] == [
        Call("weather", ""),
        Call("time", ""),
    ]


def of_messages() -> bytes:
    said = {"type": "tool_use", "name": "weather"}
    return sse(
        block("start", 0, {**said, "id": "a", "input": {}}),
        block("delta", 0, {"partial_json": ONE}),
        block("start", 1, {**said, "id": "b", "input": json.loads(OTHER)}),
    )


def of_responses() -> bytes:
    kind = "response.function_call_arguments.delta"
    return b"".join(
        sse(
            {"type": "response.output_item.added", "item": {"name": "weather", "id": identity}},
            {"type": kind, "item_id": identity, "delta": arguments},
        )
        for identity, arguments in (("a", ONE), ("b", OTHER))
    )


def of_ollama() -> bytes:
    calls = [{"function": {"name": "weather", "arguments": json.loads(each)}} for each in (ONE, OTHER)]
    lines = (json.dumps({"message": {"tool_calls": [call]}, "done": False}) for call in calls)
    return "".join(f"{line}\n" for line in lines).encode()


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("anthropic-messages", of_messages()),
        ("openai-responses", of_responses()),
        ("ollama-chat", of_ollama()),
    ],
)
def test_calls_of_other_apis_are_told_apart(api, body):
    chunks = list(chunks_of([(body, 1)], DIALECTS[api]))
    assert [json.loads(call.arguments)["city"] for call in calls_of(chunks)] == ["Köln", "Bonn"]
    assert answer_of(read_stream(chunks), chunks, InlineReasoning()).text == ""


def test_many_pieces_take_time_in_proportion():
    """A watchdog: quadratic work on these would take minutes."""
    many = [[piece("}", "weather", index=0)]] * 20_000
    body = b"".join(event({"tool_calls": each}) for each in many)
    assert len(calls_of(chunks_of([(body, 1)], CHAT))) == 1
