"""The sockets of a loop behind one descriptor: an epoll of our own, which the loop watches in their stead.

Being woken for every read costs more than the read. So with many streams, above some 10,000 wake-ups a
second, the epoll is no longer watched, but looked at every 0.5 ms, as drivers of network cards do it
(interrupt moderation). Stamps are the kernel's, so no latency changes by that. What would change is kept from
mattering: streams whose chunks follow each other so closely that two might be read as one are not read in
turns, nor are replies so short that a closed loop's replacement, 0.25 ms later, would lower its rate by more
than a hundredth. Sends on a schedule have a timer of their own.

Receive times are the kernel's, on the clock that everything else is measured by. ``SO_TIMESTAMPNS`` gives
each read the CLOCK_REALTIME instant at which the kernel took in the last packet of what was read, so the time
until our loop came to read it is in no latency. Several packets in one read have one stamp, that of the last:
events of one read are told apart no better than by stamps of our own. CLOCK_REALTIME can be set;
CLOCK_MONOTONIC cannot. Their difference is looked at with every read, so that a step of the wall clock is
found by the first read after it and never becomes a latency: a stamp from before a step, or one from the
future, is replaced by the instant of the read, and counted.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pytest_llmbench.timing import Clock, MonotonicClock, TimerFd, bracketed

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
            found_ns = self._difference(_LOOKS)
            if abs(found_ns - self._offset_ns) >= TOLERANCE_NS:
                self.steps += 1
                self._trusted_from_ns = self._monotonic()
            self._offset_ns = found_ns
            self._look_at_ns = self._monotonic() + _FOLLOW_NS
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

    def _difference(self, looks: int) -> int:
        """Wall clock less monotonic clock in nanoseconds, from the narrowest of ``looks`` brackets."""
        at_ns, wall_ns = bracketed(self._monotonic, self._wall, looks)
        return wall_ns - at_ns


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


READ_BYTES = 256 * 1024
"""Most bytes of one read."""
_AT_ONCE = 32
"""How many sockets are read in one go before the loop gets to its other work."""
LATE_NS = 250_000
"""The time in nanoseconds above which a packet waited too long in its socket: that read is late, and so is
what is read after it until all sockets have been seen to. Less is a wake-up of the loop. In turns, the time
behind a turn."""

_TURN_NS = 500_000
_TURNS = 64
_FEW_READS = _TURNS
"""Fewest reads in ``_TURNS`` turns; with fewer the loop is woken for each read again."""

Ready = Callable[[bool], None]
"""Called when a socket has bytes, its end or an error; with ``True`` when it takes bytes again."""


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """The limits beyond which sockets are looked at in turns."""

    wake_ups: int = 256
    busy_ns: int = 256 * 100_000
    """The time, in nanoseconds, within which so many wake-ups are too many."""
    chunks_apart_ns: int = 5 * _TURN_NS
    requests_apart_ns: int = 50 * _TURN_NS
    """The least average time between chunks, and between requests, on one connection, for reading in
    turns."""


class Sockets:
    """Watches many sockets with one epoll and tells each that it is ready, many for one wake-up of the
    loop.

    Our own epoll for another reason as well: uvloop stops watching a descriptor with an error after one more
    read, so that of a reset right behind data nothing would be heard. Here the kernel says it until the
    socket is closed. Reads go to one buffer, as bytes are copied out of it before anything else runs.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        times: KernelTimes,
        *,
        read_bytes: int = READ_BYTES,
        limits: TurnLimits | None = None,
    ) -> None:
        self.times = times
        self._limits = limits or TurnLimits()
        self.buffer = memoryview(bytearray(read_bytes))
        self._loop = loop
        self._epoll = select.epoll()
        self._ready: dict[int, Ready] = {}
        self._timer: TimerFd | None = None
        with suppress(OSError):  # in a sandbox that forbids it each read wakes us, however many there are
            self._timer = TimerFd()
        self.in_turns = False
        """Whether the sockets are looked at at intervals, as being woken for each read would cost too
        much."""
        self.several = False
        """Whether more than one socket is being read: what can be done later is better done when all have
        been."""
        self.late = False
        """Whether something in this round was read late."""
        self.late_ns = LATE_NS
        """The waiting time of a read above which it counts as late."""
        self.looked_ns = 0
        """The instant of the last complete look: what is read now arrived after it."""
        self.writes = 0
        """Requests sent since ``_since_ns``, counted by whoever writes. The counters below have the same
        start."""
        self._reads = 0
        self._count = 0
        """Number of wake-ups since then, or of turns while reading in turns."""
        self._read: set[int] = set()
        self._since_ns = 0
        loop.add_reader(self._epoll.fileno(), self._woken)

    def add(self, descriptor: int, ready: Ready) -> None:
        self._ready[descriptor] = ready
        self._epoll.register(descriptor, select.EPOLLIN)

    def await_room(self, descriptor: int, *, awaited: bool) -> None:
        """Set whether to tell when the socket takes bytes again."""
        self._epoll.modify(descriptor, select.EPOLLIN | (select.EPOLLOUT if awaited else 0))

    def remove(self, descriptor: int) -> None:
        """Remove a socket before it is closed: right after that, its number may belong to another one."""
        if self._ready.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        if self.in_turns:
            self._be_woken()
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        if self._timer is not None:
            self._timer.close()

    def _woken(self) -> None:
        self._look()
        self._count += 1
        limits = self._limits
        if self._count >= limits.wake_ups:
            took_ns = self._lapse()
            if self._timer is not None and took_ns < limits.busy_ns and self._suits_turns(took_ns):
                self.in_turns, self.late_ns = True, LATE_NS + _TURN_NS
                self._loop.remove_reader(self._epoll.fileno())
                self._timer.ring_every(_TURN_NS)
                self._loop.add_reader(self._timer.descriptor, self._turn, self._timer)
            self._begin_anew()

    def _turn(self, timer: TimerFd) -> None:
        timer.silence()
        self._look_on()
        self._count += 1
        if self._count >= _TURNS:
            if self._reads < _FEW_READS or not self._suits_turns(self._lapse()):
                self._be_woken()
            self._begin_anew()

    def _lapse(self) -> int:
        return time.monotonic_ns() - self._since_ns

    def _suits_turns(self, took_ns: int) -> bool:
        together_ns, limits = took_ns * len(self._read), self._limits
        closest_ns = max(self._reads * limits.chunks_apart_ns, self.writes * limits.requests_apart_ns)
        return closest_ns <= together_ns

    def _begin_anew(self) -> None:
        self._count = self._reads = self.writes = 0
        self._read.clear()
        self._since_ns = time.monotonic_ns()

    def _be_woken(self) -> None:
        self.in_turns, self.late_ns = False, LATE_NS
        if self._timer is not None:
            self._timer.stop()
            self._loop.remove_reader(self._timer.descriptor)
        self._loop.add_reader(self._epoll.fileno(), self._woken)

    def _look_on(self) -> None:
        """Read all sockets that are ready, with the loop's other work in between."""
        if not self._epoll.closed and self._look() == _AT_ONCE:
            self._loop.call_soon(self._look_on)

    def _look(self) -> int:
        ready, read, now_ns = self._ready, self._read, time.monotonic_ns()
        found = self._epoll.poll(0, _AT_ONCE)
        self.several = len(found) > 1
        for descriptor, events in found:
            read.add(descriptor)
            told = ready.get(descriptor)
            if told is not None:  # else it was closed by what another one has brought
                told(events & select.EPOLLOUT != 0)
        self.several = False
        self._reads += len(found)
        if len(found) < _AT_ONCE:  # all that there was
            self.looked_ns, self.late = now_ns, False
        return len(found)
