"""Loads of a replay that last, end early or begin afresh."""

from __future__ import annotations

import heapq
import subprocess
import sys

import numpy as np
import pytest
from replayed import replay

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sequence import sequence_sha256
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

PLAN = LoadPlan("loads", SYNTHETIC_UNIFORM, ClosedLoop(8), 10, seed=3, duration_s=2.0, max_requests=5000)


def test_a_closed_loop_goes_on_until_its_duration_has_passed() -> None:
    seen = replay("fast", PLAN)
    records, end_ns = seen.records, seen.started_ns + 2_000_000_000
    assert 10 < len(records) < 5000
    assert records.submitted_ns.max() < end_ns == seen.load_ended_ns
    # A slot that was free before the end has sent, one that was free later has not.
    assert len(records) == 8 + int((records.finished_ns < end_ns).sum())
    assert records.ok.all()
    assert seen.ended_ns == records.finished_ns.max() > end_ns
    assert seen.sequence_sha256 == sequence_sha256(SYNTHETIC_UNIFORM.requests(len(records), 3))


def test_at_least_the_requests_are_sent_and_never_more_than_the_ceiling() -> None:
    least = replay("fast", PLAN.with_(requests=1000))
    assert len(least.records) == 1000
    assert least.load_ended_ns is not None
    assert least.load_ended_ns == least.records.submitted_ns.max() > least.started_ns + 2_000_000_000
    most = replay("fast", PLAN.with_(max_requests=50))
    assert len(most.records) == 50
    assert most.load_ended_ns is not None
    assert most.load_ended_ns == most.records.submitted_ns.max() < most.started_ns + 2_000_000_000
    assert len(replay("fast", PLAN.with_(max_requests=None)).records) == 10


def test_a_lasting_load_takes_up_the_sequence_where_it_is_told_to() -> None:
    seen = replay("fast", PLAN.with_(first=700))
    rest = SYNTHETIC_UNIFORM.requests(700 + len(seen.records), 3)[700:]
    assert seen.records.index.tolist() == [request.index for request in rest]
    assert seen.sequence_sha256 == sequence_sha256(rest)


def test_the_end_of_an_open_loop_is_the_nominal_one() -> None:
    plan = PLAN.with_(load=OpenLoop(20), requests=30, max_requests=None)
    lasting, counted = replay("fast", plan), replay("fast", plan.with_(duration_s=None))
    assert len(lasting.records) == len(counted.records) == 30
    assert lasting.load_ended_ns == lasting.started_ns + 2_000_000_000
    assert counted.load_ended_ns is None
    assert np.array_equal(lasting.records.submitted_ns, counted.records.submitted_ns)


def test_a_duration_has_to_be_one() -> None:
    with pytest.raises(SuiteError, match="the duration is nan s"):
        replay("fast", PLAN.with_(duration_s=float("nan")))


def test_a_fresh_state_has_no_cache_and_draws_its_laws_anew() -> None:
    engine = ReplayEngine(parse_scenario("fast?prefix_caching=on&eos_mean_tokens=60"))
    plan = PLAN.with_(requests=20, duration_s=None, max_requests=None)
    first, warm = engine.run(plan), engine.run(plan)
    fresh = engine.run(plan.with_(fresh_state=True))
    assert first.records.cached_tokens.max() == 0
    assert warm.records.cached_tokens.min() > 100
    assert fresh.records.cached_tokens.max() == 0
    assert np.array_equal(first.records.output_tokens, fresh.records.output_tokens)
    assert not np.array_equal(first.records.output_tokens, warm.records.output_tokens)
    assert fresh.engine is not None
    assert fresh.engine.totals_before["prefix_queries_tokens"] == 0


CRASH = "fast?kv_blocks=60&context_limit_tokens=960&preemption=off&out_of_memory=engine&recovery_ms=5000"


def test_a_load_on_an_engine_that_went_down_is_stopped() -> None:
    plan = PLAN.with_(workload=SyntheticWorkload("large", Fixed(300), Fixed(200)), stop_when_failing=True)
    seen = replay(CRASH, plan)
    assert seen.stopped is not None
    assert "the last 20 requests" in seen.stopped
    assert seen.interrupted is None
    counts = seen.records.counts()
    # The eight that were in the engine, and twenty that were turned away one after another.
    assert (counts["in_band_error"], counts["http_error"], counts["submitted"]) == (8, 20, 28)
    refused = seen.records.http_status == 503
    assert refused.sum() == 20
    assert seen.load_ended_ns is not None
    assert seen.load_ended_ns < seen.started_ns + 2_000_000_000


