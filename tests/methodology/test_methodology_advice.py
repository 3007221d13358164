"""Advice is followed: what is printed is asked for, the marker takes it, and the limit is decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from replayed_sut import QUARTER, ReplayedSUT

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.methodology.advice import advised
from pytest_llmbench.methodology.catalogue import TESTS
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Scale, TestDefinition
from pytest_llmbench.methodology.sections import (
    capacity,
    goodput,
    itl,
    long_context,
    prefix_cache,
    tradeoff,
    ttft,
)
from pytest_llmbench.model.estimate import OF_RUNS, Estimate, EstimateKind
from pytest_llmbench.model.judgement import Advice, Gate, GateVerdict, JudgedObjective
from pytest_llmbench.model.objective import Objective


def _slow(metric: str) -> Objective:
    """A limit that only an open end keeps from being met."""
    return Objective(metric, "<=", 60_000.0, "ms")


def _judged(test: TestDefinition, given: dict[str, Any], scale: Scale = "standard") -> JudgedObjective:
    """The least decided limit."""
    parameters = build(test.parameters, given)
    result = ReplayedSUT(QUARTER).measure(test, scale, **given)
    judged = advised(gate(result.objectives, result.metrics), result, parameters, scale).objectives
    return max(judged, key=lambda each: each.growth or 0.0)


def _followed(judged: JudgedObjective) -> dict[str, Any]:
    """The keywords of the advice."""
    assert judged.advice is not None
    assert judged.advice.setting is not None
    asked = judged.advice.setting.removeprefix("--llm-scale=standard").removeprefix(" and ")
    pairs = (part.split("=") for part in asked.split(", ") if asked)
    return {name: int(value) for name, value in pairs}


CASES: list[tuple[TestDefinition, dict[str, Any]]] = [
    (ttft.TEST, {"rate": 20, "requests": 90, "p99_ms": 60_000}),
    (ttft.TEST, {"rate": 20, "requests": 30, "runs": 2, "p99_ms": 60_000}),
    (ttft.TEST, {"concurrency": 4, "requests": 60, "steady": True,
                 "bucket_limits": {"0-256": {"p95_ms": 60_000}}}),
    (ttft.TEST, {"rate": 20, "requests": "auto", "max_requests": 100, "p99_ms": 60_000}),
    (goodput.TEST, {"rate": 20, "requests": 20, "ttft_ms": 60_000, "slo": [_slow("ttft.p99")]}),
    (long_context.TEST, {"lengths": [1024, 2048, 4096], "ttft_p95_ms": {2048: 60_000}}),
    (prefix_cache.TEST, {"requests": 25, "concurrency": 2, "slo": [_slow("ttft[warm].p95")]}),
    (tradeoff.TEST, {"capacity_rps": 20, "levels_percent": [10, 50, 100], "duration_s": 3,
                     "slo": [_slow("ttft[50%].p95")]}),
    (capacity.TEST, {"initial": 4, "maximum": 4, "duration_s": 1, "slo": [_slow("ttft.p99")]}),
]  # fmt: skip


MARKERS: dict[str, dict[str, Any]] = {
    "guardrail": {"capacity_rps": 10, "without": "one switch"},
    "tradeoff": {"capacity_rps": 20},
    "itl": {"capacity_rps": 20},
    "fairness": {"capacity_rps": 10},
    "throughput": {"min_rate": 20, "max_rate": 60, "rate_step": 20},
    "goodput": {"ttft_ms": 500},
    "recovery": {"rate": 20},
}


@pytest.mark.slow
@pytest.mark.parametrize(("test", "given"), CASES, ids=lambda value: getattr(value, "name", None))
def test_following_the_advice_decides_the_limit(test: TestDefinition, given: dict[str, Any]) -> None:
    before = _judged(test, given)
    assert before.verdict is GateVerdict.INCONCLUSIVE, before
    asked = _followed(before)
    assert before.advice is not None
    assert before.reason == str(before.advice)
    after = _judged(test, {**given, **asked})
    if after.verdict is GateVerdict.INCONCLUSIVE:  # so few requests tell little of how they depend
        after = _judged(test, {**given, **_followed(after)})
    assert after.verdict is not GateVerdict.INCONCLUSIVE, (before.advice, before.reason, after.reason)


@pytest.mark.parametrize("test", TESTS.values(), ids=lambda test: test.name)
def test_the_keyword_is_one_that_the_marker_takes(test: TestDefinition) -> None:
    given = {"overload_allowed": True} if test.name == "memory_pressure" else {}
    parameters = build(test.parameters, MARKERS.get(test.name, {}))
    result = ReplayedSUT(QUARTER).measure(test, "quick", keep=given, **MARKERS.get(test.name, {}))
    undecided = JudgedObjective(
        _slow("ttft.p99"), 1.0, 0.5, None, 100, GateVerdict.INCONCLUSIVE, "", growth=2.0
    )
    (told,) = advised(Gate((undecided,)), result, parameters, "standard").objectives
    build(test.parameters, {**MARKERS.get(test.name, {}), **_followed(told)})


def test_tokens_are_not_requests() -> None:
    """A limit on gaps between tokens: there are some hundred times as many of them as of requests."""
    given = {"capacity_rps": 4, "levels_percent": [50], "requests": 20}
    result = ReplayedSUT("fast").measure(itl.TEST, **given)
    p99_9 = result.metrics["itl[50%].p99_9"]
    few = replace(p99_9, upper=None, n_required=2 * p99_9.n)
    judged = gate([_slow("itl[50%].p99_9")], {"itl[50%].p99_9": few})
    (told,) = advised(judged, result, build(itl.TEST.parameters, given), "standard").objectives
    sent = result.levels[-1].n_submitted
    assert p99_9.n > 50 * sent
    assert told.advice is not None
    assert told.advice.unit == "s of load"
    assert 2 * told.advice.now < told.advice.total < 3 * told.advice.now


def test_a_smoke_run_has_to_be_left_first() -> None:
    """At quick scale a marker's larger number has no effect, and the usual one may do."""
    given = {"rate": 20, "p99_ms": 60_000}
    judged = _judged(ttft.TEST, given, "quick")
    assert judged.advice is not None
    assert judged.advice.setting == "--llm-scale=standard"
    assert _judged(ttft.TEST, given).verdict is GateVerdict.PASS
    few = _judged(ttft.TEST, {**given, "requests": 60}, "quick")
    assert few.advice is not None
    assert str(few.advice.setting).startswith("--llm-scale=standard and requests=")
    assert _judged(ttft.TEST, {**given, **_followed(few)}).verdict is GateVerdict.PASS


