"""A reply on its way to the client: tokens come in from the engine's driver, bytes go out at once."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from pytest_llmbench.simulator.alarm import Clock
from pytest_llmbench.simulator.asgi import Headers, Send, send_body, send_json, send_start, send_whole
from pytest_llmbench.simulator.event_stream import EventStream, TokenTexts
from pytest_llmbench.simulator.ground_truth import GroundTruth
from pytest_llmbench.simulator.reply_text import DONE, ReplyText, error_event, error_object, usage_object

_EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_COMMENT = b": keep-alive\n\n"


class Reply(Protocol):
    """What the driver needs of a reply. ``truth`` is filled in on the way.

    None of the methods may wait for the client: one slow reader would stop the engine for all.
    """

    truth: GroundTruth

    async def begin(self) -> None:
        """The request has been accepted."""

    async def token(self) -> None:
        """The engine has given one more token, at ``truth.last_token_ns``."""

    async def finish(self, reason: str) -> bool:
        """There are no more. True: the last words come later, and the reply reports its end itself."""

    async def fail(self, message: str) -> None:
        """The engine could not go on with it."""

    def stop(self) -> None:
        """Somebody else has ended the reply: nothing is to be written of one's own accord."""


class StreamedReply:
    """Server-sent events, headers on acceptance."""

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
        """Write a comment whenever nothing has been written for ``every_s``, until the reply has ended."""
        while not self._ended:
            silent_s = (self._clock() - self._written_ns) / 1e9
            if silent_s >= every_s and self._written_ns > 0:
                await self._write(_COMMENT)
                silent_s = 0.0
            await asyncio.sleep(every_s - silent_s if self._written_ns > 0 else every_s)

    def stop(self) -> None:
        self._ended = True

    def _stamp(self) -> None:
        """Text is about to be written."""
        truth, now_ns = self.truth, self._clock()
        truth.last_write_ns = now_ns
        if truth.first_write_ns is None:
            truth.first_write_ns = now_ns
        if truth.first_visible_ns is None and self._stream.visible:
            truth.first_visible_ns = now_ns

    async def _write(self, data: bytes) -> None:
        self._written_ns = self._clock()
        self.truth.note_write(self._written_ns)
        await send_body(self._send, data, more=True)


class WholeReply:
    """One JSON body when the last token is there."""

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
        self.truth = truth
        self._send = send
        self._text = text
        self._texts = texts
        self._clock = clock
        self._headers = headers
        self._timings = timings

    async def begin(self) -> None:
        """Nothing is said before the reply is complete."""

    async def token(self) -> None:
        truth = self.truth
        if truth.output_tokens < self._texts.reasoning_tokens:
            truth.reasoning_tokens += 1
        truth.output_tokens += 1

    async def finish(self, reason: str) -> bool:
        truth = self.truth
        more = {"timings": truth.timings()} if self._timings else {}
        body = self._text.whole(self._message(), reason, self._usage(), **more)
        truth.first_write_ns = truth.first_visible_ns = truth.last_write_ns = self._clock()
        truth.note_write(truth.last_write_ns)
        await send_whole(self._send, 200, b"application/json", body, self._headers)
        return False

    async def fail(self, message: str) -> None:
        await send_json(self._send, 500, error_object(message), self._headers)

    def stop(self) -> None:
        """Nothing is written before the end anyway."""

    def _message(self) -> dict[str, str]:
        message = {"content": ""}
        for token in range(self.truth.output_tokens):
            field, text = self._texts.of(token)
            message[field] = message.get(field, "") + text
        return message

    def _usage(self) -> dict[str, Any]:
        truth = self.truth
        return usage_object(
            truth.prompt_tokens, truth.output_tokens, truth.cached_tokens, truth.reasoning_tokens
        )


__all__ = ["Reply", "StreamedReply", "WholeReply"]
