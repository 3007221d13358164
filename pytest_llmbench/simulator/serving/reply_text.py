"""The text of replies: one token per chunk, in the shapes that vLLM's server gives them. Pure.

Whatever is the same for all chunks of a reply, or for all replies, is encoded once.
"""

from __future__ import annotations

import json
from typing import Any

from pytest_llmbench.simulator.engine.cheats import WORDS
from pytest_llmbench.simulator.serving.request_body import Endpoint


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


def _tail(choices: list[dict[str, Any]], **more: Any) -> bytes:
    """The end of an event, from ``choices`` on; :attr:`ReplyText._head` comes before it."""
    return json.dumps({"choices": choices, **more}, separators=(",", ":")).encode()[1:] + b"\n\n"


def _chat_choice(delta: dict[str, Any], finish_reason: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}]


def _text_choice(text: str, finish_reason: str | None = None) -> list[dict[str, Any]]:
    return [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}]


_CHAT_TAILS = tuple(_tail(_chat_choice({"content": word})) for word in WORDS)
_TEXT_TAILS = tuple(_tail(_text_choice(word)) for word in WORDS)
_ROLE_TAIL = _tail(_chat_choice({"role": "assistant", "content": ""}))
DONE = b"data: [DONE]\n\n"


class ReplyText:
    """Makes the events of one reply, or its body when it is not streamed."""

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
        """The chunk with the role, before the first content chunk; None: completions have none."""
        return self._head + _ROLE_TAIL if self._chat else None

    def content(self, token: int) -> bytes:
        """The chunk of token number ``token``, counted from 0."""
        return self._head + self._tails[(self._first_word + token) % len(WORDS)]

    def word(self, token: int) -> str:
        """The text of token number ``token``, counted from 0."""
        return WORDS[(self._first_word + token) % len(WORDS)]

    def chunk(
        self,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        per_step: float | None = None,
        **more: Any,
    ) -> bytes:
        """A chunk of any content; for a completion only ``delta["content"]`` counts. ``per_step``: tokens of
        an iteration, as TensorRT-LLM tells them."""
        text = delta.get("content", "")
        choices = _chat_choice(delta, finish_reason) if self._chat else _text_choice(text, finish_reason)
        if per_step is not None:
            choices[0]["avg_decoded_tokens_per_iter"] = per_step
        return self._head + _tail(choices, **more)

    def usage_chunk(self, usage: dict[str, Any], **more: Any) -> bytes:
        """The chunk with empty ``choices`` that ``stream_options.include_usage`` asks for."""
        return self._head + _tail([], usage=usage, **more)

    def usage_with_empty_delta(self, usage: dict[str, Any], **more: Any) -> bytes:
        """The chunk with usage as some servers send it: with a choice that holds nothing but an empty
        delta."""
        return self._head + _tail([{"delta": {}} if self._chat else {"text": ""}], usage=usage, **more)

    def whole(self, message: dict[str, Any], reason: str, usage: dict[str, Any] | None, **more: Any) -> bytes:
        """The whole reply as one JSON object with ``message`` as the model's answer; for a completion only
        its content counts."""
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        if self._chat:
            choice["message"] = {"role": "assistant", **message}
        else:
            choice["text"] = message["content"]
        value = {**self._identity, "choices": [choice]} | ({} if usage is None else {"usage": usage}) | more
        return json.dumps(value).encode()


def error_object(message: str) -> dict[str, Any]:
    """An error of the engine itself, in the shape that OpenAI's clients know."""
    return {"error": {"message": message, "type": "InternalServerError", "param": None, "code": 500}}


def error_event(message: str, **more: Any) -> bytes:
    """The event of such an error in mid-stream."""
    return _event(error_object(message) | more)
