"""Time: the clocks, in one place, so that tests can move it; waking up at an instant; and a quiet garbage
collector.

An alarm is as exact as the platform allows: a kernel timer as a file descriptor (Linux), which a loop can
watch, or timers of the loop. A collection of garbage goes through all that a session holds, so there is none
while load is running, in real time or in virtual.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_llmbench.model.observation import ClockAnchor

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


def anchor(clock: Clock) -> ClockAnchor:
    """One instant on both clocks."""
    from pytest_llmbench.model.observation import ClockAnchor  # late: an embedded engine needs no NumPy

    return ClockAnchor(*bracketed(clock.monotonic_ns, clock.wall_ns, _ANCHOR_READINGS))


def bracketed(monotonic_ns: Callable[[], int], wall_ns: Callable[[], int], looks: int) -> tuple[int, int]:
    """One instant on two clocks: of ``looks`` readings of the wall clock the one between the two nearest
    readings of the monotonic one, whose middle it belongs to."""
    best: tuple[int, int, int] | None = None
    for _ in range(looks):
        before = monotonic_ns()
        wall = wall_ns()
        width = monotonic_ns() - before
        if best is None or width < best[0]:
            best = width, before + width // 2, wall
    assert best is not None
    return best[1:]


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


_THRESHOLD = (200_000, 50, 1_000)


@dataclass
class Collections:
    """How often the collector ran, all generations together."""

    count: int = 0


@contextmanager
def quiet_gc() -> Iterator[Collections]:
    """Set objects made so far aside and raise the thresholds, so that a collection is rare and cheap.

    The collector of the whole process is touched, so its settings are put back whatever happens. A freeze
    that somebody else made is left alone.
    """
    thresholds = gc.get_threshold()
    ours = not frozen_by_others()
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


def frozen_by_others() -> bool:
    """Whether somebody else has frozen objects. They are counted one by one: tens of milliseconds for a large
    frozen program."""
    return gc.get_freeze_count() > 0


def _collections() -> int:
    return sum(int(generation["collections"]) for generation in gc.get_stats())
