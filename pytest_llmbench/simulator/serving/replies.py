"""Replies on their way to the client: tokens come in from the engine's driver, bytes go out at once.

Also the interface to one request on a protocol of the engine other than HTTP (a face), and the faults that
it can suffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal, Protocol

from pytest_llmbench.simulator.engine.faults import REFUSALS, FaultKind
from pytest_llmbench.simulator.engine.guardrails import Release
from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.serving.asgi import Headers, Send, send_body, send_json, send_start, send_whole
from pytest_llmbench.simulator.serving.event_stream import (
    DONE,
    EventStream,
    ReplyText,
    TokenTexts,
    error_event,
    error_object,
)
from pytest_llmbench.simulator.serving.ground_truth import Clock, GroundTruth
from pytest_llmbench.timing import LoopAlarm

_EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_COMMENT = b": keep-alive\n\n"


class Reply(Protocol):
    """A reply as the driver sees it. ``truth`` is filled in on the way.

    None of the methods may wait for the client: one slow reader would stop the engine for all.
    """

    truth: GroundTruth

    async def begin(self) -> None:
        """Note that the request has been accepted."""

    async def token(self) -> None:
        """Note that the engine has given one more token, at ``truth.last_token_ns``."""

    async def finish(self, reason: str) -> bool:
        """Note that there are no more tokens.

        Returns whether the last words come later, so that the reply reports its end itself.
        """

    async def fail(self, message: str) -> None:
        """Note that the engine could not go on with the reply."""

    def stop(self) -> None:
        """Note that somebody else has ended the reply: nothing may be written of its own accord any more."""


class StreamedReply:
    """A reply of server-sent events, whose headers are sent on acceptance."""

    def __init__(
        self, send: Send, stream: EventStream, truth: GroundTruth, clock: Clock, headers: Headers
    ) -> None:
        self.truth = truth
        self._send = send
        self._stream = stream
        self._clock = clock
        self._headers = headers
        self._written_ns = 0
        self._ended = False

    async def begin(self) -> None:
        await send_start(self._send, 200, _EVENT_STREAM + self._headers)
        self._written_ns = self._clock()
        for write in self._stream.opening():
            await self._write(write)

    async def token(self) -> None:
        writes = self._stream.token()
        if writes:
            self._stamp()
        for write in writes:
            await self._write(write)

    async def finish(self, reason: str) -> bool:
        holds_text = self._stream.holds_text
        *writes, last = self._stream.ending(reason)
        if holds_text:
            self._stamp()
        for write in writes:
            await self._write(write)
        self._ended = True
        self.truth.note_write(self._clock())
        await send_body(self._send, last)
        return False

    async def fail(self, message: str) -> None:
        self._ended = True
        more = {"timings": self.truth.timings()} if self._stream.tells_timings else {}
        await send_body(self._send, error_event(message, **more) + DONE)

    async def keep_alive(self, every_s: float) -> None:
        """Write a comment whenever nothing has been written for ``every_s`` seconds, until the reply has
        ended."""
        while not self._ended:
            silent_s = (self._clock() - self._written_ns) / 1e9
            if silent_s >= every_s and self._written_ns > 0:
                await self._write(_COMMENT)
                silent_s = 0.0
            await asyncio.sleep(every_s - silent_s if self._written_ns > 0 else every_s)

    def stop(self) -> None:
        self._ended = True

    def _stamp(self) -> None:
        """Note that text is about to be written."""
        self.truth.note_content(self._clock(), visible=self._stream.visible, thought=self._stream.thought)
        self._stream.thought = False

    async def _write(self, data: bytes) -> None:
        self._written_ns = self._clock()
        self.truth.note_write(self._written_ns)
        await send_body(self._send, data, more=True)


class ChunkedReply:
    """A reply whose tokens are gathered into chunks, each of one field of the delta. What a chunk becomes is
    told by :meth:`_say`."""

    def __init__(
        self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int] | None, clock: Clock
    ) -> None:
        """``chunk_tokens``: number of tokens of each chunk; None: all are one, whatever their fields."""
        self.truth = truth
        self._texts = texts
        self._sizes = chunk_tokens
        self._clock = clock
        self._size = 0
        self._field = "content"
        self._pending: list[str] = []

    async def begin(self) -> None:
        """Do nothing: nothing is said before the first token."""

    async def token(self) -> None:
        truth, number = self.truth, self.truth.output_tokens
        field, text = self._texts.of(number)
        if self._sizes is not None and field != self._field:
            await self._chunk()
        self._field = field
        if not self._pending and self._sizes is not None:
            self._size = next(self._sizes)
        truth.output_tokens += 1
        truth.reasoning_tokens += number < self._texts.reasoning_tokens
        self._pending.append(text)
        if len(self._pending) == self._size:
            await self._chunk()

    def stop(self) -> None:
        """Do nothing: this reply never writes of its own accord."""

    async def _chunk(self) -> None:
        """Say what is pending."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        thoughts = max(0, self._texts.reasoning_tokens - (self.truth.output_tokens - len(pending)))
        visible = bool("".join(pending[thoughts:]).strip())
        self.truth.note_content(self._clock(), visible=visible, thought=thoughts > 0)
        await self._say(pending)

    async def _say(self, texts: list[str]) -> None:
        """Send a chunk of these tokens, which are of the field ``self._field``."""
        raise NotImplementedError


