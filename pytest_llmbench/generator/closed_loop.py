"""Closed loop: a fixed number in flight; each end, success or not, is replaced at once (METHODOLOGY §3)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from pytest_llmbench.generator.clock import Clock
from pytest_llmbench.generator.dispatcher import Dispatcher
from pytest_llmbench.generator.prepared import PreparedRequests
from pytest_llmbench.generator.transport import Exchange

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
    """Fires all slots together and replaces each request that ends, as far as ``extent`` goes.

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
    """What is decided at each end, and at the end of the duration."""

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
        if len(self._requests):
            self._dispatcher.dispatch(self._requests.take(), due_ns)
            self._requests.top_up()
        if self._dispatcher.submitted < self._least and len(self._requests):
            return
        now_ns = self._now()
        if not len(self._requests) or self._is_enough(now_ns):
            self._finish(now_ns)

    def ring(self) -> None:
        """The duration has passed."""
        if self._is_enough(self.until_ns):
            self._finish(self.until_ns)

    def _is_enough(self, at_ns: int) -> bool:
        return self._dispatcher.submitted >= self._least and at_ns >= self.until_ns

    def _finish(self, at_ns: int) -> None:
        if not self.over.is_set():
            self.ended_ns = at_ns
            self.over.set()


__all__ = ["Extent", "keep_full"]
