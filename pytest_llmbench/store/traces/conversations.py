"""Conversations with their texts and roles, to be sent as they are: rows become requests with messages.

Two kinds of files. Where no row has a ``session_id``, each row is a conversation: every message of the
assistant is the recorded answer of a turn, which asks all messages before it. Where rows have one, each of
them is a call of that session as it was made, with its whole array; a last message of the assistant is its
recorded answer. Mistakes are told without a word of what was said.

Conversations and arrays of messages as requests: their lengths, and which prompts begin alike.

The text itself is not sent: a trace is lengths and blocks. Tokens are those of cl100k_base, of the contents
alone; what a chat template adds is not counted.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pytest_llmbench.errors import shown
from pytest_llmbench.model.messages import (
    ROLES,
    Message,
    MessageArray,
    Role,
    ToolCall,
    message_mistakes,
    nothing_asked,
)
from pytest_llmbench.model.reply_checks import compact
from pytest_llmbench.store.rows import Rows
from pytest_llmbench.store.traces.request import (
    Trace,
    TraceRequest,
    instant_of,
    made_trace,
    name_of,
    pause_of,
    refuse,
    tokens_of,
)
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.trace_sessions import encoded_text, ids_of

ASSISTANT: Final = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")

_SHAREGPT: Final[Mapping[str, Role]] = {"human": "user", **dict.fromkeys(ASSISTANT, "assistant")}
AS_CONVERSATIONS: Final = "each row is a session, each message of the assistant the recorded answer of a turn"
AS_CALLS: Final = "each row with a session_id is a turn, its array as it was recorded"
_SENT: Final = "messages are sent as they are, with their roles"


def conversations_of(rows: Rows, where: str) -> Trace:
    """The requests of all rows, with their messages. SuiteError with the mistakes of all rows."""
    calls = any(name_of(row, "session_id") for _, row in rows.found)
    blocks, mistakes = Blocks(), list(rows.mistakes)
    found: list[TraceRequest] = []
    unanswered = empty = 0
    for place, row in rows.found:
        if row.get("conversations") == []:  # of ShareGPT, which has some
            empty += 1
            continue
        try:
            asked = _Row.read(place, row, f"{where}, {place}")
            turns = asked.call() if calls else asked.conversation()
        except (ValueError, OverflowError) as error:
            mistakes.append(f"{place}: {error}")
            continue
        empty += not turns
        unanswered += bool(turns) and not calls and asked.unanswered
        session = name_of(row, "session_id") if calls else place
        pause_ms = pause_of(row, session)
        for number, (messages, answer) in enumerate(turns):
            made = asked.request(messages, answer, blocks)
            found.append(replace(made, session=session, pause_ms=pause_ms if calls or number else None))
    refuse(mistakes, where)
    left = [f"{unanswered} last questions without an answer left out"] if unanswered else []
    left += [f"{empty} conversations without an answer left out"] if empty else []
    steps = (AS_CALLS if calls else AS_CONVERSATIONS, _SENT, COUNTED, SHARED, *left)
    return made_trace("messages", found, block_tokens=BLOCK_TOKENS, steps=steps, where=where)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that has been read and checked."""

    place: str
    row: Mapping[str, Any]
    array: MessageArray

    @classmethod
    def read(cls, place: str, row: Mapping[str, Any], named: str) -> _Row:
        """Read a row. ValueError, in words, for an invalid one."""
        name = "messages" if "messages" in row else "conversations"
        given = row.get(name)
        if not isinstance(given, list) or not given:
            raise ValueError(f"{name} is {_kind(given)}: give a list of messages")
        messages = tuple(_message(number, each) for number, each in enumerate(given, start=1))
        return cls(place, row, MessageArray(messages, _tools(row.get("tools")), named))

    @property
    def unanswered(self) -> bool:
        """Whether its last question has neither an answer nor the length of one."""
        asks = self.array.messages[-1].role in ("user", "tool")
        return asks and all(self.row.get(name) is None for name in LIMITS)

    def conversation(self) -> list[tuple[int, int]]:
        """For each turn the number of messages that it asks, and the tokens of its answer. ValueError in
        words."""
        said = self.array.messages
        users = [number for number, message in enumerate(said) if message.role == "user"]
        first = users[0] if users else len(said)
        answers = [n for n, message in enumerate(said) if message.role == "assistant" and n > first]
        _refuse_mistakes(said, answers)
        turns = [(number, _tokens(said[number])) for number in answers]
        if said[-1].role != "assistant" and not self.unanswered:
            turns.append((len(said), answer_limit(self.row)))
        if not turns and "conversations" not in self.row:
            raise ValueError("no message of the assistant answers one of the user")
        return turns

    def call(self) -> list[tuple[int, int]]:
        """The turns of a row that is one call, in the form of :meth:`conversation`."""
        said = self.array.messages
        answered = said[-1].role == "assistant" and len(said) > 1
        asked = len(said) - answered
        _refuse_mistakes(said, [asked])
        return [(asked, _tokens(said[-1]) if answered else answer_limit(self.row))]

    def request(self, asked: int, output_tokens: int, blocks: Blocks) -> TraceRequest:
        """The request that asks the first ``asked`` messages."""
        said = replace(self.array, messages=self.array.messages[:asked])
        ids = ids_of(said)
        told = self.row.get("timestamp") is not None
        return TraceRequest(
            self.place,
            len(ids),
            output_tokens,
            instant_of(self.row, "timestamp") if told else None,
            blocks.ids(ids),
            messages=said,
        )


