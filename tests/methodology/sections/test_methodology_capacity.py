"""The capacity procedure (section 5.5) against a server with 16 places, at times short of memory."""

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
)

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import capacity
from pytest_llmbench.model.judgement import GateVerdict, ValidityVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import OVER_TIME, TestResult


def run(server: QueueServer | None = None, scale: str = "quick", **keywords: Any) -> TestResult:
    parameters = build(capacity.Parameters, {"duration_s": 1} | keywords)
    setting = canned_setting(scale)  # type: ignore[arg-type]
    return drive(capacity.TEST.procedure(parameters, setting), server or QueueServer(slots=16))


@pytest.fixture(scope="module")
def searched() -> TestResult:
    """17 requests on 16 places: one of them waits for 100 ms."""
    return run(ttft_p99_ms=100)


def outcomes(result: TestResult) -> list[tuple[int | None, bool | None]]:
    return [(level.concurrency, level.passed) for level in result.levels]


def test_doubles_to_the_first_failure_and_bisects_to_the_last_slot(searched: TestResult) -> None:
    result = searched
    assert outcomes(result) == [
        (8, True), (16, True), (32, False), (24, False), (20, False), (18, False), (17, False),
    ]  # fmt: skip
    found = result.metrics["max_concurrency"]
    assert (found.point, found.lower, found.upper) == (16.0, 16.0, 16.0)


def test_a_level_that_broke_the_server_has_failed_whatever_it_completed_before() -> None:
    server = QueueServer(slots=64)

    def execute(plan: LoadPlan) -> Observation:
        assert plan.may_break == (plan.phase is Phase.MEASURE)
        seen = server(plan)
        too_much = isinstance(plan.load, ClosedLoop) and plan.load.concurrency > 20
        return replace(seen, stopped="the SUT has stopped answering") if too_much else seen

    parameters = build(capacity.Parameters, {"duration_s": 1, "ttft_p99_ms": 100})
    result = drive(capacity.TEST.procedure(parameters, canned_setting("quick")), execute)
    assert result.metrics["max_concurrency"].point == 20.0
    broken = [level for level in result.levels if level.passed is False]
    assert {level.concurrency for level in broken} == {32, 24, 22, 21}
    assert all("ended early: the SUT has stopped answering" in level.fail_reasons for level in broken)
    assert all(level.saturated for level in broken)


def test_a_server_that_is_gone_ends_the_search_without_a_figure() -> None:
    """Not one answer: that says nothing about the level, and must not narrow the bracket."""
    server = QueueServer(slots=64)

    def execute(plan: LoadPlan) -> Observation:
        seen = server(plan)
        gone = isinstance(plan.load, ClosedLoop) and plan.load.concurrency > 20
        return replace(seen, interrupted="the SUT has stopped answering") if gone else seen

    parameters = build(capacity.Parameters, {"duration_s": 1, "ttft_p99_ms": 100})
    result = drive(capacity.TEST.procedure(parameters, canned_setting("quick")), execute)
    assert result.metrics == {}
    assert validity(result.observations, Budget()).verdict is ValidityVerdict.INVALID
    assert [plan.load for plan in server.measured][-1] == ClosedLoop(32)


def test_measurements_at_the_highest_level_that_passed(searched: TestResult) -> None:
    result = searched
    # 16 places, ten tokens per 100 ms
    assert result.metrics["output_token_throughput"].point == pytest.approx(1600, rel=0.02)
    assert result.metrics["ttft.p99"].point == pytest.approx(20.0, abs=0.1)
    # 16 inputs each, and half of ten outputs on the way: none for the first 20 ms, then 1 to 10
    in_flight = result.metrics["tokens_in_flight"].point
    assert in_flight == pytest.approx(16 * (16 + 0.8 * 5.0), rel=0.02)
    assert are_in_the_catalogue(result.metrics)


