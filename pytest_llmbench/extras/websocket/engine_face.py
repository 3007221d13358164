"""The WebSocket interface: OpenAI's Responses API, one turn after another on one socket."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.serving.asgi import Receive, Scope, Send, StampedProtocol
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.generation import Generation
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.http_events import (
    RESPONSES,
    ResponseEvents,
    error_event,
    parse_response_create,
)
from pytest_llmbench.simulator.serving.replies import EventReply, Face, Reply

SOCKET = "socket"
"""Key of the connection's ``state`` under which the WebSocket protocol leaves itself."""

_TURNS_WAITING = 16
"""Maximum number of turns that may wait; one more is refused."""


class WebSocketFace:
    """Serves the WebSockets of the application."""

    def __init__(self, generation: Generation, driver: EngineDriver) -> None:
        self._generation = generation
        self._driver = driver
        self.refused = 0

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection, from its handshake to its end. Other paths than :data:`RESPONSES` get 403."""
        await receive()  # websocket.connect
        if scope["path"] != RESPONSES:
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept"})
        inbox = _Inbox(receive, send, scope.get("state", {}).get(SOCKET), self._driver)
        reading = asyncio.create_task(inbox.read())
        context: tuple[str, tuple[str, ...]] | None = None
        try:
            while not inbox.closed.is_set():
                turn = await inbox.next()
                if turn is not None:
                    context = await self._turn(*turn, inbox, context) or context
        finally:
            reading.cancel()

    async def _turn(
        self,
        message: str | bytes | None,
        received_ns: int,
        inbox: _Inbox,
        context: tuple[str, tuple[str, ...]] | None,
    ) -> tuple[str, tuple[str, ...]] | None:
        """Answer one message. Returns what the next turn may continue: (id of the response, all texts so
        far)."""
        try:
            self._generation.require_up()
            asked = parse_response_create(message, self._driver.config.model)
            request = asked.request
            if asked.previous_response_id is not None:
                if context is None or context[0] != asked.previous_response_id:
                    raise RefusalError(
                        400,
                        f"there is no response {asked.previous_response_id!r} on this connection to continue",
                        "previous_response_id",
                        code="previous_response_not_found",
                    )
                request = replace(request, texts=(*context[1], *request.texts))
            face = _Turn(inbox, self._driver, timings=self._generation.options.server_timings)
            await self._generation.answer(face, request, received_ns, asked.request_id)
            return face.events.response_id, (*request.texts, face.events.text())
        except RefusalError as refusal:
            self.refused += 1
            await inbox.send(error_event(refusal))
            return None


class _Inbox:
    """The client's messages, with the instant of their arrival, and the way back to the client."""

    def __init__(
        self, receive: Receive, send: Send, socket: StampedProtocol | None, driver: EngineDriver
    ) -> None:
        self._receive = receive
        self._send = send
        self.socket = socket
        self._clock = driver.clock
        self._waiting: asyncio.Queue[tuple[str | bytes | None, int] | None] = asyncio.Queue()
        self.over = asyncio.Event()
        """Set when the reply under way is complete, or nobody is there to receive it."""
        self.closed = asyncio.Event()

    async def read(self) -> None:
        """Read messages until the client has gone."""
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self.note_closed()
                return
            arrived_ns = self._clock() if self.socket is None else self.socket.read_ns
            if self._waiting.qsize() >= _TURNS_WAITING:
                full = f"{_TURNS_WAITING} messages wait for their turn already"
                await self.send(error_event(RefusalError(429, full)))
                continue
            text = message.get("text")
            self._waiting.put_nowait((message.get("bytes") if text is None else text, arrived_ns))

    async def next(self) -> tuple[str | bytes | None, int] | None:
        """The next message and the instant of its arrival; ``None`` when there will be no more."""
        return await self._waiting.get()

    async def send(self, text: str) -> None:
        if self.closed.is_set():
            return
        # The server refuses to write once it has read the client's close, which `read` learns a little later.
        with contextlib.suppress(OSError, RuntimeError):
            await self._send({"type": "websocket.send", "text": text})

    async def close(self) -> None:
        """Close the socket with a closing handshake."""
        if not self.closed.is_set():
            self.note_closed()
            with contextlib.suppress(OSError, RuntimeError):
                await self._send({"type": "websocket.close", "code": 1000})

    def note_closed(self) -> None:
        self.closed.set()
        self.over.set()
        self._waiting.put_nowait(None)


class _Turn(Face):
    def __init__(self, inbox: _Inbox, driver: EngineDriver, *, timings: bool) -> None:
        self._inbox = inbox
        self._driver = driver
        self._timings = timings
        self._ends_early = False

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int], /) -> Reply:
        self.events = ResponseEvents(truth.request_id, int(time.time()), self._driver.config.model)
        if not self._inbox.closed.is_set():
            self._inbox.over.clear()
        return EventReply(
            self._inbox, self.events, texts, truth, chunk_tokens, self._driver.clock, timings=self._timings
        )

    async def until_over(self) -> None:
        await self._inbox.over.wait()
        if self._ends_early:
            await self._inbox.close()

    def end(self) -> None:
        self._ends_early = True
        self._inbox.over.set()

    def reset(self) -> None:
        if self._inbox.socket is not None:
            self._inbox.socket.reset()
        self._inbox.note_closed()


class StampingWebSocket(StampedProtocol, WebSocketsSansIOProtocol):
    """The WebSocket protocol; it leaves itself in the connection's ``state``, so that the application can ask
    it for ``read_ns``.

    The transport goes on without a write buffer, as the HTTP protocol that made the handshake has set it.
    """

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # a handshake that was refused has none
            self.scope["state"][SOCKET] = self
