"""Whether the machine slept while load was running.

CLOCK_MONOTONIC stands still while a machine is suspended, and servers do not: a request that was under way is
too fast by the whole time. CLOCK_BOOTTIME goes on, so their difference tells.
"""

from __future__ import annotations

import time

TOLERANCE_NS = 10_000_000
"""The two clocks are read one after the other, and we may be interrupted between."""
_LOOKS = 3


def asleep_ns() -> int:
    """Time that this machine has been suspended since it started; 0 where the system does not tell."""
    boot_time: int | None = getattr(time, "CLOCK_BOOTTIME", None)  # Linux
    if boot_time is None:
        return 0
    return min(-time.monotonic_ns() + time.clock_gettime_ns(boot_time) for _ in range(_LOOKS))


class SleepWatch:
    """Compares with the moment at which it was made."""

    def __init__(self) -> None:
        self._before_ns = asleep_ns()

    def verdict(self) -> str | None:
        """What has happened since, in words; None while nothing has."""
        slept_ns = asleep_ns() - self._before_ns
        if slept_ns < TOLERANCE_NS:
            return None
        return (
            f"the measuring machine was suspended for {slept_ns / 1e9:.1f} s under load, in which its clock "
            "stood still; measure again"
        )
