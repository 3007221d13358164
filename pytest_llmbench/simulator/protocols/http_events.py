"""Replies of APIs other than OpenAI's over HTTP: named events (Responses, Anthropic's Messages), Ollama's
lines.

OpenAI's chat and completions have a path of their own through the engine (``serving/replies.py``), with the
quirks of real servers.

Of Anthropic's API and of Ollama's the bodies of requests are read here too, and the events of a message and
the lines of a reply made as JSON texts. Pure.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.protocols.face import EventReply, Events, PartType
from pytest_llmbench.simulator.protocols.responses import ResponseEvents, parse_response
from pytest_llmbench.simulator.serving.asgi import (
    Headers,
    Receive,
    Scope,
    Send,
    send_body,
    send_start,
    until_disconnect,
)
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.generation import CONNECTION, Generation, request_id, session_id
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import Reply
from pytest_llmbench.simulator.serving.request_body import (
    Fields,
    content_of,
    schema_form,
    with_tools,
)

_CREATED = "1970-01-01T00:00:00Z"


def parse_chat(content: dict[str, Any], model: str) -> GenerationRequest:
    """The request of Ollama's ``/api/chat``. RefusalError 400 for wrong types, all of them named; 404 for
    another model."""
    fields = Fields(content, model)
    return _parsed(content, fields, with_tools(fields.messages()[0], fields.tools()))


def parse_generate(content: dict[str, Any], model: str) -> GenerationRequest:
    """The request of Ollama's ``/api/generate``, which has a prompt instead of messages; raises as
    :func:`parse_chat`."""
    fields = Fields(content, model)
    return _parsed(content, fields, (fields.text("prompt") or "",))


def _parsed(content: dict[str, Any], fields: Fields, texts: tuple[str, ...]) -> GenerationRequest:
    options = content.get("options")
    sampling = Fields(options if isinstance(options, dict) else {})
    request = GenerationRequest(
        texts=texts,
        stream=content.get("stream", True) is not False,
        max_tokens=sampling.count("num_predict", least=1),
        thinks=content.get("think") is not False,
    )
    fields.mistakes |= sampling.mistakes
    return fields.right(request)


class OllamaLines:
    """Makes the lines of Ollama's reply in order. There is none before the first token."""

    tool = ""
    """Name of the tool that is called; always empty, as no structured output is asked for here."""

    def __init__(self, model: str, *, chat: bool) -> None:
        self._model = model
        self._chat = chat

    def opening(self) -> list[str]:
        return []

    def delta(self, kind: PartType, text: str) -> list[str]:
        return [self._line("content" if kind == "output_text" else "thinking", text, done=False)]

    def ending(self, finish_reason: str, truth: GroundTruth, _timings: bool = False) -> list[str]:
        """The last line; every reply of Ollama states its durations there."""
        prefill_ns = round(float(truth.timings().get("prompt_ms", 0.0)) * 1e6)
        return [
            self._line(
                "content",
                "",
                done=True,
                done_reason=finish_reason,
                total_duration=max(0, (truth.last_token_ns or truth.received_ns) - truth.received_ns),
                load_duration=0,
                prompt_eval_count=truth.prompt_tokens,
                prompt_eval_duration=prefill_ns,
                eval_count=truth.output_tokens,
            )
        ]

    def error(self, refusal: RefusalError) -> str:
        """The line that ends a reply under way."""
        return json.dumps({"error": refusal.message})

    def _line(self, field: str, text: str, **more: Any) -> str:
        if self._chat:
            output: dict[str, Any] = {"message": {"role": "assistant", "content": "", field: text}}
        else:
            output = {"response": "", ("response" if field == "content" else field): text}
        line = {"model": self._model, "created_at": _CREATED, **output, **more}
        return json.dumps(line, separators=(",", ":"))


_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
    "tool_calls": "tool_use",
}
_BLOCKS = {
    "output_text": ("text", "text_delta", "text"),
    "reasoning_text": ("thinking", "thinking_delta", "thinking"),
    "function_call": ("tool_use", "input_json_delta", "partial_json"),
}
"""Type of the block, type of its deltas, and the field of the text in both, by the type of a part."""


def parse_message(content: dict[str, Any], model: str) -> GenerationRequest:
    """The request of Anthropic's ``/v1/messages``. RefusalError 400 for wrong types, all of them named; 404
    for another model."""
    fields = Fields(content, model)
    system, most = fields.text("system"), fields.count("max_tokens", least=1)
    if most is None:
        fields.mistakes.setdefault("max_tokens", "max_tokens is missing")
    tools = fields.tools("input_schema")
    texts = with_tools(fields.messages()[0], tools)
    thinking = content.get("thinking")
    return fields.request(
        texts if system is None else (system, *texts),
        most,
        structured=fields.structured(tools, schema_form(content.get("output_config"), "format")),
        thinks=not isinstance(thinking, dict) or thinking.get("type") != "disabled",
    )


