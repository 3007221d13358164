"""The texts of the tokens of one reply, and its events in the shapes that vLLM's server gives them. Pure.

Whatever is the same for all chunks of a reply, or for all replies, is encoded once.
"""

from __future__ import annotations

import json
from typing import Any

from pytest_llmbench.simulator.engine.answers import StructuredReply
from pytest_llmbench.simulator.engine.cheats import CANNED, WORDS
from pytest_llmbench.simulator.engine.faults import FirstChunk, ReasoningPlace
from pytest_llmbench.simulator.serving.request_body import Endpoint

_TAGS: dict[bool, tuple[tuple[str, ...], tuple[str, ...]]] = {
    False: (("<think>",), ("</think>",)),
    True: (("<th", "ink", ">"), ("</th", "ink", ">")),
}
"""Opening and closing tag of inline reasoning as tokens, whole (False) and cut up (True)."""

_CALLS = "tool_calls"


class TokenTexts:
    """The field that each token belongs to, and its text before anything is held back."""

    def __init__(
        self, first_word: int, place: ReasoningPlace, first: FirstChunk, *, canned: bool = False
    ) -> None:
        """``first_word``: where the reply begins in the engine's story."""
        self.first_word = first_word
        self._canned = canned
        self._place = place
        self._field = place if place in ("reasoning_content", "reasoning") else "content"
        self._tagged: list[str] = []
        self._first_is_whitespace = first == "whitespace"
        self.reasoning_tokens = 0
        self._structured: StructuredReply | None = None
        self._called = False

    def answer_with(self, reply: StructuredReply) -> None:
        """Use the texts of ``reply`` as visible tokens. Call it before the first is asked for."""
        self._structured = reply

    @property
    def plain(self) -> bool:
        """Whether the tokens are the words of the story, all of them visible."""
        return not (self.reasoning_tokens or self._canned) and self._structured is None

    @property
    def tool(self) -> str:
        """Name of the tool that the reply calls; empty: none."""
        return "" if self._structured is None else self._structured.tool

    def finish_reason(self, reason: str) -> str:
        return reason if self._structured is None else self._structured.finish_reason(reason)

    def delta(self, field: str, text: str) -> dict[str, Any]:
        """The delta that adds ``text``. The first of a tool call has its name and id, as in vLLM."""
        if field != _CALLS or self._structured is None:
            return {field: text}
        named = {"name": self._structured.tool}
        function = {**({} if self._called else named), "arguments": text}
        opening = {} if self._called else {"id": "call-0", "type": "function"}
        self._called = True
        return {_CALLS: [{"index": 0, **opening, "function": function}]}

    def reason_first(self, tokens: int) -> None:
        """Make the first ``tokens`` tokens reasoning. Call it before the first is asked for."""
        self.reasoning_tokens = tokens
        if self._field == "content" and tokens:  # inline, with tags, which share the tokens if these are few
            opening, closing = _TAGS[self._place == "inline_split"]
            words = [self._word(token) for token in range(tokens - len(opening) - len(closing))]
            parts = [*opening, *words, *closing]
            self._tagged = [*parts[: tokens - 1], "".join(parts[tokens - 1 :])]

    def _word(self, token: int) -> str:
        return WORDS[(self.first_word + token) % len(WORDS)]

    def of(self, token: int) -> tuple[str, str]:
        """The field of the delta and the text of a token, as (field, text)."""
        if token < self.reasoning_tokens:
            return self._field, self._tagged[token] if self._tagged else self._word(token)
        if self._structured is not None:
            pieces, place = self._structured.pieces, token - self.reasoning_tokens
            text = pieces[place] if place < len(pieces) else ""
            return _CALLS if self._structured.tool else "content", text
        if self._first_is_whitespace and token == self.reasoning_tokens:
            return "content", "\n\n"
        if self._canned and token == 0:
            return "content", CANNED
        return "content", self._word(token)


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
