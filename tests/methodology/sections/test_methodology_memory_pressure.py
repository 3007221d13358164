"""Memory pressure: levels beyond capacity, preemptions, recovery, and the rule that ends it."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from replayed_sut import ReplayedSUT, broken_by, ended

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections.memory_pressure import TEST, Parameters, fitted
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.judgement import Finding, GateVerdict
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.record import Outcome, Phase
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import TestResult

TIGHT = "fast?kv_blocks=640&context_limit_tokens=1024"
"""640 blocks of 16 tokens hold some 20 requests of Synthetic-Uniform with their answers, not 30."""
ALLOWED = {"overload_allowed": True}


def _measure(sut: ReplayedSUT, **given: object) -> TestResult:
    marker = {"workload": "synthetic-uniform", "capacity": 20, "duration_s": 20.0} | given
    return sut.measure(TEST, keep=ALLOWED, **marker)


@pytest.fixture(scope="module")
def measured() -> tuple[ReplayedSUT, TestResult]:
    sut = ReplayedSUT(TIGHT)
    return sut, _measure(sut)


def test_levels_are_totals_of_the_capacity(measured: tuple[ReplayedSUT, TestResult]) -> None:
    levels = measured[1].levels
    assert [level.percent_of_capacity for level in levels] == [100, 110, 125, 150]
    assert [level.concurrency for level in levels] == [20, 22, 25, 30]
    assert [level.role for level in levels] == ["baseline", "overload", "overload", "overload"]


def test_preemptions_are_those_of_the_records(measured: tuple[ReplayedSUT, TestResult]) -> None:
    """Known beforehand: memory holds the base level, and not the highest one."""
    _, result = measured
    rates = [result.metrics[f"preemption_rate[{percent}%]"].point for percent in (100, 110, 125, 150)]
    assert rates[0] == pytest.approx(0.0, abs=0.01)
    assert rates[3] is not None
    assert rates[3] > 0.2
    assert result.metrics["preemption_rate"].point == rates[3]
    records = result.observations[-1].records
    assert rates[3] == pytest.approx(float(np.mean(records.preemptions > 0)))
    lost = float(records.preempted_tokens.sum() / records.preemptions.sum())
    assert result.metrics["preemption_loss"].point == pytest.approx(lost)
    assert result.metrics["preemption_recovery_rate"].point == 1.0
    events = result.metrics["preemptions_per_request"].point
    assert events == pytest.approx(records.preemptions.sum() / len(records))


def test_fail_rate_is_what_completion_leaves(measured: tuple[ReplayedSUT, TestResult]) -> None:
    metrics = measured[1].metrics
    completed, failed = metrics["completion_rate[150%]"], metrics["fail_rate[150%]"]
    assert completed.point is not None
    assert failed.point == pytest.approx(1 - completed.point)
    assert failed.upper == pytest.approx(1 - (completed.lower or 0.0))


def test_recovery_is_timed_from_the_end_of_the_load(measured: tuple[ReplayedSUT, TestResult]) -> None:
    """Known beforehand: a first probe finds an engine that is idle after the drain, half a second later."""
    sut, result = measured
    probes = [plan.label for plan in sut.plans if plan.label.startswith("recovery probe")]
    # Three of the idle system; after each level they are counted on from these.
    assert probes[:4] == [f"recovery probe {number}" for number in (1, 2, 3, 4)]
    last = result.observations[-1]
    assert last.load_ended_ns is not None
    drain_s = (last.ended_ns - last.load_ended_ns) / 1e9
    recovery = result.metrics["recovery_time[150%]"]
    assert recovery.point == pytest.approx(drain_s + 0.5, abs=0.2)


def test_without_counts_of_the_server_the_figures_are_not_measurable_and_it_is_undecided() -> None:
    def silent(seen: Observation) -> Observation:
        missing = np.full(len(seen.records), MISSING)
        records = replace(seen.records, preemptions=missing, preempted_tokens=missing)
        return replace(seen, records=records, engine=None)

    result = _measure(ReplayedSUT(TIGHT, change=silent), levels_percent=[100, 150], duration_s=5.0)
    for name in ("preemption_rate", "preemption_recovery_rate", "preemption_loss", "preemptions_per_request"):
        assert result.metrics[name].point is None
        assert result.metrics[name].reason is Reason.NOT_MEASURABLE
    row = result.tables[0].rows[-1]
    assert row[3].startswith("not measurable")
    finding, verdict = _pressure(result)
    assert (finding.ok, finding.voids) == (False, False)
    assert "it is unknown" in finding.message
    assert verdict is GateVerdict.INCONCLUSIVE


def test_failures_beyond_capacity_are_data_and_at_the_base_they_void() -> None:
    def failing(percent: str) -> ReplayedSUT:
        def fail(seen: Observation) -> Observation:
            half = slice(len(seen.records) // 2)
            return ended(seen, Outcome.HTTP_ERROR, half) if seen.plan.label.startswith(percent) else seen

        return ReplayedSUT(TIGHT, change=fail)

    for percent, voids in (("150%", False), ("100%", True)):
        result = _measure(failing(percent), levels_percent=[100, 150], duration_s=5.0)
        reasons = validity(result.observations, Budget(), result.budgeted).reasons
        assert any("failed, the budget is" in reason for reason in reasons) is voids


def test_a_system_that_does_not_come_back_ends_the_test() -> None:
    """After the level at 110 % every probe fails: the higher levels are not run, and it is said."""
    result = _measure(ReplayedSUT(TIGHT, change=broken_by("110%")), duration_s=5.0)
    assert [level.percent_of_capacity for level in result.levels] == [100, 110]
    assert any("no longer answers" in note for note in map(str, result.notes))
    assert result.metrics["recovery_time[110%]"].point is None


def test_an_engine_that_runs_out_of_memory_is_recorded() -> None:
    result = _measure(ReplayedSUT(TIGHT + "&preemption=off"), levels_percent=[100, 150], duration_s=10.0)
    assert any("150%" in note and "out-of-memory" in note for note in map(str, result.notes))
    completion = result.metrics["completion_rate[150%]"].point
    assert completion is not None
    assert completion < 1


def test_capacity_is_searched_for_on_the_same_workload() -> None:
    sut = ReplayedSUT(TIGHT)
    result = sut.measure(
        TEST, "quick", keep=ALLOWED, workload="synthetic-uniform", ttft_p99_ms=100, levels_percent=[100, 150]
    )
    probes = [level for level in result.levels if level.role == "probe"]
    assert probes
    capacity = result.facts.value("load.capacity_concurrency")
    assert result.levels[-1].concurrency == math.ceil(1.5 * capacity)
    assert {run.plan.workload.name for run in result.observations} == {"synthetic-uniform"}


def test_long_context_is_cut_to_what_the_model_takes() -> None:
    setting = ReplayedSUT("fast?context_limit_tokens=20000&kv_blocks=2000").setting("long-context")
    lengths = fitted(setting).workload.specification()["input_length"]["params"]
    assert "16384" in str(lengths)
    assert "32768" not in str(lengths)


def test_it_wants_to_be_allowed() -> None:
    setting = ReplayedSUT().setting("long-context")
    (missing,) = TEST.needs(build(Parameters, {}), setting)
    assert "--llm-allow-overload" in missing
    assert not TEST.needs(build(Parameters, {}), replace(setting, overload_allowed=True))


def test_limits_hold_beyond_capacity_only() -> None:
    parameters = build(
        Parameters, {"min_completion": 0.9, "max_recovery_s": 30, "levels_percent": [100, 120]}
    )
    assert [str(objective) for objective in parameters.objectives] == [
        "completion_rate[120%] >= 0.9",
        "recovery_time[120%] <= 30 s",
        "pressed_levels > 0",
    ]


def test_without_a_threshold_the_capacity_is_near_what_memory_holds() -> None:
    """Known beforehand: an eighth of the blocks hold some ten prompts of an eighth of the usual context at
    once, whatever the deadlines are."""
    eighth = "fast?context_limit_tokens=16448&kv_blocks=4128"
    result = ReplayedSUT(eighth).measure(TEST, "standard", keep=ALLOWED)
    assert 4 <= result.facts.value("load.capacity_concurrency") <= 12
    assert not any("timeout" in level.errors for level in result.levels)
    alone = result.levels[0]
    p50, p99 = (alone.metrics[f"ttft.{name}"].point for name in ("p50", "p99"))
    assert alone.concurrency == 1
    assert result.facts.value("load.capacity_ttft_p99_ms") == pytest.approx(
        max(10 * (p50 or 0), 2 * (p99 or 0))
    )
    assert any(
        note.startswith("criterion of the search: TTFT P99 at most") for note in map(str, result.notes)
    )


ROOMY = "fast?context_limit_tokens=1024"


def _pressure(result: TestResult) -> tuple[Finding, GateVerdict]:
    (finding,) = [found for found in result.findings if found.check == "memory_pressure"]
    return finding, gate(result.objectives, result.metrics).verdict


def test_memory_that_was_short_is_named_with_its_signs(measured: tuple[ReplayedSUT, TestResult]) -> None:
    finding, verdict = _pressure(measured[1])
    assert finding.ok
    assert "150 %: " in finding.message
    assert "preemptions, KV cache use up to" in finding.message
    assert verdict is GateVerdict.PASS


def test_a_test_without_pressure_on_memory_is_void() -> None:
    result = _measure(ReplayedSUT(ROOMY), levels_percent=[100, 150], duration_s=5.0)
    finding, _ = _pressure(result)
    assert (finding.ok, finding.voids) == (False, True)
    assert "no level put pressure on memory (150 %: 0 preemptions, KV cache use up to" in finding.message
    assert result.metrics["pressed_levels"].point == 0


def _with_readings(kv_use: float, waiting: int, running: int, times: int) -> ReplayedSUT:
    """An engine without preemptions whose gauges show this ``times`` times in each load, and else nothing."""

    def change(seen: Observation) -> Observation:
        at_ns = np.linspace(seen.started_ns, seen.ended_ns, 101, dtype=np.int64)
        shown = np.arange(101) < times
        pressing = {"kv_use": kv_use, "waiting": float(waiting), "running": float(running)}
        gauges = {name: np.where(shown, value, 0.0) for name, value in pressing.items()}
        return replace(
            seen, engine=EngineReadings(at_ns, gauges, {"preemptions": 0.0}, {"preemptions": 0.0}, 64)
        )

    return ReplayedSUT(ROOMY, change=change)


@pytest.mark.parametrize(
    ("kv_use", "waiting", "running", "times", "short"),
    [
        pytest.param(0.97, 3, 20, 60, True, id="requests wait for a full cache"),
        pytest.param(0.97, 3, 20, 1, False, id="one reading"),
        pytest.param(0.97, 0, 20, 60, False, id="nobody waits"),
        pytest.param(0.97, 3, 64, 60, False, id="they wait for a place in the batch"),
        pytest.param(0.60, 3, 20, 60, False, id="the cache has room"),
    ],
)
def test_memory_is_short_where_requests_wait_for_it(
    kv_use: float, waiting: int, running: int, times: int, short: bool
) -> None:
    sut = _with_readings(kv_use, waiting, running, times)
    result = _measure(sut, levels_percent=[100, 150], duration_s=5.0)
    finding, verdict = _pressure(result)
    assert finding.ok is short
    assert (verdict is GateVerdict.PASS) is short
    assert ("requests waited for it in 0 of" in finding.message) is (not short and times > 1)


def test_following_the_advice_puts_pressure_on_memory() -> None:
    roomy = "fast?context_limit_tokens=1024&kv_blocks=2000&max_num_seqs=256"
    finding, _ = _pressure(_measure(ReplayedSUT(roomy), levels_percent=[100, 120], duration_s=5.0))
    found = re.search(r"levels_percent=\((.+?)\)", finding.message)
    assert found is not None
    levels = [int(level) for level in found[1].split(",")]
    followed, verdict = _pressure(_measure(ReplayedSUT(roomy), levels_percent=levels, duration_s=5.0))
    assert followed.ok
    assert verdict is GateVerdict.PASS


def test_a_batch_that_is_full_before_the_memory_is_said() -> None:
    full = "fast?context_limit_tokens=1024&max_num_seqs=24"
    finding, _ = _pressure(_measure(ReplayedSUT(full), levels_percent=[100, 150], duration_s=5.0))
    assert "the engine runs 24 requests at once" in finding.message
    assert "levels_percent=" not in finding.message


def test_what_our_deadline_ended_is_ours_and_no_want_of_memory() -> None:
    """Even where the server's last words speak of memory: we do not know how the request would have ended."""

    def give_up(seen: Observation) -> Observation:
        if seen.plan.phase is not Phase.MEASURE:
            return seen
        error = ["no response within 60 s; out of memory"] * 10 + list(seen.records.error)[10:]
        seen = replace(seen, records=replace(seen.records, error=error))
        return ended(seen, Outcome.TIMEOUT, slice(10))

    result = _measure(ReplayedSUT(ROOMY, change=give_up), levels_percent=[100, 150], duration_s=5.0)
    assert any(
        note.startswith("150%: the load generator gave up 10 requests at its own")
        for note in map(str, result.notes)
    )
    assert not any("out-of-memory" in note for note in map(str, result.notes))
    assert result.metrics["pressed_levels"].point == 0


def test_a_search_that_our_deadline_ended_says_so() -> None:
    def give_up(seen: Observation) -> Observation:
        return ended(seen, Outcome.TIMEOUT, slice(10)) if seen.plan.label == "16 in flight" else seen

    sut = ReplayedSUT(TIGHT, change=give_up)
    result = sut.measure(TEST, "quick", keep=ALLOWED, workload="synthetic-uniform", levels_percent=[100, 150])
    (level,) = [level for level in result.levels if level.label == "16 in flight"]
    assert any("10 were given up by the load generator's own deadline" in why for why in level.fail_reasons)
