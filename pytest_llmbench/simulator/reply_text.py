"""The text of replies: one token per chunk, in the shapes vLLM's server gives them. Pure.

Whatever is the same for all chunks of a reply, or for all replies, is encoded once.
"""

from __future__ import annotations

import json
from typing import Any

from pytest_llmbench.simulator.request_body import Endpoint

# Each is one token of cl100k_base with its leading space, and none merges with its neighbours, so that
# a client that counts the joined text with that tokenizer finds as many tokens as the usage object says.
_STORY = (
    "the sea is wide and a small boat can cross it when wind is kind but no one knows how long that may take "
    "so we wait by the shore with bread and tea until light comes back over the hill then they sing an old "
    "song about rain on leaves while you count each wave from left to right as if time stood"
)
WORDS = tuple(f" {word}" for word in _STORY.split())


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _tail(choices: list[dict[str, Any]], **more: Any) -> bytes:
    """The end of an event, from ``choices`` on; :attr:`ReplyText._head` is what comes before."""
    return json.dumps({"choices": choices, **more}, separators=(",", ":")).encode()[1:] + b"\n\n"


def _chat_choice(delta: dict[str, str], finish_reason: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]


def _text_choice(text: str, finish_reason: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}]


_CHAT_TAILS = tuple(_tail(_chat_choice({"content": word})) for word in WORDS)
_TEXT_TAILS = tuple(_tail(_text_choice(word)) for word in WORDS)
_ROLE_TAIL = _tail(_chat_choice({"role": "assistant", "content": ""}))
DONE = b"data: [DONE]\n\n"


class ReplyText:
    """The events of one reply, or its body when it is not streamed."""

    def __init__(
        self, endpoint: Endpoint, request_id: str, created: int, model: str, first_word: int
    ) -> None:
        self._chat = endpoint is Endpoint.CHAT
        prefix, kind = ("chatcmpl", "chat.completion") if self._chat else ("cmpl", "text_completion")
        self._identity = {"id": f"{prefix}-{request_id}", "object": kind, "created": created, "model": model}
        streamed = self._identity | {"object": kind + ".chunk"} if self._chat else self._identity
        self._head = _event(streamed)[:-3] + b","  # without the closing brace and the empty line
        self._tails = _CHAT_TAILS if self._chat else _TEXT_TAILS
        self._first_word = first_word

    def role(self) -> bytes | None:
        """The chunk before the first content chunk; completions have none."""
        return self._head + _ROLE_TAIL if self._chat else None

    def content(self, token: int) -> bytes:
        """The chunk of token number ``token``, from 0."""
        return self._head + self._tails[(self._first_word + token) % len(WORDS)]

    def finish(self, reason: str) -> bytes:
        choice = _chat_choice({}, reason) if self._chat else _text_choice("", reason)
        return self._head + _tail(choice)

    def usage(self, prompt_tokens: int, output_tokens: int) -> bytes:
        """The chunk with empty ``choices`` that ``stream_options.include_usage`` asks for."""
        return self._head + _tail([], usage=_usage(prompt_tokens, output_tokens))

    def body(self, reason: str, prompt_tokens: int, output_tokens: int) -> bytes:
        """The whole reply as one JSON object."""
        words = (WORDS[(self._first_word + token) % len(WORDS)] for token in range(output_tokens))
        text = "".join(words)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        choice |= {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        usage = _usage(prompt_tokens, output_tokens)
        return json.dumps({**self._identity, "choices": [choice], "usage": usage}).encode()


def _usage(prompt_tokens: int, output_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }


__all__ = ["DONE", "WORDS", "ReplyText"]
