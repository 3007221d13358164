"""Replies over HTTP whose events have names: the Responses API and Anthropic's Messages.

OpenAI's chat and completions have a path of their own through the engine (``serving/replies.py``), with the
quirks of real servers.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from pytest_llmbench.simulator.protocols.event_reply import EventReply, Events
from pytest_llmbench.simulator.protocols.messages_events import MessageEvents, parse_message
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
from pytest_llmbench.simulator.serving.generation import CONNECTION, Generation, request_id
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import Reply
from pytest_llmbench.simulator.serving.request_body import GenerationRequest, RefusalError

_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")

_Parse = Callable[[dict[str, Any], str], GenerationRequest]
_Make = Callable[[GroundTruth, str], Events]
"""The events of a request to the model of that name."""


def _responses(truth: GroundTruth, model: str) -> Events:
    return ResponseEvents(truth.request_id, int(time.time()), model)


def _messages(truth: GroundTruth, model: str) -> Events:
    return MessageEvents(truth.request_id, model, truth.prompt_tokens)


_APIS: dict[str, tuple[_Parse, _Make]] = {
    "/v1/responses": (parse_response, _responses),
    "/v1/messages": (parse_message, _messages),
}
PATHS = tuple(_APIS)


class HttpEventFace:
    """Serves the requests to :data:`PATHS`."""

    def __init__(self, generation: Generation, driver: EngineDriver) -> None:
        self._generation = generation
        self._driver = driver

    async def serve(self, body: bytes, received_ns: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises RefusalError if it gets a status instead of a stream."""
        parse, make = _APIS[scope["path"]]
        model = self._driver.engine.config.model
        request = parse(_content(body), model)
        if not request.stream:
            raise RefusalError(400, f"{scope['path']} is streamed only here", "stream")
        reply = _HttpReply(scope, receive, send, self._driver, make, timings=self._generation.tells_timings)
        await self._generation.answer_on(reply, request, received_ns, request_id(scope))


class _HttpReply:
    """The face of one request, and the way of its events."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, driver: EngineDriver, make: _Make, *, timings: bool
    ) -> None:
        self._connection = scope.get("state", {}).get(CONNECTION)
        self._receive = receive
        self._send = send
        self._driver = driver
        self._make = make
        self._timings = timings
        self._headers: Headers = []
        self._begun = False
        self.over = asyncio.Event()

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int]) -> Reply:
        events = self._make(truth, self._driver.engine.config.model)
        self._headers = [_EVENT_STREAM, (b"x-request-id", truth.request_id.encode("latin-1"))]
        return EventReply(self, events, texts, truth, chunk_tokens, self._driver.clock, timings=self._timings)

    async def send(self, text: str) -> None:
        if not self._begun:
            self._begun = True
            await send_start(self._send, 200, self._headers)
        name = json.loads(text)["type"]
        await send_body(self._send, f"event: {name}\ndata: {text}\n\n".encode(), more=True)

    async def until_over(self) -> None:
        gone = asyncio.create_task(until_disconnect(self._receive))
        gone.add_done_callback(lambda _: self.over.set())
        try:
            await self.over.wait()
            if self._begun and not gone.done():
                await send_body(self._send, b"")
        finally:
            gone.cancel()

    def end(self) -> None:
        self.over.set()

    def reset(self) -> None:
        if self._connection is not None:
            self._connection.reset()
        self.over.set()


def _content(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusalError(400, f"the request body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise RefusalError(400, "the request body has to be a JSON object")
    return content
