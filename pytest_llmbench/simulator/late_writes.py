"""Replies that travel slower than they are made, without holding up the engine that makes them."""

from __future__ import annotations

import asyncio

from pytest_llmbench.simulator.asgi import Message, Send

_PIECE_BYTES = 16


class LateWrites:
    """Passes messages on in order, from a task of its own: after pauses, or in small pieces with gaps."""

    def __init__(self, send: Send, gap_s: float | None = None) -> None:
        self._send = send
        self._gap_s = gap_s
        self._queue: asyncio.Queue[Message | float] = asyncio.Queue()

    async def __call__(self, message: Message) -> None:
        self._queue.put_nowait(message)

    def pause(self, seconds: float) -> None:
        """What is sent from here on comes that much later."""
        self._queue.put_nowait(seconds)

    async def run(self) -> None:
        """Work until cancelled."""
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
    """A buffering proxy: nothing comes out, not even the headers, before all is there."""

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


__all__ = ["BufferedWrites", "LateWrites"]
