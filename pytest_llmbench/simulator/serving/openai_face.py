"""OpenAI's chat and completions over HTTP: a stream of server-sent events or one JSON body, with the quirks
of real servers, and the faults that act on the bytes of either."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pytest_llmbench.simulator.engine.faults import (
    ALL_FAULTS,
    TRANSPORT_FAULTS,
    FaultKind,
    FaultOptions,
    StreamOptions,
)
from pytest_llmbench.simulator.engine.request import GenerationRequest
from pytest_llmbench.simulator.serving.asgi import (
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    send_body,
    send_json,
    send_start,
    send_whole,
    until_disconnect,
)
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.event_stream import (
    DONE,
    EventStream,
    ReplyText,
    TokenTexts,
    error_event,
    error_object,
)
from pytest_llmbench.simulator.serving.generation import Generation
from pytest_llmbench.simulator.serving.ground_truth import Clock, GroundTruth
from pytest_llmbench.simulator.serving.replies import FAULT, ChunkedReply, HttpFace, Reply
from pytest_llmbench.simulator.serving.request_body import Endpoint

_EVENT_STREAM = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
_COMMENT = b": keep-alive\n\n"
_PIECE_BYTES = 16
_MIB = 2**20
_MALFORMED = b'data: {"choices":[{"index":0,"delta":{"content":" lost'
_INVALID_UTF8 = b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe\xc3"}}]}'


class OpenAIFace(HttpFace):
    """One request for chat or completions. Every fault can be given, those of the transport on a connection
    of this package's server."""

    def __init__(
        self,
        generation: Generation,
        driver: EngineDriver,
        request: GenerationRequest,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        super().__init__(scope, receive)
        self._driver, self._request, self._send = driver, request, send
        self._options, self._faults = generation.options, generation.fault_options
        self._endpoint = Endpoint(scope["path"])
        self.faults = ALL_FAULTS if self.connection is not None else ALL_FAULTS - TRANSPORT_FAULTS
        self.whole = not request.stream
        self.inline = self._endpoint is Endpoint.COMPLETIONS
        self._headers: Headers = []
        self._tasks: list[asyncio.Task[None]] = []

    def reply(self, texts: TokenTexts, truth: GroundTruth, chunk_tokens: Iterator[int], /) -> Reply:
        request, options, clock = self._request, self._options, self._driver.clock
        if truth.fault == "buffering":
            self._send = BufferedWrites(self._send)
        elif truth.fault in ("stall", "drip"):
            gap_s = self._faults.drip_ms / 1000.0 if truth.fault == "drip" else None
            self._send = late = LateWrites(self._send, gap_s)
            self._tasks.append(asyncio.create_task(late.run()))
        self._headers = [(b"x-request-id", truth.request_id.encode("latin-1"))]
        model = request.adapter or self._driver.config.model
        text = ReplyText(self._endpoint, truth.request_id, int(time.time()), model, texts.first_word)
        timings = options.server_timings
        if self.whole:
            return WholeReply(self._send, text, texts, truth, clock, self._headers, timings=timings)
        others = replace(options, trace=False, comment_ms=0.0, done_marker=True, server_timings=True)
        plain = others == StreamOptions() and not request.continuous_usage
        stream = EventStream(
            text,
            options,
            chunk_tokens,
            truth,
            texts=texts,
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
            plain=plain and not self._driver.config.speculative_tokens,
        )
        reply = StreamedReply(self._send, stream, truth, clock, self._headers, timings=timings)
        if options.comment_ms > 0:
            self._tasks.append(asyncio.create_task(reply.keep_alive(options.comment_ms / 1000.0)))
        return reply

    async def strike(self, kind: FaultKind, reply: Reply) -> bool:  # noqa: ARG002 - for other faces
        if kind in TRANSPORT_FAULTS:
            assert self.connection is not None
            (self.connection.reset if kind == "reset" else self.connection.half_close)()
            return True
        if kind == "stall":
            assert isinstance(self._send, LateWrites)
            self._send.pause(self._faults.stall_ms / 1000.0)
            return False
        if self.whole and kind == "in_band_error":
            await send_json(self._send, 200, error_object(FAULT), self._headers)
            return True
        data, goes_on = _damage(kind, self._faults)
        if self.whole:
            body = (data or _MALFORMED).removeprefix(b"data: ").rstrip(b"\n")
            await send_whole(self._send, 200, b"application/json", body, self._headers)
            return True
        await send_body(self._send, data, more=goes_on)
        return not goes_on

    async def until_over(self) -> None:
        await until_disconnect(self._receive)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


def _damage(kind: FaultKind, options: FaultOptions) -> tuple[bytes, bool]:
    """The bytes that a fault writes into a stream, and whether the stream goes on after them."""
    if kind == "truncate":
        return b"", False
    if kind == "in_band_error":
        return error_event(FAULT) + DONE, False
    if kind == "malformed_json":
        return _MALFORMED + b"\n\n", True
    if kind == "invalid_utf8":
        return _INVALID_UTF8 + b"\n\n", True
    assert kind == "huge_line", f"{kind} is not damage in a stream"
    text = b"x" * int(options.huge_line_mib * _MIB)
    return b'data: {"choices":[{"index":0,"delta":{"content":"' + text + b'"}}]}\n\n', True


class LateWrites:
    """Passes ASGI messages on in order, from a task of its own: after pauses, or in small pieces with
    gaps."""

    def __init__(self, send: Send, gap_s: float | None = None) -> None:
        self._send = send
        self._gap_s = gap_s
        self._queue: asyncio.Queue[Message | float] = asyncio.Queue()

    async def __call__(self, message: Message) -> None:
        self._queue.put_nowait(message)

    def pause(self, seconds: float) -> None:
        """Delay what is sent from here on by ``seconds``."""
        self._queue.put_nowait(seconds)

    async def run(self) -> None:
        """Pass messages on until cancelled."""
        while True:
            entry = await self._queue.get()
            if isinstance(entry, float):
                await asyncio.sleep(entry)
            elif self._gap_s is None or not entry.get("body"):
                await self._send(entry)
            else:
                body: bytes = entry["body"]
                for at in range(0, len(body), _PIECE_BYTES):
                    await self._send({**entry, "body": body[at : at + _PIECE_BYTES], "more_body": True})
                    await asyncio.sleep(self._gap_s)
                if not entry.get("more_body", False):
                    await self._send({**entry, "body": b""})


class BufferedWrites:
    """A buffering proxy: it sends nothing, not even the headers, before the reply is complete."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message = {}
        self._parts: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            await self._send(self._start)
            await send_body(self._send, b"".join(self._parts))


class StreamedReply:
    """A reply of server-sent events, whose headers are sent on acceptance."""

    def __init__(
        self,
        send: Send,
        stream: EventStream,
        truth: GroundTruth,
        clock: Clock,
        headers: Headers,
        *,
        timings: bool,
    ) -> None:
        """``timings``: whether an error carries the engine's own figures."""
        self.truth = truth
        self._timings = timings
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
        more = {"timings": self.truth.timings()} if self._timings else {}
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
        self.truth.note_content(self._clock(), visible=self._stream.visible, thought=self._stream.thought)
        self._stream.thought = False

    async def _write(self, data: bytes) -> None:
        self._written_ns = self._clock()
        self.truth.note_write(self._written_ns)
        await send_body(self._send, data, more=True)


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
        truth, texts = self.truth, self._texts
        message: dict[str, Any] = {"content": ""}
        for token in range(truth.output_tokens):
            field, text = texts.of(token)
            message[field] = message.get(field, "") + text
        if "tool_calls" in message:
            message |= texts.delta("tool_calls", message["tool_calls"])
        more = {"timings": truth.timings()} if self._timings else {}
        body = self._text.whole(message, texts.finish_reason(reason), truth.usage(), **more)
        truth.first_write_ns = truth.first_visible_ns = truth.last_write_ns = self._clock()
        truth.note_write(truth.last_write_ns)
        await send_whole(self._send, 200, b"application/json", body, self._headers)
        return False

    async def fail(self, message: str) -> None:
        await send_json(self._send, 500, error_object(message), self._headers)
