"""Waking up at an instant, as exactly as the platform allows."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pytest_llmbench.timing.clock import Clock, MonotonicClock
from pytest_llmbench.timing.timer_fd import TimerFd


class Alarm(Protocol):
    """Wakes a coroutine at an instant of CLOCK_MONOTONIC."""

    slack_ns: int
    """How late it may be: ask for a time that much earlier and yield for the rest."""

    async def sleep_until(self, instant_ns: int) -> None: ...

    def close(self) -> None: ...


class LoopAlarm:
    """The loop's own timer, which counts in whole milliseconds (epoll, libuv)."""

    slack_ns = 1_500_000

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def sleep_until(self, instant_ns: int) -> None:
        ahead = instant_ns - self._clock.monotonic_ns()
        if ahead > 0:
            await self._clock.sleep(ahead / 1e9)

    def close(self) -> None:
        """Do nothing: no resource is held."""


class TimerFdAlarm:
    """A kernel timer as a file descriptor of the loop (Linux): no rounding to milliseconds.

    One sleeper at a time. Raises OSError where the kernel has no such timers.
    """

    slack_ns = 200_000

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._woken: asyncio.Future[None] | None = None
        self._timer = TimerFd()
        loop.add_reader(self._timer.descriptor, self._ring)

    async def sleep_until(self, instant_ns: int) -> None:
        self._woken = self._loop.create_future()
        self._timer.ring_at(instant_ns)
        await self._woken

    def close(self) -> None:
        self._loop.remove_reader(self._timer.descriptor)
        self._timer.close()

    def _ring(self) -> None:
        if self._timer.heard() and self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


def best_alarm(loop: asyncio.AbstractEventLoop, clock: Clock) -> Alarm:
    """The finest alarm there is for this clock and platform."""
    if isinstance(clock, MonotonicClock):
        try:
            return TimerFdAlarm(loop)
        except OSError:  # not Linux, or a sandbox that forbids it: the loop's timer and longer yielding do
            return LoopAlarm(clock)
    return LoopAlarm(clock)
