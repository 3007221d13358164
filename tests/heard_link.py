"""A link over a socket of ours whose other end the test holds, and what it tells."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from pytest_llmbench.generator.http.links import Link, SocketLink
from pytest_llmbench.generator.http.sockets import Sockets
from pytest_llmbench.generator.loop_thread import LoopFactory


class Heard:
    """What a link told."""

    def __init__(self) -> None:
        self.told: list[object] = []
        """Data, ends and the like, in their order."""
        self.reads: list[tuple[bytes, int, int | None]] = []

    def attach(self, link: Link) -> None:
        self.link = link

    def received(self, data: bytes, at_ns: int, since_ns: int | None = None) -> None:
        self.told.append(data)
        self.reads.append((data, at_ns, since_ns))

    def written(self, whole: bool) -> None:
        self.told += ["written"] if whole else []

    def ended(self, error: Exception | None) -> None:
        self.told.append(("ended", type(error)))

    def dropped(self) -> None:
        self.told.append("dropped")


async def linked(sockets: Sockets) -> tuple[Heard, socket.socket]:
    heard = Heard()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await SocketLink.connect(heard, "127.0.0.1", listener.getsockname()[1], sockets)
        return heard, listener.accept()[0]


def on_loop(factory: LoopFactory, course: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(course())
