"""Waking up at an instant, as exactly as the platform allows: by a kernel timer as a file descriptor (Linux),
which a loop can watch, or by timers of the loop.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from contextlib import suppress
from typing import Protocol

from pytest_llmbench.timing.clock import Clock, MonotonicClock

_CLOCK_MONOTONIC = 1
_TFD_TIMER_ABSTIME = 1
_NEVER = 0


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class TimerFd:
    """A kernel timer. Raises OSError where the kernel has no such timers, or a sandbox forbids them."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(libc, "timerfd_create"):
            raise OSError("the C library has no timerfd_create")
        self._set_time = libc.timerfd_settime
        self._spec = _TimerSpec()
        self.descriptor: int = libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise _last_error()

    def ring_at(self, instant_ns: int) -> None:
        """Ring once, at this instant of CLOCK_MONOTONIC; one that has passed rings at once."""
        # An instant of 0 would switch the timer off.
        self._set(max(1, instant_ns), 0, _TFD_TIMER_ABSTIME)

    def ring_every(self, interval_ns: int) -> None:
        self._set(interval_ns, interval_ns, 0)

    def stop(self) -> None:
        self._set(_NEVER, 0, 0)

    def silence(self) -> bool:
        """Silence the timer until it rings again; returns whether it had rung."""
        with suppress(BlockingIOError):  # set anew since it rang
            os.read(self.descriptor, 8)
            return True
        return False

    def close(self) -> None:
        os.close(self.descriptor)

    def _set(self, value_ns: int, interval_ns: int, flags: int) -> None:
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(value_ns, 1_000_000_000)
        self._spec.interval.seconds, self._spec.interval.nanoseconds = divmod(interval_ns, 1_000_000_000)
        if self._set_time(self.descriptor, flags, ctypes.byref(self._spec), None) != 0:
            raise _last_error()


def _last_error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Alarm(Protocol):
    """Wakes a coroutine at an instant of CLOCK_MONOTONIC; one at a time."""

    name: str
    slack_ns: int
    """How late it may ring, in nanoseconds: ask for a time that much earlier and yield for the rest."""

    async def sleep_until(self, instant_ns: int) -> None: ...

    async def until(self, instant_ns: int) -> None:
        """Wait until then or as soon after it as possible, never less; yields at least once, even when
        late."""

    def close(self) -> None: ...


class LoopAlarm:
    """The loop's own timer, which counts in whole milliseconds (epoll, libuv)."""

    name = "loop timer"
    slack_ns = 1_500_000

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()

    async def sleep_until(self, instant_ns: int) -> None:
        ahead = instant_ns - self._clock.monotonic_ns()
        if ahead > 0:
            await self._clock.sleep(ahead / 1e9)

    async def until(self, instant_ns: int) -> None:
        await self.sleep_until(instant_ns - self.slack_ns)
        await self._clock.sleep(0)
        while self._clock.monotonic_ns() < instant_ns:
            await self._clock.sleep(0)

    def close(self) -> None:
        """Do nothing: no resource is held."""


class TimerFdAlarm:
    """A kernel timer as a file descriptor of the loop (Linux): no rounding to milliseconds.

    One sleeper at a time. Raises OSError where the kernel has no such timers.
    """

    name = "timerfd"
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

    async def until(self, instant_ns: int) -> None:
        if time.monotonic_ns() >= instant_ns:
            await asyncio.sleep(0)
        else:
            await self.sleep_until(instant_ns)

    def close(self) -> None:
        self._loop.remove_reader(self._timer.descriptor)
        self._timer.close()

    def _ring(self) -> None:
        if self._timer.silence() and self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


def best_alarm(loop: asyncio.AbstractEventLoop, clock: Clock | None = None) -> Alarm:
    """The finest alarm there is for this clock and platform."""
    if clock is None or isinstance(clock, MonotonicClock):
        try:
            return TimerFdAlarm(loop)
        except OSError:  # not Linux, or a sandbox that forbids it: the loop's timer and longer yielding do
            return LoopAlarm(clock)
    return LoopAlarm(clock)
