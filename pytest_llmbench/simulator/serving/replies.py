"""Replies on their way to the client: tokens come in from the engine's driver, bytes go out at once.

A face is one request on one of the engine's protocols, with the faults that can be carried out there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal, Protocol

from pytest_llmbench.simulator.engine.faults import REFUSALS, STRIKES, FaultKind
from pytest_llmbench.simulator.engine.guardrails import Release
from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.serving.asgi import Receive, Scope, until_disconnect
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.ground_truth import Clock, GroundTruth
from pytest_llmbench.timing import LoopAlarm

CONNECTION = "connection"
"""Key of the request's ``state`` under which the HTTP protocol leaves its :class:`Connection`."""


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


class ChunkedReply:
    """A reply whose tokens are gathered into chunks, each of one field of the delta. What a chunk becomes is
    told by :meth:`_send_texts`."""

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
        self._pending.append(self._said(number, text))
        if len(self._pending) == self._size:
            await self._chunk()

    def _said(self, number: int, text: str) -> str:  # noqa: ARG002 - some hold text back, by its number
        """The text that a token adds to its chunk."""
        return text

    def stop(self) -> None:
        """Do nothing: this reply never writes of its own accord."""

    async def _chunk(self) -> None:
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        thoughts = max(0, self._texts.reasoning_tokens - (self.truth.output_tokens - len(pending)))
        visible = bool("".join(pending[thoughts:]).strip())
        self._note(visible=visible, thought=thoughts > 0)
        await self._send_texts(pending)

    def _note(self, *, visible: bool, thought: bool) -> None:
        """Note that a chunk is complete, which is written at once unless something gathers chunks."""
        self.truth.note_content(self._clock(), visible=visible, thought=thought)

    async def _send_texts(self, texts: list[str]) -> None:
        """Send a chunk of these tokens, which are of the field ``self._field``."""
        raise NotImplementedError


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

    async def run(self) -> None:
        """Release windows until the reply is complete."""
        truth, passing = self.truth, None
        while not self._over:
            leaves_ns, tokens = await self._windows.get()
            await self._alarm.until(leaves_ns)
            if passing is None:
                passing = self._sequence.output_tokens - self._sequence.withheld_tokens
            for at_ns in tokens[:passing]:
                # Each with its own instant: the truth has gone on meanwhile.
                newest_ns, truth.last_token_ns = truth.last_token_ns, at_ns
                await self._reply.token()
                if truth.last_token_ns == at_ns:  # else the engine gave one while this one was written
                    truth.last_token_ns = newest_ns
            passing -= len(tokens[:passing])
            if not tokens and self._reason is not None:
                self._over = True
                await self._reply.finish(self._reason)
                self._on_end(self._reply)


class FaultyReply:
    """A reply to which a fault happens once, after a number of tokens, or at its end if it is shorter."""

    def __init__(self, reply: Reply, strike: Callable[[], Awaitable[bool]], after_tokens: int | None) -> None:
        """``strike``: injects the fault and returns whether the reply is over. ``after_tokens``: None for at
        the end."""
        self.truth = reply.truth
        self._reply = reply
        self._strike = strike
        self._after_tokens = after_tokens
        self._struck = False
        self._over = False

    async def begin(self) -> None:
        await self._reply.begin()
        if self._after_tokens == 0:
            await self._do()

    async def token(self) -> None:
        if self._over:
            return
        await self._reply.token()
        if self.truth.output_tokens == self._after_tokens:
            await self._do()

    async def finish(self, reason: str) -> bool:
        if not self._struck:
            await self._do()
        return False if self._over else await self._reply.finish(reason)

    async def fail(self, message: str) -> None:
        if not self._over:
            await self._reply.fail(message)

    def stop(self) -> None:
        self._over = True
        self._reply.stop()

    async def _do(self) -> None:
        self._struck = True
        self._over = await self._strike()
        if self._over:
            self._reply.stop()


FAULT = "the engine encountered an issue (a fault of the scenario)"


class Face:
    """One request on a protocol: it makes the reply, carries out faults on it, and knows when it is over."""

    faults: frozenset[FaultKind] = REFUSALS | STRIKES.keys()
    """Faults that can be given."""
    whole = False
    """Whether the reply is one document, to which a fault in mid-stream happens at the end."""
    inline = False
    """Whether reasoning can only be a part of the text."""

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int], /) -> Reply:
        """The reply that the tokens go to. ``chunk_tokens``: number of tokens of each chunk."""
        raise NotImplementedError

    async def strike(self, kind: FaultKind, reply: Reply) -> bool:
        """Carry out a fault, other than a refusal and a crash; returns whether the reply is over."""
        if kind == "in_band_error":
            await reply.fail(FAULT)
        elif kind == "truncate":
            self.end()
        else:
            self.reset()
        return True

    async def until_over(self) -> None:
        """Wait until the reply is complete or the client has gone."""
        raise NotImplementedError

    def end(self) -> None:
        """End the reply in an orderly way, but without its last words."""
        raise NotImplementedError

    def reset(self) -> None:
        """End the connection at once."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop what works on the reply on its own; by default nothing does."""


class Connection(Protocol):
    """The transport under a reply over HTTP, of this package's server."""

    def reset(self) -> None:
        """Close at once, with a reset (RST)."""

    def half_close(self) -> None:
        """Send what is buffered, and then no more (FIN), in the middle of the response."""


class HttpFace(Face):
    """One request over HTTP."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.connection: Connection | None = scope.get("state", {}).get(CONNECTION)
        """The connection; None on a server that is not this package's."""
        self._receive = receive
        self.over = asyncio.Event()
        """Set when the reply is complete, or nobody is there to receive it."""

    async def until_over(self) -> None:
        gone = asyncio.create_task(until_disconnect(self._receive))
        gone.add_done_callback(lambda _: self.over.set())
        try:
            await self.over.wait()
            if not gone.done():
                await self.complete()
        finally:
            gone.cancel()

    async def complete(self) -> None:
        """Send what ends the response; by default the reply has done so."""

    def end(self) -> None:
        self.over.set()

    def reset(self) -> None:
        if self.connection is not None:
            self.connection.reset()
        self.over.set()


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

    async def _send_texts(self, texts: list[str]) -> None:
        self._events.tool = self._texts.tool
        kind = _KINDS.get(self._field, "reasoning_text")
        await self._write(self._events.delta(kind, "".join(texts)))

    async def _write(self, events: list[str]) -> None:
        for event in events:
            self.truth.note_write(self._clock())
            await self._way.send(event)
