"""Messages with roles: how each dialect carries them, and what it cannot carry."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.model.messages import Message, MessageArray, ToolCall
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.catalogue import DIALECTS, dialect
from pytest_llmbench.wire.dialect import EncodeOptions
from pytest_llmbench.workloads.sequence import text_of

TOOL = {"name": "look_up", "description": "looks", "parameters": {"type": "object", "properties": {}}}
TOOLS = json.dumps([{"type": "function", "function": TOOL}])
CALLS = (ToolCall("c1", "look_up", '{"a": 1}'), ToolCall("c2", "look_up", "{}"))
NO_OBJECT = (ToolCall("c", "f", "[1]"),)
AGENT = MessageArray(
    (
        Message("system", "Be brief."),
        Message("user", "What is it?"),
        Message("assistant", "", CALLS),
        Message("tool", "one", call_id="c1"),
        Message("tool", "two", call_id="c2"),
        Message("user", "And now?"),
    ),
    TOOLS,
    "chats.jsonl, line 3",
)


def asked(said: MessageArray = AGENT, **changes: Any) -> PlannedRequest:
    return replace(PlannedRequest(7, 20, 30, messages=said), **changes)


def body(name: str, said: MessageArray = AGENT) -> dict[str, Any]:
    request = replace(asked(said), text=text_of(asked(said)))
    made: dict[str, Any] = json.loads(dialect(name).encode(request, EncodeOptions("small")))
    return made


def with_messages(*messages: Message) -> MessageArray:
    return replace(AGENT, messages=messages, tools="")


def test_chat_sends_them_as_they_are():
    made = body("openai-chat")
    assert made["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is it?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"a": 1}'}},
                {"id": "c2", "type": "function", "function": {"name": "look_up", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": "two"},
        {"role": "user", "content": "And now?"},
    ]
    assert made["tools"] == json.loads(TOOLS)
    assert "tool_choice" not in made
    assert made["max_tokens"] == 20


def test_responses_has_items_for_calls_and_for_what_they_gave():
    made = body("openai-responses")
    assert made["input"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is it?"},
        {"type": "function_call", "call_id": "c1", "name": "look_up", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "look_up", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
        {"role": "user", "content": "And now?"},
    ]
    assert made["tools"] == [{"type": "function", "strict": False, **TOOL}]


def test_anthropic_has_the_system_beside_and_joins_what_is_of_one_role():
    made = body("anthropic-messages")
    assert made["system"] == "Be brief."
    assert made["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "c1", "name": "look_up", "input": {"a": 1}},
                {"type": "tool_use", "id": "c2", "name": "look_up", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "one"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "two"},
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    (tool,) = made["tools"]
    assert tool["input_schema"] == TOOL["parameters"]


def test_ollama_names_the_tool_and_has_arguments_as_objects():
    made = body("ollama-chat")
    assert made["messages"][2:5] == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"function": {"name": "look_up", "arguments": {"a": 1}}},
                {"function": {"name": "look_up", "arguments": {}}},
            ],
        },
        {"role": "tool", "content": "one", "tool_name": "look_up"},
        {"role": "tool", "content": "two", "tool_name": "look_up"},
    ]
    assert made["tools"] == json.loads(TOOLS)


def test_a_dialect_of_one_text_gets_them_rendered():
    rendered = body("openai-completions")["prompt"]
    assert rendered == (
        f"tools: {TOOLS}\n\nsystem: Be brief.\n\nuser: What is it?\n\n"
        'assistant: look_up{"a": 1} look_up{}\n\ntool: one\n\ntool: two\n\nuser: And now?\n\nassistant:'
    )
    shorter = replace(AGENT, messages=AGENT.messages[:2]).rendered
    assert rendered.startswith(shorter)
    assert body("ollama-generate")["prompt"] == body("tgi-generate")["inputs"] == rendered


def test_the_dialects_with_roles():
    able = {name for name, each in DIALECTS.items() if each.message_roles}
    assert able == {"openai-chat", "openai-responses", "anthropic-messages", "ollama-chat"}


@pytest.mark.parametrize(
    ("name", "said", "told"),
    [
        ("anthropic-messages", (Message("assistant", "Hello!"), Message("user", "x")), "message 1 is the"),
        (
            "anthropic-messages",
            (Message("user", "x"), Message("system", "y"), Message("user", "z")),
            "message 2 is the system's",
        ),
        (
            "ollama-chat",
            (Message("user", "x"), Message("assistant", "", NO_OBJECT), Message("user", "z")),
            "the arguments of the call 'c' are not a JSON object",
        ),
    ],
)  # fmt: skip
def test_what_a_dialect_has_no_form_for_is_told_with_its_line(name, said, told):
    with pytest.raises(GeneratorError, match=told) as caught:
        body(name, with_messages(*said))
    assert "chats.jsonl, line 3" in str(caught.value)
    assert body("openai-chat", with_messages(*said))["messages"][0]["role"] == said[0].role


def test_roles_do_not_go_as_token_ids():
    with pytest.raises(GeneratorError, match="messages with roles cannot be sent as token ids"):
        dialect("openai-completions").encode(
            asked(token_ids=(1, 2)), EncodeOptions("small", prompt_form="token_ids")
        )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ((), "no message is the user's"),
        ((Message("user", " "),), "message 1 is empty"),
        ((Message("wizard", "x"),), "message 1 has the role 'wizard': give one of system, user, assist"),
        ((Message("user", "x"), Message("tool", "y")), "message 2 is a tool's and names no call"),
        (
            (Message("user", "x"), Message("tool", "y", call_id="n")),
            "answers 'n', which no message",
        ),
        ((Message("user", "x", CALLS),), "message 1 has tool calls: only the assistant's messages may"),
        ((Message("user", "x"), Message("assistant", "y")), "message 2 is the assistant's: there is nothing"),
        ((Message("user", "x"), Message("system", "y")), "message 2 is the system's: there is nothing"),
    ],
)
def test_mistakes_of_an_array(said, told):
    (mistake,) = [each for each in MessageArray(said).mistakes() if told in each]
    assert mistake
    assert AGENT.mistakes() == []
