"""Conversations with their roles: turns of a file, and every mistake with its line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.store.rows import MOST_LINE_BYTES
from pytest_llmbench.store.traces.conversations import AS_CALLS, AS_CONVERSATIONS
from pytest_llmbench.store.traces.reading import read_conversations
from pytest_llmbench.store.traces.sessions import SessionsOfTrace, sessions_of_trace
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.trace_sessions import ids_of

SYSTEM = {"role": "system", "content": "You are a patient clerk of a large library, and you answer briefly."}
CHAT = [
    SYSTEM,
    {"role": "user", "content": "Where are the maps?"},
    {"role": "assistant", "content": "On the second floor."},
    {"role": "user", "content": [{"type": "text", "text": "And the "}, {"type": "text", "text": "globes?"}]},
    {"role": "assistant", "content": "Beside them, to the left of the window."},
    {"role": "user", "content": "Thank you."},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"what": "maps"}'}}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]
AGENT = [
    SYSTEM,
    {"role": "user", "content": "Find the maps."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "floor 2"},
    {"role": "assistant", "content": "They are on floor 2."},
]


def sessions(folder: Path, rows: list[Any] | str, name: str = "chats.jsonl") -> SessionsOfTrace:
    path = folder / name
    path.write_text(rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)), encoding="utf-8")
    return sessions_of_trace(read_conversations(path), str(path))


def told(folder: Path, rows: list[Any] | str, name: str = "chats.jsonl") -> str:
    with pytest.raises(SuiteError) as caught:
        sessions(folder, rows, name)
    return str(caught.value)


def count(*texts: str) -> int:
    return sum(map(reference_tokenizer().count, texts))


def test_each_answer_of_a_conversation_is_a_turn(tmp_path: Path) -> None:
    found = sessions(tmp_path, [{"messages": CHAT}, [*AGENT[:2], {"role": "assistant", "content": "Done."}]])
    chat, short = found.sessions
    said = [turn.messages for turn in chat.turns]
    assert [len(each.messages) for each in said if each] == [2, 4]
    assert said[1] is not None
    assert said[1].messages[3].content == "And the globes?"
    assert said[1].place == f"{tmp_path}/chats.jsonl, line 1"
    assert [turn.input_tokens for turn in chat.turns] == [len(ids_of(each)) for each in said if each]
    answers = [str(CHAT[number]["content"]) for number in (2, 4)]
    assert [turn.output_tokens for turn in chat.turns] == list(map(count, answers))
    assert [turn.wait_for for turn in chat.turns] == [(), (1,)]
    assert len(short.turns) == 1
    assert not found.timed
    assert AS_CONVERSATIONS in found.steps
    assert "1 last questions without an answer left out" in found.steps


def test_tools_are_counted_with_what_calls_them(tmp_path: Path) -> None:
    (agent,) = sessions(tmp_path, [{"messages": AGENT, "tools": TOOLS}]).sessions
    first, second = agent.turns
    tools = json.dumps(TOOLS, separators=(",", ":"))
    opening = count(tools, SYSTEM["content"], "Find the maps.")
    assert first.input_tokens == opening
    assert first.output_tokens == count('find{"what": "maps"}')
    assert second.input_tokens == opening + first.output_tokens + count("floor 2")
    assert second.messages is not None
    assert second.messages.tools == tools


def test_a_last_question_with_a_length_is_a_turn(tmp_path: Path) -> None:
    found = sessions(tmp_path, [{"messages": CHAT, "max_tokens": 33, "delay": 1500, "timestamp": 70}])
    (chat,) = found.sessions
    assert [turn.output_tokens for turn in chat.turns][-1] == 33
    assert [turn.pause_ms for turn in chat.turns] == [0, 1500, 1500]
    assert found.timed
    assert not [step for step in found.steps if "without an answer" in step]


def test_rows_of_a_session_are_its_calls(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"session_id": "a", "messages": CHAT[:3], "timestamp": 1000},
        {"session_id": "b", "messages": CHAT[:2], "max_tokens": 9, "timestamp": 1200},
        {"session_id": "a", "messages": CHAT[:5], "timestamp": 1900, "delay": 60},
        {"messages": CHAT[:3], "timestamp": 2000},
    ]
    found = sessions(tmp_path, rows)
    first, second = found.sessions
    assert [len(turn.messages.messages) for turn in first.turns if turn.messages] == [2, 4]
    assert [turn.pause_ms for turn in first.turns] == [0, 60]
    assert [turn.output_tokens for turn in second.turns] == [9]
    assert second.offset_ms == 200
    assert AS_CALLS in found.steps
    assert "1 requests that name no session left out" in found.steps


def test_conversations_of_sharegpt_have_roles_too(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": "Hello"}, {"from": "gpt", "value": "Good morning."}]
    (session,) = sessions(tmp_path, json.dumps([{"id": "x", "conversations": turns}]), "s.json").sessions
    (turn,) = session.turns
    assert turn.messages is not None
    assert [message.role for message in turn.messages.messages] == ["user"]


@pytest.mark.parametrize(
    ("messages", "mistake"),
    [
        ([{"role": "wizard", "content": "secret"}], "message 1 has the role 'wizard': give one of system, u"),
        ([SYSTEM, {"role": "assistant", "content": "secret"}], "no message is the user's"),
        ([*CHAT[:2], {"role": "assistant", "content": ""}], "message 3 is empty"),
        ([*CHAT[:3], CHAT[4]], "message 3 is the assistant's: there is nothing to answer"),
        ([*CHAT[:2], {"role": "tool", "content": "x", "tool_call_id": "c1"}, CHAT[2]],
         "message 3 is a tool's and answers 'c1', which no message before it calls"),
        ([*AGENT[:3], {"role": "tool", "content": "x"}, CHAT[2]], "message 4 is a tool's and names no call"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "message 1 has a part that is not text"),
        ([{"role": "user", "content": {"secret": 1}}], "message 1 has a content that is an object: give te"),
        ([{"role": "user", "content": "secret"}], "no message of the assistant answers one of the user"),
        (["secret"], "message 1 is text: give an object"),
        ([], "messages is empty: give a list of messages"),
        ("secret", "messages is text: give a list of messages"),
        ([CHAT[1], {"role": "assistant", "tool_calls": [{"id": "x"}]}], "message 2 has a tool call without"),
        ([CHAT[1], {"role": "assistant", "function_call": {}}], "message 2 has a function_call: give tool_"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_line_and_without_what_was_said(
    tmp_path: Path, messages: Any, mistake: str
) -> None:
    message = told(tmp_path, [{"messages": CHAT}, {"messages": messages}])
    assert f"line 2: {mistake}" in message or f"; {mistake}" in message
    assert "secret" not in message


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    message = told(
        tmp_path, [{"messages": []}, {"messages": CHAT, "tools": [{"x": 1}]}, {"messages": [SYSTEM]}]
    )
    assert "line 1: messages is empty" in message
    assert "line 2: tool 1 needs a function with a name" in message
    assert "line 3: no message is the user's" in message


def test_a_line_too_long_is_told(tmp_path: Path) -> None:
    long = json.dumps({"messages": [{"role": "user", "content": "x" * MOST_LINE_BYTES}]})
    message = told(tmp_path, json.dumps({"messages": CHAT}) + "\n" + long)
    assert "line 2 is 16.0 MiB long: at most 16" in message


def test_a_trace_of_lengths_has_no_messages(tmp_path: Path) -> None:
    row = {"session_id": "a", "timestamp": 1, "input_length": 5, "output_length": 5}
    assert "its format, mooncake, has no messages to send" in told(tmp_path, [row])


@pytest.mark.parametrize("name", ["gpt", "chatgpt", "bing", "bard", "assistant"])
def test_names_of_assistants_and_empty_conversations(tmp_path: Path, name: str) -> None:
    said = [{"from": "human", "value": "Why?"}, {"from": name, "value": "For no reason."}]
    rows = [{"id": "a", "conversations": said}, {"id": "a", "conversations": []}]
    rows += [{"id": "a", "conversations": said}, {"id": "b", "conversations": said[:1]}]
    path = tmp_path / "chats.json"
    path.write_text(json.dumps(rows))
    found = read_conversations(path)
    assert [each.session for each in found.requests] == ["row 1", "row 3"]
    assert "2 conversations without an answer left out" in found.steps
