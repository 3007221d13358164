"""A clock that a test moves, and a transport without a network."""

from __future__ import annotations

import asyncio

from pytest_llmbench.generator.http.transport import Exchange, Stamping


class VirtualClock:
    """A clock that moves only when somebody sleeps; a sleep of 0 costs ``tick_ns``."""

    name = "virtual"
    reported_resolution_ns = 1

    def __init__(self, start_ns: int = 1_000_000_000, *, tick_ns: int = 10_000) -> None:
        self.now_ns = start_ns
        self.tick_ns = tick_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wall_ns(self) -> int:
        return self.now_ns

    async def sleep(self, seconds: float) -> None:
        self.now_ns += max(self.tick_ns, round(seconds * 1e9))
        await asyncio.sleep(0)


class SilentTransport:
    """Takes every request and never answers."""

    name = "silent"
    opened = 0
    busy = False
    stamping = Stamping()

    def __init__(self) -> None:
        self.sent: list[Exchange] = []

    async def prewarm(self, count: int, timeout_s: float) -> int:
        return 0

    def send(self, exchange: Exchange) -> None:
        self.sent.append(exchange)

    async def close(self) -> None: ...
