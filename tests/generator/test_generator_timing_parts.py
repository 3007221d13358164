"""Clock, alarm, pacing, deadlines, decoding in slices: the parts that deal in time, most of it virtual."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from virtual_clock import SilentTransport, VirtualClock

from pytest_llmbench.generator.dispatcher import Dispatcher, overdue, sweep
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.limits import LoadLimits
from pytest_llmbench.generator.loops import JobLoop, Pacer
from pytest_llmbench.generator.prepared import PreparedJobs, PreparedRequest
from pytest_llmbench.generator.reply_reader import DecodeQueue, Steps
from pytest_llmbench.generator.selfcheck import BEAT_NS, Heartbeat
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.plan import Deadlines
from pytest_llmbench.model.record import Phase, RequestRecord
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.timing import (
    LoopAlarm,
    MonotonicClock,
    TimerFdAlarm,
    anchor,
    best_alarm,
    bracketed,
    resolution_ns,
    stepped_ns,
)

S = 1_000_000_000
MS = 1_000_000


def request(index: int = 0, wire: bytes = b"x") -> PreparedRequest:
    return PreparedRequest(f"r-{index}", wire, index, max_tokens=8, input_tokens=1)


def exchange(index: int = 0, dispatched_ns: int = 0) -> Exchange:
    return Exchange(request(index), dispatched_ns, dispatched_ns, ended.append)


ended: list[Exchange] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ended.clear()


def test_the_clock_is_monotonic_and_fine_enough():
    clock = MonotonicClock()
    resolution = resolution_ns(clock)
    assert clock.reported_resolution_ns <= resolution <= MS  # section 4.2: 1 ms or finer
    before, wall = time.monotonic_ns(), time.time_ns()
    at = anchor(clock)
    assert before <= at.monotonic_ns <= time.monotonic_ns()
    assert abs(at.wall(before) - wall) < 5 * S


@pytest.mark.parametrize(
    ("moved_ns", "set_ns"),
    [
        (0, 0),
        (40 * MS, 0),  # 60 s of slewing at 500 ppm are 30 ms, and 10 ms are the accuracy of a clock
        (41 * MS, 41 * MS),
        (-41 * MS, -41 * MS),
        (3600 * S, 3600 * S),
    ],
)
def test_a_clock_that_was_set_is_told_from_one_that_was_slewed(moved_ns, set_ns):
    before = ClockAnchor(1000, 7 * S)
    assert stepped_ns(before, ClockAnchor(1000 + 60 * S, 67 * S + moved_ns)) == set_ns


def test_two_clocks_are_read_in_the_middle_of_the_narrowest_bracket():
    instants, walls = iter([0, 100, 200, 210, 300, 340]), iter([7, 8, 9])
    assert bracketed(instants.__next__, walls.__next__, 3) == (205, 8)


def test_resolution_is_the_larger_of_claim_and_observation():
    class Coarse(VirtualClock):
        reported_resolution_ns = 10

        def monotonic_ns(self) -> int:
            self.now_ns += 25
            return self.now_ns // 100 * 100

    assert resolution_ns(Coarse()) == 100
    assert resolution_ns(VirtualClock()) == 1  # never moves: nothing but the claim is known


def test_the_schedule_is_kept_in_virtual_time():
    """Each request leaves at most one yield late, whatever the transport does with it."""
    clock = VirtualClock(tick_ns=10_000)
    transport = SilentTransport()
    offsets = [0, 1, 5 * MS, 5 * MS, 5 * MS + 3, 900 * MS, 2 * S]

    async def scenario() -> None:
        dispatcher = Dispatcher(transport, clock, ended.append)
        planned = [PlannedRequest(index, 8, 1, text="x") for index in range(len(offsets))]
        requests = PreparedJobs(iter(planned), lambda plan: request(plan.index))
        pacer = Pacer(clock, LoopAlarm(clock))
        await JobLoop(dispatcher, requests, pacer, clock, clock.now_ns, starts_ns=iter(offsets)).run()

    start = clock.now_ns
    asyncio.run(scenario())
    assert [sent.scheduled_ns - start for sent in transport.sent] == offsets
    assert [sent.request.index for sent in transport.sent] == list(range(len(offsets)))
    lags = [sent.dispatched_ns - sent.scheduled_ns for sent in transport.sent]
    assert min(lags) >= 0
    assert max(lags) <= 4 * clock.tick_ns  # four sends fall on almost the same instant


def test_an_instant_that_has_passed_costs_one_yield():
    clock = VirtualClock(tick_ns=7)
    asyncio.run(Pacer(clock, LoopAlarm(clock)).until(clock.now_ns - S))
    assert clock.now_ns == 1_000_000_000 + 7


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="Linux only: timerfd")
def test_timerfd_wakes_at_the_instant(loop_factory):
    async def scenario() -> list[int]:
        alarm = TimerFdAlarm(asyncio.get_running_loop())
        late = []
        try:
            for ahead_ns in (-S, 0, 300_000, 2_700_000, 11_300_000):
                instant = time.monotonic_ns() + ahead_ns
                await alarm.sleep_until(instant)
                late.append(time.monotonic_ns() - instant)
            return late
        finally:
            alarm.close()

    loop = loop_factory()
    try:
        late = loop.run_until_complete(scenario())
    finally:
        loop.close()
    assert min(late) >= 0
    assert max(late[1:]) < S


def test_a_sleep_on_the_timerfd_can_be_cancelled():
    async def scenario() -> None:
        alarm = best_alarm(asyncio.get_running_loop(), MonotonicClock())
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await alarm.sleep_until(time.monotonic_ns() + 60 * S)
            await asyncio.wait_for(alarm.sleep_until(time.monotonic_ns() + MS), 10)
        finally:
            alarm.close()

    asyncio.run(scenario())


def test_the_alarm_fits_the_clock():
    async def scenario() -> None:
        alarm = best_alarm(asyncio.get_running_loop(), VirtualClock())
        assert isinstance(alarm, LoopAlarm)

    asyncio.run(scenario())


LIMITS = Deadlines(connect_s=1.0, first_byte_s=2.0, between_chunks_s=3.0, total_s=10.0)


@pytest.mark.parametrize(
    ("state", "now_s", "named"),
    [
        ({"connecting_ns": 5 * S}, 5.9, None),
        ({"connecting_ns": 5 * S}, 6.0, "connect"),
        ({"connecting_ns": 9_500 * MS}, 10.0, "total"),
        ({}, 9.9, None),  # being written
        ({}, 10.0, "total"),
        ({"sending_ns": 4 * S}, 6.9, None),  # a part of it has left, and no more
        ({"sending_ns": 4 * S}, 7.0, "between-chunks"),
        ({"sending_ns": 9 * S}, 10.0, "total"),
        ({"sending_ns": 1 * S, "submitted_ns": 3 * S}, 4.9, None),
        ({"submitted_ns": 1 * S}, 2.9, None),
        ({"submitted_ns": 1 * S}, 3.0, "first-byte"),
        ({"submitted_ns": 1 * S, "stamps": [2 * S, 3 * S]}, 5.9, None),
        ({"submitted_ns": 1 * S, "stamps": [2 * S, 3 * S]}, 6.0, "between-chunks"),
        ({"submitted_ns": 1 * S, "stamps": [9 * S]}, 10.9, None),  # total counts from the submission
        ({"submitted_ns": 1 * S, "stamps": [9 * S]}, 11.0, "total"),
    ],
)
def test_which_deadline_has_run_out(state, now_s, named):
    waiting = exchange()
    for name, value in state.items():
        setattr(waiting, name, value)
    now = round(now_s * S)
    reason, next_look = overdue(waiting, LIMITS, now)
    if named is None:
        assert reason is None
        assert now < next_look <= now + S // 4
    else:
        assert reason is not None
        assert f"({named} deadline)" in reason


def test_a_sweep_ends_what_is_overdue_and_nothing_else():
    late, early = exchange(0), exchange(1, dispatched_ns=9 * S)
    late.submitted_ns, early.submitted_ns = 0, 9 * S
    sweep([late, early], LIMITS, 10 * S, most_reply_bytes=LoadLimits().most_reply_bytes)
    assert ended == [late]
    assert (late.end, late.finished_ns) == (End.TIMEOUT, 10 * S)
    assert early.end is None
    assert early.due_ns > 10 * S
    early.submitted_ns = -100 * S  # long overdue, but not looked at before the instant that was reckoned
    sweep([early], LIMITS, early.due_ns - 1, most_reply_bytes=LoadLimits().most_reply_bytes)
    assert early.end is None
    sweep([early], LIMITS, early.due_ns, most_reply_bytes=LoadLimits().most_reply_bytes)
    assert early.end is End.TIMEOUT


def test_an_exchange_ends_once():
    one = exchange()
    one.finish(End.COMPLETE, 5)
    one.finish(End.TIMEOUT, 9, "late")
    assert ended == [one]
    assert (one.end, one.finished_ns, one.error) == (End.COMPLETE, 5, None)


def test_decoding_is_done_in_slices_with_the_loop_in_between():
    """Each step takes 15 µs of virtual time; other callbacks run while 40 replies of 50 steps are decoded."""
    clock = VirtualClock()

    def decode(one: Exchange) -> Steps:
        for _ in range(50):
            clock.now_ns += 15_000
            yield
        return RequestRecord(one.request.index, one.request.request_id, Phase.MEASURE)

    async def scenario() -> tuple[list[int], list[int]]:
        delivered: list[RequestRecord] = []
        queue = DecodeQueue(decode, delivered.append, clock)
        await queue.join()  # nothing to wait for
        for index in range(40):
            queue.put(exchange(index))
        gaps = []
        before = clock.now_ns
        while len(delivered) < 40:
            await asyncio.sleep(0)
            gaps.append(clock.now_ns - before)
            before = clock.now_ns
        await queue.join()
        return [record.index for record in delivered], gaps

    order, gaps = asyncio.run(scenario())
    assert order == list(range(40))
    assert sum(gaps) == 40 * 50 * 15_000
    # The longer the queue, the longer the slice; a short queue costs little.
    assert max(gaps) < 2 * MS
    assert max(gaps[-5:]) < 150_000


def test_the_heartbeat_measures_how_late_the_loop_is():
    clock = VirtualClock(tick_ns=1)
    chores: list[int] = []

    async def scenario() -> Heartbeat:
        heart = Heartbeat(clock, chores.append)
        beat = asyncio.create_task(heart.beat())
        while len(heart.lags_ns) < 9:
            if len(heart.lags_ns) == 4:
                clock.now_ns += 3 * BEAT_NS  # the loop is held up for three beats
            await asyncio.sleep(0)
        beat.cancel()
        return heart

    heart = asyncio.run(scenario())
    assert len(chores) == 3
    assert max(heart.lags_ns) >= 2 * BEAT_NS
    assert sorted(heart.lags_ns)[0] == 0


def test_requests_are_encoded_ahead_up_to_the_budget():
    encoded: list[int] = []

    def prepare(planned: PlannedRequest) -> PreparedRequest:
        encoded.append(planned.index)
        return request(planned.index, b"x" * 100)

    given: list[int] = []

    def planned() -> Iterator[PlannedRequest]:
        for index in range(6):
            given.append(index)
            yield PlannedRequest(index, 8, 1, text="x")

    # A request counts as its bytes, its prompt where that is kept, and 1 KiB.
    requests = PreparedJobs(planned(), prepare, budget_bytes=2 * (100 + 1024) + 1)
    assert encoded == [0, 1, 2]
    assert requests.lacks
    taken = []
    while not requests.exhausted:
        taken.append(taken_from(requests).index)
        requests.top_up()
        assert len(encoded) <= len(taken) + 3, "nothing is encoded before there is room for it"
        assert len(given) <= len(encoded) + 1
    assert taken == encoded == given == [0, 1, 2, 3, 4, 5]
    assert requests.begun == 6


def taken_from(requests: PreparedJobs) -> PreparedRequest:
    taken = requests.take()
    assert isinstance(taken, PreparedRequest)
    return taken


def test_requests_that_are_dropped_are_not_drawn():
    planned = iter([PlannedRequest(index, 8, 1, text="x") for index in range(9)])
    requests = PreparedJobs(planned, lambda plan: request(plan.index), budget_bytes=1)
    requests.drop()
    assert not requests.top_up()
    assert requests.exhausted
    assert len(list(planned)) == 7  # one is encoded, one is the next


def test_requests_beyond_any_budget_are_encoded_when_they_are_due():
    planned = iter([PlannedRequest(index, 8, 1, text="x") for index in range(3)])
    requests = PreparedJobs(planned, lambda plan: request(plan.index), budget_bytes=0)
    assert [taken_from(requests).index for _ in range(3)] == [0, 1, 2]
    assert requests.exhausted


def test_nothing_is_sent_after_a_halt():
    clock = VirtualClock()
    transport = SilentTransport()

    async def scenario() -> None:
        dispatcher = Dispatcher(transport, clock, ended.append)
        dispatcher.then = lambda _: dispatcher.dispatch(request(9), 0)
        dispatcher.dispatch(request(0), 0)
        dispatcher.dispatch(request(1), 0)
        assert dispatcher.peak_in_flight == 2
        dispatcher.halt("over")
        await dispatcher.drained()

    asyncio.run(scenario())
    assert len(transport.sent) == 2
    assert {(one.end, one.error) for one in ended} == {(End.CANCELLED, "over")}