class WholeReply(ChunkedReply):
    """A reply of one JSON body, sent when the last token is there."""

    def __init__(
        self,
        send: Send,
        text: ReplyText,
        texts: TokenTexts,
        truth: GroundTruth,
        clock: Clock,
        headers: Headers,
        *,
        timings: bool = False,
    ) -> None:
        super().__init__(texts, truth, None, clock)
        self._send = send
        self._text = text
        self._headers = headers
        self._timings = timings

    async def finish(self, reason: str) -> bool:
        truth = self.truth
        more = {"timings": truth.timings()} if self._timings else {}
        reason = self._texts.finish_reason(reason)
        body = self._text.whole(self._message(), reason, truth.usage(), **more)
        truth.first_write_ns = truth.first_visible_ns = truth.last_write_ns = self._clock()
        truth.note_write(truth.last_write_ns)
        await send_whole(self._send, 200, b"application/json", body, self._headers)
        return False

    async def fail(self, message: str) -> None:
        await send_json(self._send, 500, error_object(message), self._headers)

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"content": ""}
        for token in range(self.truth.output_tokens):
            field, text = self._texts.of(token)
            message[field] = message.get(field, "") + text
        if "tool_calls" in message:
            message |= self._texts.delta("tool_calls", message["tool_calls"])
        return message


class FilteredReply:
    """A reply behind the output filter, written by a task of its own (:meth:`run`) at the times of
    release.

    The tokens that the filter withholds (the last ones of the sequence) are never written. ``on_end`` is
    called once, when the last word has been written or the client has gone.
    """

    def __init__(
        self,
        reply: Reply,
        release: Release,
        sequence: EngineSequence,
        clock: Clock,
        on_end: Callable[[Reply], None],
    ) -> None:
        self.truth: GroundTruth = reply.truth
        self._reply = reply
        self._release = release
        self._sequence = sequence
        self._clock = clock
        self._on_end = on_end
        self._alarm = LoopAlarm()
        self._windows: asyncio.Queue[tuple[int, list[int]]] = asyncio.Queue()
        """Windows of tokens: the instant at which each may leave, and those at which its tokens were
        computed."""
        self._computed = 0
        self._held: list[int] = []
        self._reason: str | None = None
        self._over = False

    async def begin(self) -> None:
        await self._reply.begin()

    async def token(self) -> None:
        at_ns = self.truth.last_token_ns
        assert at_ns is not None
        self._computed += 1
        self._held.append(at_ns)
        leaves_ns = self._release.produced(at_ns, last=self._computed == self._sequence.output_tokens)
        if leaves_ns is not None:
            self._windows.put_nowait((leaves_ns, self._held))
            self._held = []

    async def finish(self, reason: str) -> bool:
        self._reason = reason
        self._windows.put_nowait((self._clock(), []))
        return True

    async def fail(self, message: str) -> None:
        self._over = True
        await self._reply.fail(message)

    def stop(self) -> None:
        self._reply.stop()
        if not self._over and self._reason is not None:
            self._over = self.truth.aborted = True
            self.truth.finish_reason = None
            self._on_end(self._reply)

    async def _let_out(self, at_ns: int) -> None:
        """Release one token, with the instant of its own: the truth has gone on meanwhile."""
        truth, newest_ns = self.truth, self.truth.last_token_ns
        truth.last_token_ns = at_ns
        await self._reply.token()
        if truth.last_token_ns == at_ns:  # else the engine gave one while this one was written
            truth.last_token_ns = newest_ns

    async def run(self) -> None:
        """Release windows until the reply is complete."""
        passing = None
        while not self._over:
            leaves_ns, tokens = await self._windows.get()
            await self._alarm.until(leaves_ns)
            if passing is None:
                passing = self._sequence.output_tokens - self._sequence.withheld_tokens
            for at_ns in tokens[:passing]:
                await self._let_out(at_ns)
            passing -= len(tokens[:passing])
            if not tokens and self._reason is not None:
                self._over = True
                await self._reply.finish(self._reason)
                self._on_end(self._reply)


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
