"""A reset that arrives together with the data before it."""

from __future__ import annotations

import asyncio
import socket
import struct
import time

import pytest
import uvloop

from pytest_llmbench.generator.http.links import Link, SocketLink
from pytest_llmbench.generator.http.sockets import KernelTimes, Sockets

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Heard:
    """What a link told, in order."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def attach(self, link: Link) -> None:
        del link

    def received(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        del at_ns, since_ns
        self.told.append(data)

    def written(self) -> None: ...

    def ended(self, error: Exception | None) -> None:
        self.told.append(type(error))

    def dropped(self) -> None:
        self.told.append("dropped")


async def _heard_of_a_reset() -> list[object]:
    heard = Heard()
    with socket.create_server(("127.0.0.1", 0)) as server:
        sockets = Sockets(asyncio.get_running_loop(), KernelTimes(time.monotonic_ns, time.time_ns))
        port = server.getsockname()[1]
        await SocketLink.connect(heard, "127.0.0.1", port, sockets)
        peer, _ = server.accept()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        peer.sendall(b"the last words")
        peer.close()
        time.sleep(0.05)  # the loop is busy elsewhere until both are there
        async with asyncio.timeout(2):
            while "dropped" not in heard.told:
                await asyncio.sleep(0.01)
        sockets.close()
    return heard.told


@pytest.mark.parametrize("make_loop", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_reset_right_behind_data_is_told_on_every_loop(make_loop):
    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(_heard_of_a_reset()) == [b"the last words", ConnectionResetError, "dropped"]