def test_table_and_closing_line(searched: TestResult) -> None:
    result = searched
    table = result.tables[0]
    assert (table.id, table.title) == ("capacity_search", "Capacity Search Results")
    assert table.columns[:6] == ("Concurrency", "Completion", "TTFT P99", "TPOT P99", "Errors", "Status")
    assert table.rows[0][:2] == ("8", "100 %")
    assert [row[5] for row in table.rows] == ["Pass", "Pass", *["Fail"] * 5]
    assert "TTFT P99 120 ms" in table.rows[2][6]
    assert str(result.notes[0]) == "Maximum concurrent requests meeting criteria: 16"
    assert [plot.id for plot in result.plots] == ["capacity_ttft", "capacity_completion", *OVER_TIME]
    assert result.plots[0].marks == {"maximum": 16.0}


def test_out_of_memory_errors_fail_a_level_and_are_counted() -> None:
    result = run(QueueServer(slots=16, fails_above=20), min_completion=0.5)
    assert result.metrics["max_concurrency"].point == 20.0
    failing = next(level for level in result.levels if level.concurrency == 22)
    assert any("out-of-memory" in reason for reason in failing.fail_reasons)
    counts = result.facts.value("load.out_of_memory_errors")
    assert counts[0] == 0
    assert max(counts) > 0
    # the error budget is about the level that is reported
    assert result.budgeted is not None
    assert [result.levels[index].concurrency for index in result.budgeted] == [20]


def test_completion_below_the_criterion_fails_a_level() -> None:
    result = run(QueueServer(slots=16, fails_above=20))
    failing = next(level for level in result.levels if level.concurrency == 32)
    assert any(reason.startswith("completion") for reason in failing.fail_reasons)


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        ("500: CUDA out of memory. Tried to allocate 2 GiB", 1),
        ("torch.OutOfMemoryError", 1),
        ("worker killed (OOM)", 1),
        ("HIP out-of-memory", 1),
        ("500: no room in the boom barrier", 0),
        ("connection reset", 0),
        (None, 0),
    ],
)
def test_texts_of_memory_that_ran_out(text: str | None, counted: int) -> None:
    row = RequestRecord(0, "r0", Phase.MEASURE, submitted_ns=1, outcome=Outcome.HTTP_ERROR, error=text)
    assert capacity.out_of_memory_errors(Records.from_rows([row])) == counted


def test_halves_down_when_the_initial_level_fails() -> None:
    result = run(QueueServer(slots=3), ttft_p99_ms=60, initial=16)
    assert outcomes(result)[:4] == [(16, False), (8, False), (4, False), (2, True)]
    assert result.metrics["max_concurrency"].point == 3.0


def test_not_even_one_is_a_capacity_of_zero() -> None:
    result = run(ttft_p99_ms=10, min_concurrency=4)
    assert outcomes(result) == [(8, False), (4, False), (2, False), (1, False)]
    assert result.metrics["max_concurrency"].point == 0.0
    assert "ttft.p99" not in result.metrics
    assert gate(result.objectives, result.metrics).verdict is GateVerdict.FAIL


def test_the_bound_is_reached_and_said_so() -> None:
    result = run(ttft_p99_ms=100, maximum=12)
    assert outcomes(result) == [(8, True), (12, True)]
    found = result.metrics["max_concurrency"]
    assert (found.point, found.upper) == (12.0, None)
    assert any("bound reached" in note for note in map(str, result.notes))


def test_quick_goes_no_further_than_64() -> None:
    result = run(QueueServer(slots=1000), ttft_p99_ms=100)
    assert outcomes(result)[-1] == (64, True)
    assert any("quick" in note for note in map(str, result.notes))


def test_without_a_threshold_the_report_says_so() -> None:
    result = run(maximum=16)
    assert any("no TTFT threshold was chosen" in note for note in map(str, result.notes))
    assert result.facts.value("load.slo") == {"min_completion": 0.99}


