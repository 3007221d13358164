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
    LINE_ENDS,
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
        if self.whole:
            timings = options.server_timings
            return WholeReply(self._send, text, texts, truth, clock, self._headers, timings=timings)
        others = replace(options, trace=False, comment_ms=0.0, done_marker=True, server_timings=True)
        plain = others == StreamOptions() and not request.continuous_usage
        reply = StreamedReply(
            self._send,
            text,
            options,
            request,
            texts,
            truth,
            chunk_tokens,
            clock,
            self._headers,
            plain=plain and not self._driver.config.speculative_tokens,
        )
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


class StreamedReply(ChunkedReply):
    """A reply of server-sent events, whose headers are sent on acceptance, with the quirks of a scenario."""

    def __init__(
        self,
        send: Send,
        text: ReplyText,
        options: StreamOptions,
        request: GenerationRequest,
        texts: TokenTexts,
        truth: GroundTruth,
        chunk_tokens: Iterator[int],
        clock: Clock,
        headers: Headers,
        *,
        plain: bool,
    ) -> None:
        """``plain``: nothing changes the bytes of a chunk, so those of plain texts are known beforehand."""
        super().__init__(texts, truth, chunk_tokens, clock)
        self._send, self._text, self._options, self._headers = send, text, options, headers
        self._plain: bool | None = None if plain else False
        """Whether the bytes of chunks are known; None: decided with the first token."""
        place = options.usage
        self._usage_apart = place in ("separate", "empty_delta") or (
            place == "asked" and request.include_usage
        )
        self._usage_each = place == "every_chunk" or (place == "asked" and request.continuous_usage)
        self._times: list[int] = []
        self._held = ""
        self._begun = False
        self._gathered: list[bytes] = []
        self._visible = self._thought = False
        """Whether visible text has come in, and whether a thought has since the last write."""
        self._written_ns = 0
        self._ended = False

    async def begin(self) -> None:
        await send_start(self._send, 200, _EVENT_STREAM + self._headers)
        self._written_ns = self._clock()
        role = self._text.role() if self._options.role_chunk == "at_start" else None
        for write in [] if role is None else self._writes([role]):
            await self._write(write)

    async def token(self) -> None:
        if self._plain is None:
            self._plain = self._texts.plain
        if not self._plain:
            await super().token()
            return
        number = self.truth.output_tokens
        self.truth.output_tokens += 1
        self._visible = True
        self._stamp()
        role = None if number else self._text.role()
        if role is not None:
            await self._write(role)
        await self._write(self._text.content(number))

    async def finish(self, reason: str) -> bool:
        await self._chunk()
        if self._held or self._gathered:
            self._visible |= bool(self._held.strip())
            self._stamp()
        *writes, last = self._last_writes(self._texts.finish_reason(reason))
        for write in writes:
            await self._write(write)
        self._ended = True
        self.truth.note_write(self._clock())
        await send_body(self._send, last)
        return False

    async def fail(self, message: str) -> None:
        self._ended = True
        more = {"timings": self.truth.timings()} if self._options.server_timings else {}
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

    def _said(self, number: int, text: str) -> str:
        """``text`` after what has been held back before it; or nothing, if it is held back now."""
        options, visible = self._options, number - self._texts.reasoning_tokens
        if options.token_times or options.server_timestamps:
            self._times.append(self.truth.last_token_ns or 0)
        if visible < 0:
            return text
        text, self._held = self._held + text, ""
        every = options.blank_every
        if (visible == 0 and options.first_chunk == "empty") or (every and visible % every == every - 1):
            self._held, text = text, ""
        return text

    def _note(self, *, visible: bool, thought: bool) -> None:
        self._visible |= visible
        self._thought |= thought

    def _stamp(self) -> None:
        """Note that what has been gathered is about to be written."""
        self.truth.note_content(self._clock(), visible=self._visible, thought=self._thought)
        self._thought = False

    async def _send_texts(self, texts: list[str]) -> None:
        """Send the event of these tokens, after the role chunk if that is due."""
        events = []
        delta = self._texts.delta(self._field, "".join(texts))
        if not self._begun:
            self._begun = True
            if self._options.role_chunk == "at_first_token":
                role = self._text.role()
                events += [] if role is None else [role]
            elif self._options.role_chunk == "in_first_chunk":
                delta = {"role": "assistant", **delta}
        more: dict[str, Any] = {"usage": self.truth.usage()} if self._usage_each else {}
        if self._options.token_times:
            more["metrics"] = {"token_ns": self._times}
        if self._options.server_timestamps:
            more["token_times_ns"] = self._times
        self._times = []
        writes = self._writes([*events, self._text.chunk(delta, **more)])
        if writes:
            self._stamp()
        for write in writes:
            await self._write(write)

    def _last_writes(self, reason: str) -> list[bytes]:
        """The writes after the last chunk of tokens; there is at least one."""
        truth, options = self.truth, self._options
        delta = self._texts.delta(self._field, self._held) if self._held else {}
        timings = {"timings": truth.timings()} if options.server_timings else {}
        more = {"usage": truth.usage()} if self._usage_each or options.usage == "finish" else {}
        more |= {} if self._usage_apart else timings
        per_step = truth.tokens_per_step if options.metrics == "tensorrt-llm" else None
        events = [self._text.chunk(delta, reason, per_step, **more)]
        if self._usage_apart:
            empty_delta = options.usage == "empty_delta"
            make = self._text.usage_with_empty_delta if empty_delta else self._text.usage_chunk
            events.append(make(truth.usage(), **timings))
        if options.done_marker:
            events.append(DONE)
        writes = self._writes(events)
        return [*writes, b"".join(self._gathered)] if self._gathered else writes

    def _writes(self, events: list[bytes]) -> list[bytes]:
        """The writes that are now due."""
        options = self._options
        if options.line_end != "lf":
            end = LINE_ENDS[options.line_end]
            events = [event.replace(b"\n", end) for event in events]
        if options.writes_per_event > 1:  # pieces of about the same length, none of them empty
            lengths = [-(-len(event) // options.writes_per_event) for event in events]
            return [
                event[at : at + length]
                for event, length in zip(events, lengths, strict=True)
                for at in range(0, len(event), length)
            ]
        if options.events_per_write == 1:
            return events
        writes = []
        for event in events:
            self._gathered.append(event)
            if len(self._gathered) >= options.events_per_write:
                writes.append(b"".join(self._gathered))
                self._gathered = []
        return writes

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
