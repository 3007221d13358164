"""The throughput procedure (section 5.2) against a server of known capacity: 40 req/s, 400 tok/s."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from canned_levels import (
    QueueServer,
    are_in_the_catalogue,
    canned_setting,
    prompts,
    replay_engine,
    replay_setting,
    rows_of,
)

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.search import probing
from pytest_llmbench.methodology.search.probing import STEPS_DOWN, lowest_beyond, meets
from pytest_llmbench.methodology.sections import throughput
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.model.result import OVER_TIME, TestResult

RANGE: dict[str, Any] = {"min_rate": 8, "max_rate": 72, "rate_step": 4}
EXACT = RANGE | {"arrival": "uniform"}
"""Evenly spaced arrivals: 40 req/s never wait, 44 req/s queue without end."""


def run(
    server: QueueServer | None = None, scale: str = "quick", seed: int = 42, **keywords: Any
) -> TestResult:
    facts = {"sut.hardware.accelerator_count": 4}
    parameters = build(throughput.Parameters, keywords)
    return drive(
        throughput.TEST.procedure(parameters, replace(canned_setting(scale, **facts), seed=seed)),  # type: ignore[arg-type]
        server or QueueServer(),
    )


def roles(result: TestResult) -> list[tuple[str, str]]:
    return [(level.label, level.role) for level in result.levels]


def test_known_answers_of_an_open_loop() -> None:
    result = run(**EXACT)
    found = result.metrics["sustainable_rate"]
    assert (found.point, found.lower, found.upper) == (40.0, 40.0, 44.0)
    assert result.metrics["max_output_token_throughput"].point == pytest.approx(400, rel=0.01)
    assert result.metrics["max_request_throughput"].point == pytest.approx(40, rel=0.02)
    assert result.metrics["max_input_token_throughput"].point == pytest.approx(640, rel=0.02)
    assert result.metrics["ttft.p50"].point == pytest.approx(20.0, abs=0.1)
    assert result.metrics["e2e.p95"].point == pytest.approx(100.0, abs=0.1)
    assert result.metrics["output_tokens_per_gpu_second"].point == pytest.approx(100, rel=0.01)
    assert result.facts.value("throughput.raw_output_tok_s") == pytest.approx(395, rel=0.02)


def test_the_maximum_is_known_to_the_bracket_of_its_search() -> None:
    """40 req/s hold and 44 do not: between them lies the maximum. What was measured at 40 is known better."""
    found = run(**EXACT).metrics
    alone, most = found["output_token_throughput"], found["max_output_token_throughput"]
    assert alone.upper is not None
    assert most.upper == pytest.approx(alone.upper * 44 / 40)
    assert (most.point, most.lower) == (alone.point, alone.lower)
    assert "44 req/s, which did not hold" in most.method
    closed = run(min_concurrency=1, max_concurrency=64, concurrency_step=1).metrics
    assert closed["max_output_token_throughput"] == closed["output_token_throughput"]


def test_every_metric_is_in_the_catalogue() -> None:
    result = run(seed=47, ttft_p99_ms=60, **RANGE)
    assert are_in_the_catalogue(result.metrics)


def test_bisection_visits_the_ends_first_and_stops_at_the_step() -> None:
    labels = [label for label, role in roles(run(**EXACT)) if role == "probe"]
    assert labels == ["8 req/s", "72 req/s", "40 req/s", "56 req/s", "48 req/s", "44 req/s"]


def test_the_reported_level_is_longer_than_the_probes() -> None:
    server = QueueServer()
    run(server, scale="standard", probe_s=2, duration_s=5, **EXACT)
    slowest, *others = server.measured[:-1]
    assert {plan.duration_s for plan in others} == {2}
    assert (slowest.load.rate, slowest.duration_s, slowest.requests) == (8.0, 2.5, 20)  # type: ignore[union-attr]
    assert server.measured[-1].duration_s == 5
    assert server.measured[-1].load == OpenLoop(40.0, "uniform")


def test_no_prompt_is_sent_twice() -> None:
    server = QueueServer()
    run(server, ttft_p99_ms=60, **EXACT)
    sent = prompts(server.plans)
    assert len(set(sent)) == len(sent)


def test_tables_follow_the_draft() -> None:
    result = run(**EXACT)
    summary = rows_of(result, "throughput_summary")
    assert list(summary)[:5] == [
        "Max Output Throughput",
        "Max Request Throughput",
        "Max Input Throughput",
        "Sustainable Load",
        "Tokens per GPU-second",
    ]
    assert summary["Sustainable Load"] == ("40 req/s", "[40, 44]")
    assert summary["Tokens per GPU-second"][0].endswith(" tok/s")
    assert summary["Latency Constraint"][0].startswith("none")
    assert summary["Batch Utilisation"][0].startswith("not measurable")
    latency = rows_of(result, "latency_at_max")
    assert list(latency) == ["TTFT", "TPOT", "End-to-End"]
    assert latency["End-to-End"][0] == "100 ms"
    assert "indicative" in latency["TTFT"][2]
    assert [plot.id for plot in result.plots] == ["throughput_load", *OVER_TIME]
    assert result.plots[0].marks == {"sustainable": 40.0}


def test_facts_state_range_duration_and_objectives() -> None:
    facts = run(ttft_p99_ms=60, **RANGE).facts
    assert facts.value("load.model") == "open"
    assert facts.value("load.rate_range") == [8.0, 72.0, 4.0]
    assert facts.value("load.duration_s") == 6.0
    assert facts.value("load.slo") == {"ttft_p99_ms": 60}


def test_under_a_constraint_a_level_of_its_own_that_meets_it() -> None:
    result = run(seed=47, ttft_p99_ms=60, **RANGE)
    constrained = next(
        Seen(level, result.observations[level.observation or 0])
        for level in result.levels
        if level.role == "constrained"
    )
    assert meets(constrained, {"ttft.p99": 60})
    whole, under = (
        result.metrics[name].point
        for name in ("max_output_token_throughput", "constrained_output_token_throughput")
    )
    assert whole is not None
    assert under is not None
    assert under < whole
    above = [
        level
        for level in result.levels
        if level.role == "probe" and (level.offered_rps or 0) > (constrained.level.offered_rps or 0)
    ]
    nearest = min(above, key=lambda level: level.offered_rps or 0)
    assert not meets(Seen(nearest, result.observations[0]), {"ttft.p99": 60})
    assert rows_of(result, "throughput_summary")["Latency Constraint"][0] == "TTFT P99 <= 60 ms"


def test_the_users_limit_decides_and_not_the_ten_fold_rule() -> None:
    """Ten times the unloaded 20 ms are 200 ms; the user is content with 700."""
    result = run(ttft_p99_ms=700, **RANGE)
    names = ("max", "constrained", "tenfold")
    most, under, tenfold = (result.metrics[f"{name}_output_token_throughput"] for name in names)
    assert tenfold.point is not None
    assert under.point is not None
    assert under.point > 1.02 * tenfold.point
    assert most == under
    levels = {level.role: level for level in result.levels if level.role in ("reported", "ten-fold")}
    reported, alone = levels["reported"], levels["ten-fold"]
    assert "constrained" not in {role for _, role in roles(result)}
    assert reported.overloaded is False
    assert 200 < (reported.metrics["ttft.p99"].point or 0) <= 700
    assert alone.saturated is False
    sustained = result.metrics["sustainable_rate"]
    assert sustained.point == reported.offered_rps
    assert sustained.upper is not None
    assert sustained.point < sustained.upper <= sustained.point + 4.01
    summary = rows_of(result, "throughput_summary")
    assert summary["Output Throughput by the Ten-fold Rule"][0] != summary["Output Throughput under it"][0]
    assert summary["Load by the Ten-fold Rule"][0] == f"{alone.offered_rps:g} req/s"
    assert any(
        "by the ten-fold rule" in note and f"{alone.offered_rps:g}" in note for note in map(str, result.notes)
    )


@pytest.mark.parametrize("limit", [25, 60, 300, 5000])
def test_no_constrained_throughput_is_above_the_maximum(limit: float) -> None:
    found = run(ttft_p99_ms=limit, **RANGE).metrics
    most = found["max_output_token_throughput"].point
    assert most is not None
    for name in ("constrained_output_token_throughput", "tenfold_output_token_throughput"):
        assert (found[name].point or 0.0) <= most


def test_without_limits_the_maximum_is_the_ten_fold_one_and_has_one_name() -> None:
    assert "tenfold_output_token_throughput" not in run(**EXACT).metrics


def test_a_constraint_that_the_maximum_meets_needs_no_further_level() -> None:
    result = run(ttft_p99_ms=60, **EXACT)
    assert "constrained" not in {role for _, role in roles(result)}
    assert (
        result.metrics["constrained_output_token_throughput"] == result.metrics["max_output_token_throughput"]
    )


def test_a_constraint_that_nothing_meets() -> None:
    result = run(ttft_p99_ms=5, min_constrained_tok_s=10, **EXACT)
    assert result.metrics["constrained_output_token_throughput"].point is None
    assert (
        rows_of(result, "throughput_summary")["Output Throughput under it"][0]
        == "not measured: no tested level meets the objectives"
    )
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.INCONCLUSIVE


def test_steps_down_while_the_longer_level_is_saturated() -> None:
    # At 6 s and longer the server is slower by a fifth: it carries 33 req/s.
    result = run(QueueServer(slow_after_s=6.0), **EXACT)
    tail = roles(result)[-3:]
    assert tail == [
        ("reported: 40 req/s", "reported (given up)"),
        ("reported: 36 req/s", "reported (given up)"),
        ("reported: 32 req/s", "reported"),
    ]
    found = result.metrics["sustainable_rate"]
    assert (found.point, found.upper) == (32.0, 36.0)
    assert any("36 req/s did not hold" in note for note in map(str, result.notes))
    # what was given up is beyond capacity: the error budget is not about it
    assert result.budgeted == (len(result.observations) - 1,)


def test_a_level_far_below_is_found_to_a_step() -> None:
    """By steps of 1 req/s the server that carries 33 is eight of them away; then the bracket is closed."""
    result = run(QueueServer(slow_after_s=6.0), **{**EXACT, "rate_step": 1})
    down = [float(label.split()[1]) for label, role in roles(result) if role == "reported (given up)"]
    assert down == [40, 39, 38, 37, 36, 34]
    assert roles(result)[-1] == ("reported: 33 req/s", "reported")
    assert ("reported: 32 req/s", "probe") in roles(result)  # which held, and is not the highest
    found = result.metrics["sustainable_rate"]
    assert (found.point, found.upper) == (33, 34)


@pytest.mark.parametrize("seed", range(6))
def test_of_a_slow_engine_the_rate_is_found_too(seed: int) -> None:
    """Four replies of 24 s at a time: 20 s hold three requests, by which it seemed to carry 1.5 times as
    much."""
    server = QueueServer(slots=4, service_s=24.0, first_ms=2_000.0)
    result = run(server, "standard", seed, ttft_p99_ms=120_000)
    rate = result.metrics["sustainable_rate"].point
    assert rate is not None
    assert 0.5 < rate / server.capacity_rps < 1.25
    assert min(level.n_submitted for level in result.levels if not level.is_burst) >= 20
    assert result.metrics["constrained_output_token_throughput"].point is not None


def unmeasured(seen: Seen) -> Seen:
    return seen.with_(
        metrics=seen.level.metrics | {"ttft.p99": Estimate.undefined(unit="ms", method="no request")}
    )


def test_what_was_not_measured_is_not_known_and_ends_no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the lowest levels no request was inside the window; higher ones meet the objective."""
    made = probing.level_of

    def level_of(run: Any, **more: Any) -> Seen:
        seen = made(run, **more)
        rate = run.plan.load.rate
        return unmeasured(seen) if rate in blank else seen

    monkeypatch.setattr(probing, "level_of", level_of)
    for blank in ({8.0}, {8.0, 72.0}, {40.0}, {8.0, 40.0}):
        result = run(ttft_p99_ms=60, **EXACT)
        found = result.metrics["constrained_output_token_throughput"]
        assert found.point == pytest.approx(400, rel=0.02), blank
        assert found.upper is not None, blank
    blank = {float(rate) for rate in range(100)}
    result = run(ttft_p99_ms=60, **EXACT)
    # The level that was held for long is measured, and meets it.
    assert result.metrics["constrained_output_token_throughput"].point == pytest.approx(400, rel=0.02)


