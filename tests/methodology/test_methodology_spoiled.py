"""A load that this machine read or refilled too late is void, and measured again; a little is counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canned_levels import QueueServer, canned_setting
from canned_runs import answer
from replayed_sut import QUARTER, ReplayedSUT

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.catalogue import TESTS
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity, validity_of
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.methodology.remeasured import disturbed, host_text, void_causes
from pytest_llmbench.methodology.sections import itl, ttft
from pytest_llmbench.methodology.uncertainty import (
    empty_slots,
    late_gaps,
    late_reads,
    limits_at_stake,
    spoiled,
    with_uncertainty,
)
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.judgement import GateVerdict, ValidityVerdict
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import HostLimits, Observation, SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.catalogue import workload

MS = 1_000_000


def plan(load: Load | None = None, requests: int = 400, **more: Any) -> LoadPlan:
    return LoadPlan(
        "measure", workload("synthetic-uniform"), load or OpenLoop(20.0), requests, seed=1, **more
    )


def read_late(seen: Observation, share: float, early_ms: float, **check: Any) -> Observation:
    """The first chunks of this share of the requests ran together with the next, up to so much later than
    they came."""
    records = seen.records
    late = np.arange(len(records)) < share * len(records)
    chunk_ns = records.chunk_ns.copy()
    firsts = records.chunk_offsets[:-1]
    chunk_ns[firsts[late]] = chunk_ns[firsts[late] + 1]
    changed = replace(
        records,
        chunk_ns=chunk_ns,
        first_content_ns=chunk_ns[firsts],
        unresolved_chunks=late.astype(np.int64),
        first_content_early_ns=late * round(early_ms * MS),
    )
    check = {"stamp_source": "kernel", "cpu_share": 0.3} | check
    return replace(seen, records=changed, selfcheck=replace(seen.selfcheck, **check))


def refilled_late(seen: Observation, by_ms: float) -> Observation:
    records = seen.records
    due_ns = records.dispatched_ns - round(by_ms * MS)
    check = replace(seen.selfcheck, replacement_lag_p99_ns=round(by_ms * MS), stamp_source="kernel")
    return replace(seen, records=replace(records, scheduled_ns=due_ns), selfcheck=check)


def test_a_load_read_in_time_has_nothing_to_say() -> None:
    run = answer(plan())
    assert (late_reads(run), late_gaps(run), empty_slots(run)) == (None, None, None)
    assert spoiled(run, gaps=True) == ()


@pytest.mark.parametrize(
    ("share", "early_ms", "ok"),
    [
        (1.0, 9.0, True),  # TTFT of 105 ms: a tenth is 10.5
        (1.0, 11.0, False),
        (0.6, 90.0, False),  # the median is one of them
        (0.06, 90.0, True),  # P95 was 100 without them
    ],
)
def test_ttft_may_be_uncertain_by_a_tenth(share: float, early_ms: float, ok: bool) -> None:
    run = read_late(answer(plan()), share, early_ms)
    found = late_reads(run)
    assert found is not None
    assert (found.ok, found.voids, found.unit) == (ok, True, "ms")
    assert disturbed(run) is not ok
    assert (void_causes(run) == ()) is ok


P90 = Objective("ttft.p90", "<=", 20_000.0, "ms")
SHARE = Objective("goodput_share", ">=", 0.5, "ratio")
GOODPUT = Objective("goodput", ">=", 5.0, "req/s")


@pytest.mark.parametrize(
    ("limits", "stands"),
    [
        ([P90], True),
        ([Objective("ttft.p90", "<=", 1.0, "ms")], True),  # broken wherever it lies
        ([P90, Objective("output_token_throughput", ">=", 10.0, "tok/s")], True),
        ([Objective("e2e.p99", "<=", 20_000.0, "ms")], True),
        ([Objective("ttft.p90", "<=", 80.0, "ms")], False),
        ([P90, Objective("ttft.p50", "<=", 100.0, "ms")], False),
        ([P90, Objective("ttft.std", "<=", 1e6, "ms")], False),
        ([P90, Objective("completion_rate", ">=", 0.99, "ratio")], True),
        ([P90, Objective("makespan", "<=", 3_600.0, "s")], True),
        ([Objective("jitter.p99", "<=", 1e6, "ms")], False),  # how far it may be off is not known
        ([*limits_at_stake([SHARE], [("ttft", 20_000.0)])], True),
        ([*limits_at_stake([SHARE], [("ttft", 1.0)])], True),  # no request is good, wherever it lies
        ([*limits_at_stake([SHARE], [("ttft", 20_000.0), ("e2e", 20_000.0)])], True),
        ([*limits_at_stake([SHARE], [("ttft", 80.0)])], False),
        ([*limits_at_stake([GOODPUT], [("ttft", 80.0)])], False),  # a rate, of requests that are good
        ([GOODPUT], False),
        ([Objective("ttft[0-256].p90", "<=", 20_000.0, "ms")], True),
        ([Objective("ttft[0-256].p90", "<=", 80.0, "ms")], False),
        ([], False),
    ],
)
def test_only_limits_that_this_machine_may_touch_void_a_load(limits: list[Objective], stands: bool) -> None:
    """TTFT of 105 ms that may be 42 ms too high; without limits its figures are all that it is for."""
    run = replace(read_late(answer(plan()), 1.0, 42.0), at_stake=tuple(limits))
    found = late_reads(run)
    assert found is not None
    assert (found.ok, found.voids) == (False, not stands)
    assert disturbed(run) is not stands
    assert (void_causes(run) == ()) is stands
    assert ("no limit of the test is that close" in found.message) is stands


@pytest.mark.parametrize(("limit", "stands"), [(1_000.0, True), (4_990.0, False)])
def test_a_limit_on_each_request_is_touched_where_one_may_be_on_either_side(
    limit: float, stands: bool
) -> None:
    """Requests of 105 ms, and one of 5,000 ms: it may be 42 ms too high as they may be."""
    run = read_late(answer(plan()), 1.0, 42.0)
    submitted_ns = run.records.submitted_ns.copy()
    submitted_ns[-1] = run.records.first_content_ns[-1] - 5_000 * MS
    run = replace(run, records=replace(run.records, submitted_ns=submitted_ns))
    for metric in ("goodput_share", "time_to_recovery"):
        stake = limits_at_stake([Objective(metric, ">=", 0.5, "ratio")], [("ttft", limit)])
        found = late_reads(replace(run, at_stake=stake))
        assert found is not None
        assert (found.ok, found.voids) == (False, not stands)


def test_two_milliseconds_are_allowed_whatever_the_figure() -> None:
    small = answer(plan(), 5.0)
    assert late_reads(read_late(small, 1.0, 1.9)).ok  # type: ignore[union-attr]
    assert not late_reads(read_late(small, 1.0, 2.1)).ok  # type: ignore[union-attr]


def test_the_line_says_what_how_much_why_and_what_helps() -> None:
    run = read_late(answer(plan()), 1.0, 42.0)
    found = late_reads(run)
    assert found is not None
    assert found.message == (
        "TTFT P50 of 105 ms may be 42 ms too high (limit 10.5 ms): 5 % of the chunks were read late, "
        "together with later ones: free its CPU"
    )
    busy = read_late(answer(plan()), 1.0, 42.0, cpu_share=0.97)
    assert late_reads(busy).message.endswith("lower the load or give more --llm-workers")  # type: ignore[union-attr]
    assert "TTFT P50 of 105 ms may be 42 ms too high" in host_text(run)


def test_percentiles_that_the_sample_does_not_hold_void_nothing() -> None:
    one_of_fifty = read_late(answer(plan(requests=50)), 0.02, 90.0)
    assert late_reads(one_of_fifty).ok  # type: ignore[union-attr]
    assert not late_reads(read_late(answer(plan(requests=50)), 0.6, 90.0)).ok  # type: ignore[union-attr]


def third_read_late(seen: Observation) -> Observation:
    """The second chunk of each reply has the instant of the third: gaps of 10, 0, 5, 5 … in place of 5."""
    records = seen.records
    chunk_ns, seconds = records.chunk_ns.copy(), records.chunk_offsets[:-1] + 1
    chunk_ns[seconds] = chunk_ns[seconds + 1]
    late = np.ones(len(records), dtype=np.int64)
    check = replace(seen.selfcheck, stamp_source="kernel")
    return replace(seen, records=replace(records, chunk_ns=chunk_ns, unresolved_chunks=late), selfcheck=check)


def test_gaps_count_where_the_test_is_about_them() -> None:
    run = third_read_late(answer(plan()))
    assert spoiled(run) == ()
    (found,) = spoiled(run, gaps=True)
    assert found.check == "late_gaps"
    assert found.message.startswith(
        "the time between chunks P95 of 10.00 ms may be 5.00 ms too high (limit 2 ms): 5 %"
    )
    assert disturbed(run, gaps=True)
    assert not disturbed(run)


@pytest.mark.parametrize(("by_ms", "ok"), [(5.0, True), (30.0, False)])
def test_slots_may_stand_empty_for_a_twentieth(by_ms: float, ok: bool) -> None:
    """Replies of 195 ms."""
    run = refilled_late(answer(plan(ClosedLoop(4))), by_ms)
    found = empty_slots(run)
    assert found is not None
    assert found.ok is ok
    assert disturbed(run) is not ok
    assert f"refilled {by_ms:g} ms late at P99" in found.message
    assert empty_slots(refilled_late(answer(plan()), by_ms)) is None, "an open loop has no slots"


def test_a_load_is_held_to_the_limits_that_it_came_with() -> None:
    late = read_late(answer(plan()), 1.0, 42.0)
    empty = refilled_late(answer(plan(ClosedLoop(4))), 30.0)
    behind = answer(plan(), selfcheck=SelfCheck(send_lag_p99_ns=300 * MS))
    for run in (late, empty, behind):
        assert disturbed(run)
        limits = HostLimits(send_lag_ns=400 * MS, latency_ms=50.0, empty_slot_share=0.5)
        assert not disturbed(replace(run, host_limits=limits))
        assert void_causes(replace(run, host_limits=limits)) == ()
    (cause, *_) = void_causes(replace(behind, host_limits=HostLimits(send_lag_ns=200 * MS)))
    assert "late by 300 ms at P99 (limit 200 ms)" in cause
    (cause,) = void_causes(replace(answer(plan()), host_limits=HostLimits(rate_share=1.5)))
    assert "of the scheduled rate (limit 150 %)" in cause


def test_a_load_that_failed_for_other_reasons_is_not_repeated_for_this_one() -> None:
    failing = read_late(answer(plan(), failures=100), 1.0, 50.0)
    assert late_reads(failing) is not None
    assert not disturbed(failing)


class World:
    """Answers plans; the measured ones whose number is named come back spoiled."""

    def __init__(
        self, spoil: Callable[[Observation], Observation], *numbers: int, execute: Any = answer
    ) -> None:
        self._spoil, self._numbers, self._execute = spoil, numbers, execute
        self.plans: list[LoadPlan] = []

    def __call__(self, plan: LoadPlan) -> Observation:
        seen: Observation = self._execute(plan)
        if plan.phase is not Phase.MEASURE:
            return seen
        self.plans.append(plan)
        return self._spoil(seen) if len(self.plans) in self._numbers else seen


def measured(world: World, **given: Any) -> TestResult:
    setting = Setting(workload("synthetic-uniform"), 42, warmup=WarmupPolicy(5, 0, 3))
    parameters = ttft.Parameters(**{"rate": 20, "requests": 400, **given})
    return drive(ttft.TEST.procedure(parameters, setting), world)


SPOILED = {
    "read late": lambda seen: read_late(seen, 1.0, 42.0),
    "refilled late": lambda seen: refilled_late(seen, 50.0),
}


@pytest.mark.parametrize(
    ("how", "given", "first"),
    [("read late", {}, 400), ("refilled late", {"rate": None, "concurrency": 4}, 0)],
    ids=("read late", "refilled late"),
)
def test_it_is_measured_again_with_new_requests(how: str, given: dict[str, Any], first: int) -> None:
    """The next requests of a sequence; of a job the same list of lengths, with words of its own."""
    world = World(SPOILED[how], 1)
    result = measured(world, **given)
    assert [(one.attempt, one.first) for one in world.plans] == [(1, 0), (2, first)]
    assert (world.plans[0].seed == world.plans[1].seed) == (first > 0)
    assert validity(result.observations, Budget()).verdict is ValidityVerdict.VALID
    (void,) = result.void_loads
    assert void.causes
    assert {estimate.too_high_by for estimate in result.metrics.values()} == {0.0}
    spoiled_thrice = measured(World(SPOILED[how], 1, 2, 3), **given)
    assert validity(spoiled_thrice.observations, Budget()).verdict is ValidityVerdict.INVALID


def limits(result: TestResult) -> dict[str, GateVerdict]:
    return {
        str(judged.objective): judged.verdict for judged in gate(result.objectives, result.metrics).objectives
    }


def test_below_the_limit_the_figures_say_it_and_the_gate_counts_it() -> None:
    world = World(lambda seen: read_late(seen, 1.0, 8.0), 1)
    result = measured(world, p50_ms=104, p90_ms=106, p95_ms=90)
    assert len(world.plans) == 1
    p50 = result.metrics["ttft.p50"]
    assert (p50.point, p50.too_high_by, p50.too_low_by) == (pytest.approx(105.0), pytest.approx(8.0), 0.0)
    # 105 looks over 104, and may have been 97; under 106 it is whatever it was; over 90 too.
    assert list(limits(result).values()) == [GateVerdict.INCONCLUSIVE, GateVerdict.PASS, GateVerdict.FAIL]
    calm = measured(World(lambda seen: seen, 1), p50_ms=99, p90_ms=106, p95_ms=90)
    assert list(limits(calm).values()) == [GateVerdict.FAIL, GateVerdict.PASS, GateVerdict.FAIL]


def test_a_rate_of_slots_that_stood_empty_may_be_too_low() -> None:
    world = World(lambda seen: refilled_late(seen, 5.0), 1)
    result = measured(world, rate=None, concurrency=4)
    found = result.metrics["request_throughput"]
    assert found.point is not None
    assert found.too_high_by == 0.0
    assert found.too_low_by == pytest.approx(found.point * 5.0 / 195.0, rel=0.01)


EVERY_LOAD: dict[str, dict[str, Any]] = {
    "throughput": {},
    "throughput, closed": {"min_concurrency": 1, "max_concurrency": 16, "concurrency_step": 4},
    "tradeoff": {"levels_percent": [25, 50, 75]},
    "itl": {"levels_percent": [25, 50]},
    "itl, declared": {"levels_percent": [25, 50], "capacity_rps": 25},
    "capacity": {"maximum": 16},
    "memory_pressure": {"workload": "synthetic-uniform", "levels_percent": [100, 125]},
    "long_context": {"lengths": [1024, 2048, 4096]},
}


def what_voids(result: TestResult) -> list[str]:
    findings = validity_of(result, Budget()).findings
    return [finding.check for finding in findings if finding.voids and not finding.ok]


@pytest.mark.parametrize("name", EVERY_LOAD)
def test_every_load_of_a_test_is_measured_again_and_ahead_of_its_levels_too(name: str) -> None:
    """Bursts, the levels of every search, the characterisation of streams, each length and pressure."""

    def first_attempts(seen: Observation) -> Observation:
        if seen.plan.phase is not Phase.MEASURE or seen.plan.attempt > 1:
            return seen
        closed = isinstance(seen.plan.load, ClosedLoop)
        return refilled_late(seen, 400.0) if closed else read_late(seen, 1.0, 400.0)

    sut = ReplayedSUT(QUARTER, change=first_attempts)
    test = name.partition(",")[0]
    result = sut.measure(TESTS[test], "quick", keep={"overload_allowed": True}, **EVERY_LOAD[name])
    sent = [plan for plan in sut.plans if plan.phase is Phase.MEASURE]
    first, again = sent[::2], sent[1::2]
    assert {plan.attempt for plan in first} == {1}
    assert {plan.attempt for plan in again} == {2}
    # The same load with the requests that come next, so that no cache knows them.
    assert [(plan.label, plan.seed) for plan in first] == [(plan.label, plan.seed) for plan in again]
    assert all(one.first < two.first for one, two in zip(first, again, strict=True))
    assert [void.label for void in result.void_loads] == [
        level.label for level in result.levels if level.role.endswith("(not offered)")
    ]
    assert len(result.void_loads) == len(first)
    assert any("was measured again" in note for note in map(str, result.notes))
    calm = ReplayedSUT(QUARTER).measure(
        TESTS[test], "quick", keep={"overload_allowed": True}, **EVERY_LOAD[name]
    )
    assert what_voids(result) == what_voids(calm)
    assert {level.role.removesuffix(" (not offered)") for level in result.levels} == {
        level.role for level in calm.levels
    }


def test_a_burst_that_stays_spoiled_ends_no_search() -> None:
    """No figure rests on it: the levels of the search are judged by themselves."""

    def one_burst(seen: Observation) -> Observation:
        return refilled_late(seen, 400.0) if seen.plan.label == "burst of 8" else seen

    sut = ReplayedSUT(change=one_burst)
    result = sut.measure(TESTS["throughput"], "quick")
    assert [plan.attempt for plan in sut.plans if plan.label == "burst of 8"] == [1, 2, 3]
    assert validity_of(result, Budget()).verdict is ValidityVerdict.VALID
    assert result.metrics["max_output_token_throughput"].reason is not Reason.BEYOND_GENERATOR
    assert result.metrics["max_output_token_throughput"].point == pytest.approx(
        ReplayedSUT().measure(TESTS["throughput"], "quick").metrics["max_output_token_throughput"].point,
        rel=0.1,
    )


def test_levels_have_each_their_own() -> None:
    world = World(lambda seen: read_late(seen, 1.0, 0.5), 2, 3, execute=QueueServer())
    parameters = itl.Parameters(capacity_rps=40.0, levels_percent=(25.0, 50.0))
    result = drive(itl.TEST.procedure(parameters, canned_setting()), world)
    by_label = {level.label: level for level in result.levels}
    assert "25%" in by_label
    for label in ("25%", "50%"):
        level = by_label[label]
        assert level.observation is not None
        run = result.observations[level.observation]
        expected = bool((run.records.unresolved_chunks > 0).any())
        assert (result.metrics[f"itl[{label}].p99"].too_high_by > 0) <= expected
        assert (level.metrics["ttft.p50"].too_high_by > 0) is expected


def test_closed_loops_that_are_set_aside_are_counted_among_loads_of_their_kind() -> None:
    runs = [
        answer(plan(OpenLoop(10.0))),
        refilled_late(answer(plan(ClosedLoop(4))), 50.0),
        answer(plan(ClosedLoop(8))),
    ]
    sessions = answer(plan(ClosedLoop(2)))
    runs.append(replace(sessions, plan=sessions.plan.with_(load=ClosedLoop(2, of_sessions=True))))
    some = validity(runs, Budget(), None, (1,))
    assert some.verdict is ValidityVerdict.VALID
    (found,) = [finding for finding in some.findings if finding.check == "not_offered"]
    assert "fell behind in 1 of 2 loads: " in found.message
    assert validity(runs, Budget(), None, (1, 2)).verdict is ValidityVerdict.INVALID


def test_without_late_reads_a_result_is_what_it_was() -> None:
    result = measured(World(lambda seen: seen, 1))
    assert with_uncertainty(result) is result


def test_where_reads_are_the_stamps_the_loop_says_how_late() -> None:
    check = SelfCheck(loop_lag_p99_ns=16 * MS)
    found = late_reads(answer(plan(), selfcheck=check))
    assert found is not None
    assert (found.ok, found.value) == (False, pytest.approx(15.0))
    assert "chunks are stamped when it reads them" in found.message
    assert late_reads(answer(plan(), selfcheck=replace(check, loop_lag_p99_ns=8 * MS))).ok  # type: ignore[union-attr]


@pytest.mark.parametrize(("spoil", "attempts"), [(third_read_late, 2), (lambda seen: seen, 1)])
def test_a_level_of_the_itl_test_is_measured_again_for_its_gaps(
    spoil: Callable[[Observation], Observation], attempts: int
) -> None:
    def first_level(seen: Observation) -> Observation:
        is_level = isinstance(seen.plan.load, OpenLoop) and seen.plan.attempt == 1
        return spoil(seen) if is_level else seen

    world = World(first_level, *range(100), execute=QueueServer())
    parameters = itl.Parameters(capacity_rps=40.0, levels_percent=(50.0,))
    result = drive(itl.TEST.procedure(parameters, canned_setting()), world)
    assert max(one.attempt for one in world.plans) == attempts
    assert len(result.void_loads) == attempts - 1
    assert all("time between chunks" in cause for void in result.void_loads for cause in void.causes)
    assert result.metrics["itl[50%].p99"].too_high_by == 0.0
    (level,) = [level for level in result.levels if level.label == "50%" and level.role == "level"]
    assert level.observation is not None
    assert result.observations[level.observation].plan.attempt == attempts
