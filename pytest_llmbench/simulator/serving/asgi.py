"""Helpers for the few ASGI messages that the server uses."""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from pytest_llmbench.simulator.engine.request import RefusalError

BODY_LIMIT_BYTES: Final = 64 * 2**20

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class StampedProtocol:
    """What a protocol of the server's connections does beside uvicorn's own work."""

    transport: Any
    read_ns = 0
    """Instant at which the last read returned."""

    def data_received(self, data: bytes) -> None:
        self.read_ns = time.monotonic_ns()
        super().data_received(data)  # type: ignore[misc]  # of uvicorn's class, which comes behind it

    def pause_writing(self) -> None:
        """Do not pass the pause on: ``send`` would wait for a slow reader, and with it the engine's step.

        What is then buffered is bounded by the length of a reply.
        """

    def reset(self) -> None:
        """Close at once with a reset: what is buffered is lost."""
        # Linger for no time is what turns a close into a reset.
        raw: socket.socket = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


class ClientGoneError(Exception):
    """The connection was closed before the request was complete."""


async def read_body(receive: Receive) -> bytes:
    """Read the whole request body. Raises ClientGoneError, and RefusalError 413 for too long a one."""
    parts: list[bytes] = []
    length = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        length += len(parts[-1])
        if length > BODY_LIMIT_BYTES:
            raise RefusalError(413, f"the body is longer than {BODY_LIMIT_BYTES} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


async def until_disconnect(receive: Receive) -> None:
    """Wait until the client has gone, or, on servers that report this too, until the response is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_start(send: Send, status: int, headers: Headers) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_body(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def send_whole(send: Send, status: int, content_type: bytes, body: bytes, headers: Headers) -> None:
    """Send a complete response."""
    described = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send_start(send, status, described + headers)
    await send_body(send, body)


async def send_json(send: Send, status: int, value: Any, headers: Headers | None = None) -> None:
    await send_whole(send, status, b"application/json", json.dumps(value).encode(), headers or [])
