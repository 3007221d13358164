"""Sessions in virtual time: every instant and every cached token is known beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine_runs import installed
from replayed import assert_all_is_cached, rows_by_turn

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.messages import Message
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Load, LoadPlan, OpenLoop, SessionSlots, SessionStarts
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.adapted import Cuts
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sequence import drawn_sha256
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM
from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, TraceSessionWorkload

BLOCK = 16
CHAT = SessionWorkload(
    "chat", Uniform(1, 8), Uniform(10, 90), Uniform(5, 60), Uniform(100, 4000), system_tokens=330
)
AGENT = SessionWorkload(
    "agent", Fixed(9), Uniform(10, 90), Uniform(5, 60), Fixed(700), system_tokens=330, fan_out=3
)


def run(
    workload: SessionWorkload | TraceSessionWorkload,
    load: Load,
    sessions: int = 20,
    scenario: str = "fast?prefix_caching=true&kv_blocks=20000",
) -> Observation:
    plan = LoadPlan("sessions", workload, load, turns_of(workload, sessions, 3), seed=3)
    return ReplayEngine(parse_scenario(scenario)).run(plan)


@pytest.mark.parametrize("workload", [CHAT, AGENT], ids=["in a row", "fan-out"])
@pytest.mark.parametrize("load", [SessionStarts(2.0), SessionSlots(4)], ids=["open", "closed"])
def test_cached_tokens_by_turn_equal_the_closed_form(workload: SessionWorkload, load: Load) -> None:
    seen = run(workload, load)
    records, rows = seen.records, rows_by_turn(seen.records)
    planned = workload.requests(len(records), 3)
    assert len(rows) == len(records) == len(planned)
    assert records.ok.all()
    first_end_ns = records.finished_ns.min()
    for request in planned:
        turn = request.turn
        assert turn is not None
        row = rows[turn.session, turn.number]
        # Full blocks only, and one token at least is left to compute.
        most = min(request.shared_prefix_tokens, request.input_tokens - 1) // BLOCK * BLOCK
        if turn.number == 1 and records.submitted_ns[row] < first_end_ns:
            assert records.cached_tokens[row] in (0, most)  # nobody may have computed the beginning yet
        else:
            assert records.cached_tokens[row] == most
        assert records.input_tokens[row] == request.input_tokens
        assert records.session_turns[row] == turn.turns


@pytest.mark.parametrize("workload", [CHAT, AGENT], ids=["in a row", "fan-out"])
def test_turns_are_due_at_the_last_end_they_wait_for_and_the_pause(workload: SessionWorkload) -> None:
    seen = run(workload, SessionStarts(2.0))
    records, rows = seen.records, rows_by_turn(seen.records)
    starts = schedule_ns(OpenLoop(2.0), 20, arrival_seed(3)) + seen.started_ns
    for request in workload.requests(len(records), 3):
        turn = request.turn
        assert turn is not None
        ends = [records.finished_ns[rows[turn.session, number]] for number in turn.wait_for]
        assert records.scheduled_ns[rows[turn.session, turn.number]] == (
            max(ends) + turn.pause_ns if ends else starts[turn.session]
        )
    assert seen.sequence_sha256 == drawn_sha256(workload, 0, len(records), 3)
    assert seen.selfcheck.send_lag_p99_ns == 0


def test_turns_of_a_trace_find_what_its_blocks_say_and_no_more() -> None:
    """Also where a prompt has only a part of the one that it goes on from: the rest of that is no hit."""
    turns = (
        TracedTurn(330, 8, hash_ids=(0, 1, 2, 3, 4, 5)),
        TracedTurn(400, 8, (1,), 100.0, (0, 1, 2, 6, 7, 8, 9)),
        TracedTurn(400, 8, (2,), 100.0, (0, 1, 2, 6, 7, 8, 9)),
        TracedTurn(120, 8, (3,), 100.0, (0, 1)),
        TracedTurn(300, 8, (4,), 100.0, (20, 21, 22, 23, 24)),
        TracedTurn(350, 8, (5,), 100.0),
        TracedTurn(350, 8, (6,), 100.0),
    )
    workload = TraceSessionWorkload(
        "recorded",
        tuple(TracedSession(turns, 20_000.0 * number) for number in range(3)),
        DatasetIdentity("made up", "1", "all"),
        block_tokens=64,
    )
    load = SessionStarts(0.05, "trace", offsets_ns=workload.offsets_ns)
    seen = run(workload, load, sessions=3)
    records, rows = seen.records, rows_by_turn(seen.records)
    found = [[records.cached_tokens[rows[n, turn]] for turn in range(1, 8)] for n in range(3)]
    first = [0, 192, 384, 112, 0, 288, 0]  # full blocks of 16, and one token at least is left to compute
    assert found[0] == first
    assert found[1] == found[2] == [320, 384, 384, 112, 288, 288, 0]
    assert_all_is_cached(records, workload, 3)
    starts = records.scheduled_ns[records.turn == 1] - seen.started_ns
    assert sorted(starts.tolist()) == [0, 20_000_000_000, 40_000_000_000]
    assert seen.sequence_sha256 == drawn_sha256(workload, 0, len(records), 3)


def test_a_closed_loop_keeps_so_many_sessions_going_and_replaces_each_at_its_end() -> None:
    seen = run(CHAT, SessionSlots(4))
    records = seen.records
    begun, over = [], []
    for session in range(20):
        own = records.session == session
        begun.append(int(records.scheduled_ns[own].min()))
        over.append(int(records.finished_ns[own].max()))
    assert sorted(begun)[:4] == [seen.started_ns] * 4
    assert sorted(begun)[4:] == sorted(over)[:16]
    assert begun == sorted(begun)
    assert seen.sequence_sha256 == drawn_sha256(CHAT, 0, len(records), 3)


def test_a_failed_turn_cuts_its_session_off_and_no_other() -> None:
    faulty = "fast?fault=http_error&fault_from=10&fault_count=3"
    for load in (SessionStarts(2.0), SessionSlots(4)):
        seen = run(CHAT, load, scenario=faulty)
        records = seen.records
        failed = {int(session) for session in records.session[~records.ok]}
        assert len(failed) == 3
        for session in range(20):
            own = records.session == session
            turns = int(records.session_turns[own][0])
            if session in failed:
                assert not records.ok[own][np.argmax(records.turn[own])]
                assert records.turn[own].tolist() == list(range(1, int(own.sum()) + 1))
            else:
                assert int(own.sum()) == turns
        # The identity is that of the sessions, whatever became of them.
        assert seen.sequence_sha256 == drawn_sha256(CHAT, 0, turns_of(CHAT, 20, 3), 3)


def test_the_same_seed_gives_the_same_records_and_a_part_goes_on_where_another_ended() -> None:
    one, two = run(CHAT, SessionSlots(3)), run(CHAT, SessionSlots(3))
    assert one.records.finished_ns.tolist() == two.records.finished_ns.tolist()
    first, count = turns_of(CHAT, 5, 3), turns_of(CHAT, 4, 3, first=5)
    plan = LoadPlan("later", CHAT, SessionStarts(2.0), count, seed=3, first=first)
    seen = ReplayEngine(parse_scenario("fast")).run(plan)
    assert sorted(set(seen.records.session.tolist())) == [5, 6, 7, 8]
    starts = schedule_ns(OpenLoop(2.0), 9, arrival_seed(3))
    firsts = seen.records.scheduled_ns[seen.records.turn == 1] - seen.started_ns
    assert firsts.tolist() == (starts[5:] - starts[4]).tolist()


def test_what_is_no_load_of_sessions_is_refused_before_anything_is_sent() -> None:
    engine = ReplayEngine(parse_scenario("fast"))
    plain = LoadPlan("plain", SYNTHETIC_UNIFORM, SessionSlots(2), 10, seed=1)
    with pytest.raises(SuiteError, match="request 0 belongs to no session"):
        engine.run(plain)
    with pytest.raises(SuiteError) as caught:
        engine.run(plain.with_(load=SessionSlots(0), duration_s=3.0))
    assert "0 sessions at once, least is 1" in str(caught.value)
    assert "no duration" in str(caught.value)


def test_plain_requests_belong_to_no_session() -> None:
    seen = ReplayEngine(parse_scenario("fast")).run(LoadPlan("p", SYNTHETIC_UNIFORM, OpenLoop(20), 5, seed=1))
    for column in (seen.records.session, seen.records.turn, seen.records.session_turns):
        assert (column == MISSING).all()


def test_loads_of_sessions_and_of_requests_have_different_keys() -> None:
    plan = LoadPlan("k", CHAT, OpenLoop(2.0), 5, seed=1)
    assert plan.key != plan.with_(load=SessionStarts(2.0)).key


def said_to(request: PlannedRequest) -> tuple[Message, ...]:
    assert request.messages is not None
    return request.messages.messages


LIVE = [replace(workload, answers="live") for workload in (CHAT, AGENT)]


@pytest.mark.parametrize("workload", LIVE, ids=["in a row", "fan-out"])
@pytest.mark.parametrize("load", [SessionStarts(2.0), SessionSlots(4)], ids=["open", "closed"])
@pytest.mark.parametrize(
    "engines", installed("", "&replicas=2&router=prefix", "&prefill_workers=1&decode_workers=2")
)
def test_prompts_hold_the_live_answers_and_the_cache_finds_them(
    workload: SessionWorkload, load: Load, engines: str
) -> None:
    """A prompt is the one before it, what the engine answered to that, and the question."""
    scenario = f"fast?prefix_caching=true&kv_blocks=20000&eos_mean_tokens=30{engines}"
    records = run(workload, load, scenario=scenario).records
    rows = rows_by_turn(records)
    assert records.ok.all()
    shorter = 0
    for request in workload.requests(len(records), 3):
        turn = request.turn
        assert turn is not None
        row = rows[turn.session, turn.number]
        assert records.input_tokens[row] == records.requested_input_tokens[row]
        if not turn.reads:
            continue
        before = rows[turn.session, turn.wait_for[0]]
        answered = sum(int(records.output_tokens[rows[turn.session, n]]) for n in turn.reads)
        ceilings = sum(int(records.requested_max_tokens[rows[turn.session, n]]) for n in turn.reads)
        shorter += answered < ceilings
        # Between the answers of several turns there are two line breaks.
        breaks = sum(max(0, len(m.live.turns) - 1) for m in said_to(request) if m.live is not None)
        longer = int(records.input_tokens[row]) - (request.input_tokens - ceilings + answered)
        assert 0 <= longer <= breaks
        if not engines:
            assert records.cached_tokens[row] == records.input_tokens[before] // BLOCK * BLOCK
        assert records.shared_prefix_tokens[row] == MISSING
    assert shorter, "no reply ended before its ceiling"


def test_the_same_replay_says_the_same() -> None:
    first, again = (run(LIVE[0], SessionSlots(4)).records for _ in range(2))
    assert first.input_tokens.tolist() == again.input_tokens.tolist()
    assert first.finished_ns.tolist() == again.finished_ns.tolist()


def test_of_a_reply_that_was_cut_what_had_been_read_stands_in_the_history() -> None:
    cuts = Cuts(0.5, Uniform(5, 60))
    workload = SessionWorkload("cut", Fixed(5), Fixed(40), Fixed(400), cuts=cuts, answers="live")
    records = run(workload, SessionSlots(3)).records
    rows = rows_by_turn(records)
    part = 0
    for request in workload.requests(len(records), 3):
        turn = request.turn
        assert turn is not None
        if not turn.reads:
            continue
        read = [max(0, int(records.output_tokens[rows[turn.session, n]])) for n in turn.reads]
        part += any(0 < each < 400 for each in read)
        row = rows[turn.session, turn.number]
        # Where nothing had come, two messages of the user are one, with two line breaks in between.
        assert 0 <= records.input_tokens[row] - 40 * turn.number - sum(read) <= 2 * read.count(0)
    assert part
