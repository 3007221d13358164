"""A load that the generator could not offer says nothing about the system: neither held nor saturated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from canned_levels import QueueServer, canned_setting

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.measuring.offered import is_offered, set_aside, shortfalls
from pytest_llmbench.methodology.measuring.validity import measured as anything
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.search.probing import Range, sustainable
from pytest_llmbench.methodology.search.search import Searched, search
from pytest_llmbench.methodology.sections import itl, throughput, tradeoff
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.judgement import Finding, Validity, ValidityVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.result import NOT_OFFERED, TestResult


@dataclass
class WeakGenerator:
    """Executes plans, and falls behind its schedule where ``fails`` says so: called with the plan and the
    number of plans of that rate so far."""

    fails: Callable[[LoadPlan, int], bool]
    server: QueueServer = field(default_factory=QueueServer)
    sent: dict[float, int] = field(default_factory=dict)

    def __call__(self, plan: LoadPlan) -> Observation:
        seen = self.server(plan)
        if not isinstance(plan.load, OpenLoop):
            return seen
        self.sent[plan.load.rate] = self.sent.get(plan.load.rate, 0) + 1
        lag_ns = 50_000_000 if self.fails(plan, self.sent[plan.load.rate]) else 0
        return replace(seen, selfcheck=replace(seen.selfcheck, send_lag_p99_ns=lag_ns))


def above(limit: float) -> Callable[[LoadPlan, int], bool]:
    return lambda plan, _: isinstance(plan.load, OpenLoop) and plan.load.rate > limit


def found(server: WeakGenerator, bounds: Range) -> Searched:
    setting = canned_setting()
    return drive(search(setting, RequestSlice(setting.workload), bounds=bounds, arrival="uniform"), server)


def judged(result: TestResult) -> Validity:
    return validity(result.observations, Budget(), result.budgeted, set_aside(result.levels))


def finding(of: Validity, check: str) -> Finding:
    return next(one for one in of.findings if one.check == check)


def measured(definition: object, server: WeakGenerator, **parameters: object) -> TestResult:
    test = definition.TEST  # type: ignore[attr-defined]
    return drive(test.procedure(test.parameters(**parameters), canned_setting()), server)


def test_the_search_goes_on_below_what_the_generator_can_offer() -> None:
    # the system holds 40 req/s, the generator sends 24
    searched = found(WeakGenerator(above(24)), Range(8, 64, 4))
    assert searched.rate is not None
    assert 20 < searched.rate <= 24
    beyond = [seen.level for seen in searched.levels if not is_offered(seen.level)]
    assert beyond
    assert all(level.saturated is None for level in beyond)
    assert all(level.role == f"probe{NOT_OFFERED}" for level in beyond)
    assert any("lower bound" in note for note in map(str, searched.notes))
    assert any("64 req/s is beyond this generator" in note for note in map(str, searched.notes))


def test_what_the_system_itself_cannot_do_still_ends_the_search() -> None:
    # beyond the generator only where the system is saturated anyway
    searched = found(WeakGenerator(above(60)), Range(8, 64, 4))
    assert searched.rate is not None
    assert 36 <= searched.rate <= 40
    assert not any("lower bound" in note for note in map(str, searched.notes))


def test_a_disturbance_costs_one_more_run_and_nothing_else() -> None:
    calm = found(WeakGenerator(lambda *_: False), Range(8, 64, 4))
    once = found(WeakGenerator(lambda _, number: number == 1), Range(8, 64, 4))
    assert once.rate == calm.rate
    assert len(once.levels) == 2 * len(calm.levels)
    assert sum(is_offered(seen.level) for seen in once.levels) == len(calm.levels)
    assert once.reference.applies
    # the second run has requests of its own
    slices = [(seen.observation.plan.first, len(seen.records)) for seen in once.levels]
    assert all(one[0] + one[1] == other[0] for one, other in pairwise(slices))


def test_throughput_beyond_the_generator_is_a_lower_bound_and_valid() -> None:
    range_ = {"min_rate": 8.0, "max_rate": 64.0, "rate_step": 4.0, "arrival": "uniform"}
    result = measured(throughput, WeakGenerator(above(24)), **range_)
    best = result.metrics["max_output_token_throughput"]
    assert best.point == pytest.approx(10 * 24, rel=0.15)
    assert best.upper is None
    assert best.kind is EstimateKind.BOUND
    rate = result.metrics["sustainable_rate"]
    assert rate.upper is None
    assert rate.reason is Reason.BEYOND_GENERATOR
    verdict = judged(result)
    assert verdict.verdict is ValidityVerdict.VALID
    assert not finding(verdict, "not_offered").ok


def test_nothing_that_was_offered_is_nothing_to_judge() -> None:
    range_ = {"min_rate": 8.0, "max_rate": 64.0, "rate_step": 4.0}
    result = measured(throughput, WeakGenerator(lambda *_: True), **range_)
    assert result.metrics["max_output_token_throughput"].point is None
    assert judged(result).verdict is ValidityVerdict.INVALID
    assert finding(judged(result), "not_offered").voids


def test_the_curve_ends_where_the_generator_does() -> None:
    result = measured(tradeoff, WeakGenerator(above(25)), capacity_rps=24.0)
    curve = [level for level in result.levels if level.role == "level"]
    assert max(level.percent_of_capacity or 0 for level in curve) <= 100
    assert judged(result).verdict is ValidityVerdict.VALID
    assert any("the generator offers no more" in note for note in map(str, result.notes))


@pytest.mark.parametrize("test", [tradeoff, itl])
def test_a_level_that_a_test_needs_voids_it(test: object) -> None:
    result = measured(test, WeakGenerator(above(8)), capacity_rps=40.0)
    assert judged(result).verdict is ValidityVerdict.INVALID
    assert not finding(judged(result), "send_lag").ok


def test_a_level_that_a_test_needs_is_run_again() -> None:
    result = measured(itl, WeakGenerator(lambda _, number: number == 1), capacity_rps=40.0)
    assert judged(result).verdict is ValidityVerdict.VALID
    assert len(set_aside(result.levels)) == len(result.levels) // 2


def test_a_closed_loop_has_no_schedule_to_fall_behind() -> None:
    setting, server = canned_setting(), QueueServer()
    plan = RequestSlice(setting.workload).closed_loop(setting, "four", 4, duration_s=1.0, at_least=4)
    late = server(plan)
    assert shortfalls(replace(late, selfcheck=replace(late.selfcheck, send_lag_p99_ns=10**9))) == ()


def test_lower_load_never_needs_a_lower_bound() -> None:
    searched = found(WeakGenerator(lambda *_: False), Range(8, 24, 4))
    assert searched.best is not None
    assert sustainable(searched.best)
    assert not any("generator" in note for note in map(str, searched.notes))


def test_a_search_that_found_nothing_is_void_and_says_so() -> None:
    result = measured(itl, WeakGenerator(lambda *_: True))
    assert result.levels
    assert any("found no load that the SUT sustains" in note for note in map(str, result.notes))
    found = anything(result)
    assert found is not None
    assert found.voids
    some = {"completion_rate": Estimate(0.0, None, None, 0.95, 1, "observed", "ratio")}
    assert anything(replace(result, metrics=some)) is None
