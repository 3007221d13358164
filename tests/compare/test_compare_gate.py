"""Gate: decided on the whole interval, undefined never passes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pytest_llmbench.compare.gate import gate, judge
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.objective import Objective, Op
from pytest_llmbench.stats.deciding import times_to_decide
from pytest_llmbench.stats.runs import Interval


def estimate(
    point: float | None,
    lower: float | None,
    upper: float | None,
    n: int = 1000,
    n_required: int | None = None,
) -> Estimate:
    return Estimate(point, lower, upper, 0.95, n, "test", "ms", n_required)


@pytest.mark.parametrize(
    ("op", "interval", "verdict"),
    [
        ("<=", (90, 80, 99), GateVerdict.PASS),
        ("<=", (90, 80, 100), GateVerdict.PASS),
        ("<", (90, 80, 100), GateVerdict.INCONCLUSIVE),
        ("<=", (120, 101, 130), GateVerdict.FAIL),
        ("<=", (95, 90, 110), GateVerdict.INCONCLUSIVE),
        ("<=", (105, 90, 110), GateVerdict.INCONCLUSIVE),
        ("<=", (95, 90, None), GateVerdict.INCONCLUSIVE),
        ("<=", (150, 140, None), GateVerdict.FAIL),
        ("<=", (50, None, None), GateVerdict.INCONCLUSIVE),
        ("<=", (50, None, 60), GateVerdict.PASS),
        (">=", (120, 101, 130), GateVerdict.PASS),
        (">=", (90, 80, 99), GateVerdict.FAIL),
        (">", (90, 80, 100), GateVerdict.FAIL),
        (">=", (120, 101, None), GateVerdict.PASS),
        (">=", (120, None, 130), GateVerdict.INCONCLUSIVE),
        ("<=", (None, None, None), GateVerdict.INCONCLUSIVE),
    ],
)
def test_verdict_on_the_whole_interval(
    op: Op, interval: tuple[float | None, float | None, float | None], verdict: GateVerdict
) -> None:
    judged = judge(Objective("ttft.p99", op, 100, "ms"), estimate(*interval))
    assert judged.verdict is verdict
    assert judged.reason


def test_an_absent_metric_is_inconclusive() -> None:
    judged = judge(Objective("ttft.p99", "<=", 100, "ms"), None)
    assert judged.verdict is GateVerdict.INCONCLUSIVE
    assert judged.n == 0


def test_an_open_interval_says_how_many_times_as_many() -> None:
    judged = judge(Objective("ttft.p99_9", "<=", 100, "ms"), estimate(50, 40, None, n=100, n_required=3688))
    # 1.75 times the 3688, since a hundred tell little of how they depend on each other.
    assert judged.growth == pytest.approx(1.75 * 36.88)


def test_a_straddling_interval_says_how_many_times_as_many() -> None:
    judged = judge(Objective("ttft.p99", "<=", 100, "ms"), estimate(95, 88, 102))
    assert judged.growth == times_to_decide(95, Interval(88, 102), 100)
    assert judged.reason == "the interval straddles the limit"


def test_a_limit_beside_the_figure_takes_more_than_any_advice() -> None:
    judged = judge(Objective("ttft.p99", "<=", 100, "ms"), replace(estimate(99.9, 88, 105), level=0.99))
    assert judged.growth == math.inf


def test_an_end_that_is_only_a_bound_is_not_extrapolated() -> None:
    """A bound by a moment lies far away for another reason than few samples: the other end tells."""
    limit = Objective("ttft.p99", "<=", 100, "ms")
    near, far = (
        judge(limit, replace(estimate(70, 63, upper), kind=EstimateKind.CRUDE)) for upper in (220, 1200)
    )
    assert near.growth == far.growth == 3 * times_to_decide(70, Interval(63, None), 100)
    floor = Objective("output_token_throughput", ">=", 80, "tok/s")
    near, far = (
        judge(floor, replace(estimate(100, lower, 105), kind=EstimateKind.CRUDE)) for lower in (30, 10)
    )
    assert near.growth == far.growth


def test_a_point_beyond_the_limit_needs_its_lower_end() -> None:
    """That the upper one is open does not matter."""
    limit = Objective("ttft.p99", "<=", 100, "ms")
    opened = judge(limit, estimate(120, 95, None, n_required=100_000))
    assert opened.growth == judge(limit, estimate(120, 95, 200)).growth
    assert opened.growth is not None
    assert opened.growth < 15


def test_on_the_limit_no_sample_decides() -> None:
    judged = judge(Objective("ttft.p99", "<=", 100, "ms"), estimate(100, 90, 110))
    assert judged.growth is None
    assert judged.verdict is GateVerdict.INCONCLUSIVE
    assert judged.reason == "the limit equals the measured value"


def test_gate_fails_before_it_is_inconclusive() -> None:
    limits = [Objective("a", "<=", 1, "ms"), Objective("b", "<=", 1, "ms"), Objective("c", "<=", 1, "ms")]
    metrics = {"a": estimate(0.5, 0.4, 0.6), "b": estimate(2, 1.5, 3), "c": estimate(1, 0.5, 1.5)}
    assert gate(limits, metrics).verdict is GateVerdict.FAIL
    assert gate([limits[0], limits[2]], metrics).verdict is GateVerdict.INCONCLUSIVE
    assert gate([limits[0]], metrics).verdict is GateVerdict.PASS
    assert gate([], metrics).verdict is GateVerdict.PASS


def test_no_further_request_decides_on_a_lower_bound() -> None:
    rate = Estimate(50, 45, 60, 0.95, 1000, "bootstrap", "tok/s")
    bound = rate.at_least(Reason.RANGE_ENDED, "every tested load held")
    judged = judge(Objective("max_output_token_throughput", ">=", 100, "tok/s"), bound)
    assert judged.verdict is GateVerdict.INCONCLUSIVE
    assert judged.growth is None
    assert judged.reason == "how much more it is than 50 tok/s is not known: that is a lower bound"


def test_a_point_that_was_not_reached_lies_above_its_lower_end() -> None:
    levels = Estimate(None, 127.0, None, 0.95, 12, "levels", "req/s", kind=EstimateKind.BRACKET)
    beyond = levels.at_least(Reason.NOT_REACHED, "the highest level")
    assert judge(Objective("saturation_rate", ">=", 100, "req/s"), beyond).verdict is GateVerdict.PASS
    assert judge(Objective("saturation_rate", ">=", 200, "req/s"), beyond).verdict is GateVerdict.INCONCLUSIVE
    assert judge(Objective("saturation_rate", "<=", 200, "req/s"), beyond).verdict is GateVerdict.INCONCLUSIVE
    assert judge(Objective("saturation_rate", "<=", 100, "req/s"), beyond).verdict is GateVerdict.FAIL


@pytest.mark.parametrize(
    ("op", "limit", "high", "low", "verdict"),
    [
        ("<=", 100.0, 0.0, 9.0, GateVerdict.PASS),
        ("<=", 100.0, 0.0, 11.0, GateVerdict.INCONCLUSIVE),
        ("<=", 100.0, 50.0, 0.0, GateVerdict.PASS),
        ("<=", 75.0, 4.0, 0.0, GateVerdict.FAIL),
        ("<=", 75.0, 6.0, 0.0, GateVerdict.INCONCLUSIVE),
        ("<=", 75.0, 0.0, 50.0, GateVerdict.FAIL),
        (">=", 70.0, 9.0, 50.0, GateVerdict.PASS),
        (">=", 70.0, 11.0, 0.0, GateVerdict.INCONCLUSIVE),
        (">=", 95.0, 50.0, 4.0, GateVerdict.FAIL),
        (">=", 95.0, 0.0, 6.0, GateVerdict.INCONCLUSIVE),
    ],
)
def test_what_the_measuring_machine_may_have_done_is_counted(
    op: Op, limit: float, high: float, low: float, verdict: GateVerdict
) -> None:
    """An interval from 80 to 90."""
    seen = replace(estimate(85.0, 80.0, 90.0), too_high_by=high, too_low_by=low)
    judged = judge(Objective("ttft.p99", op, limit, "ms"), seen)
    assert judged.verdict is verdict
    assert (judged.too_high_by, judged.too_low_by) == (high, low)
    if verdict is GateVerdict.INCONCLUSIVE:
        assert judged.growth is None, "more samples would not help"
        way = f"{high:g} ms too high" if high else f"{low:g} ms too low"
        assert f"may have made the figure up to {way}: free its CPU" in judged.reason


@pytest.mark.parametrize(
    ("limit", "point", "hint"),
    [(0.5, 12, True), (0.5, 3, False), (0.5, 600, False), (20, 400, False), (2, 1500, True)],
)
def test_a_limit_that_may_be_in_seconds(limit: float, point: float, hint: bool) -> None:
    judged = judge(Objective("ttft.p99", "<=", limit, "ms"), estimate(point, point * 0.9, point * 1.1))
    assert judged.verdict is GateVerdict.FAIL
    assert judged.reason.endswith(f"if seconds are meant, write {limit * 1000:g}") is hint