def test_what_no_advice_decides_is_said_without_a_keyword() -> None:
    given = {"rate": 20, "requests": 200, "slo": [_slow("ttft.p50")]}
    result = ReplayedSUT(QUARTER).measure(ttft.TEST, **given)
    near = replace(result.metrics["ttft.p50"], point=99.9, lower=90.0, upper=110.0, level=0.99)
    limit = Objective("ttft.p50", "<=", 100.0, "ms")
    judged = gate([limit], {"ttft.p50": near})
    (told,) = advised(judged, result, build(ttft.TEST.parameters, given), "standard").objectives
    assert told.advice == Advice("requests", 200, 12_800, None, more_than=True)
    assert told.reason == "undecided after 200 requests: it may take more than 12,800 requests in all"


@pytest.mark.parametrize("kind", OF_RUNS)
def test_a_job_is_run_more_often(kind: EstimateKind) -> None:
    given = {"rate": 20, "requests": 200, "slo": [_slow("ttft.p50")]}
    result = ReplayedSUT(QUARTER).measure(ttft.TEST, **given)
    one = Estimate(90.0, 60.0, 135.0, 0.95, 1, "one run", "ms", kind=kind)
    result = replace(result, metrics={**result.metrics, "ttft.p50": one})
    judged = gate([Objective("ttft.p50", "<=", 100.0, "ms")], result.metrics)
    (told,) = advised(judged, result, build(ttft.TEST.parameters, given), "standard").objectives
    assert told.reason == "undecided after 1 run: about 5 runs in all would decide this limit (runs=5)"


def test_between_two_levels_of_a_search_more_requests_help_nothing() -> None:
    judged = _judged(
        capacity.TEST,
        {"initial": 64, "maximum": 96, "ttft_p99_ms": 150, "duration_s": 2, "min_concurrency": 66},
    )
    if judged.verdict is GateVerdict.INCONCLUSIVE:
        assert judged.advice is None
        assert "between two levels of the search" in judged.reason


def test_a_closed_loop_that_sent_more_than_its_fewest_says_so() -> None:
    from pytest_llmbench.methodology.measuring.validity import Budget, validity

    seen = ReplayedSUT("fast").measure(capacity.TEST, initial=4, maximum=4, duration_s=5).observations[0]
    (whole,) = [f for f in validity([seen], Budget()).findings if f.check == "all_requests_recorded"]
    assert len(seen.records) > seen.plan.requests
    assert whole.message == (
        f"{len(seen.records)} requests have a record, at least {seen.plan.requests} were planned"
    )
