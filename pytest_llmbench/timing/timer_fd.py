"""A kernel timer as a file descriptor (Linux), which a loop can watch."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

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

    def heard(self) -> bool:
        """Makes it silent until it rings again; whether it had rung at all."""
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
