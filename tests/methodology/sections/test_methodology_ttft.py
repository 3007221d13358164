"""The TTFT procedure (section 5.1), pumped with canned records: no loop, no server, no patch."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from canned_runs import answer

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.procedure import Scale, Setting, WarmupPolicy
from pytest_llmbench.methodology.sections import ttft
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import CONFIGURATION_ITEMS, TestResult
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.sequence import sequence_sha256
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM


def setting(scale: Scale = "standard") -> Setting:
    return Setting(
        workload=workload("synthetic-uniform"),
        seed=42,
        scale=scale,
        warmup=WarmupPolicy(requests=5, output_tokens=0, probes=3),
    )


def pump(
    parameters: ttft.Parameters, chosen: Setting, ttft_ms: Any = 100.0
) -> tuple[TestResult, list[LoadPlan]]:
    plans: list[LoadPlan] = []

    def execute(plan: LoadPlan) -> Observation:
        plans.append(plan)
        measured = plan.phase is Phase.MEASURE and not isinstance(ttft_ms, float)
        return answer(plan, ttft_ms if measured else 100.0)

    return drive(ttft.TEST.procedure(parameters, chosen), execute), plans


def test_known_answers() -> None:
    values = np.arange(1, 1001, dtype=float)
    result, _ = pump(ttft.Parameters(rate=20), setting(), values)
    assert result.metrics["ttft.p50"].point == pytest.approx(500.5)
    assert result.metrics["ttft.p99"].point == pytest.approx(990.01)
    assert result.metrics["ttft.mean"].point == pytest.approx(500.5)
    assert result.metrics["ttft.min"].point == pytest.approx(1.0)
    assert result.metrics["ttft.max"].point == pytest.approx(1000.0)
    assert result.metrics["tpot.p50"].point == pytest.approx(5.0)
    assert result.metrics["completion_rate"].point == 1.0
    # scheduled 20 µs before submission: the coordinated-omission view is that much longer
    assert result.metrics["ttft_scheduled.min"].point == pytest.approx(1.02)


def test_table_one_follows_the_draft() -> None:
    result, _ = pump(ttft.Parameters(rate=20), setting())
    table = next(table for table in result.tables if table.id == "ttft_results")
    statistics = ("P50", "P90", "P95", "P99", "P99.9", "Mean", "Min", "Max")
    assert [row[0] for row in table.rows] == ["Requests", *(f"TTFT {name}" for name in statistics)]
    cells = {row[0]: row[1] for row in table.rows}
    assert cells["Requests"] == "1000"
    assert cells["TTFT P50"] == "100 ms"
    assert cells["TTFT P99.9"] == "n < 10000, not reported"


def test_p99_is_no_claim_below_a_thousand_samples() -> None:
    result, _ = pump(ttft.Parameters(rate=20, requests=999), setting())
    cells = {row[0]: row[1] for row in result.tables[0].rows}
    assert cells["TTFT P99"] == "n < 1000, not reported"


def test_buckets_of_the_draft() -> None:
    result, _ = pump(ttft.Parameters(rate=20), setting())
    table = next(table for table in result.tables if table.id == "ttft_by_input_length")
    # Synthetic-Uniform draws 128..512; 512 falls into the third bucket
    assert [row[0] for row in table.rows] == ["0-256", "256-512", "512-1024"]
    assert sum(int(row[1]) for row in table.rows) == 1000
    assert result.metrics["ttft[0-256].p95"].point == pytest.approx(100.0)


def test_plans_by_scale() -> None:
    parameters = ttft.Parameters(rate=20, requests=200)
    assert [plan.requests for plan in ttft.TEST.plans(parameters, setting())] == [200]
    assert [plan.requests for plan in ttft.TEST.plans(parameters, setting("quick"))] == [50]
    assert [plan.requests for plan in ttft.TEST.plans(parameters, setting("full"))] == [10_102]
    assert [plan.requests for plan in ttft.TEST.plans(ttft.Parameters(rate=20), setting())] == [1_000]


def test_a_load_ends_at_the_failure_that_the_error_budget_of_all_runs_has_no_room_for() -> None:
    def most(scale: Scale = "standard", **asked: Any) -> set[int | None]:
        parameters = ttft.Parameters(rate=20, **asked)
        return {plan.most_failures for plan in ttft.TEST.plans(parameters, setting(scale))}

    assert most(requests=300) == {20}  # to see what fails
    assert most(requests=10_000) == {100}
    assert most(requests=10_000, runs=3) == {300}
    assert most(requests=10_000, max_error_share=0.29) == {2900}  # 0.29 x 10,000 is a little less than that
    assert most(requests=1_000, max_error_share=1.0) == {1000}


def test_runs_take_up_one_sequence_one_after_another() -> None:
    plans = ttft.TEST.plans(ttft.Parameters(rate=20, requests=10, runs=3), setting())
    assert [plan.first for plan in plans] == [0, 10, 20]
    assert len({plan.key for plan in plans}) == 3


def test_load_of_the_marker() -> None:
    assert ttft.TEST.plans(ttft.Parameters(concurrency=3), setting())[0].load == ClosedLoop(3)
    assert ttft.TEST.plans(ttft.Parameters(), setting())[0].load == ClosedLoop(8)
    gamma = ttft.Parameters(rate=2.5, arrival="gamma", burstiness=0.25)
    assert ttft.TEST.plans(gamma, setting())[0].load == OpenLoop(2.5, "gamma", 0.25)


def test_configuration_summary_has_the_eight_items() -> None:
    result, _ = pump(ttft.Parameters(rate=20, requests=20), setting())
    assert tuple(item for item, _ in result.configuration) == CONFIGURATION_ITEMS
    texts = dict(result.configuration)
    assert texts["Load model"] == "open loop, poisson arrivals at 20 req/s"
    assert texts["Prefix caching"] == "not declared"
    ((name, seed),) = result.facts.value("workload.parts")
    assert texts["Workload"] == f"synthetic-uniform, seed 42 (drawn with {seed}, of part {name!r})"


def test_manifest_states_workload_load_and_warm_up() -> None:
    result, _ = pump(ttft.Parameters(rate=20, requests=100), setting())
    facts = result.facts
    assert facts.value("workload.seed") == 42
    ((name, seed),) = facts.value("workload.parts")
    assert seed == int.from_bytes(hashlib.sha256(f"42/{name}".encode()).digest()[:4], "big")
    drawn = SYNTHETIC_UNIFORM.requests(100, seed)
    assert facts.value("workload.sequence_sha256") == sequence_sha256(drawn)
    assert facts.value("load.arrival") == "poisson"
    assert facts.value("load.rate_rps") == 20
    assert facts.value("warmup.requests_ok") == 5
    assert facts.value("streaming.chunking") == "single"
    assert facts.value("guardrails.refusals") == 0
    assert facts.value("cold_start") is False


def test_objectives_from_limits_buckets_and_slo() -> None:
    from pytest_llmbench import ms, tpot

    parameters = ttft.Parameters(
        p99_ms=500, p50_ms=100, bucket_limits={"0-256": {"p95_ms": 300}}, slo=[tpot.p99 <= 50 * ms]
    )
    assert [str(objective) for objective in parameters.objectives] == [
        "ttft.p50 <= 100 ms",
        "ttft.p99 <= 500 ms",
        "ttft[0-256].p95 <= 300 ms",
        "tpot.p99 <= 50 ms",
    ]


@pytest.mark.parametrize(
    ("limit", "verdict"), [(150, GateVerdict.PASS), (50, GateVerdict.FAIL), (100.5, GateVerdict.INCONCLUSIVE)]
)
def test_gate_on_the_measured_interval(limit: float, verdict: GateVerdict) -> None:
    rng = np.random.default_rng(5)
    parameters = ttft.Parameters(rate=20, mean_ms=limit)
    result, _ = pump(parameters, setting(), 100 + rng.normal(0, 10, 1000))
    assert gate(result.objectives, result.metrics).verdict is verdict


def test_p99_9_with_a_hundred_requests_is_inconclusive_and_says_how_many_are_needed() -> None:
    result, _ = pump(ttft.Parameters(rate=20, requests=100, p99_9_ms=10_000), setting())
    judged = gate(result.objectives, result.metrics).objectives[0]
    assert judged.verdict is GateVerdict.INCONCLUSIVE
    assert judged.growth is not None
    assert judged.growth >= 3688 / judged.n


def test_limits_are_marked_in_the_plot() -> None:
    result, _ = pump(ttft.Parameters(rate=20, p99_ms=500), setting())
    assert result.plots[0].marks == {"limit P99": 500}


def test_cut_short_ends_the_runs() -> None:
    def execute(plan: LoadPlan) -> Observation:
        return answer(plan, interrupted="Ctrl-C" if plan.phase is Phase.MEASURE else None)

    result = drive(ttft.TEST.procedure(ttft.Parameters(rate=20, requests=10, runs=5), setting()), execute)
    assert len(result.observations) == 1


def test_nothing_measured_is_undefined_not_zero() -> None:
    def execute(plan: LoadPlan) -> Observation:
        return answer(plan, failures=plan.requests if plan.phase is Phase.MEASURE else 0)

    result = drive(ttft.TEST.procedure(ttft.Parameters(rate=20, requests=10, p99_ms=500), setting()), execute)
    assert result.metrics["ttft.p99"].point is None
    assert [plot.id for plot in result.plots] == ["requests_over_time"]  # all of them failed
    assert {row[1] for row in result.tables[0].rows[1:]} == {"not measured: no samples"}
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.INCONCLUSIVE
