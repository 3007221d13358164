"""``requests="auto"`` and ``failures="over_limit"``: what is asked for, what is sent, what is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canned_runs import answer
from replayed_sut import ReplayedSUT

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.measuring.adaptive import (
    GATE_REQUESTS,
    MOST_REQUESTS,
    as_judged,
    watched,
)
from pytest_llmbench.methodology.measuring.one_load import OVERSENT_REQUESTS, QUICK_REQUESTS
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Scale
from pytest_llmbench.methodology.sections import goodput, ttft
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.objective import (
    completion_rate,
    metric,
    ms,
    output_token_throughput,
    percent,
    tok_s,
    tpot,
)
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.result import TestResult, WarmupReport
from pytest_llmbench.stats.failing import look_taker


def parameters(**given: Any) -> ttft.Parameters:
    return build(ttft.Parameters, given)


def plan_of(scale: Scale = "standard", **given: Any) -> LoadPlan:
    (plan,) = ttft.TEST.plans(parameters(**given), ReplayedSUT().setting("synthetic-uniform", scale))
    return plan


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"requests": "auto"}, "give one, for example p95_ms"),
        ({"requests": "many", "p95_ms": 1}, "must be a whole number, or 'auto'"),
        ({"max_requests": 100}, "max_requests needs requests='auto'"),
        ({"max_seconds": 10, "requests": 100}, "max_seconds needs requests='auto'"),
        ({"requests": "auto", "p95_ms": 1, "runs": 3}, "leave out runs"),
        ({"requests": "auto", "slo": [output_token_throughput >= 5 * tok_s]}, "cannot evaluate output_token"),
        (
            {"requests": "auto", "p95_ms": 1, "slo": [metric("ttft.max", "ms") <= 1 * ms]},
            "cannot evaluate ttft.max",
        ),
        ({"failures": "ignored"}, "must be one of left_out, over_limit"),
        ({"requests": "auto", "p95_ms": 1, "rate": 1.0, "concurrency": 2}, "exclude each other"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        parameters(**given)


def test_the_plan_is_the_worst_case() -> None:
    plan = plan_of(requests="auto", p95_ms=100)
    assert plan.looks is not None
    assert plan.requests == plan.most_requests == MOST_REQUESTS
    assert plan_of(requests="auto", p95_ms=100, max_requests=800).most_requests == 800
    assert plan_of(p95_ms=100).looks is None
    assert plan_of(p95_ms=100).requests == GATE_REQUESTS


def test_seconds_bound_both_kinds_of_load() -> None:
    closed = plan_of(requests="auto", p95_ms=100, max_seconds=30, max_requests=2_000)
    assert (closed.requests, closed.most_requests, closed.duration_s) == (1, 2_000, 30)
    opened = plan_of(requests="auto", p95_ms=100, max_seconds=30, rate=10)
    assert opened.most_requests == pytest.approx(300, abs=60)
    assert opened.duration_s is None
    assert plan_of(requests="auto", p95_ms=100, max_seconds=1e6, rate=10).most_requests == MOST_REQUESTS


def test_scales_with_numbers_of_their_own_do_not_end_early() -> None:
    quick, full = (plan_of(scale, requests="auto", p95_ms=100) for scale in ("quick", "full"))
    assert quick.looks is None
    assert quick.requests == QUICK_REQUESTS
    assert full.looks is None
    assert full.requests == OVERSENT_REQUESTS
    assert plan_of("full", requests="auto", p95_ms=100, max_requests=20_000).requests == 20_000
    result = ReplayedSUT().measure(ttft.TEST, requests="auto", p95_ms=100, concurrency=2, scale="quick")
    assert "does not end a load early here" in str(result.notes[0])


def test_a_bucket_is_watched_by_its_lengths() -> None:
    given = parameters(requests="auto", bucket_limits={"256-512": {"p95_ms": 10}, "4096+": {"mean_ms": 10}})
    first, last = (watched(each, given) for each in given.objectives)
    assert first is not None
    assert last is not None
    assert (first.least_tokens, first.below_tokens, first.percentile) == (256, 512, 95.0)
    assert (last.least_tokens, last.below_tokens, last.percentile) == (4096, None, None)


def judged(result: TestResult) -> dict[str, GateVerdict]:
    return {str(each.objective): each.verdict for each in gate(result.objectives, result.metrics).objectives}


def test_a_clear_pass_is_decided_early_and_says_what_it_saved() -> None:
    sut = ReplayedSUT()
    result = sut.measure(
        ttft.TEST,
        requests="auto",
        p95_ms=200,
        concurrency=8,
        slo=[tpot.p50 <= 500 * ms, completion_rate >= 0.5],
    )
    (run,) = result.observations
    assert set(judged(result).values()) == {GateVerdict.PASS}
    assert run.stopped is not None
    assert 200 <= len(run.records) < 3_000
    saved = MOST_REQUESTS - len(run.records)
    assert f"of at most 5000 requests: {saved} saved" in str(result.notes[0])
    after = result.facts.value("load.decided_after")
    assert after % 100 == 0
    assert result.facts.value("load.requests_saved") == saved
    assert result.facts.value("workload.n_requests") == len(run.records)
    # Judged on the look; the plain figure is of all requests, at the usual level.
    at_look, plain = result.metrics["ttft[as judged].p95"], result.metrics["ttft.p95"]
    assert (at_look.n, plain.n) == (after, len(run.records) - 8)
    assert at_look.level > plain.level == 0.95
    assert run.records.ok.all()


def test_the_report_judges_by_the_ends_of_the_look_that_ended_the_load() -> None:
    result = ReplayedSUT("h100-8b").measure(ttft.TEST, requests="auto", p50_ms=50, rate=26)
    (run,) = result.observations
    taker = look_taker(run.plan, 256)
    assert run.stopped is not None
    assert taker is not None
    taker.add_all(run.records)
    (found,) = taker.close().estimates
    assert result.metrics["ttft[as judged].p50"] == found
    assert list(judged(result).values()) == [GateVerdict.PASS]


def test_a_clear_failure_is_decided_early() -> None:
    result = ReplayedSUT().measure(
        ttft.TEST, requests="auto", bucket_limits={"0-256": {"p50_ms": 1}}, concurrency=8
    )
    assert set(judged(result).values()) == {GateVerdict.FAIL}
    assert result.observations[0].stopped is not None


def test_what_is_not_clear_goes_on_to_the_most() -> None:
    near = ReplayedSUT().measure(ttft.TEST, requests=600, concurrency=8).metrics["ttft.p95"].point
    result = ReplayedSUT().measure(ttft.TEST, requests="auto", max_requests=600, p95_ms=near, concurrency=8)
    (run,) = result.observations
    assert run.stopped is None
    assert len(run.records) == 600
    assert judged(result) == {str(result.objectives[0]): GateVerdict.INCONCLUSIVE}
    assert "not decided by the whole load of 600 requests" in str(result.notes[0])
    assert result.facts.value("load.requests_saved") == 0


@pytest.mark.parametrize(
    "asked", [{"requests": 800, "steady": True}, {"requests": "auto", "max_requests": 800}]
)
def test_a_stationary_closed_loop_leaves_its_first_wave_out(asked: dict[str, Any]) -> None:
    """32 find an empty engine and wait for one another: 303 ms, for others 60. A job has them."""
    sut = ReplayedSUT("h100-8b")
    result = sut.measure(ttft.TEST, p99_ms=100, concurrency=32, **asked)
    assert result.facts.value("load.first_wave") == "left out"
    assert result.metrics["ttft.p99"].n == len(result.observations[0].records) - 32
    assert result.metrics["ttft.p99"].point < 70
    job = sut.measure(ttft.TEST, concurrency=32, requests=800)
    assert job.facts.value("load.first_wave") == "included"
    assert job.metrics["ttft.p99"].point > 250


def test_looks_begin_behind_the_first_wave() -> None:
    result = ReplayedSUT("h100-8b").measure(ttft.TEST, requests="auto", p95_ms=200, concurrency=32)
    assert "requests after the first wave of 32 at " in str(result.notes[0])
    assert set(judged(result).values()) == {GateVerdict.PASS}
    assert result.metrics["ttft[as judged].p95"].n == result.facts.value("load.decided_after")


def test_a_stationary_closed_loop_needs_ten_waves() -> None:
    with pytest.raises(
        SuiteError, match="'auto' needs 10 requests for each slot: max_requests=6000 or more, not 5000"
    ):
        parameters(requests="auto", p95_ms=100, concurrency=600)
    with pytest.raises(
        SuiteError, match="steady needs 10 requests for each slot: requests=2000 or more, not 1000"
    ):
        parameters(steady=True, p95_ms=100, concurrency=200)


def test_the_time_is_over() -> None:
    result = ReplayedSUT().measure(ttft.TEST, requests="auto", max_seconds=5, p99_9_ms=5, concurrency=2)
    (run,) = result.observations
    assert run.stopped is None
    assert 2 < len(run.records) < 1_000
    assert run.duration_s < 15


def over_limit(failures: int, **given: Any) -> Estimate:
    asked = parameters(failures="over_limit", requests=1000, max_error_share=0.05, **given)
    plan = LoadPlan("measure", ReplayedSUT().setting("synthetic-uniform").workload, ClosedLoop(8), 1000, 42)
    return as_judged(asked, [answer(plan, 100.0, failures=failures)]).metrics["ttft[as judged].p99"]


def test_failures_over_the_limit_are_judged_and_the_metric_stays_as_it_is() -> None:
    few, burst, many = (over_limit(count, p99_ms=500) for count in (2, 400, 990))
    assert few.point == pytest.approx(100)
    # One burst of failures, however long, is one event.
    assert (burst.point, burst.upper) == (None, None)
    assert many.point is None
    assert many.lower is not None
    assert many.lower > 500
    limited = parameters(failures="over_limit", p99_ms=500).objectives
    assert gate(limited, {"ttft[as judged].p99": many}).verdict is GateVerdict.FAIL


def test_goodput_known_answer() -> None:
    plan = LoadPlan("measure", ReplayedSUT().setting("synthetic-uniform").workload, ClosedLoop(8), 1000, 42)
    seen = answer(plan, [100.0] * 900 + [300.0] * 100, failures=50)
    asked = build(goodput.Parameters, {"ttft_ms": 200, "min_share": 0.8})
    setting = ReplayedSUT().setting("synthetic-uniform")
    result = goodput.result(asked, setting, WarmupReport(), [seen])
    share = result.metrics["goodput_share"]
    assert share.point == 0.85  # 50 failed, 100 were slow
    assert share.n == 1000
    rate = result.metrics["request_throughput"].point
    assert rate is not None
    assert result.metrics["goodput"].point == pytest.approx(rate * 850 / 950, rel=0.01)
    rows = {name: value for name, value, _ in result.tables[0].rows}
    assert rows["Requests that ended well"] == "950 of 1000 (95 %)"
    assert rows["All limits together"] == "850 of 1000 (85 %)"
    assert "not part of the draft" in str(result.notes[-1])


@pytest.mark.parametrize(
    ("short", "found"), [(5, []), (6, [(0.06, False)]), (99, [(0.99, False)]), (100, [(1.0, True)])]
)
def test_replies_too_short_for_a_tpot_keep_no_limit_unseen(
    short: int, found: list[tuple[float, bool]]
) -> None:
    setting = ReplayedSUT().setting("synthetic-uniform")
    seen = answer(LoadPlan("measure", setting.workload, ClosedLoop(8), 110, 42), [100.0] * 110, failures=10)
    tokens = seen.records.output_tokens.copy()
    tokens[np.flatnonzero(seen.records.ok)[:short]] = 1
    seen = replace(seen, records=replace(seen.records, output_tokens=tokens))
    for given, expected in (({"tpot_ms": 1e-6}, found), ({"ttft_ms": 200}, [])):
        asked = build(goodput.Parameters, given)
        result = goodput.result(asked, setting, WarmupReport(), [seen])
        assert [(each.value, each.voids) for each in result.findings] == expected


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "at least one of ttft_ms, tpot_ms and e2e_ms"),
        ({"ttft_ms": 1, "compliance": "conditional"}, "not part of the draft"),
        ({"ttft_ms": 1, "min_share": 99}, "between 0 and 1"),
    ],
)
def test_mistakes_in_a_goodput(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        build(goodput.Parameters, given)


def test_goodput_in_a_replay_is_decided_early() -> None:
    result = ReplayedSUT().measure(
        goodput.TEST, requests="auto", ttft_ms=200, tpot_ms=100, min_share=0.9, concurrency=8, slo=[
            completion_rate >= 90 * percent
        ]
    )  # fmt: skip
    assert set(judged(result).values()) == {GateVerdict.PASS}
    assert result.observations[0].stopped is not None
    assert result.metrics["goodput_share"].point == 1.0
