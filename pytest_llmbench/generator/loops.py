"""Open and closed loops (section 4.2), and waiting for an instant without holding up the event loop.

Open: requests leave when the schedule says so, whatever became of earlier ones. Closed: a fixed number is in
flight; each end, success or not, is replaced at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_llmbench.generator.dispatcher import Dispatcher
from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.generator.prepared import PreparedRequests
from pytest_llmbench.model.observation import BEHIND_SCHEDULE
from pytest_llmbench.timing.alarm import Alarm
from pytest_llmbench.timing.clock import Clock

_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a closed loop goes: at least ``requests``, and on until ``duration_s`` has passed.

    The requests that there are to send are its ceiling. One that fails at once is replaced at once, so a
    server that refuses everything is asked as fast as it refuses, but no longer and no more often than that.
    """

    concurrency: int
    requests: int
    duration_s: float = 0.0


async def keep_full(
    dispatcher: Dispatcher, requests: PreparedRequests, clock: Clock, *, start_ns: int, extent: Extent
) -> int:
    """Send as many requests as there are slots together, and replace each one that ends, as far as ``extent``
    goes.

    A replacement is due at the instant that the request before it in the slot ended; from the end of the
    duration on none is sent. Returns when the load ended, while the last requests are still in flight: at the
    end of the duration, or at the last submission if that had to come later or nothing is left to send.
    """
    slots = _Slots(dispatcher, requests, clock, start_ns, extent)
    dispatcher.then = slots.replace
    for slot in range(extent.concurrency):
        slots.send(start_ns)
        if slot % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)  # lets the first answers be read
    ahead_s = max(0, slots.until_ns - clock.monotonic_ns()) / 1e9
    timer = asyncio.get_running_loop().call_later(ahead_s, slots.ring)
    try:
        await slots.over.wait()
    finally:
        timer.cancel()
        requests.drop()
    return slots.ended_ns


class _Slots:
    """The slots of a closed loop: what is sent at each end, and when the load is over."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        requests: PreparedRequests,
        clock: Clock,
        start_ns: int,
        extent: Extent,
    ) -> None:
        self._dispatcher = dispatcher
        self._requests = requests
        self._now = clock.monotonic_ns
        self._least = extent.requests
        self.until_ns = start_ns + round(extent.duration_s * 1e9)
        self.over = asyncio.Event()
        self.ended_ns = start_ns

    def replace(self, ended: Exchange) -> None:
        self.send(ended.finished_ns)

    def send(self, due_ns: int) -> None:
        if self.over.is_set() or self._is_enough(due_ns):
            self._finish(self.until_ns)
            return
        requests = self._requests
        if requests.left:
            self._dispatcher.dispatch(requests.take(), due_ns)
            requests.top_up()
        if self._dispatcher.submitted < self._least and requests.left:
            return
        now_ns = self._now()
        if not requests.left or self._is_enough(now_ns):
            self._finish(now_ns)

    def ring(self) -> None:
        """End the load: the duration has passed."""
        if self._is_enough(self.until_ns):
            self._finish(self.until_ns)

    def _is_enough(self, at_ns: int) -> bool:
        return self._dispatcher.submitted >= self._least and at_ns >= self.until_ns

    def _finish(self, at_ns: int) -> None:
        if not self.over.is_set():
            self.ended_ns = at_ns
            self.over.set()


class BehindScheduleError(Exception):
    """The schedule cannot be kept any more: this process stood still, or cannot send as fast as that."""


class Pacer:
    """Sleeps to shortly before the instant, then yields again and again, so that reads go on being stamped.

    Never spins: a spin in the thread that receives would add to every latency that it measures.
    """

    def __init__(self, clock: Clock, alarm: Alarm, *, most_behind_ns: int | None = None) -> None:
        self._clock = clock
        self._alarm = alarm
        self._most_behind_ns = most_behind_ns

    async def until(self, instant_ns: int) -> None:
        """Return at ``instant_ns`` or just after it. One that has passed costs one yield, so that catching up
        with a late schedule does not starve the reads. Raises BehindScheduleError for one that has passed by
        more than ``most_behind_ns``."""
        early = instant_ns - self._alarm.slack_ns
        if self._clock.monotonic_ns() < early:
            await self._alarm.sleep_until(early)
        await self._clock.sleep(0)
        while (now_ns := self._clock.monotonic_ns()) < instant_ns:
            await self._clock.sleep(0)
        limit_ns = self._most_behind_ns
        if limit_ns is not None and now_ns - instant_ns > limit_ns:
            raise BehindScheduleError(
                f"the load generator was {(now_ns - instant_ns) / 1e9:.1f} s {BEHIND_SCHEDULE}, more than "
                f"{limit_ns / 1e9:g} s: it stood still, or cannot send at this rate (free its cores, lower "
                "the rate, or give more --llm-workers)"
            )


async def keep_schedule(
    dispatcher: Dispatcher,
    requests: PreparedRequests,
    *,
    start_ns: int,
    offsets_ns: Iterable[int],
    pacer: Pacer,
) -> None:
    """Sends request i at ``start_ns + offsets_ns[i]``, or at once when that has passed.

    The schedule is absolute, so one late send does not shift the next, and its lag stands in its record.
    """
    for offset_ns in offsets_ns:
        request = requests.take()
        due_ns = start_ns + offset_ns
        await pacer.until(due_ns)
        dispatcher.dispatch(request, due_ns)
        requests.top_up()
