"""What a replayed engine notes about its requests and about itself."""

from __future__ import annotations

import numpy as np
import pytest
from replayed import fixed

from pytest_llmbench.model.observation import GAUGES, TOTALS, Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan, OpenLoop
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

US = 1000
BACK = 25 * US


def run(
    scenario: str, load: ClosedLoop | OpenLoop, requests: int, workload=SYNTHETIC_UNIFORM, **more
) -> Observation:  # type: ignore[no-untyped-def]
    plan = LoadPlan("readings", workload, load, requests, seed=7).with_(**more)
    return ReplayEngine(parse_scenario(scenario)).run(plan)


# Requests.


def test_wait_and_prefill_make_up_the_time_to_the_first_token() -> None:
    records = run("fast?max_num_seqs=4", ClosedLoop(9), 60).records
    ttft_ns = records.first_content_ns - records.submitted_ns
    assert np.array_equal(records.queue_wait_ns + records.prefill_ns, ttft_ns - 2 * BACK)
    assert (records.queue_wait_ns > 50e6).sum() > 30
    assert records.prefill_ns.min() > 1200 * US


def test_who_was_never_scheduled_has_no_wait() -> None:
    seen = run("fast?max_num_seqs=1&max_waiting=3", OpenLoop(500), 40, fixed(50, 50))
    refused = seen.records.http_status != 200
    assert 10 < refused.sum() < 40
    for name in ("queue_wait_ns", "prefill_ns", "preemptions", "preempted_tokens"):
        column = getattr(seen.records, name)
        assert (column[refused] == MISSING).all()
        assert (column[~refused] >= 0).all()
    given_up = run(
        "fast?max_num_seqs=1", OpenLoop(1e6, "uniform"), 3, fixed(50, 900), deadlines=Deadlines(total_s=0.5)
    )
    assert given_up.records.counts()["timeout"] == 3
    assert (given_up.records.queue_wait_ns >= 0).tolist() == [True, False, False]
    assert (given_up.records.prefill_ns >= 0).tolist() == [True, False, False]
    assert given_up.records.preemptions.tolist() == [0, 0, 0]


def test_preemptions_are_those_of_the_engine() -> None:
    seen = run("fast?context_limit_tokens=512&kv_blocks=40", ClosedLoop(8), 40, fixed(100, 120))
    assert seen.engine is not None
    assert seen.records.preemptions.sum() == seen.engine.grown("preemptions") > 5
    hit = seen.records.preemptions > 0
    assert (seen.records.preempted_tokens[hit] >= 100).all()
    assert (seen.records.preempted_tokens[~hit] == 0).all()


@pytest.mark.parametrize(("options", "expected"), [("prefix_caching=on", 0), ("prefix_caching=off", MISSING)])
def test_cached_tokens_are_told_where_there_is_a_cache(options: str, expected: int) -> None:
    assert run(f"fast?{options}", ClosedLoop(1), 3).records.cached_tokens.tolist() == [expected] * 3


def test_the_instants_of_the_engine() -> None:
    silent = run("fast", ClosedLoop(3), 9).records
    assert len(silent.server_token_ns) == 0
    records = run("fast?server_timestamps=true", ClosedLoop(3), 9).records
    assert np.array_equal(records.server_token_ns, records.chunk_ns - BACK)
    assert np.array_equal(records.server_token_offsets, records.chunk_offsets)
    gathered = run("fast?server_timestamps=true&tokens_per_chunk=5", ClosedLoop(3), 9).records
    assert np.array_equal(gathered.server_token_ns, records.server_token_ns)
    assert len(gathered.chunk_ns) < len(records.chunk_ns)
    filtered = run(
        "fast?server_timestamps=true&output_filter=enabled", ClosedLoop(1), 3, fixed(9, 100)
    ).records
    assert np.diff(filtered.server_token_offsets).tolist() == [100] * 3
    assert (np.diff(filtered.server_token_ns[:100]) > 0).all()
    assert (filtered.chunk_ns[:100] > filtered.server_token_ns[:100]).all()


def test_instants_of_tokens_that_never_reached_the_client_are_not_told() -> None:
    scenario = "fast?server_timestamps=true&output_filter=enabled&output_refusal_share=0.5"
    records = run(scenario, ClosedLoop(2), 20, fixed(9, 200)).records
    counts = np.diff(records.server_token_offsets)
    assert counts.tolist() == np.diff(records.chunk_offsets).tolist()
    assert len(records.server_token_ns) == counts.sum()
    assert len(set(counts.tolist())) > 2


