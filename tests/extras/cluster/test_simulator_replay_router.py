"""Several replicas behind a router in virtual time: what one engine does, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replayed import (
    CHAT,
    MIXED,
    WITH_SYSTEM,
    assert_all_is_cached,
    assert_read_in_time,
    columns,
    everything,
    fixed,
    replay,
)

from pytest_llmbench.extras.cluster.engines import RouterPolicy
from pytest_llmbench.model.facts import Origin
from pytest_llmbench.model.observation import TIME_IS_UP
from pytest_llmbench.model.plan import (
    ClosedLoop,
    Deadlines,
    Load,
    LoadPlan,
    OpenLoop,
    SessionSlots,
    SessionStarts,
)
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import OUTCOMES
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.faults import FaultSchedule
from pytest_llmbench.simulator.replay import run as replay_run
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.replay.load import Arrivals, Delays, PlannedJobs
from pytest_llmbench.simulator.replay.records import RecordOptions, ReplayLog
from pytest_llmbench.simulator.replay.replica import readings_of
from pytest_llmbench.simulator.replay.run import ReplayRun
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

BLOCK = 16
EQUAL = SyntheticWorkload("equal", Fixed(64), Fixed(32))
CACHED = "fast?prefix_caching=true&kv_blocks=20000"


def chats(workload: SessionWorkload, load: Load, sessions: int) -> LoadPlan:
    return LoadPlan("chats", workload, load, turns_of(workload, sessions, 3), seed=3)


def test_one_replica_is_what_there_is_without_the_option() -> None:
    for plan in (LoadPlan("open", MIXED, OpenLoop(40.0), 120, seed=7), chats(CHAT, SessionSlots(3), 9)):
        assert everything(replay("fast?replicas=1", plan)) == everything(replay("fast", plan))


def played(preset: str, plan: LoadPlan, *, alone: bool) -> list[object]:
    scenario = parse_scenario(preset)
    engine, delays = Engine(scenario.engine), Delays()
    log = ReplayLog(RecordOptions(plan.phase, "r", scenario), None)
    playing = ReplayRun(
        (engine,),
        Arrivals(plan, PlannedJobs(plan), 1000, delays.to_engine_ns),
        plan,
        faults=FaultSchedule(scenario.faults, scenario.engine.seed),
        delays=delays,
        start_ns=1000,
        keep=log.keep,
    )
    playing.alone = alone
    playing.play()
    readings = readings_of(playing.replicas, {}, {})
    gauges = {name: values.tolist() for name, values in readings.gauges.items()}
    return [columns(log.records()), gauges, engine.totals, playing.stopped, playing.interrupted]


@pytest.mark.parametrize(
    "options",
    [
        "max_num_seqs=4&input_filter=enabled&input_filter_us=40000",
        "kv_blocks=40&context_limit_tokens=512",
        "kv_blocks=40&context_limit_tokens=512&preemption=off&out_of_memory=engine&recovery_ms=700",
        "output_filter=enabled&output_filter_window_tokens=16&output_refusal_share=0.2",
        "eos_mean_tokens=40&max_num_batched_tokens=128&prefix_caching=on",
        "fault=reset,stall&fault_rate=0.1&fault_after_tokens=7",
    ],
)
@pytest.mark.parametrize(
    "plan",
    [
        LoadPlan("busy", MIXED, OpenLoop(40.0), 120, seed=7),
        LoadPlan("slots", MIXED, ClosedLoop(9), 80, seed=7),
        LoadPlan("sessions", WITH_SYSTEM, SessionSlots(5), turns_of(WITH_SYSTEM, 12, 7), seed=7),
    ],
    ids=lambda plan: plan.label,
)
def test_one_engine_that_goes_from_step_to_step_sees_the_same(options: str, plan: LoadPlan) -> None:
    """What arrives during a step is taken in at its end, or at its own instant: same truth.

    A crash is left out: one engine looks at what arrived during a step when the step is over.
    """
    preset = f"fast?step_base_us=9000&{options}"
    assert played(preset, plan, alone=False) == played(preset, plan, alone=True)


@pytest.mark.parametrize("policy", ["round_robin", "least_loaded", "session", "prefix"])
def test_saturated_replicas_do_so_many_times_the_work_of_one(policy: RouterPolicy) -> None:
    """Equal requests fill all replicas alike: in the time of one engine, four do four times as many."""
    one = replay("fast?max_num_seqs=8", LoadPlan("one", EQUAL, ClosedLoop(8), 160, seed=1))
    four = replay(
        f"fast?max_num_seqs=8&replicas=4&router={policy}",
        LoadPlan("four", EQUAL, ClosedLoop(32), 640, seed=1),
    )
    assert four.records.ok.all()
    assert four.ended_ns - four.started_ns == one.ended_ns - one.started_ns
    assert four.engine is not None
    assert four.engine.max_num_seqs == 32
    assert four.engine.gauges["running"].max() == 32
    assert four.engine.totals_after["generated_tokens"] == 640 * 32


def test_an_overloaded_open_loop_drains_as_many_times_faster() -> None:
    plan = LoadPlan("flood", MIXED, OpenLoop(20_000.0), 2000, seed=5, deadlines=Deadlines(600, 600, 600, 600))
    one = replay("fast?max_num_seqs=4", plan)
    three = replay("fast?max_num_seqs=4&replicas=3&router=least_loaded", plan)
    lasted = [seen.ended_ns - seen.started_ns for seen in (one, three)]
    assert lasted[0] / lasted[1] == pytest.approx(3, rel=0.03)


def common_blocks(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) // BLOCK * BLOCK


@pytest.mark.parametrize("replicas", [2, 3])
def test_cached_tokens_under_round_robin_are_those_of_a_model_by_hand(replicas: int) -> None:
    """One session at a time: the k-th request goes to replica k modulo R, and finds there the most that its
    prompt has in common with an earlier one of that replica."""
    seen = replay(f"{CACHED}&replicas={replicas}", chats(WITH_SYSTEM, SessionSlots(1), 12))
    records = seen.records
    prompts: list[list[Sequence[int]]] = [[] for _ in range(replicas)]
    expected = []
    for number, request in enumerate(WITH_SYSTEM.requests(len(records), 3)):
        ids, earlier = request.token_ids, prompts[number % replicas]
        assert ids is not None
        most = (len(ids) - 1) // BLOCK * BLOCK
        expected.append(min(most, max((common_blocks(ids, other) for other in earlier), default=0)))
        earlier.append(ids)
    assert records.cached_tokens.tolist() == expected


@pytest.mark.parametrize("policy", ["prefix", "session"])
@pytest.mark.parametrize("load", [SessionStarts(3.0), SessionSlots(9)], ids=["open", "closed"])
def test_where_sessions_stay_cached_tokens_by_turn_equal_the_closed_form(
    policy: RouterPolicy, load: Load
) -> None:
    seen = replay(f"{CACHED}&replicas=3&router={policy}", chats(CHAT, load, 40))
    records = seen.records
    assert_all_is_cached(records, CHAT, 3)
    turned = replay(f"{CACHED}&replicas=3", chats(CHAT, load, 40)).records
    assert turned.cached_tokens.sum() < 0.8 * records.cached_tokens.sum()


def test_a_shared_beginning_draws_sessions_together_until_one_replica_leads_too_far() -> None:
    """Twelve sessions at once, all of one system prompt: how many replicas compute it."""
    plan = LoadPlan("burst", WITH_SYSTEM, SessionStarts(1.0), turns_of(WITH_SYSTEM, 30, 3), seed=3)
    missed = []
    for lead in (0, 256):
        records = replay(f"{CACHED}&replicas=3&router=prefix&router_max_lead={lead}", plan).records
        missed.append(int((records.cached_tokens == 0).sum()))
    assert missed == [3, 1]


def test_counters_add_up_over_the_replicas() -> None:
    seen = replay(f"{CACHED}&replicas=3", chats(WITH_SYSTEM, SessionSlots(5), 30))
    records, readings = seen.records, seen.engine
    assert readings is not None
    assert readings.grown("prefix_queries_tokens") == records.input_tokens.sum()
    assert readings.grown("prefix_hits_tokens") == records.cached_tokens.sum()
    assert readings.grown("prompt_tokens") == (records.input_tokens - records.cached_tokens).sum()
    assert readings.grown("generated_tokens") == records.output_tokens.sum()
    assert readings.grown("requests_finished") == len(records)


def test_gauges_are_those_of_all_replicas_at_each_instant() -> None:
    """Two replicas with one long request each, the second one a second later."""
    long = SyntheticWorkload("long", Fixed(1600), Fixed(400))
    plan = LoadPlan("two", long, OpenLoop(1.0, "uniform"), 2, seed=1)
    preset = "fast?step_base_us=10000&prefill_us_per_token=0&decode_us_per_sequence=0&kv_us_per_token=0"
    seen = replay(f"{preset}&replicas=2", plan)
    assert seen.engine is not None
    running = seen.engine.gauges["running"]
    begun = (seen.records.submitted_ns - seen.started_ns) / 1e9
    at_s = (seen.engine.at_ns - seen.started_ns) / 1e9
    expected = [sum(bool(start < at <= start + 4.0) for start in begun) for at in at_s]
    assert running.tolist() == expected
    assert max(expected) == 2
    both = running == 2
    one = replay(preset, plan.with_(requests=1)).engine
    assert one is not None
    assert seen.engine.gauges["kv_use"][both].max() == pytest.approx(one.gauges["kv_use"].max(), rel=0.1)


@pytest.mark.parametrize(
    "engines", ["replicas=2&router=least_loaded", "prefill_workers=1&decode_workers=2&fault_after_tokens=3"]
)
def test_a_crash_takes_one_engine_that_decodes_and_the_router_goes_round_it(engines: str) -> None:
    crash = "fault=crash&fault_count=1&fault_from=20&recovery_ms=300000"
    plan = LoadPlan("crash", MIXED, ClosedLoop(6), 100, seed=2)
    records = replay(f"fast?{crash}&{engines}", plan).records
    lost = records.outcome == OUTCOMES.index(Outcome.DISCONNECTED)
    assert 1 <= lost.sum() <= 4  # the requests of one of two
    assert (records.outcome[~lost] == OUTCOMES.index(Outcome.OK)).all()
    alone = replay(f"fast?{crash}", plan.with_(stop_when_failing=False)).records
    assert (alone.http_status == 503).any()


CUTS: list[dict[str, object]] = [
    {"most_s": 0.35},
    {"deadlines": Deadlines(between_chunks_s=0.3, total_s=0.8, drain_s=0.05)},
    {"deadlines": Deadlines(between_chunks_s=0.05, total_s=0.4, drain_s=30)},
]


@pytest.mark.parametrize("cut", CUTS, ids=["most_s", "drain", "deadlines"])
def test_nothing_is_read_after_a_request_was_given_up(cut: dict[str, object]) -> None:
    plan = LoadPlan("cut", MIXED, OpenLoop(300.0), 200, seed=7).with_(**cut)
    engine = ReplayEngine(parse_scenario("fast?step_base_us=40000&replicas=3&router=least_loaded"))
    seen = engine.run(plan)
    records = seen.records
    given_up = np.isin(records.outcome, [OUTCOMES.index(Outcome.CANCELLED), OUTCOMES.index(Outcome.TIMEOUT)])
    assert given_up.any()
    if "most_s" in cut:
        assert seen.interrupted == TIME_IS_UP
    assert_read_in_time(records, apart_ns=1)
    # What was given up has left the replicas: the next plan finds them empty.
    later = LoadPlan("later", EQUAL, ClosedLoop(3), 9, seed=1)
    fresh = replay("fast?step_base_us=40000&replicas=3&router=least_loaded", later).records
    found = engine.run(later).records
    assert (found.first_content_ns - found.submitted_ns).tolist() == (
        fresh.first_content_ns - fresh.submitted_ns
    ).tolist()


def test_a_long_plan_hands_over_what_ended_and_keeps_its_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    """More requests than are handed over at once; none meets another, so all have the same times."""
    monkeypatch.setattr(replay_run, "BATCH", 1000)
    plan = LoadPlan(
        "long", SyntheticWorkload("tiny", Fixed(8), Fixed(3)), OpenLoop(100.0, "uniform"), 2500, 1
    )
    preset = "fast?step_base_us=1000&prefill_us_per_token=0&decode_us_per_sequence=0&kv_us_per_token=0"
    records = replay(f"{preset}&replicas=3", plan).records
    assert len(records) == 2500
    assert set((records.first_content_ns - records.submitted_ns).tolist()) == {1_050_000}
    assert set(np.diff(records.chunk_ns.reshape(-1, 3), axis=1).ravel().tolist()) == {1_000_000}


def test_the_same_seed_gives_the_same_records_and_replicas_draw_lengths_of_their_own() -> None:
    plan = LoadPlan("eos", MIXED, ClosedLoop(8), 64, seed=1)
    preset = "fast?eos_mean_tokens=30&replicas=2"
    one, again = replay(preset, plan), replay(preset, plan)
    assert everything(one) == everything(again)
    lengths = one.records.output_tokens
    assert lengths[0:16:2].tolist() != lengths[1:16:2].tolist()


def test_what_is_routed_is_disclosed() -> None:
    engine = ReplayEngine(parse_scenario("h100-70b-tp4?replicas=4&router=prefix"))
    facts = engine.disclosure()
    assert (facts.value("sut.replicas"), facts.value("sut.router")) == (4, "prefix")
    assert facts["sut.router"].origin is Origin.SIMULATED
    assert facts.value("sut.hardware.accelerator_count") == 16
    assert facts.value("sut.boundary") == "application_gateway"  # load balancing is outside of an engine
    assert "router (prefix, lead 16) before 4 replicas" in facts.value("sut.components")
    assert facts.value("streaming.protocol") == "sse"
    assert "4 replicas behind a router (prefix)" in str(engine.note)
    versions = {
        ReplayEngine(parse_scenario(f"fast{options}")).disclosure().value("sut.model.version")
        for options in ("", "?replicas=2", "?replicas=2&router=prefix", "?replicas=3")
    }
    assert len(versions) == 4
    variant = engine.variant("turns", {"router": "round_robin"})
    stated = variant.run(LoadPlan("v", EQUAL, ClosedLoop(2), 4, seed=1)).facts
    assert stated.value("sut.router") == "round_robin"
    alone = ReplayEngine(parse_scenario("fast")).disclosure()
    assert (alone.value("sut.replicas"), alone.value("sut.router")) == (1, "none")


routed = st.builds(
    "&replicas={}&router={}".format,
    st.integers(2, 5),
    st.sampled_from(["round_robin", "least_loaded", "prefix", "session"]),
)
apart = st.builds(
    "&prefill_workers={}&decode_workers={}&kv_transfer_latency_us={}".format,
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([500, 60_000]),
)
STAGES = [
    "",
    "&max_waiting=1",
    "&input_filter=enabled&output_filter=enabled&input_refusal_share=0.1&output_refusal_share=0.1",
    "&fault=reset,http_error,crash,stall&fault_rate=0.2&recovery_ms=200",
    "&kv_blocks=40&context_limit_tokens=512",
    "&kv_blocks=40&context_limit_tokens=512&preemption=swap",
    "&kv_blocks=40&context_limit_tokens=512&preemption=off&out_of_memory=engine&recovery_ms=300",
    "&think_mean_tokens=20&scheduler=phase&max_think_seqs=2&kv_blocks=60&context_limit_tokens=512",
]

_CHATS = LoadPlan("chats", WITH_SYSTEM, SessionSlots(6), turns_of(WITH_SYSTEM, 7, 3), seed=3)


@given(
    engines=st.one_of(routed, apart),
    places=st.integers(1, 6),
    stages=st.sampled_from(STAGES),
    cut=st.sampled_from([{}, {}, {}, *CUTS]),
    plan=st.sampled_from(
        [
            LoadPlan("open", MIXED, OpenLoop(120.0), 40, seed=3),
            LoadPlan("slots", MIXED, ClosedLoop(11), 40, seed=3),
            _CHATS,
        ]
    ),
)
@example(engines="&replicas=3&router=prefix", places=4, stages="", cut={}, plan=_CHATS)
@settings(max_examples=100)
def test_every_request_ends_once_and_the_counters_know_all_of_it(
    engines: str, places: int, stages: str, cut: dict[str, object], plan: LoadPlan
) -> None:
    """Afterwards no engine holds a block, and the same seed gives the same again."""
    scenario = parse_scenario(f"fast?prefix_caching=on&max_num_seqs={places}{engines}{stages}")
    plan = plan.with_(most_failures=10_000, **cut)
    engine = ReplayEngine(scenario)
    seen = engine.run(plan)
    records, readings = seen.records, seen.engine
    assert readings is not None
    if not cut:
        assert seen.in_flight_at_end == 0
        if not plan.load.of_sessions:  # a failed turn ends its session
            assert len(records) == plan.requests
    assert len(set(records.request_id)) == len(records)
    assert (records.finished_ns >= records.submitted_ns).all()
    assert readings.gauges["running"].max(initial=0) <= places * scenario.deployment.engines
    assert readings.gauges["kv_use"].max(initial=0) <= 1
    ok = records.ok
    assert (np.diff(records.chunk_offsets)[ok] == records.output_tokens[ok]).all()
    assert_read_in_time(records)
    assert readings.totals_after["generated_tokens"] >= records.output_tokens[ok].sum()
    if ok.all() and not stages:
        assert readings.totals_after["generated_tokens"] == records.output_tokens.sum()
        assert readings.totals_after["prefix_hits_tokens"] == records.cached_tokens.sum()
    assert everything(ReplayEngine(scenario).run(plan)) == everything(seen)
    later = engine.run(LoadPlan("later", fixed(20, 1), ClosedLoop(1), 1, seed=1)).engine
    assert later is not None
    assert [later.gauges[name][0] for name in ("running", "waiting", "kv_use")] == [0, 0, 0]
