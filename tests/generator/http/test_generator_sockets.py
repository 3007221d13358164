"""Sockets behind one descriptor: each is told, woken for each read or in turns, on every loop."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from heard_link import on_loop

from pytest_llmbench.generator.http import sockets as sockets_module
from pytest_llmbench.generator.http.sockets import KernelTimes, Sockets, TurnLimits

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="epoll is Linux's")
TURNS = TurnLimits(busy_ns=10**18, chunks_apart_ns=0)
"""However slow, or fast, this machine is."""


class Pairs:
    """Connected pairs; what the near ends are told is read off and counted."""

    def __init__(self, count: int, limits: TurnLimits | None = None) -> None:
        times = KernelTimes(time.monotonic_ns, time.time_ns)
        self.sockets = Sockets(asyncio.get_running_loop(), times, limits=limits)
        self.pairs = [socket.socketpair() for _ in range(count)]
        self.bytes_read = [0] * count
        self.room_told = 0
        for number, (near, _) in enumerate(self.pairs):
            near.setblocking(False)
            self.sockets.add(near.fileno(), self._reader(number, near))

    def _reader(self, number: int, near: socket.socket) -> Callable[[bool], None]:
        def ready(room: bool) -> None:
            self.room_told += room
            with suppress(BlockingIOError):
                self.bytes_read[number] += len(near.recv(65536))

        return ready

    async def pass_on(self, number: int) -> None:
        """A byte, until it has been read: so it wakes the loop by itself."""
        before = self.bytes_read[number]
        self.pairs[number][1].send(b"x")
        while self.bytes_read[number] == before:
            await asyncio.sleep(0)

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not done():
                await asyncio.sleep(0.001)

    def close(self) -> None:
        for near, far in self.pairs:
            self.sockets.remove(near.fileno())
            near.close()
            far.close()
        self.sockets.close()


def test_everyone_is_read_however_many_are_ready_at_once(loop_factory):
    async def course() -> None:
        pairs = Pairs(150)
        for _, far in pairs.pairs:
            far.send(b"chunk")
        await pairs.until(lambda: pairs.bytes_read == [5] * 150)
        pairs.close()

    on_loop(loop_factory, course)


def test_many_wake_ups_turn_into_turns_and_few_reads_back(loop_factory):
    async def course() -> None:
        pairs = Pairs(3, TURNS)
        turned = False
        for _ in range(300):
            await pairs.pass_on(1)
            turned = turned or pairs.sockets.in_turns
        assert turned
        pairs.pairs[2][1].send(b"late")
        await pairs.until(lambda: pairs.bytes_read[2] == 4)
        await pairs.until(lambda: not pairs.sockets.in_turns)
        pairs.pairs[0][1].send(b"later")
        await pairs.until(lambda: pairs.bytes_read[0] == 5)
        pairs.close()

    on_loop(loop_factory, course)


@pytest.mark.parametrize(("apart", "writes"), [("chunks_apart_ns", 0), ("requests_apart_ns", 1)])
def test_chunks_or_requests_close_together_are_not_for_turns(apart, writes):
    as_none_are = {apart: 10**18}

    async def course() -> None:
        pairs = Pairs(1, replace(TURNS, **as_none_are))
        for _ in range(600):
            pairs.sockets.writes += writes
            await pairs.pass_on(0)
            assert not pairs.sockets.in_turns
        pairs.close()

    on_loop(asyncio.new_event_loop, course)


def test_it_can_be_closed_in_the_middle_of_turns(loop_factory):
    async def course() -> None:
        failed: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: failed.append(context))
        pairs = Pairs(100, replace(TURNS, wake_ups=1))
        pairs.pairs[0][1].send(b"x")
        await pairs.until(lambda: pairs.sockets.in_turns)
        for _, far in pairs.pairs:
            far.send(b"more than one look takes")
        await asyncio.sleep(0)
        pairs.close()
        await asyncio.sleep(0.01)
        assert failed == []

    on_loop(loop_factory, course)


def test_room_to_write_is_told_only_while_it_is_awaited(loop_factory):
    async def course() -> None:
        pairs = Pairs(1)
        near = pairs.pairs[0][0].fileno()
        await asyncio.sleep(0.01)
        assert pairs.room_told == 0
        pairs.sockets.await_room(near, awaited=True)
        await pairs.until(lambda: pairs.room_told > 0)
        pairs.sockets.await_room(near, awaited=False)
        told = pairs.room_told
        await asyncio.sleep(0.01)
        assert pairs.room_told == told
        pairs.close()

    on_loop(loop_factory, course)


def test_without_kernel_timers_each_read_wakes(monkeypatch):
    def forbidden() -> None:
        raise OSError("not here")

    monkeypatch.setattr(sockets_module, "TimerFd", forbidden)  # which is the kernel's

    async def course() -> None:
        pairs = Pairs(1, TURNS)
        for _ in range(300):
            await pairs.pass_on(0)
        assert not pairs.sockets.in_turns
        pairs.close()

    on_loop(asyncio.new_event_loop, course)
