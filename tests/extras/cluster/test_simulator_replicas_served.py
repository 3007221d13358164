"""Several replicas behind a router in real time: the same router, the same caches, a log that names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from replayed import assert_all_is_cached, rows_by_turn
from served_load import by_engine, page_of, sent_as_ids, truths_of

from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, SessionSlots
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import OUTCOMES
from pytest_llmbench.probes.engine_metrics import read_page
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

CHAT = SessionWorkload("chat", Uniform(2, 6), Uniform(10, 60), Uniform(3, 12), Uniform(5, 60))
WITH_SYSTEM = SessionWorkload(
    "system", Uniform(2, 6), Uniform(10, 60), Uniform(3, 12), Uniform(5, 60), system_tokens=330
)
THREE = "fast?prefix_caching=true&replicas=3"


def chats(workload: SessionWorkload, at_once: int, sessions: int) -> LoadPlan:
    return LoadPlan("chats", workload, SessionSlots(at_once), turns_of(workload, sessions, 3), seed=3)


@pytest.mark.parametrize("policy", ["prefix", "session"])
def test_where_sessions_stay_cached_tokens_by_turn_equal_the_closed_form(policy: str) -> None:
    with EmbeddedEngine.start(f"{THREE}&router={policy}") as engine:
        seen = sent_as_ids(engine, chats(CHAT, 9, 30))
        truths = truths_of(engine, seen)
    records = seen.records
    assert records.ok.all()
    assert_all_is_cached(records, CHAT, 3)
    assert records.cached_tokens.tolist() == [truth.cached_tokens for truth in truths]
    homes = {place: truth.replica for place, truth in zip(rows_by_turn(records), truths, strict=True)}
    assert len(set(homes.values())) == 3
    if policy == "session":  # a first turn of less than a block leaves nothing to go back to
        assert all(homes[session, turn] == homes[session, 1] for session, turn in homes)


def test_one_session_at_a_time_is_served_as_it_is_replayed() -> None:
    """Round robin splits the histories, and with nothing beside it each request has one right answer."""
    plan = chats(WITH_SYSTEM, 1, 8)
    with EmbeddedEngine.start(THREE) as engine:
        seen = sent_as_ids(engine, plan)
        truths = truths_of(engine, seen)
    replayed = ReplayEngine(parse_scenario(THREE)).run(plan).records
    assert [truth.replica for truth in truths] == [number % 3 for number in range(len(truths))]
    assert seen.records.cached_tokens.tolist() == replayed.cached_tokens.tolist()
    assert 0 < seen.records.cached_tokens.sum() < seen.records.shared_prefix_tokens.sum()


def test_replicas_draw_lengths_of_their_own_as_in_replay() -> None:
    drawn = "fast?eos_mean_tokens=12&replicas=2"
    plan = LoadPlan("eos", SyntheticWorkload("w", Fixed(20), Fixed(60)), ClosedLoop(1), 20, seed=1)
    with EmbeddedEngine.start(drawn) as engine:
        served = sent_as_ids(engine, plan).records.output_tokens.tolist()
    assert served == ReplayEngine(parse_scenario(drawn)).run(plan).records.output_tokens.tolist()
    assert served[0::2] != served[1::2]


def sums(truths: Iterable[GroundTruth], name: str) -> dict[str, float]:
    """By replica, as the label of the metrics page has it."""
    found = Counter({"0": 0, "1": 0, "2": 0})
    for truth in truths:
        found[str(truth.replica)] += getattr(truth, name)
    return dict(found)


def test_the_metrics_page_tells_the_replicas_apart_and_adds_up() -> None:
    with EmbeddedEngine.start(f"{THREE}&max_num_seqs=5&router=least_loaded") as engine:
        seen = sent_as_ids(engine, chats(WITH_SYSTEM, 6, 20))
        truths, page, status = truths_of(engine, seen), page_of(engine), engine.status()
    assert by_engine(page, "prefix_cache_queries_total") == sums(truths, "prompt_tokens")
    assert by_engine(page, "prefix_cache_hits_total") == sums(truths, "cached_tokens")
    assert by_engine(page, "generation_tokens_total") == sums(truths, "output_tokens")
    ended = Counter(str(truth.replica) for truth in truths)
    assert by_engine(page, "request_prefill_time_seconds_count") == ended
    assert by_engine(page, "num_requests_running") == {"0": 0, "1": 0, "2": 0}
    heads = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    read = read_page(page)
    records = seen.records
    assert read["requests_finished"] == len(records)
    assert read["prefix_queries_tokens"] == records.input_tokens.sum()
    assert read["prompt_tokens"] == (records.input_tokens - records.cached_tokens).sum()
    assert read["generated_tokens"] == records.output_tokens.sum()
    assert read["max_num_seqs"] == 15
    assert status["requests_by_replica"] == [0, 0, 0]
    assert status["requests_accepted"] == len(records)


def test_a_full_queue_is_that_of_the_replica_which_was_chosen() -> None:
    scenario = "fast?replicas=2&max_num_seqs=1&max_waiting=1&step_base_us=20000"
    plan = LoadPlan("flood", SyntheticWorkload("w", Fixed(20), Fixed(5)), ClosedLoop(8), 16, seed=1)
    with EmbeddedEngine.start(scenario) as engine:
        records = sent_as_ids(engine, plan).records
        page = page_of(engine)
    turned_away = (records.outcome == OUTCOMES.index(Outcome.RATE_LIMITED)).sum()
    counted = by_engine(page, "admission_rejections_total")
    assert set(counted) == {"0", "1"}
    assert sum(counted.values()) == turned_away > 0


APART = "prefill_workers=2&decode_workers=2"


@pytest.mark.parametrize(
    ("engines", "decoding"),
    [("replicas=2&router=least_loaded", {0, 1}), (APART, {2, 3})],
    ids=["whole", "apart"],
)
def test_a_crash_takes_one_engine_that_decodes_and_the_router_goes_round_it(
    engines: str, decoding: set[int]
) -> None:
    crash = "fault=crash&fault_count=1&fault_from=12&fault_after_tokens=2&recovery_ms=300000"
    plan = LoadPlan("crash", SyntheticWorkload("w", Fixed(20), Fixed(30)), ClosedLoop(6), 60, seed=2)
    with EmbeddedEngine.start(f"fast?{crash}&{engines}") as engine:
        records = sent_as_ids(engine, plan).records
        truths = engine.ground_truth()
    lost = records.outcome != OUTCOMES.index(Outcome.OK)
    assert 1 <= lost.sum() <= 4  # the requests of one of two engines
    assert set(records.outcome[lost]) == {OUTCOMES.index(Outcome.DISCONNECTED)}
    (fell,) = {truth.held_by for truth in truths if truth.aborted}
    assert fell in decoding
    assert {truth.held_by for truth in truths[-20:]} == decoding - {fell}


@pytest.mark.parametrize(
    ("options", "stated"),
    [
        ("replicas=2&router=prefix", (2, "prefix")),
        (APART, (4, "round_robin to prefill, least_loaded to decode")),
    ],
)
def test_what_is_routed_is_disclosed(options: str, stated: tuple[int, str]) -> None:
    with EmbeddedEngine.start(f"fast?{options}") as engine:
        facts = engine.disclosure()
    assert (facts.value("sut.replicas"), facts.value("sut.router")) == stated
    assert facts.value("sut.boundary") == "application_gateway"