def test_a_level_of_which_it_is_not_known_is_neither_met_nor_broken() -> None:
    result = run(ttft_p99_ms=60, **EXACT)
    seen = Seen(result.levels[0], result.observations[0])
    assert meets(seen, {"ttft.p99": 60.0}) is True
    assert meets(seen, {"ttft.p99": 1.0}) is False
    assert meets(unmeasured(seen), {"ttft.p99": 60.0}) is None
    assert meets(unmeasured(seen), {"ttft.p99": 60.0, "tpot.p99": 0.001}) is False
    assert meets(unmeasured(seen).with_(overloaded=True), {"ttft.p99": 60.0}) is False
    assert lowest_beyond(seen, [seen, unmeasured(seen).with_(offered_rps=80.0)], never_known) is None


def never_known(_: Seen) -> bool | None:
    return None


def test_steps_down_are_bounded() -> None:
    result = run(
        QueueServer(slow_after_s=6.0, slots=4), min_rate=39, max_rate=41, rate_step=0.5, arrival="uniform"
    )
    assert sum("given up" in role for _, role in roles(result)) <= len(STEPS_DOWN) + 3
    assert min(level.offered_rps or 0 for level in result.levels) == 39.0  # not below the range
    assert result.metrics["max_output_token_throughput"].point is None
    assert rows_of(result, "throughput_summary")["Sustainable Load"][0] == "not measured: no tested load held"


