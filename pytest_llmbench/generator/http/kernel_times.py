"""Receive times of the kernel, on the clock that everything else is measured by.

``SO_TIMESTAMPNS`` gives each read the CLOCK_REALTIME instant at which the kernel took in the last packet of
what was read, so the time until our loop came to read it is in no latency. Several packets in one read have
one stamp, that of the last: events of one read are told apart no better than by stamps of our own.

CLOCK_REALTIME can be set; CLOCK_MONOTONIC cannot. Their difference is looked at with every read, so that a
step of the wall clock is found by the first read after it and never becomes a latency: a stamp from before a
step, or one from the future, is replaced by the instant of the read, and counted.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import Callable, Sequence

from pytest_llmbench.timing import Clock, MonotonicClock

SO_TIMESTAMPNS = 35
"""``asm-generic/socket.h``; Python has no name for it. The control message has the same number."""
ANCILLARY_BYTES = socket.CMSG_SPACE(16) if hasattr(socket, "CMSG_SPACE") else 0

_DATA_SEGS_IN = 152
"""Place of ``tcpi_data_segs_in`` in ``struct tcp_info`` (``linux/tcp.h``, since Linux 4.6)."""
TOLERANCE_NS = 2_000
"""Two clocks read one after the other may differ by this much before the difference is looked at closely, and
change by this much before the change is a step."""
_FOLLOW_NS = 1_000_000_000
_ON_WITHIN_S, _ON_PAUSE_S = 0.1, 0.001
_FIRST_LOOKS = 32
_LOOKS = 5

_timespec = struct.Struct("@ll").unpack
Ancillary = Sequence[tuple[int, int, bytes]]


class KernelTimes:
    """Turns the control messages of reads into instants of CLOCK_MONOTONIC, and counts what it cannot turn.

    Linux slews both clocks alike, so their difference is constant but for steps; it is estimated anew every
    second all the same, from the narrowest of a few brackets, and each time it looks wrong.
    """

    def __init__(
        self,
        monotonic_ns: Callable[[], int],
        wall_ns: Callable[[], int],
        stamps: Callable[[], bool] = lambda: True,
    ) -> None:
        """``stamps``: whether the kernel stamps packets by now."""
        self._monotonic = monotonic_ns
        self._wall = wall_ns
        self._stamps = stamps
        self._offset_ns = self._difference(_FIRST_LOOKS)
        self._trusted_from_ns = 0
        self._look_at_ns = monotonic_ns() + _FOLLOW_NS
        self._may_switch_on = True
        """Whether stamps may still be switched on; False once a kernel was asked for them and gave none."""
        self.unstamped = 0
        """How many reads had no stamp of the kernel; the first packets after switching it on have none."""
        self.distrusted = 0
        """How many stamps were from before a step of the wall clock, or from the future."""
        self.steps = 0
        """How many steps of the wall clock were seen."""
        self.waited_ns = 0
        """How long the last packet of the last read lay in its socket; 0 without a stamp of the kernel."""

    @staticmethod
    def stamp(sock: socket.socket) -> None:
        """Ask the kernel to stamp the reads of ``sock``. Raises OSError."""
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)

    async def switched_on(self) -> None:
        """Return when the kernel stamps packets, or after 0.1 s; called once sockets have asked for stamps.

        The first socket that asks has them switched on, but by a work queue of the kernel
        (``net_enable_timestamp``): on a busy machine whole replies arrive before that.
        """
        attempts = round(_ON_WITHIN_S / _ON_PAUSE_S) if self._may_switch_on else 0
        for _ in range(attempts):
            if self._stamps():
                return
            await asyncio.sleep(_ON_PAUSE_S)
        self._may_switch_on = False

    def instant(self, ancillary: Ancillary) -> int:
        """The instant at which the kernel took in what was just read; never later than now."""
        now = self._monotonic()
        apart = self._wall() - now - self._offset_ns
        if not -TOLERANCE_NS < apart < TOLERANCE_NS or now >= self._look_at_ns:
            self._look_again()
        self.waited_ns = 0
        if not ancillary:
            self.unstamped += 1
            return now
        seconds, nanoseconds = _timespec(ancillary[0][2])
        at_ns: int = seconds * 1_000_000_000 + nanoseconds - self._offset_ns
        if self._trusted_from_ns < at_ns <= now:
            self.waited_ns = now - at_ns
            return at_ns
        if not now < at_ns < now + TOLERANCE_NS:  # else a few nanoseconds of the difference's own error
            self.distrusted += 1
        return now

    def _look_again(self) -> None:
        found_ns = self._difference(_LOOKS)
        if abs(found_ns - self._offset_ns) >= TOLERANCE_NS:
            self.steps += 1
            self._trusted_from_ns = self._monotonic()
        self._offset_ns = found_ns
        self._look_at_ns = self._monotonic() + _FOLLOW_NS

    def _difference(self, looks: int) -> int:
        """Wall clock less monotonic clock in nanoseconds, from the narrowest of ``looks`` brackets."""
        best: tuple[int, int] | None = None
        for _ in range(looks):
            before = self._monotonic()
            wall = self._wall()
            width = self._monotonic() - before
            if best is None or width < best[0]:
                best = width, wall - before - width // 2
        assert best is not None
        return best[1]


def stamps_a_datagram() -> bool:
    """Whether the kernel stamps a datagram from us to ourselves; True where none can be sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            KernelTimes.stamp(trial)
            trial.bind(("127.0.0.1", 0))
            trial.setblocking(False)
            trial.sendto(b"?", trial.getsockname())
            return bool(trial.recvmsg(1, ANCILLARY_BYTES)[1])
    except OSError:
        return True


def packets_in(sock: socket.socket) -> int:
    """Packets with data that a TCP connection has received; 0 where the kernel does not count them. Raises
    OSError."""
    told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _DATA_SEGS_IN + 4)
    return int.from_bytes(told[_DATA_SEGS_IN:], sys.byteorder)


def kernel_times(clock: Clock) -> KernelTimes | None:
    """Receive times of the kernel for this clock; ``None`` where there are none: not Linux, a kernel or a
    sandbox that refuses, a clock that is not the machine's."""
    if not sys.platform.startswith("linux") or not isinstance(clock, MonotonicClock):
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trial:
            KernelTimes.stamp(trial)
    except OSError:
        return None
    return KernelTimes(clock.monotonic_ns, clock.wall_ns, stamps_a_datagram)
