"""The clocks, in one place, so that tests can move time."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Protocol

from pytest_llmbench.model.anchor import ClockAnchor

_ANCHOR_READINGS = 32
_STEP_READINGS = 2000


class Clock(Protocol):
    """The clock of the generator."""

    @property
    def name(self) -> str:
        """The clock's name in reports."""

    @property
    def reported_resolution_ns(self) -> int:
        """Resolution that the platform claims."""

    def monotonic_ns(self) -> int:
        """Never goes back; every instant of a record is read from it."""

    def wall_ns(self) -> int:
        """Nanoseconds since the Unix epoch; read once per run, for export (section 4.7)."""

    async def sleep(self, seconds: float) -> None:
        """Give the loop back for about this long; 0 lets what is ready run once."""


class MonotonicClock:
    """CLOCK_MONOTONIC: not stepped by NTP, and one clock for all processes of a machine."""

    name = "CLOCK_MONOTONIC"
    monotonic_ns = staticmethod(time.monotonic_ns)
    wall_ns = staticmethod(time.time_ns)

    @property
    def reported_resolution_ns(self) -> int:
        return max(1, round(time.get_clock_info("monotonic").resolution * 1e9))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


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


def anchor(clock: Clock) -> ClockAnchor:
    """One instant on both clocks: the reading of the wall clock with the narrowest monotonic bracket."""
    best: tuple[int, ClockAnchor] | None = None
    for _ in range(_ANCHOR_READINGS):
        before = clock.monotonic_ns()
        wall = clock.wall_ns()
        width = clock.monotonic_ns() - before
        if best is None or width < best[0]:
            best = (width, ClockAnchor(monotonic_ns=before + width // 2, wall_ns=wall))
    assert best is not None
    return best[1]


def stepped_ns(before: ClockAnchor, after: ClockAnchor) -> int:
    """The step of the wall clock between two instants, in nanoseconds; 0 for what a daemon may slew it by
    meanwhile (500 ppm) and 10 ms, the accuracy that the draft asks of clocks (4.7.2)."""
    moved_ns = after.wall_ns - before.wall(after.monotonic_ns)
    slewed_ns = (after.monotonic_ns - before.monotonic_ns) // 2000
    return moved_ns if abs(moved_ns) > 10_000_000 + slewed_ns else 0


def resolution_ns(clock: Clock) -> int:
    """Resolution in use: the larger of the reported one and the smallest step seen (section 4.2)."""
    readings = [clock.monotonic_ns() for _ in range(_STEP_READINGS)]
    steps = [later - earlier for earlier, later in itertools.pairwise(readings)]
    smallest = min((step for step in steps if step > 0), default=0)
    return max(clock.reported_resolution_ns, smallest)
