"""What this machine does while load is running: how late a pulse in the event loop is, whether the machine
slept, cores that the measuring process had to wait for, stolen time.

A send that was late has its cause here or in the generator itself; these figures tell which.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.timing import Clock

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


TOLERANCE_NS = 10_000_000
"""Difference of the two clocks that is not taken for a suspension: they are read one after the other, and we
may be interrupted between."""
_LOOKS = 3


def asleep_ns() -> int:
    """Time that this machine has been suspended since it started; 0 where the system does not tell.

    CLOCK_MONOTONIC stands still while a machine is suspended, and servers do not: a request that was under
    way is too fast by the whole time. CLOCK_BOOTTIME goes on, so their difference tells.
    """
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # Linux
    if boot_time is None:
        return 0
    return min(-time.monotonic_ns() + time.clock_gettime_ns(boot_time) for _ in range(_LOOKS))


class SleepWatch:
    """Tells whether this machine has been suspended since the watch was made."""

    def __init__(self) -> None:
        self._before_ns = asleep_ns()

    def verdict(self) -> str | None:
        """What has happened since the start, in words; None if nothing has."""
        slept_ns = asleep_ns() - self._before_ns
        if slept_ns < TOLERANCE_NS:
            return None
        return (
            f"the measuring machine was suspended for {slept_ns / 1e9:.1f} s under load, in which its clock "
            "stood still; measure again"
        )


NICE = -10
"""The priority of the measuring process, where it may be raised. Beside two busy loops on two cores a timer
then rings 0.3 ms late at P99 in place of 3.8 (``benchmarks/bench_wake_up.py``). The process waits nearly all
of the time, so what it takes from others is little."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_STAT = Path("/proc/stat")
_STEAL = 7
"""Index of the stolen time in a CPU line of ``/proc/stat``: user nice system idle iowait irq softirq
steal."""
_SHARED = 8
"""How many figures of that line add up to all time; guests are counted in user and nice already."""


@dataclass(frozen=True, slots=True)
class HostCpu:
    """Two counters of the kernel, read in the measuring thread. None: this system does not have the
    counter."""

    waited_ns: int | None = None
    """Time in which the thread was ready to run and had no core."""
    stolen_ticks: int | None = None
    all_ticks: int | None = None

    @classmethod
    def now(cls) -> HostCpu:
        stolen, total = _ticks()
        return cls(_waited_ns(), stolen, total)

    def waited_share(self, before: HostCpu, wall_ns: int) -> float | None:
        if self.waited_ns is None or before.waited_ns is None or wall_ns <= 0:
            return None
        return min(1.0, (self.waited_ns - before.waited_ns) / wall_ns)

    def stolen_share(self, before: HostCpu) -> float | None:
        ours, theirs = (self.stolen_ticks, self.all_ticks), (before.stolen_ticks, before.all_ticks)
        if None in ours or None in theirs:
            return None
        stolen, total = (a - b for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None)
        return stolen / total if total > 0 else None


def _waited_ns() -> int | None:
    try:
        return int(_SCHEDSTAT.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):  # not Linux, or a kernel that does not count it
        return None


def _ticks() -> tuple[int | None, int | None]:
    """Stolen ticks and all ticks, over all cores of this machine."""
    try:
        with _STAT.open("rb") as file:
            ticks = [int(word) for word in file.readline().split()[1 : 1 + _SHARED]]
        return ticks[_STEAL], sum(ticks)
    except (OSError, ValueError, IndexError):
        return None, None


def raise_priority() -> str:
    """Raise the priority of this process to :data:`NICE`; call this before it has other threads.

    Returns the outcome, in words.
    """
    if sys.platform != "linux":  # elsewhere nobody has tried what it does to the others
        return ""
    found = os.getpriority(os.PRIO_PROCESS, 0)
    if found <= NICE:
        return f"nice {found}"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    except OSError as error:
        return f"nice {found} (raising it to {NICE} was refused: {error.strerror})"
    return f"nice {NICE}"
