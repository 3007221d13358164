"""How the tokens of one reply become events, in the shapes that vLLM's server gives them, and events become
writes, as the stream's options say. Pure.

Whatever is the same for all chunks of a reply, or for all replies, is encoded once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pytest_llmbench.simulator.engine.answers import StructuredReply
from pytest_llmbench.simulator.engine.cheats import CANNED, WORDS
from pytest_llmbench.simulator.engine.faults import LINE_ENDS, FirstChunk, ReasoningPlace, StreamOptions
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
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


class EventStream:
    """Makes the writes of one streamed reply. ``truth`` is updated as tokens come in."""

    def __init__(
        self,
        text: ReplyText,
        options: StreamOptions,
        chunk_tokens: Iterator[int],
        truth: GroundTruth,
        *,
        texts: TokenTexts,
        include_usage: bool = False,
        continuous_usage: bool = False,
        plain: bool = False,
    ) -> None:
        """``plain``: nothing changes the bytes of a chunk, so those of plain texts are known beforehand."""
        self._text = text
        self._plain: bool | None = None if plain else False
        """Whether the bytes of chunks are known; None: decided with the first token."""
        self._options = options
        self._sizes = chunk_tokens
        self._truth = truth
        self._texts = texts
        place = options.usage
        self._usage_apart = place in ("separate", "empty_delta") or (place == "asked" and include_usage)
        self._usage_each = place == "every_chunk" or (place == "asked" and continuous_usage)
        self._pending: list[str] = []
        self._times: list[int] = []
        self._field = "content"
        self._held = ""
        self._size = 1
        self._begun = False
        self._gathered: list[bytes] = []
        self.visible = False
        """Whether text that is not white space has been put into a write."""
        self.thought = False
        """Whether a thought has been put into a write since somebody set this to False."""
        self._first_pending = 0

    @property
    def holds_text(self) -> bool:
        """Whether tokens have come in whose text has not been put into a write yet."""
        return bool(self._pending or self._held or self._gathered)

    def opening(self) -> list[bytes]:
        """The writes that are due when the request has been accepted."""
        role = self._text.role() if self._options.role_chunk == "at_start" else None
        return [] if role is None else self._writes([role])

    def token(self) -> list[bytes]:
        """Add a token, which left the engine at ``truth.last_token_ns``; returns the writes that are now
        due."""
        number = self._truth.output_tokens
        if self._plain is None:
            self._plain = self._texts.plain
        self._truth.output_tokens += 1
        if self._plain:
            chunk = self._text.content(number)
            if number:
                return [chunk]
            self.visible = True
            role = self._text.role()
            return [chunk] if role is None else [role, chunk]
        if number < self._texts.reasoning_tokens:
            self._truth.reasoning_tokens += 1
        field, text = self._texts.of(number)
        events: list[bytes] = []
        if self._pending and field != self._field:
            events += self._chunk()
        self._field = field
        if not self._pending:
            self._first_pending, self._size = number, next(self._sizes)
        self._pending.append(self._hold_back(number, text))
        if self._options.token_times or self._options.server_timestamps:
            self._times.append(self._truth.last_token_ns or 0)
        if len(self._pending) >= self._size:
            events += self._chunk()
        return self._writes(events)

    def ending(self, reason: str) -> list[bytes]:
        """The writes after the last token; there is at least one."""
        events = self._chunk() if self._pending else []
        reason = self._texts.finish_reason(reason)
        delta = self._texts.delta(self._field, self._held) if self._held else {}
        self.visible |= bool(self._held.strip())
        timings = {"timings": self._truth.timings()} if self._options.server_timings else {}
        more = {"usage": self._truth.usage()} if self._usage_each or self._options.usage == "finish" else {}
        more |= {} if self._usage_apart else timings
        per_step = self._truth.tokens_per_step if self._options.metrics == "tensorrt-llm" else None
        events.append(self._text.chunk(delta, reason, per_step, **more))
        if self._usage_apart:
            empty_delta = self._options.usage == "empty_delta"
            make = self._text.usage_with_empty_delta if empty_delta else self._text.usage_chunk
            events.append(make(self._truth.usage(), **timings))
        if self._options.done_marker:
            events.append(DONE)
        writes = self._writes(events)
        if self._gathered:
            writes.append(b"".join(self._gathered))
            self._gathered = []
        return writes

    def _hold_back(self, number: int, text: str) -> str:
        """``text`` after what has been held back before it; or nothing, if it is held back now."""
        visible = number - self._texts.reasoning_tokens
        if visible < 0:
            return text
        every, first = self._options.blank_every, self._options.first_chunk
        text, self._held = self._held + text, ""
        if (visible == 0 and first == "empty") or (every and visible % every == every - 1):
            self._held, text = text, ""
        return text

    def _chunk(self) -> list[bytes]:
        """The event of the pending tokens, after the role chunk if that is due."""
        events = []
        text = "".join(self._pending)
        delta = self._texts.delta(self._field, text)
        if not self._begun:
            self._begun = True
            if self._options.role_chunk == "at_first_token":
                role = self._text.role()
                events += [] if role is None else [role]
            elif self._options.role_chunk == "in_first_chunk":
                delta = {"role": "assistant", **delta}
        more: dict[str, Any] = {"usage": self._truth.usage()} if self._usage_each else {}
        if self._options.token_times:
            more["metrics"] = {"token_ns": self._times}
        if self._options.server_timestamps:
            more["token_times_ns"] = self._times
        self._times = []
        events.append(self._text.chunk(delta, **more))
        thoughts = max(0, self._texts.reasoning_tokens - self._first_pending)
        self.thought |= thoughts > 0
        self.visible |= bool("".join(self._pending[thoughts:]).strip())
        self._pending = []
        return events

    def _writes(self, events: list[bytes]) -> list[bytes]:
        options = self._options
        if options.line_end != "lf":
            end = LINE_ENDS[options.line_end]
            events = [event.replace(b"\n", end) for event in events]
        if options.writes_per_event > 1:  # pieces of about the same length, none of them empty
            lengths = [-(-len(event) // options.writes_per_event) for event in events]
            return [
                event[at : at + length]
                for event, length in zip(events, lengths, strict=True)
                for at in range(0, len(event), length)
            ]
        if options.events_per_write == 1:
            return events
        writes = []
        for event in events:
            self._gathered.append(event)
            if len(self._gathered) >= options.events_per_write:
                writes.append(b"".join(self._gathered))
                self._gathered = []
        return writes


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
