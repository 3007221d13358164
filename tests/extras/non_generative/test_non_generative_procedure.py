"""The test of embeddings, reranking and scores: its marker, its load, its figures in replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from replayed_sut import ReplayedSUT, ended

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.non_generative import procedure as non_generative
from pytest_llmbench.methodology.catalogue import OF_THE_DRAFT
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import WarmupPolicy
from pytest_llmbench.methodology.sections import ttft
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.objective import metric, ms
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.reports.comparisons import headline_names
from pytest_llmbench.workloads.sequence import drawn

OF_OUTPUT = ("first_event_ns", "first_nonempty_ns", "first_content_ns", "last_content_ns", "output_tokens")


def parameters(**given: Any) -> non_generative.Parameters:
    return build(non_generative.Parameters, given)


def measured(scenario: str = "fast", change: Any = None, keep: Any = None, **given: Any) -> TestResult:
    def changed(seen: Observation) -> Observation:
        return seen if change is None or seen.plan.phase is not Phase.MEASURE else change(seen)

    return ReplayedSUT(scenario, change=changed).measure(non_generative.TEST, keep=keep, **given)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"compliance": "conditional"}, "not part of the draft"),
        ({"latency_p95": 5}, "did you mean latency_p95_ms"),
        ({"min_requests_per_s": 0}, "min_requests_per_s must be greater than zero"),
        ({"requests": "auto"}, "ends when the limits are decided"),
        (
            {"requests": "auto", "min_requests_per_s": 5},
            "cannot evaluate request_throughput .*means of latency, latency_scheduled",
        ),
        ({"rate": 2, "concurrency": 2}, "exclude each other"),
        ({"slo": [metric("ttft.p99", "ms") <= 5 * ms]}, "limits ttft.p99, which has no meaning"),
    ],
)
def test_mistakes(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        parameters(**given)


def test_a_test_about_tokens_takes_no_profile_without_them() -> None:
    for workload in ("profile:EMBED", {"profile:XRANK": 1, "profile:CHAT": 1}):
        with pytest.raises(
            SuiteError, match=r"generates no tokens: measure it with @llmbench.non_generative"
        ):
            build(ttft.Parameters, {"workload": workload})


def test_limits_become_objectives() -> None:
    asked = parameters(latency_p99_ms=300, latency_mean_ms=50, min_requests_per_s=5, min_input_tokens_per_s=9)
    assert [(each.metric, each.op, each.limit, each.unit) for each in asked.objectives] == [
        ("latency.p99", "<=", 300, "ms"),
        ("latency.mean", "<=", 50, "ms"),
        ("request_throughput", ">=", 5, "req/s"),
        ("input_token_throughput", ">=", 9, "tok/s"),
    ]


def test_the_load_asks_for_no_output() -> None:
    asked = parameters(workload="synthetic-uniform", rate=3)
    (plan,) = non_generative.plans(asked, ReplayedSUT().setting(asked.workload))
    assert plan.load == OpenLoop(3, "poisson")
    assert {request.max_tokens for request in plan.workload.requests(20, 1)} == {0}
    assert parameters().load == ClosedLoop(8)
    (plan,) = non_generative.plans(parameters(), ReplayedSUT().setting("profile:EMBED"))
    assert (plan.workload.name, plan.requests) == ("profile:EMBED", 1000)


def test_the_figures_of_a_replay_are_those_of_its_records() -> None:
    result = measured(rate=20, requests=400, latency_p50_ms=1000, min_requests_per_s=10)
    (seen,) = result.observations
    records = seen.records
    assert records.ok.all()
    took_ms = (records.finished_ns - records.submitted_ns) / 1e6
    assert result.metrics["latency.mean"].point == pytest.approx(took_ms.mean())
    assert result.metrics["latency.max"].point == took_ms.max()
    assert result.metrics["latency.p50"].n == 400
    assert result.metrics["request_throughput"].point == pytest.approx(400 / seen.duration_s)
    tokens = result.metrics["input_token_throughput"].point
    assert tokens == pytest.approx(records.input_tokens.sum() / seen.duration_s)
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.PASS


def test_nothing_of_tokens_is_invented() -> None:
    result = measured(
        "fast?think_mean_tokens=50&output_filter=enabled&output_refusal_share=1", concurrency=4, requests=60
    )
    records = result.observations[0].records
    assert records.ok.all(), "no filter reads a vector"
    for name in OF_OUTPUT:
        assert (getattr(records, name) == MISSING).all(), name
    assert {TOKEN_SOURCES[code] for code in records.token_source} == {"none"}
    assert len(records.chunk_ns) == 0
    assert {name.partition(".")[0] for name in result.metrics} == {
        "latency", "latency_scheduled", "request_throughput", "input_token_throughput", "completion_rate",
    }  # fmt: skip
    for key in ("streaming.chunk_handling", "streaming.itl_option", "timing.first_point"):
        assert result.facts.value(key) is None
    assert "output tokens" not in result.facts.value("warmup.description")
    engine = result.observations[0].engine
    assert engine is not None
    assert engine.grown("generated_tokens") == 0
    assert [plot.id for plot in result.plots] == ["latency_cdf", "requests_over_time"]
    assert "not part of the draft" in str(result.notes[-1])
    assert non_generative.HEADING.test not in OF_THE_DRAFT


def test_the_warm_up_settles_without_an_output_token() -> None:
    result = measured(concurrency=2, requests=30, keep={"warmup": WarmupPolicy()})
    assert result.warmup.stabilised
    assert result.warmup.requests_ok >= 100
    assert result.warmup.probe_before_ms is not None


def test_checks_of_streams_do_not_run_and_the_others_do() -> None:
    result = measured(rate=20, requests=100)
    checks = {each.check for each in validity(result.observations, Budget(0.01)).findings}
    assert not checks & {"stream_fidelity", "output_limits"}
    assert {"error_budget", "all_requests_recorded", "prompt_length_drift", "send_lag"} <= checks


def half_failed(seen: Observation) -> Observation:
    return ended(seen, Outcome.EMPTY, slice(None, None, 2))


def test_a_load_ends_when_its_limits_are_decided() -> None:
    result = measured(rate=20, requests="auto", latency_p50_ms=1_000, latency_mean_ms=1_000)
    (seen,) = result.observations
    assert result.facts.value("load.decided") is True
    assert len(seen.records) < 5_000  # the most there would be
    looked_at = result.facts.value("load.decided_after")
    first = (seen.records.finished_ns - seen.records.submitted_ns)[seen.records.index < looked_at] / 1e6
    assert result.metrics["latency[as judged].mean"].point == pytest.approx(first.mean())
    assert result.metrics["latency[as judged].p50"].n == looked_at
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.PASS


def test_a_failed_request_may_count_as_slower_than_the_limit() -> None:
    given: dict[str, Any] = {
        "change": half_failed,
        "concurrency": 2,
        "requests": 400,
        "latency_p95_ms": 1_000,
    }
    assert gate(*judged_by(measured(**given))).verdict is GateVerdict.PASS
    assert gate(*judged_by(measured(**given, failures="over_limit"))).verdict is GateVerdict.FAIL


def judged_by(result: TestResult) -> tuple[Any, Any]:
    return result.objectives, result.metrics


def test_failed_requests_have_no_latency() -> None:
    result = measured(change=half_failed, concurrency=2, requests=40)
    assert result.metrics["latency.p50"].n == 20
    assert result.metrics["completion_rate"].point == 0.5
    assert result.metrics["request_throughput"].point == pytest.approx(20 / result.observations[0].duration_s)


def test_without_a_result_nothing_is_measured() -> None:
    result = measured(
        change=lambda seen: ended(seen, Outcome.EMPTY), concurrency=2, requests=20, latency_p95_ms=10
    )
    assert result.metrics["latency.p95"].point is None
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.INCONCLUSIVE
    assert any("no request got a result" in note for note in map(str, result.notes))


def test_an_unknown_count_of_input_is_no_rate() -> None:
    def uncounted(seen: Observation) -> Observation:
        counts = seen.records.input_tokens.copy()
        counts[3] = MISSING
        return replace(seen, records=replace(seen.records, input_tokens=counts))

    result = measured(change=uncounted, concurrency=2, requests=20)
    assert result.metrics["input_token_throughput"].point is None
    assert result.metrics["request_throughput"].point is not None


def test_the_parts_of_a_mixture_have_their_latency() -> None:
    result = measured(workload={"profile:EMBED": 1, "profile:XRANK": 1}, concurrency=4, requests=80)
    parts = [result.metrics[f"latency[profile:{code}].p50"].n for code in ("EMBED", "XRANK")]
    assert sum(parts) == 80
    assert not [name for name in result.metrics if name.startswith(("ttft", "tpot", "output"))]
    assert any(table.id == "non_generative_by_class" for table in result.tables)


def test_runs_are_pooled_and_stand_alone_beside() -> None:
    result = measured(concurrency=2, requests=30, runs=2)
    assert result.metrics["latency.p50"].n == 60
    assert len(result.by_run["latency.p50"]) == 2


def test_every_run_has_the_one_list_of_lengths() -> None:
    sut = ReplayedSUT()
    result: TestResult = sut.measure(non_generative.TEST, concurrency=2, requests=20, runs=3)
    plans = [plan for plan in sut.plans if plan.label.startswith("run")]
    sent = [drawn(plan.workload, plan.first, plan.requests, plan.seed) for plan in plans]
    lengths = [[request.input_tokens for request in requests] for requests in sent]
    assert lengths == [lengths[0]] * 3
    assert len(result.observations) == 3


def test_its_main_metrics_are_the_headlines_of_a_report() -> None:
    names = list(measured(rate=20).metrics)
    assert headline_names("non_generative", names) == list(non_generative.MAIN_METRICS)
