"""A reply on its way to the client: tokens come in from the engine's driver, bytes go out at once."""

from __future__ import annotations

from typing import Protocol

from pytest_llmbench.simulator.alarm import Clock
from pytest_llmbench.simulator.asgi import Headers, Send, send_body, send_start, send_whole
from pytest_llmbench.simulator.ground_truth import GroundTruth
from pytest_llmbench.simulator.reply_text import DONE, ReplyText


class Reply(Protocol):
    """What the driver needs of a reply. ``truth`` is filled in on the way.

    None of the methods may wait for the client: one slow reader would stop the engine for all.
    """

    truth: GroundTruth

    async def begin(self) -> None:
        """The request has been accepted."""

    async def token(self) -> None:
        """The engine has given one more token."""

    async def finish(self, reason: str) -> None:
        """There are no more."""


class StreamedReply:
    """Server-sent events, each its own write: headers on acceptance, the role with the first token."""

    def __init__(
        self,
        send: Send,
        text: ReplyText,
        truth: GroundTruth,
        clock: Clock,
        headers: Headers,
        include_usage: bool,
    ) -> None:
        self.truth = truth
        self._send = send
        self._text = text
        self._clock = clock
        self._headers = headers
        self._include_usage = include_usage

    async def begin(self) -> None:
        described = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send_start(self._send, 200, described + self._headers)

    async def token(self) -> None:
        truth = self.truth
        if truth.first_write_ns is None:
            role = self._text.role()
            if role is not None:
                await send_body(self._send, role, more=True)
        chunk = self._text.content(truth.output_tokens)
        truth.output_tokens += 1
        truth.last_write_ns = self._clock()
        if truth.first_write_ns is None:
            truth.first_write_ns = truth.last_write_ns
        await send_body(self._send, chunk, more=True)

    async def finish(self, reason: str) -> None:
        await send_body(self._send, self._text.finish(reason), more=True)
        if self._include_usage:
            usage = self._text.usage(self.truth.prompt_tokens, self.truth.output_tokens)
            await send_body(self._send, usage, more=True)
        await send_body(self._send, DONE)


class WholeReply:
    """One JSON body when the last token is there."""

    def __init__(
        self, send: Send, text: ReplyText, truth: GroundTruth, clock: Clock, headers: Headers
    ) -> None:
        self.truth = truth
        self._send = send
        self._text = text
        self._clock = clock
        self._headers = headers

    async def begin(self) -> None:
        """Nothing is said before the reply is complete."""

    async def token(self) -> None:
        self.truth.output_tokens += 1

    async def finish(self, reason: str) -> None:
        body = self._text.body(reason, self.truth.prompt_tokens, self.truth.output_tokens)
        self.truth.first_write_ns = self.truth.last_write_ns = self._clock()
        await send_whole(self._send, 200, b"application/json", body, self._headers)


__all__ = ["Reply", "StreamedReply", "WholeReply"]
