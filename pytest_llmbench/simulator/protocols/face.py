"""The interface to one request on a protocol of the engine other than HTTP (a face), and the faults that it
can suffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal, Protocol

from pytest_llmbench.simulator.engine.faults import REFUSALS, FaultKind
from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.ground_truth import Clock, GroundTruth
from pytest_llmbench.simulator.serving.replies import ChunkedReply, Reply

FACE_FAULTS: frozenset[FaultKind] = REFUSALS | {"in_band_error", "reset", "half_close", "truncate", "crash"}
"""Faults that can be injected without the bytes of server-sent events."""

_FAULT = "the engine encountered an issue (a fault of the scenario)"


class Face(Protocol):
    """One request on a protocol: it makes the reply, and knows when the reply is over."""

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int]) -> Reply:
        """The reply that the tokens go to. ``chunk_tokens``: number of tokens of each chunk."""

    async def until_over(self) -> None:
        """Wait until the reply is complete or the client has gone."""

    def end(self) -> None:
        """End the reply in an orderly way, but without its last words."""

    def reset(self) -> None:
        """End the connection at once."""


def strike_on(
    kind: FaultKind, face: Face, reply: Reply, crash: Callable[[], None]
) -> Callable[[], Awaitable[bool]]:
    """The function that carries out ``kind``, one of :data:`FACE_FAULTS` that is not a refusal; all end the
    reply."""

    async def strike() -> bool:
        if kind == "in_band_error":
            await reply.fail(_FAULT)
        elif kind == "crash":
            crash()
        else:
            (face.end if kind == "truncate" else face.reset)()
        return True

    return strike


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


class EventReply(ChunkedReply):
    """The reply of one request as events."""

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
        super().__init__(texts, truth, chunk_tokens, clock)
        self._timings = timings
        self._way = way
        self._events = events

    async def begin(self) -> None:
        await self._write(self._events.opening())

    async def finish(self, reason: str) -> bool:
        await self._chunk()
        reason = self._texts.finish_reason(reason)
        await self._write(self._events.ending(reason, self.truth, self._timings))
        self._way.over.set()
        return False

    async def fail(self, message: str) -> None:
        await self._write([self._events.error(RefusalError(500, message))])
        self._way.over.set()

    async def _say(self, texts: list[str]) -> None:
        self._events.tool = self._texts.tool
        kind = _KINDS.get(self._field, "reasoning_text")
        await self._write(self._events.delta(kind, "".join(texts)))

    async def _write(self, events: list[str]) -> None:
        for event in events:
            self.truth.note_write(self._clock())
            await self._way.send(event)
