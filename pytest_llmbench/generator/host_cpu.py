"""What this machine did to the measuring process: cores it had to wait for, stolen time, its priority.

A send that was late has its cause here or in the generator itself; these figures tell which.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

NICE = -10
"""The priority of the measuring process, where it may be raised. Beside two busy loops on two cores a timer
then rings 0.3 ms late at P99 in place of 3.8 (``benchmarks/bench_wake_up.py``). The process waits nearly all
of the time, so what it takes from others is little."""
_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_STAT = Path("/proc/stat")
_STEAL = 7
"""Place among the figures of a CPU line: user nice system idle iowait irq softirq steal."""
_SHARED = 8
"""Figures of that line that share out the time; guests are counted in user and nice already."""


@dataclass(frozen=True, slots=True)
class HostCpu:
    """Two counters of the kernel, read in the measuring thread. None: not told on this system."""

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
    """Stolen and all ticks of all cores of this machine."""
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