class MessageEvents:
    """Makes the events of an Anthropic message in order: a block of thinking, if any, and one of text or a
    tool call."""

    tool = ""

    def __init__(self, message_id: str, model: str, prompt_tokens: int) -> None:
        self._identity = {"id": f"msg_{message_id}", "type": "message", "role": "assistant", "model": model}
        self._prompt_tokens = prompt_tokens
        self._open: PartType | None = None
        self._index = -1

    def opening(self) -> list[str]:
        usage = {"input_tokens": self._prompt_tokens, "output_tokens": 0}
        message: dict[str, Any] = {
            **self._identity,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return [_event("message_start", message=message), _event("ping")]

    def delta(self, kind: PartType, text: str) -> list[str]:
        block, delta, field = _BLOCKS[kind]
        events = []
        if self._open != kind:
            events += self._close()
            self._open, self._index = kind, self._index + 1
            start: dict[str, Any] = {"type": block, field: ""}
            if kind == "function_call":
                start = {"type": block, "id": "toolu_0", "name": self.tool, "input": {}}
            events.append(_event("content_block_start", index=self._index, content_block=start))
        more = {"type": delta, field: text}
        return [*events, _event("content_block_delta", index=self._index, delta=more)]

    def ending(self, finish_reason: str, truth: GroundTruth, timings: bool = False) -> list[str]:
        """The closing events. They repeat the input's token counts, now that it is known how much a cache
        held."""
        cached = truth.cached_tokens or 0
        usage = {
            "input_tokens": truth.prompt_tokens - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": truth.output_tokens,
        }
        delta = {"stop_reason": _STOP_REASONS.get(finish_reason, finish_reason), "stop_sequence": None}
        more = {"timings": truth.timings()} if timings else {}
        return [
            *self._close(),
            _event("message_delta", delta=delta, usage=usage, **more),
            _event("message_stop"),
        ]

    def error(self, refusal: RefusalError) -> str:
        """The error event of a message under way."""
        return _event("error", error={"type": "api_error", "message": refusal.message})

    def _close(self) -> list[str]:
        return [] if self._open is None else [_event("content_block_stop", index=self._index)]


def _event(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields}, separators=(",", ":"))


_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_LINES = (b"content-type", b"application/x-ndjson")

_Parse = Callable[[dict[str, Any], str], GenerationRequest]
_Make = Callable[[GroundTruth, str], Events]
"""Function that makes the events of a request; takes the ground truth and the model's name."""


@dataclass(frozen=True, slots=True)
class _Api:
    parse: _Parse
    make: _Make
    lines: bool = False
    """Whether each event is a line of JSON, instead of a server-sent event with its type as name."""


RESPONSES = "/v1/responses"
_APIS = {
    RESPONSES: _Api(
        parse_response, lambda truth, model: ResponseEvents(truth.request_id, int(time.time()), model)
    ),
    "/v1/messages": _Api(
        parse_message, lambda truth, model: MessageEvents(truth.request_id, model, truth.prompt_tokens)
    ),
    "/api/chat": _Api(parse_chat, lambda _, model: OllamaLines(model, chat=True), lines=True),
    "/api/generate": _Api(parse_generate, lambda _, model: OllamaLines(model, chat=False), lines=True),
}
PATHS = tuple(_APIS)


class HttpEventFace:
    """Serves the requests to :data:`PATHS`."""

    def __init__(self, generation: Generation, driver: EngineDriver) -> None:
        self._generation = generation
        self._driver = driver

    async def serve(self, body: bytes, received_ns: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises RefusalError if it gets a status instead of a stream."""
        api = _APIS[scope["path"]]
        model = self._driver.config.model
        request = api.parse(content_of(body), model)
        if not request.stream:
            raise RefusalError(400, f"{scope['path']} is streamed only here", "stream")
        reply = _HttpReply(scope, receive, send, self._driver, api, timings=self._generation.tells_timings)
        await self._generation.answer_on(reply, request, received_ns, request_id(scope), session_id(scope))


class _HttpReply:
    """The face of one request, and the connection that carries its events."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, driver: EngineDriver, api: _Api, *, timings: bool
    ) -> None:
        self._connection = scope.get("state", {}).get(CONNECTION)
        self._receive = receive
        self._send = send
        self._driver = driver
        self._api = api
        self._timings = timings
        self._headers: Headers = []
        self._begun = False
        self.over = asyncio.Event()

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int]) -> Reply:
        events = self._api.make(truth, self._driver.config.model)
        framing = _LINES if self._api.lines else _EVENT_STREAM
        self._headers = [framing, (b"x-request-id", truth.request_id.encode("latin-1"))]
        return EventReply(self, events, texts, truth, chunk_tokens, self._driver.clock, timings=self._timings)

    async def send(self, text: str) -> None:
        await self._start()
        event = f"{text}\n" if self._api.lines else f"event: {json.loads(text)['type']}\ndata: {text}\n\n"
        await send_body(self._send, event.encode(), more=True)

    async def until_over(self) -> None:
        gone = asyncio.create_task(until_disconnect(self._receive))
        gone.add_done_callback(lambda _: self.over.set())
        try:
            await self.over.wait()
            if not gone.done():
                await self._start()
                await send_body(self._send, b"")
        finally:
            gone.cancel()

    async def _start(self) -> None:
        if not self._begun:
            self._begun = True
            await send_start(self._send, 200, self._headers)

    def end(self) -> None:
        self.over.set()

    def reset(self) -> None:
        if self._connection is not None:
            self._connection.reset()
        self.over.set()
