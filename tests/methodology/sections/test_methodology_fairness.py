"""The fairness procedure (section 5.6): known classes, canned and in the embedded engine."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from canned_levels import are_in_the_catalogue, prompts, rows_of
from canned_streams import StreamServer, streaming_setting
from replayed_sut import ReplayedSUT

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Scale
from pytest_llmbench.methodology.sections import fairness
from pytest_llmbench.metrics.throughput import submitted_inside, window_of
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.mixture import LONG, SHORT, ClassMix, RequestClass

SKEWED = workload("synthetic-skewed")
QUICK = {"capacity_rps": 5, "duration_s": 1.0, "requests_per_class": 40}
TWINS = tuple(RequestClass(name, (64, 256), (32, 128), 0.5) for name in ("one", "other"))


def pump(server: StreamServer, scale: Scale = "standard", **given: Any) -> TestResult:
    parameters = build(fairness.Parameters, {**QUICK, **given})
    return drive(fairness.TEST.procedure(parameters, streaming_setting(SKEWED, scale)), server)


def slow_mix(plan: LoadPlan, request: PlannedRequest) -> float:
    """Alone 100 ms; in the mix short requests take twice and long ones three times as long."""
    if plan.label != "mix of classes":
        return 100.0
    return 200.0 if request.class_label == "short" else 300.0


def test_inflation_of_each_class_over_its_own_baseline() -> None:
    result = pump(StreamServer(ttft_ms=slow_mix))
    assert result.metrics["ttft[short].p50"].point == pytest.approx(200.0)
    assert result.metrics["ttft[short alone].p50"].point == pytest.approx(100.0)
    for statistic in ("p50", "p95", "p99"):
        assert result.metrics[f"ttft_inflation[short].{statistic}"].point == pytest.approx(2.0)
        assert result.metrics[f"ttft_inflation[long].{statistic}"].point == pytest.approx(3.0)
    # (2 + 3)² / (2 · (4 + 9))
    assert result.metrics["class_jain_index"].point == pytest.approx(25 / 26)


def test_equal_normalised_latency_is_perfect_fairness() -> None:
    """TTFT as long as a gap: E2E is 10 ms per output token for everyone."""
    result = pump(StreamServer(ttft_ms=lambda plan, request: 10.0))
    assert result.metrics["jain_index"].point == pytest.approx(1.0)
    assert result.metrics["class_jain_index"].point == pytest.approx(1.0)
    assert not any("unfairness" in note for note in map(str, result.notes))


def test_unequal_normalised_latency_is_told_as_unfair() -> None:
    def gaps(plan: LoadPlan, request: PlannedRequest, n: int) -> list[float]:
        return [40.0 if request.class_label == "long" else 10.0] * n

    def first(plan: LoadPlan, request: PlannedRequest) -> float:
        return 40.0 if request.class_label == "long" else 10.0

    result = pump(StreamServer(ttft_ms=first, gaps_ms=gaps))
    mix = result.observations[-1]
    labels = Counter(submitted_inside(window_of(mix)).class_label)
    n, x1, x2 = sum(labels.values()), 10.0, 40.0
    total = labels["short"] * x1 + labels["long"] * x2
    squares = labels["short"] * x1**2 + labels["long"] * x2**2
    assert result.metrics["jain_index"].point == pytest.approx(total**2 / (n * squares))
    assert any("significant unfairness" in note for note in map(str, result.notes))


def starving(request: PlannedRequest) -> bool:
    return request.class_label == "short" and request.index % 8 == 0


def test_starvation_by_the_queue_wait_of_the_server() -> None:
    server = StreamServer(queue_wait_ms=lambda request: 60.1 if starving(request) else 12.0)
    result = pump(server)
    inside = submitted_inside(window_of(result.observations[-1]))
    short = [i for i, name in zip(inside.index, inside.class_label, strict=True) if name == "short"]
    share = sum(int(i) % 8 == 0 for i in short) / len(short)
    assert result.metrics["starvation_rate[short]"].point == pytest.approx(share)
    assert result.metrics["starvation_rate[long]"].point == 0.0
    assert result.facts.value("fairness.wait_source") == "server queue wait"
    assert rows_of(result, "fairness_metrics")["Short Class Median Wait"][:1] == ("12 ms",)


def test_starvation_by_ttft_where_the_server_tells_no_wait() -> None:
    def first(plan: LoadPlan, request: PlannedRequest) -> float:
        return 501.0 if starving(request) else 100.0

    result = pump(StreamServer(ttft_ms=first))
    assert result.facts.value("fairness.wait_source") == "TTFT"
    assert 0.05 < (result.metrics["starvation_rate[short]"].point or 0) < 0.25
    assert any("the server does not report its queue" in note for note in map(str, result.notes))


def test_baselines_have_the_offered_tokens_of_the_mix() -> None:
    server = StreamServer()
    result = pump(server)
    mix = ClassMix()
    loads = {plan.label: plan.load.rate for plan in server.measured if isinstance(plan.load, OpenLoop)}
    assert list(loads) == ["short alone", "long alone", "mix of classes"]
    assert loads["mix of classes"] == 4.0  # 80 % of 5
    for name in ("short", "long"):
        assert loads[f"{name} alone"] * mix.mean_tokens(name) == pytest.approx(
            4.0 * mix.mean_tokens(), rel=1e-3
        )
    assert any("equal offered tokens per second" in note for note in map(str, result.notes))
    assert result.facts.value("fairness.equal_load") == "tokens"


def test_equal_request_rates_on_request() -> None:
    server = StreamServer()
    result = pump(server, equal_load="requests")
    assert {plan.load.rate for plan in server.measured if isinstance(plan.load, OpenLoop)} == {4.0}
    assert any("equal request rate" in note for note in map(str, result.notes))


def test_every_class_has_its_requests_behind_the_ramp_up() -> None:
    result = pump(StreamServer())
    alone = {}
    for level, run in zip(result.levels, result.observations, strict=True):
        counted = Counter(submitted_inside(window_of(run)).class_label)
        alone[level.class_label] = counted[level.class_label]
        assert min(counted.values()) >= 40
        assert set(counted) == ({level.class_label} if level.class_label else {"short", "long"})
    stated = {each["name"]: each for each in result.facts.value("fairness.classes")}
    assert stated["long"]["requests"] >= 40
    assert {name: each["requests_alone"] for name, each in stated.items()} == {
        name: alone[name] for name in ("short", "long")
    }
    assert (stated["long"]["input"], stated["long"]["output"]) == ([1024, 4096], [256, 1024])


def test_the_ramp_up_does_not_count_towards_the_floor() -> None:
    for first in (0, 17, 400):
        count = fairness.requests_for(ClassMix(), 42, first, 40)
        behind = ClassMix().requests(first + count, 42)[
            first + int(0.1 * count + 3 * (0.1 * count) ** 0.5) + 1 :
        ]
        assert min(Counter(request.class_label for request in behind).values()) >= 40
        assert count < 450


def test_the_mix_lasts_as_long_as_asked() -> None:
    server = StreamServer()
    result = pump(server, duration_s=25.0, requests_per_class=1)
    assert server.measured[-1].duration_s == 25.0
    assert result.facts.value("load.duration_s") == 25.0
    plans = fairness.TEST.plans(
        fairness.Parameters(capacity_rps=5, duration_s=1.0), streaming_setting(SKEWED, "full")
    )
    assert plans[-1].duration_s is not None
    assert plans[-1].duration_s >= 300
    assert plans[-1].requests >= 2500


def test_no_two_runs_send_the_same_prompts() -> None:
    server = StreamServer()
    pump(server)
    sent = prompts(server.plans)
    assert len(set(sent)) == len(sent)


def test_levels_and_facts() -> None:
    result = pump(StreamServer())
    assert [(level.label, level.role, level.class_label) for level in result.levels] == [
        ("short alone", "baseline", "short"),
        ("long alone", "baseline", "long"),
        ("mix", "mix", ""),
    ]
    assert result.levels[-1].percent_of_capacity == 80
    assert result.budgeted == (0, 1, 2)
    assert result.facts.value("workload.name") == "synthetic-skewed"
    assert result.facts.value("workload.class_mix") == {"short": 0.8, "long": 0.2}
    realised = result.facts.value("workload.realised_class_mix")
    assert realised["short"] == pytest.approx(0.8, abs=0.06)
    assert result.facts.value("load.capacity_rps") == 5
    assert result.facts.value("load.levels_percent") == [80]


def test_tables_follow_the_draft() -> None:
    result = pump(StreamServer(ttft_ms=slow_mix))
    shown = {table.id: table for table in result.tables}
    assert shown["fairness_classes"].title == "Per-Class Results"
    assert shown["fairness_metrics"].title == "Fairness Metrics"
    columns = shown["fairness_classes"].columns
    wanted = ("Class", "Count", "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99")
    assert [name for name in columns if name in wanted] == list(wanted)
    short = dict(zip(columns[1:], rows_of(result, "fairness_classes")["Short"], strict=True))
    assert short["TTFT P50"] == "200 ms"
    assert short["TTFT P99"] == "200 ms, indicative"
    assert short["TTFT Inflation P50"] == "2"
    assert [row[0] for row in shown["fairness_metrics"].rows][:3] == [
        "Jain's Fairness Index",
        "Short Class Starvation",
        "Long Class Starvation",
    ]
    assert rows_of(result, "fairness_metrics")["Short Class Starvation"][0] == "0 %"
    assert {name: (x[0], x[-1]) for name, (x, _) in result.plots[0].series.items()} == {
        "short, mix": (200, 200), "short, alone": (100, 100),
        "long, mix": (300, 300), "long, alone": (100, 100),
    }  # fmt: skip
    assert list(result.plots[0].series) == ["short, mix", "short, alone", "long, mix", "long, alone"]


def test_classes_of_ones_own() -> None:
    result = pump(StreamServer(), classes=TWINS)
    assert "ttft_inflation[one].p50" in result.metrics
    assert result.facts.value("workload.class_mix") == {"one": 0.5, "other": 0.5}


def test_limits_by_class_and_for_all() -> None:
    parameters = build(
        fairness.Parameters,
        {
            "min_jain": 0.9,
            "max_starvation": 0.01,
            "max_inflation": {"long": 3.0},
            "ttft_p99_ms": {"short": 250},
        },
    )
    assert [(o.metric, o.op, o.limit, o.unit) for o in parameters.objectives] == [
        ("jain_index", ">=", 0.9, "ratio"),
        ("starvation_rate[short]", "<=", 0.01, "ratio"),
        ("starvation_rate[long]", "<=", 0.01, "ratio"),
        ("ttft_inflation[long].p50", "<=", 3.0, "ratio"),
        ("ttft[short].p99", "<=", 250, "ms"),
    ]
    result = pump(StreamServer())
    assert {objective.metric for objective in parameters.objectives} <= set(result.metrics)
    assert are_in_the_catalogue(result.metrics)


def test_mistakes_in_the_marker() -> None:
    with pytest.raises(SuiteError) as kinds:
        build(
            fairness.Parameters,
            {"classes": [SHORT], "max_inflation": {"short": -1}, "equal_load": "watts", "min_jain": 2},
        )
    for part in (
        "at least two RequestClass",
        "'short' must be greater",
        "equal_load must be",
        "min_jain must",
    ):
        assert part in str(kinds.value)
    with pytest.raises(SuiteError) as shares:
        build(fairness.Parameters, {"classes": (SHORT, SHORT)})
    assert "classes cannot be drawn" in str(shares.value)
    with pytest.raises(SuiteError) as caught:
        build(
            fairness.Parameters,
            {"workload": "synthetic-uniform", "max_starvation": {"huge": 0.1}, "ttft_p99_ms": {"tiny": 1}},
        )
    for part in ("'synthetic-skewed'", "max_starvation limits ['huge']", "ttft_p99_ms limits ['tiny']"):
        assert part in str(caught.value)


def test_a_server_without_a_sustainable_load_has_no_mix() -> None:
    server = StreamServer(fails=lambda plan: plan.phase is Phase.MEASURE)
    result = pump(server, scale="quick", capacity_rps=None)
    assert result.metrics == {}
    assert result.budgeted == ()
    assert any("the mix has no rate" in note for note in map(str, result.notes))


def test_plans_without_a_rate_count_the_requests() -> None:
    plans = fairness.TEST.plans(fairness.Parameters(requests_per_class=50), streaming_setting(SKEWED))
    assert [plan.label for plan in plans] == ["short alone", "long alone", "mix of classes"]
    assert plans[0].requests >= 50
    assert plans[2].requests >= 250


def replayed(scenario: str, **given: Any) -> TestResult:
    asked = {"requests_per_class": 60, "duration_s": 1.0, **given}
    return ReplayedSUT(scenario).measure(fairness.TEST, **asked)


def test_equal_classes_of_the_engine_are_treated_alike() -> None:
    result = replayed("fast", capacity_rps=10, classes=TWINS)
    jain, by_class = result.metrics["jain_index"], result.metrics["class_jain_index"]
    assert (jain.point or 0) > 0.995
    assert (by_class.point or 0) > 0.99
    for name in ("one", "other"):
        assert result.metrics[f"ttft_inflation[{name}].p50"].point == pytest.approx(1.0, abs=0.1)
    assert result.facts.value("fairness.wait_source") == "server queue wait"


def test_whole_prompts_in_order_of_arrival_are_unfair_to_short_requests() -> None:
    """Head-of-line blocking: a short request waits for the whole prefill of a long one."""
    result = replayed(
        "fast?chunked_prefill=false&prefill_us_per_token=100&max_num_seqs=256&"
        "context_limit_tokens=8192&max_num_batched_tokens=8192&scheduler=fcfs",
        capacity_rps=12.5,
    )
    assert (result.metrics["jain_index"].upper or 1) < 0.9
    assert (result.metrics["class_jain_index"].point or 1) < 0.95
    short, long = (result.metrics[f"ttft_inflation[{name}].p95"].point or 0 for name in ("short", "long"))
    assert short > 5 * long > 0
    assert LONG.name in result.facts.value("workload.class_mix")
