"""Timers that wait until an instant to within a fraction of a millisecond, without blocking the event
loop.

Event loops round their timers up to whole milliseconds (epoll's unit), half of a short decode step. On Linux
a ``timerfd`` on the loop wakes within tens of microseconds at no cost in between. Elsewhere the loop's timer
covers all but the last two milliseconds, and the rest is passed with cooperative yields.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from pytest_llmbench.timing.alarm import TimerFd

Clock = Callable[[], int]


class Alarm(Protocol):
    """A timer on CLOCK_MONOTONIC, one wait at a time."""

    @property
    def name(self) -> str:
        """The name of the alarm, for the status page."""

    async def until(self, deadline_ns: int) -> None:
        """Wait until ``deadline_ns`` or as soon after it as possible; yields at least once, even when
        late."""

    def close(self) -> None:
        """Release what the operating system lent."""


class LoopAlarm:
    """A timer made of the event loop's own timer, then yields."""

    name = "loop timer"
    _SLACK_NS = 2_000_000

    async def until(self, deadline_ns: int) -> None:
        early_ns = deadline_ns - self._SLACK_NS - time.monotonic_ns()
        await asyncio.sleep(max(early_ns, 0) / 1e9)
        while time.monotonic_ns() < deadline_ns:
            await asyncio.sleep(0)

    def close(self) -> None:
        """Do nothing: no resource is held."""


class TimerfdAlarm:
    """A Linux timerfd, armed with absolute instants and read by the running event loop.

    Raises OSError where there is none.
    """

    name = "timerfd"

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = TimerFd()
        self._waiter: asyncio.Future[None] | None = None
        self._loop.add_reader(self._timer.descriptor, self._ring)

    async def until(self, deadline_ns: int) -> None:
        if time.monotonic_ns() >= deadline_ns:
            await asyncio.sleep(0)
            return
        self._waiter = self._loop.create_future()
        self._timer.ring_at(deadline_ns)
        await self._waiter

    def _ring(self) -> None:
        if self._timer.heard() and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def close(self) -> None:
        self._loop.remove_reader(self._timer.descriptor)
        self._timer.close()


def open_alarm() -> Alarm:
    """Open the most exact timer of this platform, for the running event loop."""
    try:
        return TimerfdAlarm()
    except OSError:  # not Linux, or a sandbox that forbids it
        return LoopAlarm()
