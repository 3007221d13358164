"""Loads that are defined by a time: how long they go on, where they end, what is said of what was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from planned_load import TextWorkload
from scripted_server import (
    DONE,
    HEAD,
    REPLY,
    Conversation,
    chunk,
    chunked,
    event,
    plain,
    reply,
    text_event,
)
from virtual_clock import SilentTransport, VirtualClock

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.dispatcher import Dispatcher
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.loops import Extent, JobLoop, Pacer
from pytest_llmbench.generator.prepared import PreparedJobs, PreparedRequest
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, OpenLoop
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.timing import LoopAlarm
from pytest_llmbench.workloads.sequence import sequence_sha256

S = 1_000_000_000


def digest_of(seen: Observation) -> str:
    """Of the first requests of the plan's sequence, as many as have a record."""
    plan = seen.plan
    return sequence_sha256(plan.workload.requests(plan.first + len(seen.records), plan.seed)[plan.first :])


def test_goes_on_until_the_time_has_passed(serve, generator_for, plan):
    wanted = plan(3, load=ClosedLoop(4), duration_s=0.5, max_requests=10_000, first=2)
    seen = generator_for(serve(reply(after_s=0.05))).run(wanted)
    records = seen.records
    until_ns = seen.started_ns + S // 2
    assert 4 < len(records) <= 44
    assert records.counts()["ok"] == len(records)
    assert seen.load_ended_ns == until_ns
    assert records.scheduled_ns.max() < until_ns
    assert records.index.tolist() == list(range(2, 2 + len(records)))
    assert seen.sequence_sha256 == digest_of(seen)
    # Until the end all slots are busy: the last ones are still in flight then.
    assert (records.finished_ns >= until_ns).sum() == 4
    assert seen.ended_ns == records.finished_ns.max()
    assert (seen.interrupted, seen.stopped, seen.in_flight_at_end) == (None, None, 0)


def test_goes_on_until_enough_were_sent(serve, generator_for, plan):
    wanted = plan(30, load=ClosedLoop(4), duration_s=0.05, max_requests=1000)
    seen = generator_for(serve(reply(after_s=0.02))).run(wanted)
    assert len(seen.records) == 30
    assert seen.load_ended_ns is not None
    assert seen.load_ended_ns > seen.started_ns + S // 20
    assert seen.records.dispatched_ns.max() <= seen.load_ended_ns <= seen.ended_ns


def test_the_ceiling_ends_it_before_the_time(serve, generator_for, plan):
    """A server that refuses at once is asked again at once, but no more often than that."""
    server = serve(reply(plain("429 Too Many Requests")))
    seen = generator_for(server).run(plan(5, load=ClosedLoop(8), duration_s=30.0, max_requests=60))
    assert seen.records.counts()["rate_limited"] == len(server.served) == 60
    assert seen.load_ended_ns is not None
    assert seen.records.dispatched_ns.max() <= seen.load_ended_ns < seen.started_ns + 30 * S
    assert seen.sequence_sha256 == digest_of(seen)


def test_without_a_ceiling_of_its_own_the_requests_are_the_ceiling(serve, generator_for, plan):
    seen = generator_for(serve(reply(REPLY))).run(plan(6, load=ClosedLoop(2), duration_s=30.0))
    assert len(seen.records) == 6


def test_a_ceiling_without_a_time_does_not_matter(serve, generator_for, plan):
    seen = generator_for(serve(reply(REPLY))).run(plan(6, load=ClosedLoop(2), max_requests=50))
    assert len(seen.records) == 6
    assert seen.load_ended_ns is None


def test_long_replies_do_not_prolong_the_load(serve, generator_for, plan):
    """The drain begins at the end of the time, although no request ends then."""
    deadlines = Deadlines(drain_s=0.3)
    wanted = plan(1, load=ClosedLoop(3), duration_s=0.2, max_requests=100, deadlines=deadlines)
    seen = generator_for(serve(reply(after_s=20))).run(wanted)
    assert seen.load_ended_ns == seen.started_ns + S // 5
    assert (len(seen.records), seen.in_flight_at_end) == (3, 3)


def test_an_open_loop_ends_with_its_nominal_time(serve, generator_for, plan):
    load = OpenLoop(rate=20.0, arrival="uniform")
    seen = generator_for(serve(reply(REPLY))).run(plan(4, load=load, duration_s=0.3))
    assert len(seen.records) == 4
    assert seen.load_ended_ns == seen.started_ns + 3 * S // 10
    assert generator_for(serve(reply(REPLY))).run(plan(1, load=load)).load_ended_ns is None


def test_a_load_cut_short_ended_there(serve, generator_for, plan):
    def script(conversation: Conversation) -> None:
        if len(server.served) == 20:
            generator.stop("enough")
        conversation.send(REPLY)

    server = serve(script)
    generator = generator_for(server)
    seen = generator.run(plan(1, load=ClosedLoop(2), duration_s=60.0, max_requests=2000))
    assert seen.interrupted == "enough"
    assert 20 <= len(seen.records) < 2000
    assert seen.load_ended_ns is not None
    assert seen.started_ns < seen.load_ended_ns < seen.started_ns + 60 * S
    assert seen.sequence_sha256 == digest_of(seen)


