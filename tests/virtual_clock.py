"""A clock that a test moves."""

from __future__ import annotations

import asyncio


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
