"""A pulse in the event loop: how late it is, what is done now and then; the garbage collector kept away."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_llmbench.timing.clock import Clock

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
        """Beat until cancelled."""
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


_THRESHOLD = (200_000, 50, 1_000)


@dataclass
class Collections:
    """How often the collector ran, all generations together."""

    count: int = 0


@contextmanager
def quiet_gc() -> Iterator[Collections]:
    """Objects made so far are set aside and thresholds raised, so that a collection is rare and cheap.

    The collector of the whole process is touched, so its settings are put back whatever happens. A freeze
    that somebody else made is left alone.
    """
    thresholds = gc.get_threshold()
    ours = gc.get_freeze_count() == 0
    before = _collections()
    seen = Collections()
    gc.set_threshold(*_THRESHOLD)
    if ours:
        gc.freeze()
    try:
        yield seen
    finally:
        seen.count = _collections() - before
        gc.set_threshold(*thresholds)
        if ours:
            gc.unfreeze()


def _collections() -> int:
    return sum(int(generation["collections"]) for generation in gc.get_stats())