@pytest.mark.parametrize("duration_s", [0, -1.0, float("nan"), float("inf")])
def test_a_time_that_is_none(serve, generator_for, plan, duration_s):
    generator = generator_for("http://127.0.0.1:9/v1")
    with pytest.raises(SuiteError, match="duration is") as caught:
        generator.run(plan(-1, load=ClosedLoop(0), duration_s=duration_s))
    assert "3 mistakes" in str(caught.value)


# --- the loop alone, in virtual time


class Answering(SilentTransport):
    """Ends each request after ``service_ns`` of a clock that only it moves; order of ends as sent."""

    def __init__(self, clock: VirtualClock, service_ns: int) -> None:
        super().__init__()
        self.clock = clock
        self.service_ns = service_ns

    def send(self, exchange: Exchange) -> None:
        super().send(exchange)
        asyncio.get_running_loop().call_soon(self._end, exchange)

    def _end(self, exchange: Exchange) -> None:
        ends_ns = exchange.dispatched_ns + self.service_ns
        self.clock.now_ns = max(self.clock.now_ns, ends_ns)
        exchange.finish(End.COMPLETE, ends_ns)


def closed_loop(extent: Extent, there_are: int, service_ns: int = 10) -> tuple[list[int], int, bool]:
    """Offsets at which requests were due, offset of the load's end, and whether what was not sent was
    dropped."""
    clock = VirtualClock()
    transport = Answering(clock, service_ns)
    planned = iter([PlannedRequest(index, 8, 1, text="x") for index in range(there_are)])
    requests = PreparedJobs(planned, lambda one: PreparedRequest(f"r-{one.index}", b"x", one.index, 8, 1))
    start = clock.now_ns

    async def scenario() -> int:
        dispatcher = Dispatcher(transport, clock, lambda _: None)
        pacer = Pacer(clock, LoopAlarm(clock))
        loop = JobLoop(dispatcher, requests, pacer, clock, start, slots=1, starts_ns=iter(()), extent=extent)
        ended = await loop.run()
        await dispatcher.drained()
        return ended

    ended_ns = asyncio.run(scenario())
    return [sent.scheduled_ns - start for sent in transport.sent], ended_ns - start, requests.exhausted


@pytest.mark.parametrize(
    ("requests", "duration_ns", "there_are", "due", "ended"),
    [
        (3, 45, 100, [0, 10, 20, 30, 40], 45),  # the time decides; a request due at its end is not sent
        (3, 40, 100, [0, 10, 20, 30], 40),
        (6, 45, 100, [0, 10, 20, 30, 40, 50], 50),  # the number decides
        (3, 45, 4, [0, 10, 20, 30], 30),  # there are no more
        (3, 0, 3, [0, 10, 20], 20),  # no time given
        (0, 0, 0, [], 0),
    ],
)
def test_where_a_closed_loop_ends(requests, duration_ns, there_are, due, ended):
    found = closed_loop(Extent(requests, duration_ns / 1e9), there_are)
    assert found == (due, ended, True)


# --- what a record says


@dataclass(frozen=True)
class SharingWorkload(TextWorkload):
    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        planned: list[Mapping[str, Any]] = [{"prefix_id": 3, "shared_prefix_tokens": 64}, {}]
        return [
            PlannedRequest(index, 8, 100, text=f"prompt {index} of a hundred tokens", **planned[index % 2])
            for index in range(count)
        ]


def test_the_shared_prefix_as_planned(serve, generator_for, plan):
    seen = generator_for(serve(reply(REPLY))).run(plan(4, workload=SharingWorkload()))
    assert seen.records.shared_prefix_tokens.tolist() == [64, 0, 64, 0]
    assert seen.records.prefix_id.tolist() == [3, -1, 3, -1]


def test_what_the_server_says_of_a_request(serve, generator_for, plan):
    timed = {"choices": [{"index": 0, "delta": {"content": "a"}}], "token_times_ns": [11, 12]}
    end = {
        "choices": [],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
        "timings": {"queue_ms": 2.5, "prompt_ms": 4, "preemptions": 1, "preempted_tokens": 48},
    }
    body = HEAD + chunked([event(timed), text_event("", "stop"), event(end), DONE])
    records = generator_for(serve(reply(body))).run(plan(2)).records
    assert records.queue_wait_ns.tolist() == [2_500_000] * 2
    assert records.prefill_ns.tolist() == [4_000_000] * 2
    assert (records.preemptions.tolist(), records.preempted_tokens.tolist()) == ([1, 1], [48, 48])
    assert records.server_token_offsets.tolist() == [0, 2, 4]
    assert records.server_token_ns.tolist() == [11, 12, 11, 12]


def test_instants_that_came_before_a_cut_are_kept(serve, generator_for, plan):
    timed = {"choices": [{"index": 0, "delta": {"content": "a"}}], "token_times_ns": [11]}

    def script(conversation: Conversation) -> None:
        conversation.send(HEAD + chunk(event(timed)))
        conversation.close()

    records = generator_for(serve(script)).run(plan(1)).records
    assert records.counts()["disconnected"] == 1
    assert records.server_token_ns.tolist() == [11]
