"""Memory pressure by idle sessions: by canned records whose counts are known, and by an engine whose KV cache
holds a known number of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from canned_levels import are_in_the_catalogue, canned_setting
from canned_sessions import Disturbed, SessionServer
from replayed_sut import ReplayedSUT, broken_by

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.offered import set_aside
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import fairness, guardrail, memory_pressure, prefix_cache
from pytest_llmbench.methodology.sections.memory_pressure import TEST, Parameters
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.judgement import Finding, GateVerdict, ValidityVerdict
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.stream import streamed

TALK: Any = {"sessions": {"turns": 3, "input_tokens": 20, "output_tokens": 40, "pause_s": 0.1}}
ALLOWED = {"overload_allowed": True}


def slots(plan: LoadPlan) -> int:
    assert plan.load.of_sessions
    return plan.load.in_flight or 0


def waits_ms(request: PlannedRequest, plan: LoadPlan) -> float:
    """10 ms; of returning turns 100 ms beyond 16 sessions at once, whose history must be computed again."""
    assert request.turn is not None
    return 100.0 if request.turn.number > 1 and slots(plan) > 16 else 10.0


def keeps(most: int, share: float = 0.0) -> Any:
    """A server that says it found all of the history with so many sessions at once, and this share beyond."""

    def change(row: RequestRecord, request: PlannedRequest, plan: LoadPlan) -> None:
        kept = 1.0 if slots(plan) <= most else share
        row.cached_tokens = round(request.shared_prefix_tokens * kept)

    return change


def canned(change: Any = None, server: Any = None, **keywords: Any) -> TestResult:
    parameters = build(Parameters, {"workload": TALK, "sessions": [8, 16, 32]} | keywords)
    setting = replace(canned_setting("standard"), workload=workload(parameters.workload))
    server = server or SessionServer(waits_ms, change or keeps(16))
    return drive(memory_pressure.TEST.procedure(parameters, setting), server)


def finding(result: TestResult) -> Finding:
    (found,) = (each for each in result.findings if each.check == "memory_pressure")
    return found


def judged(result: TestResult) -> ValidityVerdict:
    aside = set_aside(result.levels)
    return validity(result.observations, Budget(), result.budgeted, aside).verdict


def verdicts(result: TestResult) -> dict[str, GateVerdict]:
    return {
        str(each.objective.metric): each.verdict
        for each in gate(result.objectives, result.metrics).objectives
    }


def test_the_most_sessions_whose_turns_return_in_time() -> None:
    result = canned(**WANTED)
    most = result.metrics["max_sessions"]
    assert (most.point, most.lower, most.upper) == (16.0, 16.0, 31.0)
    assert [level.passed for level in result.levels] == [True, True, False]
    assert result.levels[-1].fail_reasons == (
        "TTFT P95 of turn 2+ 100 ms (at most 50 ms)",
        "hit rate of turn 2+ 0 % (at least 90 %)",
    )
    rates = [level.metrics["turn_cache_hit_rate[2+]"].point for level in result.levels]
    assert rates == [1.0, 1.0, 0.0]
    # Prompts of 80 and 140 tokens begin with 20 and 80 of earlier ones. The first tenth of a level does not
    # count, and with it the first two turns in each slot.
    assert result.metrics["turn_cacheable_share[2+]"].point == pytest.approx((4 * 100 - 20) / (4 * 220 - 80))
    assert result.metrics["pressed_levels"].point == 0.5
    assert finding(result).ok
    assert verdicts(result) == {"max_sessions": GateVerdict.PASS, "pressed_levels": GateVerdict.PASS}
    assert are_in_the_catalogue(result.metrics)


def test_a_level_beyond_the_first_that_fails_does_not_count() -> None:
    def odd(row: RequestRecord, request: PlannedRequest, plan: LoadPlan) -> None:
        row.cached_tokens = 0 if slots(plan) == 16 else request.shared_prefix_tokens

    result = canned(odd, min_turn_hit_rate={"2+": 0.5}, min_sessions=32)
    assert [level.passed for level in result.levels] == [True, False, True]
    most = result.metrics["max_sessions"]
    assert (most.point, most.upper) == (8.0, 15.0)
    assert verdicts(result)["max_sessions"] is GateVerdict.FAIL


def test_no_level_that_passes_is_no_lower_bound() -> None:
    result = canned(turn_ttft_p95_ms={1: 5}, min_sessions=8)
    most = result.metrics["max_sessions"]
    assert (most.point, most.upper) == (0.0, 7.0)
    assert "none passed, 8 failed" in most.method
    assert verdicts(result)["max_sessions"] is GateVerdict.FAIL


def test_without_a_fall_of_the_hit_rate_there_was_no_pressure() -> None:
    result = canned(keeps(64), min_sessions=32)
    told = finding(result)
    assert (told.ok, told.voids) == (False, True)
    assert "no number of sessions put pressure on memory (8 sessions: hit rate of returning turns 100 %" in (
        told.message
    )
    assert result.metrics["pressed_levels"].point == 0
    assert verdicts(result)["pressed_levels"] is GateVerdict.FAIL
    assert verdicts(result)["max_sessions"] is GateVerdict.PASS


@pytest.mark.parametrize(("share", "pressed"), [(0.97, 0.0), (0.9, 0.5)])
def test_a_fall_by_the_grain_of_blocks_is_none(share: float, pressed: float) -> None:
    assert canned(keeps(16, share)).metrics["pressed_levels"].point == pressed


def test_a_cache_that_finds_little_from_the_first_level_on_puts_no_pressure() -> None:
    result = canned(keeps(4, 0.1))
    assert not finding(result).ok
    assert "begin with fewer" in finding(result).message


def test_preemptions_are_pressure_whatever_was_found() -> None:
    def preempted(row: RequestRecord, request: PlannedRequest, plan: LoadPlan) -> None:
        keeps(64)(row, request, plan)
        row.preemptions = int(slots(plan) == 32)

    result = canned(preempted)
    assert result.metrics["pressed_levels"].point == 0.5
    assert result.metrics["preemption_rate[32 sessions]"].point == 1.0
    assert "32 sessions: hit rate of returning turns 100 %" in finding(result).message


def test_a_server_that_tells_nothing_leaves_it_undecided() -> None:
    def silent(row: RequestRecord, request: PlannedRequest, plan: LoadPlan) -> None:
        row.cached_tokens = None

    result = canned(silent, min_turn_hit_rate={"2+": 0.5})
    told = finding(result)
    assert (told.ok, told.voids) == (False, False)
    assert "it is unknown" in told.message
    assert result.metrics["turn_cache_hit_rate[2+]"].reason is Reason.NOT_MEASURABLE
    assert result.metrics["pressed_levels"].point is None
    assert verdicts(result)["pressed_levels"] is GateVerdict.INCONCLUSIVE
    assert all("hit rate of turn 2+ not measured" in level.fail_reasons for level in result.levels)
    # What could be cached is known, and so are the waits.
    assert result.tables[0].rows[0][3:6] != ("", "", "")
    assert result.metrics["turn_ttft[2+].p95"].point == pytest.approx(100.0)


def test_silence_of_a_server_that_spoke_before_means_nothing_was_found() -> None:
    """vLLM tells cached tokens only where there are any: at the highest level it says nothing at all."""

    def where_any(row: RequestRecord, request: PlannedRequest, plan: LoadPlan) -> None:
        found = request.shared_prefix_tokens if slots(plan) <= 16 else 0
        row.cached_tokens = found or None

    result = canned(where_any)
    assert [level.metrics["turn_cache_hit_rate[2+]"].point for level in result.levels] == [1.0, 1.0, 0.0]
    assert finding(result).ok


def test_failures_are_data_beyond_the_first_level() -> None:
    def fails(row: RequestRecord, request: PlannedRequest, plan: LoadPlan) -> None:
        keeps(16)(row, request, plan)
        if slots(plan) == 32 and row.turn == 3 and row.session and row.session % 2:
            row.outcome, row.error = Outcome.HTTP_ERROR, "out of memory"

    result = canned(fails)
    assert result.metrics["max_sessions"].point == 16
    completed = result.metrics["completion_rate[32 sessions]"].point
    assert completed == pytest.approx(5 / 6)
    assert result.metrics["fail_rate[32 sessions]"].point == pytest.approx(1 / 6)
    assert any(note.startswith("32 sessions: 64 out-of-memory errors") for note in map(str, result.notes))
    assert validity(result.observations, Budget(), result.budgeted).verdict is ValidityVerdict.VALID


WANTED = {"turn_ttft_p95_ms": {"2+": 50}, "min_turn_hit_rate": {"2+": 0.9}, "min_sessions": 16}


def disturbed(spoiled: dict[int, int]) -> tuple[TestResult, Disturbed]:
    server = Disturbed(waits_ms, keeps(16), spoiled=dict(spoiled))
    return canned(server=server, **WANTED), server


def figures(result: TestResult) -> tuple[Any, ...]:
    """All but the recovery, since probes are answered by another clock here."""
    metrics = {name: each for name, each in result.metrics.items() if not name.startswith("recovery_time")}
    (table,) = result.tables
    recovery = table.columns.index("Recovery")
    return metrics, [row[:recovery] + row[recovery + 1 :] for row in table.rows]


@pytest.mark.parametrize("which", [{8: 1}, {16: 2}, {32: 1}, {8: 2, 16: 1, 32: 2}])
def test_a_level_that_this_machine_spoiled_is_measured_again_with_other_sessions(
    which: dict[int, int],
) -> None:
    (usual, calm), (result, server) = disturbed({}), disturbed(which)
    assert figures(result) == figures(usual)
    assert verdicts(result) == {"max_sessions": GateVerdict.PASS, "pressed_levels": GateVerdict.PASS}
    assert judged(result) is ValidityVerdict.VALID
    void = {f"{at} sessions at once": times for at, times in which.items()}
    assert Counter(each.label for each in result.void_loads) == void
    for at in which:
        assert any(
            note.startswith(f"{at} sessions at once: attempt 1 was void") for note in map(str, result.notes)
        )
    # Each attempt has sessions of its own; the first has those that it always had.
    seeds = [plan.seed for plan in server.plans]
    assert len(set(seeds)) == len(seeds) == 3 + sum(which.values())
    assert {plan.seed for plan in calm.plans} < set(seeds)
    attempts = [plan.attempt for plan in server.plans]
    assert attempts == [n for at in (8, 16, 32) for n in range(1, which.get(at, 0) + 2)]
    assert [level.label for level in result.levels] == [plan.label for plan in server.plans]


def test_a_further_attempt_begins_with_a_system_that_has_recovered() -> None:
    _, server = disturbed({32: 1})
    labels = [plan.label for plan in server.sent if plan.phase is not Phase.WARMUP]
    levels = [place for place, label in enumerate(labels) if label.endswith("at once")]
    assert [labels[place] for place in levels][-2:] == ["32 sessions at once"] * 2
    assert all(labels[place - 1].startswith("recovery probe") for place in levels)


def test_the_last_attempt_counts_and_voids_the_test() -> None:
    result, _ = disturbed({16: 3})
    assert len(result.void_loads) == 2
    assert judged(result) is ValidityVerdict.INVALID


def test_table_and_plots() -> None:
    result = canned()
    (table,) = result.tables
    assert table.id == "memory_pressure_sessions"
    assert [row[:2] for row in table.rows] == [("8", "32 of 32"), ("16", "64 of 64"), ("32", "128 of 128")]
    assert [row[-2] for row in table.rows] == ["Pass", "Pass", "Pass"]
    rates, waits = result.plots[:2]
    assert rates.series["turns 2+"] == ((8.0, 16.0, 32.0), (100.0, 100.0, 0.0))
    assert waits.series["turns 2+"][1] == pytest.approx((10.0, 10.0, 100.0))
    assert any("the workload has sessions" in note for note in map(str, result.notes))


OF_BLOCKS: Any = {
    "sessions": {"turns": 4, "own_tokens": 1008, "input_tokens": 16, "output_tokens": 16, "pause_s": 1.0}
}
"""All turns of all sessions come at the same instants. The first prompt has 1,024 tokens, with its answer 65
blocks of 16; the last 1,120, with its answer 71 blocks."""


@pytest.mark.parametrize("fit", [6, 10])
def test_the_hit_rate_falls_where_the_contexts_no_longer_fit(fit: int) -> None:
    """The cache forgets first what was unused longest, and contexts are used in turn: all are found as long
    as all fit, with one more a good part is lost, and with twice as many next to all."""
    blocks = 71 * fit + 2
    assert 65 * (fit + 1) > blocks
    sut = ReplayedSUT(f"fast?kv_blocks={blocks}&prefix_caching=on&context_limit_tokens=2048")
    levels = [4, fit, fit + 1, 2 * fit]
    result = sut.measure(
        TEST,
        keep=ALLOWED,
        workload=OF_BLOCKS,
        sessions=levels,
        min_turn_hit_rate={"2+": 0.95},
        min_sessions=fit,
    )
    rates = [level.metrics["turn_cache_hit_rate[2+]"].point for level in result.levels]
    assert rates[:2] == [1.0, 1.0]
    assert rates[2] is not None
    assert rates[2] < 0.6
    assert rates[3] is not None
    assert rates[3] < 0.1
    most = result.metrics["max_sessions"]
    assert (most.point, most.upper) == (fit, fit)
    assert verdicts(result) == {"max_sessions": GateVerdict.PASS, "pressed_levels": GateVerdict.PASS}
    waits = [level.metrics["turn_ttft[2+].p50"].point or 0.0 for level in result.levels]
    assert waits[3] > 2 * waits[1]
    assert len(sut.plans) == len({(plan.key, plan.first) for plan in sut.plans})


def test_a_roomy_cache_is_no_test_of_memory() -> None:
    sut = ReplayedSUT("fast?prefix_caching=on&context_limit_tokens=2048")
    result = sut.measure(TEST, "quick", keep=ALLOWED, workload=OF_BLOCKS, sessions=[4, 8])
    assert (finding(result).ok, finding(result).voids) == (False, True)


def test_a_system_that_does_not_come_back_ends_the_test() -> None:
    broken = broken_by("8 sessions at once")
    sut = ReplayedSUT("fast?prefix_caching=on&context_limit_tokens=2048", change=broken)
    result = sut.measure(TEST, "quick", keep=ALLOWED, workload=OF_BLOCKS, sessions=[4, 8, 16])
    assert [slots(run.plan) for run in result.observations] == [4, 8]
    assert any("stopped after 8 sessions: not recovered" in note for note in map(str, result.notes))


def test_clauses_about_requests_in_flight_are_not_met() -> None:
    sut = ReplayedSUT("fast?kv_blocks=300&prefix_caching=on&context_limit_tokens=2048")
    result = sut.measure(TEST, "full", keep=ALLOWED, workload=OF_BLOCKS, sessions=[4, 8])
    found = audit(Evidence("memory_pressure", result))
    told = {each.id: each for each in found.requirements}
    for clause in (
        "P-5.8.2-levels",
        "P-5.8.3-capacity-first",
        "P-5.8.3-min-duration-120s",
        "P-5.8.5-table",
    ):
        assert str(told[clause].status) == "unmet"
        assert "turns of sessions" in told[clause].reason
    # The arithmetic is the draft's.
    for clause in (
        "P-5.8.3-monitor",
        "P-5.8.4-completion",
        "P-5.8.4-preemption-rate",
        "S-7.4-cascade-monitoring",
    ):
        assert str(told[clause].status) == "met", told[clause].reason
    assert str(found.verdict) == "not_compliant"


def test_it_wants_to_be_allowed_and_sessions_with_a_history_that_fits() -> None:
    sut = ReplayedSUT()
    parameters = build(Parameters, {"workload": TALK})
    (missing,) = TEST.needs(parameters, sut.setting(parameters.workload))
    assert "--llm-allow-overload" in missing
    assert not TEST.needs(parameters, sut.setting(parameters.workload, **ALLOWED))
    for wrong, told in (({"turns": 1}, "has a second turn"), ({"own_tokens": 400_000}, "longer context")):
        parameters = build(Parameters, {"workload": {"sessions": TALK["sessions"] | wrong}})
        (missing,) = TEST.needs(parameters, sut.setting(parameters.workload, **ALLOWED))
        assert told in missing


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"capacity": 4}, "capacity applies to requests"),
        ({"duration_s": 4}, "duration_s applies to requests"),
        ({"levels_percent": (100, 120)}, "levels_percent applies to requests"),
        ({"max_recovery_s": 4}, "max_recovery_s applies to requests"),
        ({"sessions": [8]}, "sessions has one level, 8"),
        ({"sessions": [16, 8]}, "must ascend"),
        ({"min_sessions": 12}, "min_sessions is 12, which is not a level: the levels are 4, 8, 16, 32, 64"),
        ({"min_turn_hit_rate": {"2+": 1.5}}, "must lie between 0 and 1"),
        ({"workload": "long-context", "min_sessions": 4}, "min_sessions applies to sessions"),
        ({"workload": "long-context", "sessions": [4, 5]}, "sessions applies to sessions"),
    ],
)
def test_mistakes(keywords: dict[str, Any], told: str) -> None:
    with pytest.raises(SuiteError, match=told):
        build(Parameters, {"workload": TALK} | keywords)


def live(answers: str) -> Any:
    return {"sessions": {**TALK["sessions"], "answers": answers}}


def test_states_of_one_test_are_not_compared_on_live_answers() -> None:
    said = 'has live answers, so .* would not read the same: leave answers="live" out'
    with pytest.raises(SuiteError, match=said):
        build(prefix_cache.Parameters, {"workload": live("live")})
    mix = {"chat": (TALK, 0.5), "agent": (live("live"), 0.5)}
    with pytest.raises(SuiteError, match=said):
        build(fairness.Parameters, {"workload": mix})
    with pytest.raises(SuiteError, match="workload has sessions"):
        build(guardrail.Parameters, {"workload": live("live")})
    assert build(prefix_cache.Parameters, {"workload": live("live-compared")})


def test_the_answers_of_a_mix_are_the_strictest_of_its_parts() -> None:
    def of(*parts: Any) -> str:
        return streamed(workload({f"part {n}": (each, 0.5) for n, each in enumerate(parts)})).answers

    assert of(TALK, TALK) == "recorded"
    assert of(TALK, live("live-compared")) == "live-compared"
    assert of(live("live-compared"), live("live")) == "live"
    stated = workload({"chat": (TALK, 0.5), "agent": (live("live"), 0.5)}).specification()
    assert stated["answers"] == "live"
    assert [each["what"] for each in stated["deviations"]] == ["context"]
    assert "answers" not in workload({"chat": (TALK, 0.5), "agent": (TALK, 0.5)}).specification()
