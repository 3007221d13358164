"""Reads that came late: which of them are told so, since when their bytes may have lain there, and what a
reply loses by it."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Sequence
from itertools import chain, repeat

import pytest
from heard_link import Heard, linked, on_loop

from pytest_llmbench.generator.http.http1 import _holds_several
from pytest_llmbench.generator.http.sockets import LATE_NS, Ancillary, KernelTimes, Sockets, kernel_times
from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.generator.reply_reader import note_late_reads
from pytest_llmbench.model.record import Phase, RequestRecord
from pytest_llmbench.timing import MonotonicClock

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="stamps of the kernel are Linux's")


class Waits(KernelTimes):
    """Reads that had lain in their sockets for as long as they are told, then for no time."""

    def __init__(self, *waits_ns: int) -> None:
        super().__init__(time.monotonic_ns, time.time_ns)
        self._waits = chain(waits_ns, repeat(0))

    def instant(self, ancillary: Ancillary) -> int:
        self.waited_ns = next(self._waits)
        return time.monotonic_ns()


async def closed(sockets: Sockets, *ends: tuple[Heard, socket.socket]) -> None:
    for heard, other in ends:
        heard.link.close()
        other.close()
    await asyncio.sleep(0)
    sockets.close()


async def all_read(*heard: Heard, count: int = 1) -> None:
    async with asyncio.timeout(5):
        while any(len(each.reads) < count for each in heard):
            await asyncio.sleep(0.001)


@LINUX
def test_only_a_late_read_is_told_since_when(loop_factory):
    async def course() -> None:
        sockets = Sockets(asyncio.get_running_loop(), Waits(LATE_NS, LATE_NS + 1, 0))
        heard, other = await linked(sockets)
        for number in range(3):
            other.send(b"x")
            await all_read(heard, count=number + 1)
        in_time, late, after = (since_ns for _, _, since_ns in heard.reads)
        assert (in_time, after) == (None, None)
        # It was not there when the read before it had been looked for.
        assert late is not None
        assert late <= heard.reads[1][1]
        await closed(sockets, (heard, other))

    on_loop(loop_factory, course)


@LINUX
def test_what_is_read_after_a_late_read_in_the_same_round_is_late():
    async def course() -> None:
        sockets = Sockets(asyncio.get_running_loop(), Waits(LATE_NS + 1))
        ends = [await linked(sockets) for _ in range(3)]
        for _, other in ends:
            other.send(b"x")  # the loop does not run meanwhile: they are found together
        await all_read(*(heard for heard, _ in ends))
        sinces = {heard.reads[0][2] for heard, _ in ends}
        assert len(sinces) == 1
        assert None not in sinces
        for heard, other in ends:
            other.send(b"y")
            await all_read(heard, count=2)
            assert heard.reads[1][2] is None
        await closed(sockets, *ends)

    on_loop(asyncio.new_event_loop, course)


@LINUX
def test_a_loop_that_is_held_up_reads_two_chunks_as_one_and_knows_it():
    async def course() -> None:
        times = kernel_times(MonotonicClock())
        assert times is not None
        sockets = Sockets(asyncio.get_running_loop(), times)
        heard, other = await linked(sockets)
        other.send(b"before")
        await all_read(heard)
        sent_ns = time.monotonic_ns()
        other.send(b"first")
        time.sleep(0.02)
        other.send(b"second")
        time.sleep(0.02)
        await all_read(heard, count=2)
        data, at_ns, since_ns = heard.reads[1]
        assert data == b"firstsecond"
        assert since_ns is not None
        assert since_ns <= sent_ns <= at_ns - 20_000_000, "the true instant of the first lies between"
        await closed(sockets, (heard, other))

    on_loop(asyncio.new_event_loop, course)


@LINUX
def test_what_one_packet_brought_came_together_however_late_it_is_read():
    async def course() -> None:
        sockets = Sockets(asyncio.get_running_loop(), Waits())
        heard, other = await linked(sockets)
        apart = []
        for count, pieces in enumerate([[b"ab"], [b"a", b"b"], [b"ab"], [b"ab"], [b"a", b"b"]], start=1):
            for piece in pieces:
                other.send(piece)
            await all_read(heard, count=count)
            apart.append(heard.link.came_apart())
        assert [data for data, _, _ in heard.reads] == [b"ab"] * 5
        assert apart == [False, True, False, False, True]
        await closed(sockets, (heard, other))

    on_loop(asyncio.new_event_loop, course)


def exchange(stamps: Sequence[int], late: Sequence[tuple[int, int]]) -> Exchange:
    prepared = PreparedRequest("r", b"", index=0, max_tokens=8, input_tokens=8)
    made = Exchange(prepared, 0, 0, lambda _: None, submitted_ns=1000, stamps=list(stamps))
    made.late_reads = list(late)
    return made


def record(instants: Sequence[int], first: int | None) -> RequestRecord:
    return RequestRecord(0, "r", Phase.MEASURE, chunk_ns=list(instants), first_content_ns=first)


@pytest.mark.parametrize(
    ("stamps", "late", "instants", "first", "unresolved", "early"),
    [
        # In time: the server sent them together.
        ([5000, 6000], [], [5000, 5000, 6000], 5000, 0, 0),
        # Late, and alone in its read: the stamp of the kernel is its own.
        ([5000, 6000], [(0, 4000)], [5000, 6000], 5000, 0, 0),
        # Late with the next: not before what was looked for then, nor before the submission.
        ([5000, 6000], [(0, 4000)], [5000, 5000, 6000], 5000, 1, 1000),
        ([5000, 6000], [(0, 400)], [5000, 5000, 6000], 5000, 1, 4000),
        # Nor before the read that precedes it.
        ([2000, 5000], [(1, 400)], [5000, 5000, 5000], 5000, 2, 3000),
        # Later chunks change nothing of the first.
        ([5000, 6000, 7000], [(1, 5500), (2, 6500)], [5000, 6000, 6000, 7000, 7000, 7000], 5000, 3, 0),
        ([5000], [(0, 6000)], [5000, 5000], 5000, 1, 0),
        ([5000], [(0, 4000)], [5000, 5000], None, 1, 0),
    ],
)
def test_what_a_reply_loses(stamps, late, instants, first, unresolved, early):
    row = record(instants, first)
    note_late_reads(row, exchange(stamps, late))
    assert (row.unresolved_chunks, row.first_content_early_ns) == (unresolved, early)


@pytest.mark.parametrize(
    ("data", "several"),
    [
        (b"data: {}\n\n", False),
        (b"data: {}\n\ndata: [DONE]\n\n", True),
        (b'{"done":false}\n', False),
        (b'10\r\n{"done":false}\n\r\n10\r\n{"done":false}\n\r\n', True),
        (b"", False),
    ],
)
def test_events_of_both_framings_are_told(data, several):
    assert _holds_several(data) is several
