"""Prefill and decode on engines of their own in real time: true instants, the figures of the replay, all
faces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from replayed import assert_all_is_cached
from served_load import by_engine, chunks, page_of, raw_chat, sent_as_ids, truths_of
from three_attempts import three_attempts

from pytest_llmbench.model.observation import Observation
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

BLOCK = 16
APART = "fast?prefill_workers=2&decode_workers=2"
MIXED = SyntheticWorkload("mixed", Uniform(20, 600), Uniform(1, 40))
CHAT = SessionWorkload("chat", Uniform(2, 6), Uniform(10, 60), Uniform(3, 12), Uniform(5, 60))


def sent(engine: EmbeddedEngine, plan: LoadPlan) -> tuple[Observation, list[GroundTruth]]:
    """What the load generator saw, and the engine's own account of each record."""
    seen = sent_as_ids(engine, plan)
    return seen, truths_of(engine, seen)


def served(scenario: str, plan: LoadPlan) -> tuple[Observation, list[GroundTruth]]:
    with EmbeddedEngine.start(scenario) as engine:
        return sent(engine, plan)


def instants(truth: GroundTruth) -> list[int]:
    found = [
        truth.received_ns,
        truth.queued_ns,
        truth.admitted_ns,
        truth.prefilled_ns,
        truth.transfer_begun_ns,
        truth.transfer_ended_ns,
        truth.first_token_ns,
        truth.first_write_ns,
        truth.last_write_ns,
    ]
    assert None not in found
    return [ns for ns in found if ns is not None]


