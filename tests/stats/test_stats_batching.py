"""What the figures of a busy batching server allow for: its idle beginning and end, and waits not seen."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from pytest_llmbench.metrics.latency import distributions
from pytest_llmbench.model.estimate import Estimate, EstimateKind
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.stats.batching import FullLoad, Pace, SlotWait, as_busy, idle_share, slot_queue
from pytest_llmbench.stats.first_come import BY_LOAD
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM


def estimate(point: float, lower: float, upper: float, unit: str = "ms") -> Estimate:
    return Estimate(
        point=point, lower=lower, upper=upper, level=0.95, n=200, method="known", unit=unit, n_required=None
    )


METRICS = {
    "ttft.p90": estimate(20.0, 18.0, 22.0),
    "ttft.p99": estimate(30.0, 25.0, 40.0),
    "ttft.mean": estimate(15.0, 14.0, 16.0),
    "e2e.p50": estimate(1000.0, 900.0, 1100.0),
    "send_lag.p99": estimate(0.1, 0.1, 0.2),
    "goodput_share": estimate(1.0, 0.98, 1.0, "ratio"),
}
SHORT = FullLoad(load=0.8, slots=64, requests=200, relaxation_times=20.0)


def test_latencies_of_a_short_load_may_be_lower_than_those_of_a_lasting_one() -> None:
    found = as_busy(METRICS, [SHORT], [], 0.25)
    assert found["e2e.p50"].upper == pytest.approx(1100 * 1.2)
    assert found["ttft.p99"].upper == pytest.approx(40 * 1.1)  # a first token knows nothing of the end
    assert found["send_lag.p99"] == METRICS["send_lag.p99"]
    assert [found[name].point for name in METRICS] == [METRICS[name].point for name in METRICS]
    assert [found[name].lower for name in METRICS] == [METRICS[name].lower for name in METRICS]


def test_a_crude_end_which_is_far_already_is_moved_by_the_point_alone() -> None:
    crude = replace(METRICS["e2e.p50"], kind=EstimateKind.CRUDE)
    assert as_busy({"e2e.p50": crude}, [SHORT], [], 0.25)["e2e.p50"].upper == pytest.approx(1100 + 1000 * 0.2)


def test_a_wait_that_no_request_of_the_run_had_counts() -> None:
    wait = SlotWait(share=0.05, mean_ms=100.0, unseen=0.04)
    found = as_busy(METRICS, [SHORT._replace(wait=wait)], [("ttft", 70.0), ("tpot", 1.0)], 0.0)
    assert found["ttft.p99"].upper == pytest.approx(20 + 100 * math.log(5))
    # 4 % more wait, so P90 is P94 of those seen: on a logarithm of the share beyond, between P90 and P99.
    assert found["ttft.p90"].upper == pytest.approx(22 + 10 * math.log10(10 / 6))
    assert found["ttft.mean"].upper == pytest.approx(16 + 0.04 * 100)
    assert found["goodput_share"].lower == pytest.approx(0.98 * (1 - 0.04 * math.exp(-0.7)))


def test_a_queue_that_grows_leaves_no_upper_end() -> None:
    wait = SlotWait(share=1.0, mean_ms=math.inf, unseen=1.0)
    found = as_busy(METRICS, [SHORT._replace(load=1.0, wait=wait)], [("ttft", 70.0)], 0.25)
    assert {name for name, each in found.items() if each.upper is None} == {
        "ttft.p90", "ttft.p99", "ttft.mean", "e2e.p50",
    }  # fmt: skip
    assert found["goodput_share"].lower == 0.0


def test_runs_without_a_known_load_stay_as_they_are() -> None:
    assert as_busy(METRICS, [], [], 0.3) == METRICS


@pytest.mark.parametrize(("idle", "factor"), [(0.5, 1.625), (0.8, 2.0), (1.6, 3.0), (40.0, 3.0)])
def test_a_load_shorter_than_its_replies_tells_little_of_a_lasting_one(idle: float, factor: float) -> None:
    assert as_busy(METRICS, [], [], idle)["e2e.p50"].upper == pytest.approx(1100 * factor)


def test_the_time_of_replies_over_that_of_sending() -> None:
    plan = LoadPlan("load", SYNTHETIC_UNIFORM, OpenLoop(20.0), 200, seed=3)
    run = ReplayEngine(parse_scenario("h100-8b")).run(plan)
    records = run.records
    took = np.mean(records.finished_ns - records.submitted_ns)
    assert idle_share(records) == pytest.approx(took / np.ptp(records.submitted_ns))
    assert idle_share(records.part(0, 1)) == 0.0


def test_the_time_per_token_with_so_many_under_way() -> None:
    per_token = Pace(least=0.002, slope=0.001, mean=0.004, most=3)
    assert per_token.with_under_way(3) == pytest.approx([0.003, 0.004, 0.005])
    assert Pace(-0.0015, 0.001, 0.001, 3).with_under_way(2) == pytest.approx([0.00001, 0.0005])


def test_requests_that_slow_each_other_down_wait_in_no_plain_queue() -> None:
    """Half of the capacity: nothing of it shows in the latencies, but in the times per token."""
    plan = LoadPlan("load", SYNTHETIC_UNIFORM, OpenLoop(22.0), 1000, seed=0)
    records = ReplayEngine(parse_scenario("h100-8b")).run(plan).records
    assert slot_queue(records).is_slowed
    assert BY_LOAD not in distributions(("e2e",), [records])["e2e.p99"].method
    at_the_end = replace(records, first_content_ns=records.finished_ns)  # no times per token
    assert not slot_queue(at_the_end).is_slowed
    assert BY_LOAD in distributions(("e2e",), [at_the_end])["e2e.p99"].method