def test_a_range_that_ends_before_saturation_gives_a_lower_bound() -> None:
    """The server does 400 tok/s; a range that ends at 24 req/s shows 240 of them."""
    result = run(
        min_rate=8, max_rate=24, rate_step=4, arrival="uniform", ttft_p99_ms=60, min_output_tok_s=300,
        min_request_s=20, min_constrained_tok_s=300, min_tokens_per_gpu_s=90,
    )  # fmt: skip
    names = (
        "max_output_token_throughput", "max_request_throughput", "max_input_token_throughput",
        "constrained_output_token_throughput", "output_tokens_per_gpu_second", "sustainable_rate",
    )  # fmt: skip
    for name in names:
        assert result.metrics[name].upper is None, name
        found = result.metrics[name]
        assert (found.kind, found.reason) == (EstimateKind.BOUND, Reason.RANGE_ENDED), name
    assert result.metrics["output_token_throughput"].upper is not None  # of the level that was measured
    decided = gate(result.objectives, result.metrics)
    assert "a lower bound" in decided.objectives[0].reason
    judged = {str(each.objective): each.verdict for each in decided.objectives}
    assert judged == {
        "max_output_token_throughput >= 300 tok/s": GateVerdict.INCONCLUSIVE,
        "max_request_throughput >= 20 req/s": GateVerdict.PASS,
        "constrained_output_token_throughput >= 300 tok/s": GateVerdict.INCONCLUSIVE,
        "output_tokens_per_gpu_second >= 90 tok/s": GateVerdict.INCONCLUSIVE,
    }
    summary = rows_of(result, "throughput_summary")
    assert summary["Max Output Throughput"][0].startswith("at least 24")
    assert summary["Output Throughput under it"][0] == "the maximum above"
    assert summary["Sustainable Load"][0] == "at least 24 req/s"
    assert any("a lower bound" in note and "24 req/s" in note for note in map(str, result.notes))


