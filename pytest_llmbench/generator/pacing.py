"""Waiting for an instant of the schedule without holding up the loop."""

from __future__ import annotations

from pytest_llmbench.generator.alarm import Alarm
from pytest_llmbench.generator.clock import Clock


class Pacer:
    """Sleeps to shortly before the instant, then yields again and again, so that reads go on being stamped.

    Never spins: a spin in the thread that receives would add to every latency that it measures.
    """

    def __init__(self, clock: Clock, alarm: Alarm) -> None:
        self._clock = clock
        self._alarm = alarm

    async def until(self, instant_ns: int) -> None:
        """Returns at or just after ``instant_ns``. One that has passed costs one yield, so that catching up
        with a late schedule does not starve the reads."""
        early = instant_ns - self._alarm.slack_ns
        if self._clock.monotonic_ns() < early:
            await self._alarm.sleep_until(early)
        await self._clock.sleep(0)
        while self._clock.monotonic_ns() < instant_ns:
            await self._clock.sleep(0)


__all__ = ["Pacer"]
