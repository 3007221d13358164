"""Waiting for an instant of the schedule without holding up the loop."""

from __future__ import annotations

from pytest_llmbench.generator.alarm import Alarm
from pytest_llmbench.generator.clock import Clock
from pytest_llmbench.model.observation import BEHIND_SCHEDULE

MOST_BEHIND_NS = 5_000_000_000
"""What has been missed is sent without pause, so there is an end to how much that may be."""


class BehindScheduleError(Exception):
    """The schedule is out of reach: this process stood still, or cannot send as fast as that."""


class Pacer:
    """Sleeps to shortly before the instant, then yields again and again, so that reads go on being stamped.

    Never spins: a spin in the thread that receives would add to every latency that it measures.
    """

    def __init__(self, clock: Clock, alarm: Alarm, *, most_behind_ns: int | None = None) -> None:
        self._clock = clock
        self._alarm = alarm
        self._most_behind_ns = most_behind_ns

    async def until(self, instant_ns: int) -> None:
        """Returns at or just after ``instant_ns``. One that has passed costs one yield, so that catching up
        with a late schedule does not starve the reads. Raises BehindScheduleError for one that has passed
        by more than ``most_behind_ns``."""
        early = instant_ns - self._alarm.slack_ns
        if self._clock.monotonic_ns() < early:
            await self._alarm.sleep_until(early)
        await self._clock.sleep(0)
        while (now_ns := self._clock.monotonic_ns()) < instant_ns:
            await self._clock.sleep(0)
        limit_ns = self._most_behind_ns
        if limit_ns is not None and now_ns - instant_ns > limit_ns:
            raise BehindScheduleError(
                f"the load generator was {(now_ns - instant_ns) / 1e9:.1f} s {BEHIND_SCHEDULE}, more than "
                f"{limit_ns / 1e9:g} s: it stood still, or cannot send at this rate (free its cores, lower "
                "the rate, or give more --llm-workers)"
            )


__all__ = ["MOST_BEHIND_NS", "BehindScheduleError", "Pacer"]