def _refuse_mistakes(said: Sequence[Message], asked: Sequence[int]) -> None:
    """Raise ValueError for mistakes in the messages, or in asking the first so many of them."""
    found = message_mistakes(said)
    found += [mistake for number in asked for mistake in nothing_asked(said[:number])]
    if found:
        raise ValueError("; ".join(found))


def _tokens(answer: Message) -> int:
    return sum(len(encoded_text(text)) for text in answer.texts)


def _message(number: int, given: Any) -> Message:
    if not isinstance(given, Mapping):
        raise ValueError(f"message {number} is {_kind(given)}: give an object")
    named = given.get("role", given.get("from"))
    role = _SHAREGPT.get(named, named) if isinstance(named, str) else named
    if role not in ROLES:
        raise ValueError(f"message {number} has the role {shown(named)}: give one of {', '.join(ROLES)}")
    if given.get("function_call") is not None:
        raise ValueError(f"message {number} has a function_call: give tool_calls")
    content = _content(number, given.get("content", given.get("value")))
    return Message(role, content, tuple(_calls(number, given)), name_of(given, "tool_call_id"))


def _content(number: int, given: Any) -> str:
    """The text of a message, which may be given in parts. ValueError for anything else: it could not be sent
    as it is."""
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, list):
        raise ValueError(f"message {number} has a content that is {_kind(given)}: give text")
    texts = []
    for part in given:
        text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else None
        if not isinstance(text, str):
            raise ValueError(f"message {number} has a part that is not text: only text is sent")
        texts.append(text)
    return "".join(texts)


def _calls(number: int, given: Mapping[str, Any]) -> Iterator[ToolCall]:
    calls = given.get("tool_calls")
    if calls is None:
        return
    if not isinstance(calls, list):
        raise ValueError(f"message {number} has tool_calls that are {_kind(calls)}: give a list")
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        call_id = name_of(call, "id") if isinstance(call, Mapping) else ""
        if not isinstance(name, str) or not name or not call_id or not isinstance(function, Mapping):
            raise ValueError(f"message {number} has a tool call without an id, or a function with a name")
        arguments = function.get("arguments", "")
        yield ToolCall(call_id, name, arguments if isinstance(arguments, str) else compact(arguments))


def _tools(given: Any) -> str:
    if not given:
        return ""
    for number, tool in enumerate(given if isinstance(given, list) else [given], start=1):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ValueError(f"tool {number} needs a function with a name, as in OpenAI's chat API")
    return compact(given)


def _kind(value: Any) -> str:
    """The type of a value, without its content."""
    names = {"dict": "an object", "list": "a list", "str": "text", "NoneType": "missing"}
    if value == []:
        return "empty"
    return names.get(type(value).__name__, shown(value))


BLOCK_TOKENS: Final = 16
"""Tokens of a block, vLLM's default."""
COUNTED = "lengths counted with cl100k_base, contents alone"
SHARED = f"blocks of {BLOCK_TOKENS} tokens, equal where all that stands before them is equal, too"

LIMITS: Final = ("output_length", "max_completion_tokens", "max_tokens")


