"""Replies over HTTP beside OpenAI's: events with names (Responses, Anthropic's Messages), Ollama's lines.

OpenAI's chat and completions have a path of their own through the engine (``serving/replies.py``), with the
quirks of real servers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.simulator.protocols.event_reply import EventReply, Events
from pytest_llmbench.simulator.protocols.messages_events import MessageEvents, parse_message
from pytest_llmbench.simulator.protocols.ollama_lines import OllamaLines, parse_chat, parse_generate
from pytest_llmbench.simulator.protocols.responses_events import ResponseEvents
from pytest_llmbench.simulator.protocols.responses_request import parse_response
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
from pytest_llmbench.simulator.serving.request_body import GenerationRequest, RefusalError, content_of

_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")
_LINES = (b"content-type", b"application/x-ndjson")

_Parse = Callable[[dict[str, Any], str], GenerationRequest]
_Make = Callable[[GroundTruth, str], Events]
"""The events of a request to the model of that name."""


def _responses(truth: GroundTruth, model: str) -> Events:
    return ResponseEvents(truth.request_id, int(time.time()), model)


def _messages(truth: GroundTruth, model: str) -> Events:
    return MessageEvents(truth.request_id, model, truth.prompt_tokens)


def _chat_lines(_: GroundTruth, model: str) -> Events:
    return OllamaLines(model, chat=True)


def _generate_lines(_: GroundTruth, model: str) -> Events:
    return OllamaLines(model, chat=False)


@dataclass(frozen=True, slots=True)
class _Api:
    parse: _Parse
    make: _Make
    lines: bool = False
    """A line of JSON for each event, instead of a server-sent event with its type as name."""


_APIS = {
    "/v1/responses": _Api(parse_response, _responses),
    "/v1/messages": _Api(parse_message, _messages),
    "/api/chat": _Api(parse_chat, _chat_lines, lines=True),
    "/api/generate": _Api(parse_generate, _generate_lines, lines=True),
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
    """The face of one request, and the way of its events."""

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