def test_without_that_rule_it_goes_on_to_the_ceiling() -> None:
    plan = PLAN.with_(workload=SyntheticWorkload("large", Fixed(300), Fixed(200)), max_requests=300)
    seen = replay(CRASH, plan)
    assert seen.stopped is None
    assert len(seen.records) == 300


def test_failures_of_an_engine_that_is_up_stop_nothing() -> None:
    plan = PLAN.with_(stop_when_failing=True, duration_s=None, requests=60)
    seen = replay("fast?fault=http_error", plan)
    assert seen.stopped is None
    assert seen.records.counts()["http_error"] == 60


def test_a_spent_error_budget_ends_a_load() -> None:
    plan = PLAN.with_(duration_s=None, requests=400, most_failures=20)
    seen = replay("fast?fault=http_error&fault_rate=0.5&seed=3", plan)
    counts = seen.records.counts()
    assert "the error budget cannot be kept any more: 21 of the first" in str(seen.interrupted)
    assert seen.stopped is None
    assert counts["http_error"] in range(21, 21 + 8)  # and those in flight then
    assert counts["submitted"] == counts["ok"] + counts["http_error"] < 100
    assert replay("fast?fault=http_error&fault_rate=0.5", plan.with_(most_failures=399)).interrupted is None


@pytest.mark.parametrize("may_break", [False, True])
def test_an_engine_that_is_away_for_long_ends_a_load(may_break: bool) -> None:
    plan = LoadPlan("l", SYNTHETIC_UNIFORM, OpenLoop(2.0), 400, 1, may_break=may_break)
    crash = "fast?fault=crash&fault_rate=0.05&seed=2&recovery_ms=100000"
    seen = replay(crash, plan)
    told, other = (seen.stopped, seen.interrupted) if may_break else (seen.interrupted, seen.stopped)
    assert "the SUT has stopped answering" in str(told)
    assert other is None
    assert len(seen.records) < 400
    back_in_time = replay(crash.replace("100000", "2000"), plan)
    assert (back_in_time.interrupted, back_in_time.stopped, len(back_in_time.records)) == (None, None, 400)


_DIGEST = """
import hashlib
import numpy as np
from dataclasses import fields
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM
engine = ReplayEngine(parse_scenario("fast?prefix_caching=on&eos_mean_tokens=50&server_timestamps=true"))
digest = hashlib.sha256()
for _ in range(2):
    load = ClosedLoop(12)
    seen = engine.run(LoadPlan("d", SYNTHETIC_UNIFORM, load, 20, 1, duration_s=1.0, max_requests=900))
    for column in fields(seen.records):
        value = getattr(seen.records, column.name)
        digest.update(value.tobytes() if isinstance(value, np.ndarray) else repr(list(value)).encode())
    readings = seen.engine
    digest.update(repr([readings.totals_after, *(g.tolist() for g in readings.gauges.values())]).encode())
print(digest.hexdigest())
"""


def test_another_process_gives_the_same_bytes() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _DIGEST],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_under_a_cap_a_request_is_due_at_the_end_that_makes_place_for_it() -> None:
    """First come, first sent, into the place that has been free for longest."""
    plan = LoadPlan("loads", SYNTHETIC_UNIFORM, OpenLoop(200.0, most_in_flight=3), 80, seed=3)
    seen = replay("fast", plan)
    records = seen.records
    arrivals_ns = schedule_ns(OpenLoop(200.0), 80, arrival_seed(3)) + seen.started_ns
    places_ns, due_ns = [seen.started_ns] * 3, []
    for arrived_ns, end_ns in zip(arrivals_ns.tolist(), records.finished_ns.tolist(), strict=True):
        due_ns.append(max(arrived_ns, heapq.heappop(places_ns)))
        heapq.heappush(places_ns, end_ns)
    assert records.scheduled_ns.tolist() == due_ns
    assert records.ok.all()
    assert (records.scheduled_ns > arrivals_ns).sum() > 40
    loose = replay("fast", plan.with_(load=OpenLoop(200.0, most_in_flight=80)))
    assert loose.records.submitted_ns.tolist() == arrivals_ns.tolist()
