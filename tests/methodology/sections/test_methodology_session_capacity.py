"""A capacity in sessions: by canned records whose TTFT is known, and by an engine with 16 places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from canned_levels import are_in_the_catalogue, canned_setting
from canned_sessions import MS, Disturbed, SessionServer
from replayed_sut import ReplayedSUT

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.offered import set_aside
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import capacity, throughput
from pytest_llmbench.metrics.throughput import level_window, window_of
from pytest_llmbench.model.judgement import Gate, GateVerdict, ValidityVerdict
from pytest_llmbench.model.plan import LoadPlan, SessionSlots
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.catalogue import workload

TALK: Any = {"sessions": {"turns": 3, "input_tokens": 20, "output_tokens": 40}}
PAUSED: Any = {"sessions": {**TALK["sessions"], "pause_s": 0.2}}


def server(
    kind: type[SessionServer] = SessionServer, holds: int = 12, fails_above: int = 1_000, **more: Any
) -> Any:
    """The first token takes 10 ms, of turns from the second on 10 ms for each session at once beyond
    ``holds``. Of more sessions than ``fails_above`` the second turn of each fourth one fails."""

    def first_ms(request: PlannedRequest, plan: LoadPlan) -> float:
        later = request.turn is not None and request.turn.number > 1
        return 10.0 + (10.0 * max(0, (plan.load.in_flight or 0) - holds) if later else 0.0)

    def fails(row: RequestRecord, request: PlannedRequest, plan: LoadPlan) -> None:
        if (plan.load.in_flight or 0) > fails_above and (row.session or 0) % 4 == 0 and row.turn == 2:
            row.outcome, row.error = Outcome.HTTP_ERROR, "500"

    return kind(first_ms, fails, now_ns=0, **more)


def canned(asked: SessionServer | None = None, **keywords: Any) -> TestResult:
    parameters = build(capacity.Parameters, {"workload": TALK} | keywords)
    setting = replace(canned_setting("standard"), workload=workload(parameters.workload))
    return drive(capacity.TEST.procedure(parameters, setting), asked or server())


def outcomes(result: TestResult) -> list[tuple[int, bool | None]]:
    loads = [run.plan.load for run in result.observations]
    slots = [load.in_flight for load in loads if load.of_sessions]
    return list(zip(slots, [level.passed for level in result.levels], strict=True))


def test_doubles_and_bisects_to_the_last_session_that_keeps_the_limit_on_its_turns() -> None:
    result = canned(turn_ttft_p95_ms={"2+": 25}, maximum=64)
    assert outcomes(result) == [(8, True), (16, False), (12, True), (14, False), (13, True)]
    found = result.metrics["max_sessions"]
    assert (found.point, found.lower, found.upper) == (13.0, 13.0, 13.0)
    assert result.metrics["turn_ttft[2+].p95"].point == pytest.approx(20.0)
    assert result.metrics["turn_ttft[1].p95"].point == pytest.approx(10.0)
    reasons = [reason for level in result.levels for reason in level.fail_reasons]
    assert reasons[0] == "TTFT P95 of turn 2+ 50 ms (at most 25 ms)"
    assert are_in_the_catalogue(result.metrics)


@pytest.mark.parametrize(("times", "verdict"), [(2, ValidityVerdict.VALID), (3, ValidityVerdict.INVALID)])
def test_a_level_that_this_machine_spoiled_is_measured_again(times: int, verdict: ValidityVerdict) -> None:
    usual = canned(turn_ttft_p95_ms={"2+": 25}, maximum=64)
    spoiled = server(Disturbed, spoiled={8: 1, 13: times})
    result = canned(spoiled, turn_ttft_p95_ms={"2+": 25}, maximum=64)
    aside = set_aside(result.levels)
    assert validity(result.observations, Budget(), result.budgeted, aside).verdict is verdict
    assert len(result.void_loads) == len(aside) == 3
    assert len({plan.seed for plan in spoiled.plans}) == len(spoiled.plans) == 8
    assert [level.label for level in result.levels] == [plan.label for plan in spoiled.plans]
    if verdict is ValidityVerdict.VALID:
        assert result.metrics == usual.metrics
        assert result.tables == usual.tables
        assert any(
            note.startswith("13 sessions at once: attempt 2 was void") for note in map(str, result.notes)
        )


def test_a_limit_on_another_turn_is_another_capacity() -> None:
    result = canned(turn_ttft_p95_ms={1: 25}, maximum=32)
    assert result.metrics["max_sessions"].point == 32
    assert result.metrics["max_sessions"].upper is None
    assert any("bound reached: 32 sessions meet the criteria" in note for note in map(str, result.notes))


def test_a_level_has_so_many_sessions_per_slot_and_counts_while_every_slot_has_one() -> None:
    result = canned(turn_ttft_p95_ms={1: 25}, initial=4, maximum=4, sessions_per_slot=3)
    (run,) = result.observations
    assert run.plan.load == SessionSlots(4)
    assert run.plan.requests == 4 * 3 * 3
    # Three sessions of 300 ms in each slot: no slot is empty until they all are.
    assert level_window(run).end_ns == 900 * MS
    assert level_window(run).start_ns == 90 * MS
    shorter = run.records.select(run.records.session != 11)
    # Without the twelfth one slot is empty from the end of its second session on.
    assert level_window(replace(run, records=shorter)).end_ns == 600 * MS
    assert window_of(run).end_ns == 800 * MS


def test_the_drain_does_not_count() -> None:
    parameters = build(capacity.Parameters, {"workload": {"sessions": {**TALK["sessions"], "turns": (1, 9)}}})
    setting = replace(canned_setting("standard"), workload=workload(parameters.workload))
    plan, highest = capacity.TEST.plans(parameters, setting)
    assert (plan.load, highest.load) == (SessionSlots(8), SessionSlots(512))
    seen = server()(plan)
    window = level_window(seen)
    begun = {number: seen.records.scheduled_ns[seen.records.session == number].min() for number in range(32)}
    ended = {number: seen.records.finished_ns[seen.records.session == number].max() for number in range(32)}
    full = [
        sum(begun[number] <= at < ended[number] for number in begun)
        for at in range(0, window.end_ns, 100 * MS)
    ]
    assert set(full) == {8}
    assert sum(begun[number] <= window.end_ns < ended[number] for number in begun) < 8


def test_sessions_that_are_cut_off_fail_a_level_whatever_share_of_turns_that_is() -> None:
    result = canned(server(fails_above=20), maximum=64, min_completion=0.9)
    # Of the turns sent one in ten fails or so, of the sessions one in four.
    assert result.metrics["max_sessions"].point == 20
    failed = [level.fail_reasons for level in result.levels if level.passed is False]
    assert all(any("sessions cut off (at least 90 % complete)" in each for each in told) for told in failed)
    assert validity(result.observations, Budget(), budgeted=result.budgeted).verdict is ValidityVerdict.VALID


def test_against_the_places_of_an_engine() -> None:
    """Without pauses as many turns as sessions are in flight; one more than there are places has to wait."""
    result = ReplayedSUT("fast?max_num_seqs=16").measure(
        capacity.TEST, workload=TALK, ttft_p99_ms=60, maximum=128, min_sessions=16
    )
    assert result.metrics["max_sessions"].point == 16
    judged = gate(result.objectives, result.metrics)
    assert isinstance(judged, Gate)
    assert [each.verdict for each in judged.objectives] == [GateVerdict.PASS]
    # Sessions that pause leave their place to others.
    paused = ReplayedSUT("fast?max_num_seqs=16").measure(
        capacity.TEST, workload=PAUSED, ttft_p99_ms=60, maximum=128
    )
    assert paused.metrics["max_sessions"].point is not None
    assert paused.metrics["max_sessions"].point > 16


def test_table_plots_and_notes_say_sessions() -> None:
    result = canned(turn_ttft_p95_ms={"3": 25}, maximum=16)
    (table,) = result.tables
    assert table.columns == (
        "Sessions", "Completed", "TTFT P99", "TTFT P95, turn 1", "TTFT P95, turn 2+", "TTFT P95, turn 3",
        "Errors", "Status", "Reason",
    )  # fmt: skip
    assert table.rows[0][:2] == ("8", "32 of 32")
    assert result.plots[0].x_label == "sessions at once"
    assert result.plots[0].marks == {"maximum": 13.0}
    assert str(result.notes[0]) == "Maximum sessions at once meeting criteria: 13"
    assert "the workload has sessions" in str(result.notes[1])
    assert "no_threshold" not in {note.id for note in result.notes}
    assert "no_threshold" in {note.id for note in canned(maximum=8).notes}
    assert result.facts.value("load.sessions_range") == [8, 16, 1]
    assert result.facts.value("load.slo") == {"min_completion": 0.99, "turn_ttft_p95_ms": {"3": 25}}


def test_no_clause_about_requests_in_flight_is_met_by_sessions() -> None:
    result = ReplayedSUT("fast?max_num_seqs=16").measure(
        capacity.TEST, "full", workload=TALK, ttft_p99_ms=60, maximum=32
    )
    found = audit(Evidence("capacity", result))
    statuses = {each.id: str(each.status) for each in found.requirements}
    for clause in (
        "S-5.5.2-workload",
        "P-5.5.2-search-bounds",
        "P-5.5.3-simultaneous-start",
        "P-5.5.3-maintain-concurrency",
        "P-5.5.3-level-duration",
        "P-5.5.3-binary-search",
        "P-5.5.4-measurements",
        "P-5.5.5-table",
    ):
        assert statuses[clause] == "unmet", clause
    assert str(found.verdict) == "not_compliant"


def test_the_same_levels_for_other_criteria() -> None:
    keys = [
        [run.plan.key for run in canned(turn_ttft_p95_ms=limits, maximum=16).observations]
        for limits in ({1: 25}, {2: 25})
    ]
    assert keys[0] == keys[1][: len(keys[0])]


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"min_concurrency": 4}, "min_concurrency applies to requests: give min_sessions"),
        ({"duration_s": 4}, "duration_s applies to requests: a level of sessions lasts"),
        ({"output_tokens": 4}, "output_tokens applies to requests: later turns of a session"),
        ({"min_sessions": 600}, "min_sessions 600 can never pass: maximum is 512"),
        (
            {"workload": "synthetic-uniform", "min_sessions": 4},
            "min_sessions applies to sessions: name",
        ),
        (
            {"workload": "synthetic-uniform", "turn_ttft_p95_ms": {1: 4}},
            "turn_ttft_p95_ms applies to sessions",
        ),
    ],
)
def test_mistakes(keywords: dict[str, Any], told: str) -> None:
    with pytest.raises(SuiteError, match=told):
        build(capacity.Parameters, {"workload": TALK} | keywords)


def test_other_tests_say_which_take_sessions() -> None:
    with pytest.raises(SuiteError, match=r"which only @llmbench\.sessions, capacity, .* send"):
        build(throughput.Parameters, {"workload": TALK})