@pytest.mark.parametrize(
    "asked",
    [{"min_rate": 8, "rate_step": 4, "arrival": "uniform"}, {"min_concurrency": 1, "concurrency_step": 1}],
)
def test_a_range_without_a_maximum_goes_on_until_it_saturates(asked: dict[str, Any]) -> None:
    result = run(**asked)
    maximum = result.metrics["max_output_token_throughput"]
    assert maximum.point == pytest.approx(400, rel=0.1)
    assert maximum.upper is not None
    assert result.levels[0].role == "burst"
    key = "load.rate_range" if "min_rate" in asked else "load.concurrency_range"
    low, high, step = result.facts.value(key)
    assert (low, step) == (asked.get("min_rate", 1), asked.get("rate_step", 1))
    assert low < high < 1000
    planned = throughput.TEST.plans(build(throughput.Parameters, asked), canned_setting())
    assert planned[0].label.startswith("burst")


def test_closed_loop_finds_the_knee_of_the_throughput() -> None:
    result = run(min_concurrency=1, max_concurrency=64, concurrency_step=1)
    found = result.metrics["sustainable_concurrency"]
    assert (found.point, found.upper) == (4.0, 5.0)
    assert result.metrics["max_output_token_throughput"].point == pytest.approx(400, rel=0.02)
    assert result.facts.value("load.concurrency_range") == [1.0, 64.0, 1.0]
    assert rows_of(result, "throughput_summary")["Sustainable Load (requests in flight)"][0] == "4"
    reported = result.levels[-1]
    assert reported.role == "reported"
    assert reported.saturated is False


def test_batch_utilisation_from_the_gauge() -> None:
    result = run(QueueServer(gauges=True), load_model="closed")
    assert result.metrics["batch_utilisation"].point == pytest.approx(1.0, abs=0.01)
    half = run(
        QueueServer(gauges=True, service_s=0.1), min_rate=10, max_rate=20, rate_step=5, arrival="uniform"
    )
    # 20 req/s of 0.1 s each keep 2 of 4 places busy
    assert half.metrics["batch_utilisation"].point == pytest.approx(0.5, abs=0.05)
    assert half.metrics["sustainable_rate"].upper is None
    assert any("raise the maximum" in note for note in map(str, half.notes))