class Blocks:
    """Numbers blocks of tokens, so that prompts with equal beginnings, and only those, have equal numbers
    there."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, bytes], int] = {}

    def ids(self, tokens: array[int], length: int | None = None) -> tuple[int, ...]:
        """The numbers of a prompt's blocks, the last of which may be short. With ``length`` they are cut, or
        filled up with blocks that nobody else has, to those of a prompt of so many tokens."""
        found: list[int] = []
        for start in range(0, len(tokens), BLOCK_TOKENS):
            before = found[-1] if found else -1
            key = before, tokens[start : start + BLOCK_TOKENS].tobytes()
            found.append(self._numbers.setdefault(key, len(self._numbers)))
        wanted = len(found) if length is None else -(-length // BLOCK_TOKENS)
        while len(found) < wanted:
            number = len(self._numbers)
            self._numbers[-2 - number, b""] = number
            found.append(number)
        return tuple(found[:wanted])


def conversation_requests(place: str, row: Mapping[str, Any], blocks: Blocks) -> Iterator[TraceRequest]:
    """One request for each assistant turn of ``conversations``: all turns before it are its prompt.

    ValueError in words; a conversation without an assistant turn after another one gives none.
    """
    turns = row.get("conversations")
    if not isinstance(turns, list):
        raise ValueError(f"conversations is {shown(turns)}: give a list of turns")
    prompt = array("I")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, Mapping):
            raise ValueError(f"turn {number} is {shown(turn)}: give an object")
        said = _encoded(_text(turn.get("value", turn.get("content")), f"turn {number}"))
        if turn.get("from", turn.get("role")) in ASSISTANT and prompt:
            yield TraceRequest(place, len(prompt), len(said), None, blocks.ids(prompt), session=place)
        prompt += said


def message_request(place: str, row: Mapping[str, Any], blocks: Blocks) -> TraceRequest:
    """An array of ``messages`` as one request, sent as it is; a last message of the assistant is the
    reply.

    Without one, ``output_length``, ``max_completion_tokens`` or ``max_tokens`` says how long the reply is.
    ``timestamp`` (ms), ``session_id`` and with it ``delay`` are read where they are. ValueError in words.
    """
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"messages is {shown(messages)}: give a list of messages")
    wrong = next((n for n, each in enumerate(messages, start=1) if not isinstance(each, Mapping)), None)
    if wrong is not None:
        raise ValueError(f"message {wrong} is {shown(messages[wrong - 1])}: give an object")
    session = name_of(row, "session_id")
    answered = messages[-1].get("role") in ASSISTANT and len(messages) > 1
    prompt = prompt_tokens(messages[:-1] if answered else messages)
    return TraceRequest(
        place,
        len(prompt),
        len(prompt_tokens(messages[-1:])) if answered else answer_limit(row),
        instant_of(row, "timestamp") if row.get("timestamp") is not None else None,
        blocks.ids(prompt),
        session=session,
        pause_ms=pause_of(row, session),
    )


def prompt_tokens(messages: Sequence[Mapping[str, Any]]) -> array[int]:
    """The tokens of all messages, one after the other. ValueError for one without text."""
    prompt = array("I")
    for number, message in enumerate(messages, start=1):
        calls = message.get("tool_calls")
        content = message.get("content", message.get("parts"))
        text = "" if content is None and calls else _text(content, f"message {number}")
        prompt += _encoded(text + (json.dumps(calls) if calls else ""))
    return prompt


def answer_limit(row: Mapping[str, Any]) -> int:
    """The length of the reply, if no message gives it. ValueError if the row does not either."""
    name = next((name for name in LIMITS if row.get(name) is not None), None)
    if name is None:
        raise ValueError(f"the last message is not from the assistant, and there is no {' or '.join(LIMITS)}")
    return tokens_of(row, name)


def _text(content: Any, where: str) -> str:
    """The text of a message, or the texts of its parts; other parts (images) are ignored."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ValueError(f"{where} has no text but {shown(content)}")
    texts = [
        part.get("text", part.get("content", "")) if isinstance(part, Mapping) else part for part in content
    ]
    return "".join(text for text in texts if isinstance(text, str))


def _encoded(text: str) -> array[int]:
    return array("I", reference_tokenizer().encode(text))