def test_rows_carry_them_too() -> None:
    rows: list[RequestRecord] = []
    scenario = parse_scenario("fast?server_timestamps=true&prefix_caching=on")
    plan = LoadPlan("rows", SYNTHETIC_UNIFORM, ClosedLoop(1), 4, seed=7)
    records = ReplayEngine(scenario).run(plan, rows.append).records
    assert [row.queue_wait_ns for row in rows] == records.queue_wait_ns.tolist()
    assert [row.preemptions for row in rows] == [0] * 4
    assert [n for row in rows for n in row.server_token_ns] == records.server_token_ns.tolist()


# The engine.


def test_gauges_are_sampled_every_quarter_of_a_second() -> None:
    seen = run("fast?max_num_seqs=16", ClosedLoop(24), 800)
    readings = seen.engine
    assert readings is not None
    assert set(readings.gauges) == {*GAUGES} - {"acceptance_length"}
    assert np.array_equal(readings.at_ns, seen.started_ns + 250_000_000 * np.arange(len(readings.at_ns)))
    assert seen.ended_ns - readings.at_ns[-1] <= 250_000_000
    full = slice(1, -8)  # the end drains
    assert (readings.gauges["running"][full] == 16).all()
    assert readings.gauges["waiting"][full].mean() == pytest.approx(8, abs=0.5)
    blocks = parse_scenario("fast").engine.kv_blocks
    held = 16 * (320 + 80) / 16 / blocks  # half of an answer's mean length is there at any time
    assert readings.gauges["kv_use"][full].mean() == pytest.approx(held, rel=0.1)
    assert readings.max_num_seqs == 16


def test_an_idle_engine_reads_zero() -> None:
    seen = run("fast", OpenLoop(0.5, "uniform"), 3, fixed(50, 5))
    assert seen.engine is not None
    assert seen.engine.gauges["running"].max() == 0
    assert len(seen.engine.at_ns) == 25  # 6 s, and a little more


def test_the_mean_of_running_is_littles_law() -> None:
    seen = run("fast", OpenLoop(60), 1800)
    records, readings = seen.records, seen.engine
    assert readings is not None
    inside_s = float((records.finished_ns - records.submitted_ns - records.queue_wait_ns).sum()) / 1e9
    expected = inside_s / seen.duration_s
    assert readings.gauges["running"].mean() == pytest.approx(expected, rel=0.1)


def test_totals_are_counted_from_before_to_after() -> None:
    engine = ReplayEngine(parse_scenario("fast?max_num_seqs=4"))
    plan = LoadPlan("totals", SYNTHETIC_UNIFORM, ClosedLoop(6), 40, seed=7)
    first, second = engine.run(plan), engine.run(plan.with_(first=40))
    for seen in (first, second):
        readings, records = seen.engine, seen.records
        assert readings is not None
        assert set(readings.totals_before) == set(readings.totals_after)
        # fcfs knows no phases, one engine transfers nothing, and nothing is guessed
        others = {"critical_evictions", "kv_transfer_s", "kv_transfer_count"}
        others |= {"drafts", "draft_tokens", "accepted_draft_tokens", "decode_s", "decode_count"}
        assert set(readings.totals_after) == {*TOTALS} - others
        assert readings.grown("prompt_tokens") == records.input_tokens.sum()
        assert readings.grown("generated_tokens") == records.output_tokens.sum()
        assert readings.grown("requests_finished") == readings.grown("queue_wait_count") == 40
        assert readings.grown("queue_wait_s") == pytest.approx(records.queue_wait_ns.sum() / 1e9)
        assert readings.grown("prefill_s") == pytest.approx(records.prefill_ns.sum() / 1e9)
    assert first.engine is not None
    assert second.engine is not None
    assert first.engine.totals_after == second.engine.totals_before


def test_critical_evictions_are_told_where_phases_are_told_apart() -> None:
    """Per request, and in sum on the page: never zero for a scheduler that knows none."""
    pressed = "fast?think_mean_tokens=60&kv_blocks=40&context_limit_tokens=512&max_num_seqs=16"
    seen = run(f"{pressed}&scheduler=phase", ClosedLoop(16), 60, fixed(40, 200))
    readings, records = seen.engine, seen.records
    assert readings is not None
    assert records.critical_evictions.min() == 0
    assert readings.grown("critical_evictions") == records.critical_evictions.sum() > 0
    assert (records.critical_evictions <= records.preemptions).all()
    blind = run(pressed, ClosedLoop(16), 60, fixed(40, 200))
    assert set(blind.records.critical_evictions.tolist()) == {MISSING}
