"""A pulse in the event loop: how late the loop is, and what has to be done now and then."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from pytest_llmbench.generator.clock import Clock

BEAT_NS = 10_000_000
CHORE_EVERY = 3
"""Beats between two rounds of chores: sweep, session deadline."""


class Heartbeat:
    """Beats every 10 ms and keeps how late each beat was.

    The loop's timers count in whole milliseconds, so a lag of up to about 1 ms is the timer's, not a loop
    that was held up. Lags are of the beat's own due time; a late beat does not delay the next.
    """

    def __init__(self, clock: Clock, chores: Callable[[int], None]) -> None:
        self._clock = clock
        self._chores = chores
        self.lags_ns = array("q")

    async def beat(self) -> None:
        """Runs until cancelled."""
        due_ns = self._clock.monotonic_ns()
        beats = 0
        while True:
            due_ns = max(due_ns + BEAT_NS, self._clock.monotonic_ns())
            await self._clock.sleep(max(0, due_ns - self._clock.monotonic_ns()) / 1e9)
            now_ns = self._clock.monotonic_ns()
            self.lags_ns.append(max(0, now_ns - due_ns))
            beats += 1
            if beats % CHORE_EVERY == 0:
                self._chores(now_ns)


__all__ = ["BEAT_NS", "CHORE_EVERY", "Heartbeat"]
