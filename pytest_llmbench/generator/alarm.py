"""Waking up at an instant, as exactly as the platform allows."""

from __future__ import annotations

import asyncio
import ctypes
import os
from typing import Protocol

from pytest_llmbench.generator.clock import Clock, MonotonicClock

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1


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
        """Nothing is held."""


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class TimerFdAlarm:
    """A kernel timer as a file descriptor of the loop (Linux): no rounding to milliseconds.

    One sleeper at a time. Raises OSError where the kernel has no such timers.
    """

    slack_ns = 120_000

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "timerfd_create"):
            raise OSError("the C library has no timerfd_create")
        self._set_time = libc.timerfd_settime
        self._spec = _TimerSpec()
        self._loop = loop
        self._woken: asyncio.Future[None] | None = None
        self._fd = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        loop.add_reader(self._fd, self._ring)

    async def sleep_until(self, instant_ns: int) -> None:
        # An instant of 0 would switch the timer off; one that has passed rings at once.
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(max(1, instant_ns), 1_000_000_000)
        self._woken = self._loop.create_future()
        if self._set_time(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(self._spec), None) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        await self._woken

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew since it rang
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


def best_alarm(loop: asyncio.AbstractEventLoop, clock: Clock) -> Alarm:
    """The finest alarm there is for this clock and platform."""
    if isinstance(clock, MonotonicClock):
        try:
            return TimerFdAlarm(loop)
        except OSError:  # not Linux, or a sandbox that forbids it: the loop's timer and longer yielding do
            return LoopAlarm(clock)
    return LoopAlarm(clock)


__all__ = ["Alarm", "LoopAlarm", "TimerFdAlarm", "best_alarm"]