def test_a_range_of_its_own_from_bursts() -> None:
    result = run()
    assert [role for _, role in roles(result)][:2] == ["burst", "burst"]
    found = result.metrics["sustainable_rate"]
    assert found.point is not None
    assert found.upper is not None
    assert 24 <= found.point <= 40
    low, high, step = result.facts.value("load.rate_range")
    assert low < found.point < high
    assert found.upper - found.point <= step * 1.01


def test_repetitions_of_the_reported_level_are_pooled() -> None:
    result = run(scale="standard", probe_s=2, duration_s=4, runs=3, **EXACT)
    assert [role for _, role in roles(result)].count("reported") == 3
    one = run(scale="standard", probe_s=2, duration_s=4, **EXACT)
    assert result.metrics["ttft.p50"].n > 2.9 * one.metrics["ttft.p50"].n
    assert result.metrics["max_output_token_throughput"].point == pytest.approx(400, rel=0.02)


def test_a_server_that_answers_nothing_gives_no_number() -> None:
    result = run(QueueServer(dies=True), min_output_tok_s=100, **EXACT)
    assert result.metrics["max_output_token_throughput"].point is None
    assert result.metrics["sustainable_rate"].point is None
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.INCONCLUSIVE
    assert result.budgeted == (0,)
    assert any("lowest level" in note for note in map(str, result.notes))


def test_accelerators_that_nobody_declared() -> None:
    parameters = throughput.Parameters(**EXACT)
    result = drive(throughput.TEST.procedure(parameters, canned_setting()), QueueServer())
    assert result.metrics["output_tokens_per_gpu_second"].point is None
    assert rows_of(result, "throughput_summary")["Tokens per GPU-second"][0].startswith("not measurable")


def test_limits_become_objectives() -> None:
    parameters = throughput.Parameters(
        min_output_tok_s=100, min_request_s=2, min_input_tok_s=3, min_tokens_per_gpu_s=4,
        min_constrained_tok_s=5, tpot_p99_ms=50,
    )  # fmt: skip
    assert [str(objective) for objective in parameters.objectives] == [
        "max_output_token_throughput >= 100 tok/s",
        "max_request_throughput >= 2 req/s",
        "max_input_token_throughput >= 3 tok/s",
        "constrained_output_token_throughput >= 5 tok/s",
        "output_tokens_per_gpu_second >= 4 tok/s",
    ]


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"min_rate": 1}, "belong together"),
        (RANGE | {"max_rate": 8}, "max_rate must be above min_rate"),
        (RANGE | {"load_model": "closed"}, "takes a concurrency range"),
        (RANGE | {"min_concurrency": 1, "max_concurrency": 2, "concurrency_step": 1}, "not both"),
        ({"load_model": "closed", "arrival": "uniform"}, "describe an open loop"),
        ({"arrival": "gamma"}, "burstiness belong together"),
        ({"min_constrained_tok_s": 5}, "needs its constraint: ttft_p99_ms or tpot_p99_ms"),
    ],
)
def test_contradictions(keywords: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        build(throughput.Parameters, keywords)


def test_plans_for_the_cost_estimate_cover_the_run() -> None:
    parameters = throughput.Parameters(**EXACT)
    server = QueueServer()
    run(server, **EXACT)
    planned = throughput.TEST.plans(parameters, canned_setting())
    assert len(planned) >= len(server.measured)
    assert sum(plan.requests for plan in planned) >= sum(plan.requests for plan in server.measured)
    assert throughput.TEST.plans(throughput.Parameters(), canned_setting())[0].label == "burst of 8"


def test_recovers_what_a_replayed_engine_can_do() -> None:
    parameters = throughput.Parameters(min_rate=8, max_rate=80, rate_step=4)
    result = drive(throughput.TEST.procedure(parameters, replay_setting()), replay_engine().run)
    found = result.metrics["sustainable_rate"]
    assert found.point is not None
    assert found.upper is not None
    assert 18 <= found.point <= 40  # short levels are noisy
    offered = found.point * 20
    metric = result.metrics["max_output_token_throughput"]
    assert metric.lower is not None
    assert metric.upper is not None
    assert metric.lower <= offered <= metric.upper
    assert metric.point is not None
    assert metric.point <= 800
    slots = throughput.Parameters(load_model="closed")
    closed = drive(throughput.TEST.procedure(slots, replay_setting()), replay_engine().run)
    assert closed.metrics["max_output_token_throughput"].point == pytest.approx(800, rel=0.02)
    assert closed.metrics["batch_utilisation"].point == pytest.approx(1.0, abs=0.05)
