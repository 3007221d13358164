"""Injection of faults in the middle of a reply, and of replies that are delivered later than they are
made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from pytest_llmbench.simulator.engine.faults import FaultKind, FaultOptions
from pytest_llmbench.simulator.serving.asgi import Headers, Message, Send, send_body, send_json, send_whole
from pytest_llmbench.simulator.serving.event_stream import DONE, error_event, error_object
from pytest_llmbench.simulator.serving.replies import Reply

_PIECE_BYTES = 16


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
                await self._drip(entry, self._gap_s)

    async def _drip(self, message: Message, gap_s: float) -> None:
        body: bytes = message["body"]
        for at in range(0, len(body), _PIECE_BYTES):
            piece = {**message, "body": body[at : at + _PIECE_BYTES], "more_body": True}
            await self._send(piece)
            await asyncio.sleep(gap_s)
        if not message.get("more_body", False):
            await self._send({**message, "body": b""})


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
            await self._send(
                {"type": "http.response.body", "body": b"".join(self._parts), "more_body": False}
            )


_MIB = 2**20
_FAULT = "the engine encountered an issue (a fault of the scenario)"
_MALFORMED = b'data: {"choices":[{"index":0,"delta":{"content":" lost'
_INVALID_UTF8 = b'data: {"choices":[{"index":0,"delta":{"content":"\xff\xfe\xc3"}}]}'


class Connection(Protocol):
    """The transport under a reply."""

    def reset(self) -> None:
        """Close at once, with a reset (RST)."""

    def half_close(self) -> None:
        """Send what is buffered, and then no more (FIN), in the middle of the response."""


Strike = Callable[[], Awaitable[bool]]
"""Function that injects a fault and returns whether the reply is over."""


class FaultyReply:
    """A reply to which a fault happens once, after a number of tokens, or at its end if it is shorter."""

    def __init__(self, reply: Reply, strike: Strike, after_tokens: int, at_end: bool) -> None:
        self.truth = reply.truth
        self._reply = reply
        self._strike = strike
        self._after_tokens = after_tokens
        self._at_end = at_end
        self._struck = False
        self._over = False

    async def begin(self) -> None:
        await self._reply.begin()
        if self._after_tokens == 0 and not self._at_end:
            await self._do()

    async def token(self) -> None:
        if self._over:
            return
        await self._reply.token()
        if self.truth.output_tokens == self._after_tokens and not self._at_end:
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


def strike_of(
    kind: FaultKind,
    options: FaultOptions,
    send: Send,
    connection: Connection | None,
    headers: Headers,
    *,
    streamed: bool,
    crash: Callable[[], None],
) -> Strike:
    """The function that carries out ``kind`` on a reply that goes through ``send``."""

    async def cut() -> bool:
        assert connection is not None
        (connection.reset if kind == "reset" else connection.half_close)()
        return True

    async def fall() -> bool:
        crash()
        return True

    async def stall() -> bool:
        assert isinstance(send, LateWrites)
        send.pause(options.stall_ms / 1000.0)
        return False

    async def damage() -> bool:
        if not streamed:
            await _damage_whole(kind, options, send, headers)
            return True
        data, more = _damage(kind, options)
        await send_body(send, data, more=more)
        return not more

    special: dict[str, Strike] = {"reset": cut, "half_close": cut, "crash": fall, "stall": stall}
    return special.get(kind, damage)


def _damage(kind: FaultKind, options: FaultOptions) -> tuple[bytes, bool]:
    """The bytes that a fault writes into the stream, and whether the stream goes on after them."""
    if kind == "truncate":
        return b"", False
    if kind == "in_band_error":
        return error_event(_FAULT) + DONE, False
    if kind == "malformed_json":
        return _MALFORMED + b"\n\n", True
    if kind == "invalid_utf8":
        return _INVALID_UTF8 + b"\n\n", True
    assert kind == "huge_line", f"{kind} is not damage in a stream"
    return _huge(options) + b"\n\n", True


async def _damage_whole(kind: FaultKind, options: FaultOptions, send: Send, headers: Headers) -> None:
    """Send what :func:`_damage` makes of a reply that is one JSON body."""
    if kind == "in_band_error":
        await send_json(send, 200, error_object(_FAULT), headers)
        return
    bodies: dict[FaultKind, bytes] = {"invalid_utf8": _INVALID_UTF8}
    body = _huge(options) if kind == "huge_line" else bodies.get(kind, _MALFORMED)
    await send_whole(send, 200, b"application/json", body.removeprefix(b"data: "), headers)


def _huge(options: FaultOptions) -> bytes:
    text = b"x" * int(options.huge_line_mib * _MIB)
    return b'data: {"choices":[{"index":0,"delta":{"content":"' + text + b'"}}]}'