def test_the_output_limit_is_fixed_after_all_draws() -> None:
    server = QueueServer(slots=16)
    result = run(server, maximum=16, output_tokens=7)
    for plan in server.plans:
        if plan.label.startswith("probe"):
            continue
        assert {request.max_tokens for request in plan.workload.requests(3, plan.seed)} == {7}
    assert result.facts.value("workload.output_length")["params"] == {"tokens": 7}
    assert result.facts.value("workload.name") == "tiny"
    assert any("P5 7, P95 7" in note for note in map(str, result.notes))


def test_a_level_lasts_for_the_time_and_the_completions_whichever_is_longer() -> None:
    server = QueueServer(slots=16, service_s=0.5)
    run(server, scale="standard", maximum=8, duration_s=2)
    plan = server.measured[-1]
    assert plan.load == ClosedLoop(8)
    assert (plan.duration_s, plan.requests) == (2, 80)
    # ten per slot of half a second are five seconds
    last = drive(
        capacity.TEST.procedure(capacity.Parameters(maximum=8, duration_s=2), canned_setting("standard")),
        server,
    )
    assert last.levels[-1].duration_s >= 4.5
    assert last.levels[-1].n_ok >= 80


def test_facts() -> None:
    facts = run(ttft_p99_ms=100, maximum=16).facts
    assert facts.value("load.model") == "closed"
    assert facts.value("load.concurrency_range") == [8, 16, 1]
    assert facts.value("load.duration_s") == 1.0
    assert facts.value("load.slo") == {"min_completion": 0.99, "ttft_p99_ms": 100}


def test_the_search_serves_other_tests_with_their_own_sequence_and_variant() -> None:
    setting, server = canned_setting(), QueueServer(slots=16)
    sequence = RequestSlice(setting.workload, variant="other")
    levels = capacity.RequestLevels(
        setting=setting, sequence=sequence, criteria=capacity.Criteria(ttft_p99_ms=100)
    )
    found = drive(capacity.find_capacity(levels), server)
    assert (found.passed, found.failed) == (16, 17)
    assert {plan.variant for plan in server.plans} == {"other"}
    stricter = QueueServer(slots=16)
    drive(capacity.find_capacity(replace(levels, criteria=capacity.Criteria(ttft_p99_ms=1))), stricter)
    assert stricter.plans[0].key == server.plans[0].key
    sent = prompts(server.plans)
    assert len(set(sent)) == len(sent)


@pytest.mark.parametrize(
    ("keywords", "complaint"),
    [
        ({"initial": 20, "maximum": 10}, "initial must not be above maximum"),
        ({"min_concurrency": 20, "maximum": 10}, "can never pass"),
    ],
)
def test_contradictions(keywords: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError, match=complaint):
        build(capacity.Parameters, keywords)


def test_plans_for_the_cost_estimate_are_the_worst_case() -> None:
    plans = capacity.TEST.plans(capacity.Parameters(maximum=32), canned_setting("standard"))
    loads = [plan.load for plan in plans]
    assert loads[:3] == [ClosedLoop(8), ClosedLoop(16), ClosedLoop(32)]
    assert loads[3:] == [ClosedLoop(n) for n in (24, 28, 30, 31)]
    assert plans[0].requests == 80


def test_recovers_what_a_replayed_engine_can_do() -> None:
    # Eight places, a step of 10 ms: a ninth request waits for a whole reply of twenty steps.
    parameters = capacity.Parameters(ttft_p99_ms=60, initial=2, maximum=32, output_tokens=20)
    result = drive(capacity.TEST.procedure(parameters, replay_setting()), replay_engine().run)
    assert result.metrics["max_concurrency"].point == 8.0
    in_flight = result.metrics["tokens_in_flight"]
    assert in_flight.point is not None
    # eight inputs of 16 tokens and about ten of twenty outputs each
    assert in_flight.point == pytest.approx(8 * (16 + 10), rel=0.1)
