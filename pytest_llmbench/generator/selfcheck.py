"""The self-check: what the generator reports about itself, from its records and counters; and what this
machine does while load is running: how late a pulse in the event loop is, whether the machine slept, cores
that the measuring process had to wait for, stolen time.

A send that was late has its cause here or in the generator itself; these figures tell which.
"""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.plan import Load
from pytest_llmbench.model.records import MISSING, Records, empty_slot_share, replacement_lags_ns
from pytest_llmbench.timing import Clock


def of_loop_lags(lags_ns: Sequence[int]) -> dict[str, Any]:
    """The fields of a self-check that the heartbeat tells. They include the loop timer's rounding of up to
    1 ms."""
    lags = np.asarray(lags_ns, dtype=np.int64)
    return {"loop_lag_p99_ns": _percentile(lags, 99), "loop_lag_max_ns": _percentile(lags, 100)}


def of_records(load: Load, records: Records) -> dict[str, Any]:
    """The fields of a self-check that the records tell, which may be kept elsewhere. Send lags need a
    schedule: a closed loop of requests has none to be late against. A turn of a session is due when what it
    waits for has ended and its pause is over."""
    lags = np.empty(0, dtype=np.int64)
    if load.requests_in_flight is None:
        known = (records.scheduled_ns != MISSING) & (records.dispatched_ns != MISSING)
        order = np.argsort(records.scheduled_ns[known], kind="stable")
        lags = (records.dispatched_ns[known] - records.scheduled_ns[known])[order]
    replaced = replacement_lags_ns(load, records)
    tenth = max(1, len(lags) // 10)
    return {
        "send_lag_p50_ns": _percentile(lags, 50),
        "send_lag_p99_ns": _percentile(lags, 99),
        "send_lag_max_ns": _percentile(lags, 100),
        "send_lag_first_tenth_p50_ns": _percentile(lags[:tenth], 50),
        "send_lag_last_tenth_p50_ns": _percentile(lags[-tenth:], 50),
        "content_chunks": len(records.chunk_ns),
        "coalesced_chunks": int(records.coalesced_chunks.clip(0).sum()),
        "stale_retries": int(records.stale_retries.clip(0).sum()),
        "unresolved_chunks": int(records.unresolved_chunks.clip(0).sum()),
        "replacement_lag_p50_ns": _percentile(replaced, 50),
        "replacement_lag_p99_ns": _percentile(replaced, 99),
        "replacement_lag_max_ns": _percentile(replaced, 100),
        "empty_slot_share": empty_slot_share(load, records) if len(replaced) else None,
    }


def _percentile(values: npt.NDArray[np.int64], q: float) -> int | None:
    return round(float(np.percentile(values, q))) if len(values) else None


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
            f"the measuring machine was suspended for {quantity(slept_ns / 1e9, 's')} under load, in which "
            "its clock stood still; measure again"
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
    """Counters of the kernel, read in the measuring thread. None: this system does not have the counter."""

    voluntary_switches: int | None = None
    """Context switches of this process, as the next one."""
    involuntary_switches: int | None = None

    waited_ns: int | None = None
    """Time in which the thread was ready to run and had no core."""
    stolen_ticks: int | None = None
    """Over all cores of this machine, as the next one."""
    all_ticks: int | None = None

    @classmethod
    def now(cls) -> HostCpu:
        voluntary = involuntary = waited_ns = stolen = total = None
        with suppress(ImportError):  # not a Unix
            import resource

            usage = resource.getrusage(resource.RUSAGE_SELF)
            voluntary, involuntary = usage.ru_nvcsw, usage.ru_nivcsw
        # Elsewhere than on Linux, and in kernels that do not count it, there is neither.
        with suppress(OSError, ValueError, IndexError):
            waited_ns = int(_SCHEDSTAT.read_bytes().split()[1])
        with suppress(OSError, ValueError, IndexError), _STAT.open("rb") as file:
            ticks = [int(word) for word in file.readline().split()[1 : 1 + _SHARED]]
            stolen, total = ticks[_STEAL], sum(ticks)
        return cls(voluntary, involuntary, waited_ns, stolen, total)

    def since(self, before: HostCpu, wall_ns: int) -> dict[str, Any]:
        """The fields of a self-check about the ``wall_ns`` since ``before``; None where nothing is known."""
        changes: dict[str, Any] = {}
        for name in self.__slots__:
            now, then = getattr(self, name), getattr(before, name)
            changes[name] = None if now is None or then is None else now - then
        waited_ns, stolen, total = changes["waited_ns"], changes["stolen_ticks"], changes["all_ticks"]
        waits = waited_ns is not None and wall_ns > 0
        steals = stolen is not None and total is not None and total > 0
        return {
            "voluntary_switches": changes["voluntary_switches"],
            "involuntary_switches": changes["involuntary_switches"],
            "waited_for_core_share": min(1.0, waited_ns / wall_ns) if waits else None,
            "stolen_share": stolen / total if steals else None,
        }


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
