"""Sessions over sockets: turns leave when what they wait for has ended, and not at all once cut off."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from scripted_server import DONE, HEAD, REPLY, Conversation, chunked, event, plain

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import OpenLoop, SessionSlots, SessionStarts
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sequence import drawn_sha256
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of
from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, TraceSessionWorkload

CHAT = SessionWorkload("chat", Fixed(4), Fixed(6), Fixed(5), Fixed(40), system_tokens=12)
AGENT = SessionWorkload("agent", Fixed(5), Fixed(6), Fixed(5), fan_out=3)
IN_BAND = HEAD + chunked((event({"error": {"message": "out of memory", "type": "server_error"}}), DONE))


class Answers:
    """Replies after 20 ms; the n-th request of all gets another reply."""

    def __init__(self, **others: bytes) -> None:
        self._others = {int(name[1:]): reply for name, reply in others.items()}
        self._count = 0
        self._lock = threading.Lock()

    def __call__(self, conversation: Conversation) -> None:
        with self._lock:
            number, self._count = self._count, self._count + 1
        conversation.wait(0.02)
        conversation.send(self._others.get(number, REPLY))


def assert_caused(seen: Observation, workload: SessionWorkload | TraceSessionWorkload) -> None:
    """Every turn was due when what it waits for had ended and the pause was over, and left then."""
    records = seen.records
    rows = {
        place: row
        for row, place in enumerate(zip(records.session.tolist(), records.turn.tolist(), strict=True))
    }
    for request in workload.requests(turns_of(workload, 6, 1), 1):
        turn = request.turn
        assert turn is not None
        row = rows.get((turn.session, turn.number))
        if row is None or not turn.wait_for:
            continue
        ends = [records.finished_ns[rows[turn.session, number]] for number in turn.wait_for]
        assert records.scheduled_ns[row] == max(ends) + turn.pause_ns
        assert records.dispatched_ns[row] >= records.scheduled_ns[row]


@pytest.mark.parametrize("workload", [CHAT, AGENT], ids=["in a row", "fan-out"])
def test_sessions_by_slots(serve, generator_for, plan, workload):
    server = serve(Answers())
    count = turns_of(workload, 6, 1)
    seen = generator_for(server).run(plan(count, workload=workload, load=SessionSlots(2)))
    records = seen.records
    assert records.counts()["ok"] == count
    assert_caused(seen, workload)
    firsts = sorted(records.scheduled_ns[records.turn == 1].tolist())
    overs = sorted(int(records.finished_ns[records.session == session].max()) for session in range(6))
    assert firsts == [seen.started_ns] * 2 + overs[:4]
    assert seen.sequence_sha256 == drawn_sha256(workload, 0, count, 1)
    assert seen.selfcheck.send_lag_max_ns is not None
    # The growing context is really sent.
    asked = [json.loads(served.body)["messages"][0]["content"] for served in server.served]
    begun = [text for text in asked if any(other != text and other.startswith(text) for other in asked)]
    assert len(begun) == (18 if workload is CHAT else 12)


def test_sessions_of_a_trace_at_its_instants(serve, generator_for, plan):
    """The first of the turns that the last one waits for is not the one that was sent first."""
    turns = (
        TracedTurn(20, 5, hash_ids=(0, 1)),
        TracedTurn(24, 5, (1,), 30.0, (0, 2)),
        TracedTurn(24, 5, (1,), 10.0, (0, 3)),
        TracedTurn(40, 5, (3, 2), 5.0, (0, 3, 4)),
    )
    workload = TraceSessionWorkload(
        "recorded",
        tuple(TracedSession(turns, at) for at in (0.0, 50.0, 50.0, 120.0, 121.5, 200.0)),
        DatasetIdentity("made up", "1", "all"),
        block_tokens=16,
    )
    load = SessionStarts(30.0, "trace", offsets_ns=workload.offsets_ns)
    server = serve(Answers())
    seen = generator_for(server).run(plan(24, workload=workload, load=load))
    records = seen.records
    assert records.counts()["ok"] == 24
    assert_caused(seen, workload)
    first = records.turn == 1
    begun = dict(zip(records.session[first].tolist(), records.scheduled_ns[first].tolist(), strict=True))
    assert begun == {n: seen.started_ns + at for n, at in enumerate(workload.offsets_ns)}
    assert seen.sequence_sha256 == drawn_sha256(workload, 0, 24, 1)
    assert len({json.loads(served.body)["messages"][0]["content"] for served in server.served}) == 4


def test_sessions_by_a_schedule(serve, generator_for, plan):
    wanted = plan(turns_of(CHAT, 6, 1), workload=CHAT, load=SessionStarts(20.0))
    seen = generator_for(serve(Answers())).run(wanted)
    records = seen.records
    assert records.counts()["ok"] == 24
    assert_caused(seen, CHAT)
    starts = schedule_ns(OpenLoop(20.0), 6, arrival_seed(1)) + seen.started_ns
    first = records.turn == 1
    assert dict(
        zip(records.session[first].tolist(), records.scheduled_ns[first].tolist(), strict=True)
    ) == dict(enumerate(starts.tolist()))


@pytest.mark.parametrize(
    "bad", [plain("500 Internal Server Error", b"{}"), IN_BAND], ids=["by its status", "within a stream"]
)
def test_a_bad_reply_cuts_its_session_off(serve, generator_for, plan, bad):
    # Closed loop of one: requests 0 to 3 are session 0, the sixth is turn 2 of session 1.
    wanted = plan(turns_of(CHAT, 6, 1), workload=CHAT, load=SessionSlots(1))
    seen = generator_for(serve(Answers(n5=bad))).run(wanted)
    records = seen.records
    assert len(records) == 22
    assert records.turn[records.session == 1].tolist() == [1, 2]
    assert records.ok[records.session == 1].tolist() == [True, False]
    assert records.counts()["ok"] == 21
    assert (seen.interrupted, seen.in_flight_at_end) == (None, 0)
    assert seen.sequence_sha256 == drawn_sha256(CHAT, 0, 24, 1)


def test_a_workload_of_no_sessions_is_refused(serve, generator_for, plan):
    server = serve(Answers())
    with pytest.raises(SuiteError, match="belongs to no session"):
        generator_for(server).run(plan(3, load=SessionSlots(1)))
    assert server.served == []


def test_a_load_of_sessions_can_be_stopped_while_all_of_them_pause(serve, generator_for, plan):
    slow = SessionWorkload("slow", Fixed(3), Fixed(6), Fixed(5), Fixed(60_000))
    generator = generator_for(serve(Answers()))
    timer = threading.Timer(0.3, generator.stop, ("enough",))
    timer.start()
    seen = generator.run(plan(9, workload=slow, load=SessionSlots(3)))
    timer.join()
    assert seen.interrupted == "enough"
    assert len(seen.records) == 3


def test_plain_requests_have_no_place_in_a_session(serve, generator_for, plan):
    records: Any = generator_for(serve(Answers())).run(plan(2)).records
    assert records.session.tolist() == records.turn.tolist() == [MISSING] * 2
