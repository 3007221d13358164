"""uvicorn's WebSocket protocol that also notes the instant of each read, and writes without waiting for the
client."""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from pytest_llmbench.extras.websocket.engine_face import SOCKET


class StampingWebSocket(WebSocketsSansIOProtocol):
    """The WebSocket protocol; it leaves itself in the connection's ``state``, so that the application can ask
    it for ``read_ns``.

    The transport goes on without a write buffer, as the HTTP protocol that made the handshake has set it.
    """

    read_ns = 0

    def data_received(self, data: bytes) -> None:
        self.read_ns = time.monotonic_ns()
        super().data_received(data)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):  # a handshake that was refused has none
            self.scope["state"][SOCKET] = self

    def pause_writing(self) -> None:
        """Do not pass the pause on: ``send`` would wait for a slow reader, and with it the engine's step."""

    def reset(self) -> None:
        """Close at once with a reset: what is buffered is lost."""
        # Linger for no time is what turns a close into a reset.
        raw: socket.socket = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()
