"""Conversations and arrays of messages as requests: their lengths, and which prompts begin alike.

The text itself is not sent: a trace is lengths and blocks. Tokens are those of cl100k_base, of the contents
alone; what a chat template adds is not counted.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pytest_llmbench.errors import shown
from pytest_llmbench.store.traces.request import TraceRequest, instant_of, name_of, pause_of, tokens_of
from pytest_llmbench.tokens import reference_tokenizer

BLOCK_TOKENS: Final = 16
"""Tokens of a block, vLLM's default."""
ASSISTANT: Final = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
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
