"""A reply whose tokens become events of an API, whatever carries these to the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Literal, Protocol

from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.ground_truth import Clock, GroundTruth

PartType = Literal["output_text", "reasoning_text", "function_call"]


_KINDS: dict[str, PartType] = {"content": "output_text", "tool_calls": "function_call"}
"""Type of a reply's part, by the field that chat has it in; any other field is reasoning."""


class Events(Protocol):
    """Makes the events of one reply, in order, as JSON texts."""

    tool: str
    """Name of the tool that a part ``function_call`` calls."""

    def opening(self) -> list[str]:
        """The events that are sent when the request has been accepted."""

    def delta(self, kind: PartType, text: str) -> list[str]:
        """The events of further text, with those that open its part of the reply when it is the first of that
        kind."""

    def ending(self, finish_reason: str, truth: GroundTruth, timings: bool = False, /) -> list[str]:
        """The events that close the reply, with its token counts, and with the engine's ``timings`` if
        wanted."""

    def error(self, refusal: RefusalError) -> str:
        """The event that says that the engine could not go on with the reply."""


class EventSender(Protocol):
    """The connection that carries the events to the client."""

    over: asyncio.Event
    """Set when the reply is complete, or nobody is there to receive it."""

    async def send(self, text: str) -> None:
        """Send one event."""


class EventReply:
    """The reply of one request as events; :class:`~pytest_llmbench.simulator.serving.replies.Reply` says what
    each method is."""

    def __init__(
        self,
        way: EventSender,
        events: Events,
        texts: TokenTexts,
        truth: GroundTruth,
        chunk_tokens: Iterator[int],
        clock: Clock,
        *,
        timings: bool,
    ) -> None:
        self.truth = truth
        self._timings = timings
        self._way = way
        self._events = events
        self._texts = texts
        self._sizes = chunk_tokens
        self._clock = clock
        self._size = next(chunk_tokens)
        self._kind: PartType = "output_text"
        self._pending: list[str] = []

    async def begin(self) -> None:
        await self._write(self._events.opening())

    async def token(self) -> None:
        truth, number = self.truth, self.truth.output_tokens
        truth.output_tokens += 1
        if number < self._texts.reasoning_tokens:
            truth.reasoning_tokens += 1
        field, text = self._texts.of(number)
        kind = _KINDS.get(field, "reasoning_text")
        if kind != self._kind:
            await self._chunk()
        self._kind = kind
        self._pending.append(text)
        if len(self._pending) >= self._size:
            await self._chunk()

    async def finish(self, reason: str) -> bool:
        await self._chunk()
        reason = self._texts.finish_reason(reason)
        await self._write(self._events.ending(reason, self.truth, self._timings))
        self._way.over.set()
        return False

    async def fail(self, message: str) -> None:
        await self._write([self._events.error(RefusalError(500, message))])
        self._way.over.set()

    def stop(self) -> None:
        """Do nothing: this reply never writes of its own accord."""

    async def _chunk(self) -> None:
        if not self._pending:
            return
        text = "".join(self._pending)
        self._pending = []
        self._size = next(self._sizes)
        truth, now_ns = self.truth, self._clock()
        truth.last_write_ns = now_ns
        if truth.first_write_ns is None:
            truth.first_write_ns = now_ns
        if truth.first_visible_ns is None and self._kind != "reasoning_text" and text.strip():
            truth.first_visible_ns = now_ns
        self._events.tool = self._texts.tool
        await self._write(self._events.delta(self._kind, text))

    async def _write(self, events: list[str]) -> None:
        for event in events:
            self.truth.note_write(self._clock())
            await self._way.send(event)