def test_what_the_client_measured_is_what_the_two_engines_did() -> None:
    """A transfer takes what its blocks take, which a TTFT has in it; the parts of it that the reply tells are
    those of the log."""
    scenario = parse_scenario(f"{APART}&kv_transfer_gb_per_s=0.5")
    plan = LoadPlan("mixed", MIXED, ClosedLoop(6), 60, seed=2)
    seen, truths = served(f"{APART}&kv_transfer_gb_per_s=0.5", plan)
    records = seen.records
    assert records.ok.all()
    assert records.output_tokens.tolist() == [truth.output_tokens for truth in truths]
    for truth, first_ns, finished_ns in zip(
        truths, records.first_content_ns.tolist(), records.finished_ns.tolist(), strict=True
    ):
        in_order = [*instants(truth), finished_ns]
        assert in_order == sorted(in_order)
        assert truth.first_write_ns is not None
        assert truth.first_write_ns <= first_ns
        assert {truth.replica, (truth.decode_replica or 0) - 2} <= {0, 1}
        *_, begun_ns, ended_ns, _, _, _ = instants(truth)
        blocks = -(-truth.prompt_tokens // BLOCK)
        assert ended_ns - begun_ns >= scenario.deployment.transfer_ns(scenario.engine, blocks)
    admitted = np.array([truth.admitted_ns for truth in truths])
    queued = np.array([truth.queued_ns for truth in truths])
    first = np.array([truth.first_token_ns for truth in truths])
    assert np.abs(records.queue_wait_ns - (admitted - queued)).max() <= 1  # milliseconds with a fraction
    assert np.abs(records.prefill_ns - (first - admitted)).max() <= 1


@pytest.mark.timing
@three_attempts
def test_ttft_of_an_idle_system_is_prefill_transfer_and_a_step_of_decode() -> None:
    """As replay has it to the nanosecond; here what the machine adds comes on top of it, least of all to the
    quickest of seven: less than half a step."""
    options = "fast?prefill_workers=1&decode_workers=1&step_base_us=20000&kv_transfer_latency_us=60000"
    plan = LoadPlan("one", SyntheticWorkload("w", Fixed(600), Fixed(1)), ClosedLoop(1), 7, seed=1)
    seen, truths = served(options, plan)
    ttft_ns = seen.records.first_content_ns - seen.records.submitted_ns
    exact_ns = ReplayEngine(parse_scenario(options)).run(plan).records
    true_ns = np.array([(truth.first_visible_ns or 0) - truth.received_ns for truth in truths])
    expected_ns = int((exact_ns.first_content_ns - exact_ns.submitted_ns)[0]) - 50_000  # without its network
    assert -50_000 <= np.min(true_ns) - expected_ns < 10_000_000
    assert 0 <= np.min(ttft_ns - true_ns) < 10_000_000


def test_one_request_at_a_time_is_served_as_it_is_replayed() -> None:
    """Both stages in turns, so every history is in pieces; lengths and thoughts are drawn where it is
    decoded."""
    scenario = f"{APART}&prefix_caching=on&decode_router=round_robin&eos_mean_tokens=9&think_mean_tokens=5"
    workload = SessionWorkload(
        "chat", Uniform(2, 6), Uniform(10, 60), Fixed(40), Uniform(5, 60), system_tokens=330
    )
    plan = LoadPlan("chats", workload, SessionSlots(1), turns_of(workload, 5, 3), seed=3)
    seen, truths = served(scenario, plan)
    records, replayed = seen.records, ReplayEngine(parse_scenario(scenario)).run(plan).records
    assert [(truth.replica, truth.decode_replica) for truth in truths] == [
        (number % 2, 2 + number % 2) for number in range(len(truths))
    ]
    assert records.cached_tokens.tolist() == replayed.cached_tokens.tolist()
    assert 0 < records.cached_tokens.sum() < records.shared_prefix_tokens.sum()
    assert records.output_tokens.tolist() == replayed.output_tokens.tolist()
    assert records.reasoning_tokens.tolist() == replayed.reasoning_tokens.tolist()
    assert len(set(records.output_tokens.tolist())) > 5
    assert [truth.think_reason for truth in truths].count("converged") > 0


def test_cached_tokens_by_turn_equal_the_closed_form_and_the_page_adds_up() -> None:
    scenario = "fast?prefix_caching=on&prefill_workers=3&decode_workers=2&router=prefix"
    plan = LoadPlan("chats", CHAT, SessionSlots(9), turns_of(CHAT, 30, 3), seed=3)
    with EmbeddedEngine.start(scenario) as engine:
        seen, truths = sent(engine, plan)
        page, status = page_of(engine), engine.status()
    records = seen.records
    assert records.ok.all()
    assert_all_is_cached(records, CHAT, 3)
    assert records.cached_tokens.tolist() == [truth.cached_tokens for truth in truths]
    again = len(records)  # the last prompt token of each, where it is decoded
    read = read_page(page)
    assert read["requests_finished"] == read["kv_transfer_count"] == len(records)
    assert read["prompt_tokens"] == (records.input_tokens - records.cached_tokens).sum() + again
    assert read["prefix_queries_tokens"] == records.input_tokens.sum()
    assert read["generated_tokens"] == records.output_tokens.sum()
    took_ns = [(truth.transfer_ended_ns or 0) - (truth.transfer_begun_ns or 0) for truth in truths]
    assert read["kv_transfer_s"] == pytest.approx(sum(took_ns) / 1e9)
    decoded = Counter(str(truth.decode_replica) for truth in truths)
    none = {"0": 0, "1": 0, "2": 0}
    assert by_engine(page, "nixl_xfer_time_seconds_count") == none | decoded
    assert by_engine(page, "request_prefill_time_seconds_count") == none | decoded
    assert by_engine(page, "kv_cache_usage_perc") == none | {"3": 0, "4": 0}
    assert status["requests_by_replica"] == [0] * 5


def test_an_engine_alone_has_no_series_of_transfers() -> None:
    with EmbeddedEngine.start("fast?replicas=2") as engine:
        assert "kv_transfer_count" not in read_page(page_of(engine))


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start(f"{APART}&output_filter=enabled&output_filter_us=500") as engine:
        yield engine


def test_a_reply_in_a_form_keeps_to_it(engine: EmbeddedEngine) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "where", "schema": schema}}
    events = chunks(raw_chat(engine, response_format=form, max_tokens=60))
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    assert text.startswith('{"city"')
    assert engine.ground_truth()[-1].schema_check == "valid"


def test_the_output_filter_holds_back_what_is_decoded(engine: EmbeddedEngine) -> None:
    events = chunks(raw_chat(engine, max_tokens=40))
    truth = engine.ground_truth()[-1]
    assert truth.output_tokens == 40
    assert (
        sum(bool(event["choices"][0]["delta"].get("content")) for event in events if event["choices"]) == 40
    )
    assert all(before <= after for before, after in pairwise(instants(truth)))


def test_memory_that_runs_out_where_it_is_decoded_frees_the_prompts_on_their_way() -> None:
    """A decode worker for three requests: one that fails for want of blocks leaves both engines empty."""
    options = "&kv_blocks=30&context_limit_tokens=400&preemption=off&out_of_memory=engine&recovery_ms=1"
    plan = LoadPlan("full", SyntheticWorkload("w", Fixed(100), Fixed(200)), ClosedLoop(6), 24, seed=2)
    with EmbeddedEngine.start("fast?prefill_workers=1&decode_workers=1" + options) as engine:
        seen, truths = sent(engine, plan)
        page = page_of(engine)
    kinds = Counter(OUTCOMES[number] for number in seen.records.outcome)
    assert kinds[Outcome.IN_BAND_ERROR] > 0
    assert len(truths) == 24
    assert by_engine(page, "kv_cache_usage_perc") == {"0": 0, "1": 0}
    assert by_engine(page, "num_requests_waiting") == {"0": 0, "1": 0}
