"""Responses that seem to have ended are looked at when all else has been read, and in their order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmbench.generator.http.http1 import http1_transport
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.reply_reader import DecodeQueue
from pytest_llmbench.timing import Clock, MonotonicClock


class Looked:
    """Stands for a connection; notes when it is asked to look."""

    def __init__(self, number: int, seen: list[int]) -> None:
        self.number = number
        self.seen = seen

    def look(self, exchange: object) -> None:
        del exchange
        if self.number < 0:
            raise ValueError("this one fails")
        self.seen.append(self.number)


class Leaping(MonotonicClock):
    """A millisecond later at each look."""

    def __init__(self) -> None:
        self._now_ns = 0

    def monotonic_ns(self) -> int:
        self._now_ns += 1_000_000
        return self._now_ns


def transport(*, several: bool, clock: Clock | None = None) -> Any:
    made: Any = http1_transport(Target.parse("http://127.0.0.1:1/v1"), clock or MonotonicClock())
    made._opener._sockets = SimpleNamespace(several=several)
    return made


def test_alone_it_is_looked_at_at_once():
    seen: list[int] = []
    one = transport(several=False)
    one.look_soon(Looked(1, seen), object())
    assert seen == [1]
    assert not one.busy


def test_beside_others_it_waits_and_the_order_stays():
    async def course() -> None:
        seen: list[int] = []
        one = transport(several=True)
        for number in (1, 2):
            one.look_soon(Looked(number, seen), object())
        one._opener._sockets.several = False
        one.look_soon(Looked(3, seen), object())  # alone, but behind those that wait
        assert seen == []
        assert one.busy
        await asyncio.sleep(0)
        assert seen == [1, 2, 3]
        assert not one.busy

    asyncio.run(course())


def test_many_are_looked_at_a_little_at_a_time():
    async def course() -> None:
        seen: list[int] = []
        one = transport(several=True, clock=Leaping())  # each look takes all the time that looks may take
        for number in range(50):
            one.look_soon(Looked(number, seen), object())
        rounds = 0
        while one.busy:
            await asyncio.sleep(0)
            rounds += 1
        assert seen == list(range(50))
        assert rounds > 10

    asyncio.run(course())


def test_one_that_fails_is_told_and_the_others_are_looked_at():
    async def course() -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: told.append(context["exception"])
        )
        seen: list[int] = []
        one = transport(several=True)
        for number in (1, -1, 2):
            one.look_soon(Looked(number, seen), object())
        await asyncio.sleep(0.01)
        assert seen == [1, 2]
        assert [str(error) for error in told] == ["this one fails"]
        assert not one.busy

    asyncio.run(course())


@pytest.mark.parametrize(("may_wait", "decoded"), [(3, []), (2, [0])])
def test_decoding_waits_for_those_but_not_without_limit(may_wait, decoded):
    """Of three replies that wait, one too many is decoded although the transport is busy."""

    async def course() -> None:
        delivered: list[int] = []
        busy = True

        def decode(number: Any) -> Any:
            yield from ()
            return number

        queue = DecodeQueue(
            decode,
            delivered.append,  # type: ignore[arg-type]
            SimpleNamespace(monotonic_ns=iter(range(0, 10**9, 10_000)).__next__),  # type: ignore[arg-type]
            may_wait=lambda: may_wait,
            busy=lambda: busy,
        )
        for number in range(3):
            queue.put(number)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert delivered[:1] == decoded
        busy = False
        await queue.join()
        assert delivered == [0, 1, 2]

    asyncio.run(course())
