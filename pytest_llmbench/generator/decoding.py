"""The queue of ended exchanges, which are decoded into records in the gaps between reads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator

from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.timing import Clock

Steps = Generator[None, None, RequestRecord]

_SLICE_NS = 20_000
_SLICE_PER_WAITING_NS = 5_000


class DecodeQueue:
    """Decodes a little at a time, so that a read which comes meanwhile is stamped with little delay.

    Decoding a long reply takes a millisecond; done in one go it would be added to the first-token instants of
    the replies beside it. A slice grows with the queue beyond what may wait, so that the queue stays
    short however fast replies end.
    """

    def __init__(
        self,
        decode: Callable[[Exchange], Steps],
        deliver: Callable[[RequestRecord], None],
        clock: Clock,
        *,
        at_once: Callable[[Exchange], RequestRecord | None] = lambda _: None,
        may_wait: Callable[[], int] = lambda: 0,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """``at_once``: makes the record where that is a single step; for all others ``decode`` makes it.
        ``may_wait``: how many replies may, while there are chunks to read (which run together with those
        behind them if they are not) or, ``busy``, requests to be replaced."""
        self._at_once = at_once
        self._decode = decode
        self._deliver = deliver
        self._now = clock.monotonic_ns
        self._may_wait = may_wait
        self._busy = busy
        self._waiting: deque[Exchange] = deque()
        self._current: Steps | None = None
        self._scheduled = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._loop = asyncio.get_running_loop()

    def put(self, exchange: Exchange) -> None:
        self._waiting.append(exchange)
        if not self._scheduled:
            self._scheduled = True
            self._empty.clear()
            self._loop.call_soon(self._slice)

    async def join(self) -> None:
        """Returns when everything put so far has been delivered."""
        await self._empty.wait()

    def _slice(self) -> None:
        too_many = max(0, len(self._waiting) - self._may_wait())
        if not too_many and self._busy():
            self._loop.call_soon(self._slice)
            return
        until = self._now() + _SLICE_NS + _SLICE_PER_WAITING_NS * too_many
        while self._now() < until:
            if self._current is None and not self._waiting:
                self._scheduled = False
                self._empty.set()
                return
            try:
                record = self._step()
            except BaseException:  # told to the loop, which tells its owner; the other replies are decoded
                self._current = None
                self._loop.call_soon(self._slice)
                raise
            if record is not None:
                self._deliver(record)
        self._loop.call_soon(self._slice)

    def _step(self) -> RequestRecord | None:
        if self._current is None:
            exchange = self._waiting.popleft()
            record = self._at_once(exchange)
            if record is not None:
                return record
            self._current = self._decode(exchange)
        try:
            next(self._current)
        except StopIteration as stop:
            self._current = None
            found: RequestRecord = stop.value
            return found
        return None
