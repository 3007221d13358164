"""The sockets of a loop behind one descriptor: an epoll of our own, which the loop watches in their stead.

Being woken for every read costs more than the read. So with many streams, above some 10,000 wake-ups a
second, the epoll is no longer watched, but looked at every 0.5 ms, as drivers of network cards do it
(interrupt moderation). Stamps are the kernel's, so no latency changes by that. What would change is kept from
mattering: streams whose chunks follow each other so closely that two might be read as one are not read in
turns, nor are replies so short that a closed loop's replacement, 0.25 ms later, would lower its rate by more
than a hundredth. Sends on a schedule have a timer of their own.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from dataclasses import dataclass

from pytest_llmbench.generator.http.kernel_times import KernelTimes
from pytest_llmbench.timing import TimerFd

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
        self._timer = _timer()
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


def _timer() -> TimerFd | None:
    try:
        return TimerFd()
    except OSError:  # a sandbox that forbids it: then each read wakes us, however many there are
        return None
