"""The tradeoff procedure (section 5.3) against a server of known capacity: 40 req/s, 400 tok/s."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from canned_levels import (
    QueueServer,
    are_in_the_catalogue,
    canned_setting,
    replay_engine,
    replay_setting,
    rows_of,
)

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.measuring.levels import Seen, level_of
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.search.probing import Range, value_of
from pytest_llmbench.methodology.search.search import SaturationRate, rate_found, search
from pytest_llmbench.methodology.sections import tradeoff
from pytest_llmbench.methodology.sections.tradeoff import Curve, curve_of, points_table
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.facts import Origin
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.model.result import TestResult


def run(server: QueueServer | None = None, scale: str = "quick", **keywords: Any) -> TestResult:
    parameters = build(tradeoff.Parameters, keywords)
    return drive(tradeoff.TEST.procedure(parameters, canned_setting(scale)), server or QueueServer())  # type: ignore[arg-type]


def points(result: TestResult) -> dict[str, str]:
    return {name: row[0] for name, row in rows_of(result, "tradeoff_points").items()}


@pytest.fixture(scope="module")
def swept() -> TestResult:
    """The draft's grid with a declared capacity, two seconds a level."""
    return run(scale="standard", capacity_rps=40, duration_s=2, ttft_p99_ms=60)


@pytest.fixture(scope="module")
def template() -> Seen:
    setting = canned_setting()
    plan = RequestSlice(setting.workload).open_loop(setting, "level", OpenLoop(10), 1.0)
    return level_of(QueueServer()(plan), seed=1)


def canned_curve(template: Seen, *rows: tuple[float, float, float], slo_ms: float | None = None) -> Curve:
    """Rows: offered rate, output tokens/s, TTFT P99."""

    def estimate(value: float, unit: str) -> Estimate:
        return Estimate(value, value, value, 0.95, 100, "canned", unit)

    levels = []
    for rate, throughput, p99 in rows:
        metrics = {
            **template.level.metrics,
            "output_token_throughput": estimate(throughput, "tok/s"),
            "ttft.p99": estimate(p99, "ms"),
        }
        passed = None if slo_ms is None else p99 <= slo_ms
        levels.append(template.with_(offered_rps=rate, metrics=metrics, passed=passed, saturated=False))
    return curve_of(levels, wanted=slo_ms is not None)


EXAMPLE = (
    (2.0, 284.0, 142.0), (6.0, 852.0, 178.0), (10.0, 1420.0, 267.0), (14.0, 1988.0, 512.0),
    (18.0, 2534.0, 1234.0), (22.0, 2712.0, 3456.0),
)  # fmt: skip
"""The draft's example table."""


def test_the_knee_of_the_drafts_example(template: Seen) -> None:
    found = canned_curve(template, *EXAMPLE).metrics["knee_rate"]
    assert (found.point, found.lower, found.upper) == (14.0, 10.0, 14.0)


def test_the_saturation_point_is_the_first_drop_and_not_reached_without_one(template: Seen) -> None:
    # In the example throughput still rises at 22 req/s: by the definition nothing is saturated (AMB-15).
    rising = canned_curve(template, *EXAMPLE)
    assert rising.saturation is None
    assert rising.metrics["saturation_rate"].reason is Reason.NOT_REACHED
    found = rising.metrics["saturation_rate"]
    assert (found.point, found.lower, found.upper) == (None, 22.0, None)
    assert (found.kind, found.lower) == (EstimateKind.BOUND, 22)
    falling = canned_curve(template, *EXAMPLE, (26.0, 2700.0, 5000.0), (30.0, 2800.0, 9000.0))
    assert falling.metrics["saturation_rate"].point == 26.0
    assert falling.metrics["saturation_rate"].lower == 22.0


def test_a_drop_within_the_intervals_is_no_saturation_point(template: Seen) -> None:
    def level(rate: float, tok_s: float, half: float | None) -> Seen:
        lower, upper = (None, None) if half is None else (tok_s - half, tok_s + half)
        estimate = Estimate(tok_s, lower, upper, 0.95, 100, "canned", "tok/s")
        return template.with_(
            offered_rps=rate, metrics={**template.level.metrics, "output_token_throughput": estimate}
        )

    noisy = [level(1.6, 260.0, 40.0), level(1.8, 240.0, 40.0), level(2.0, 300.0, 40.0)]
    assert curve_of(noisy, wanted=False).saturation is None
    unknown = [level(1.6, 260.0, None), level(1.8, 240.0, None)]
    assert curve_of(unknown, wanted=False).saturation is None
    clear = [level(1.6, 260.0, 9.0), level(1.8, 240.0, 9.0)]
    assert curve_of(clear, wanted=False).saturation is clear[1]


def test_fewer_arrivals_at_the_higher_rate_are_no_saturation(template: Seen) -> None:
    """By chance a third of the requests came, and as many fewer tokens."""
    whole = template.records
    some = replace(template.observation, records=whole.select(whole.index % 3 == 0))
    few = level_of(some, seed=1)
    exact = Estimate(30.0, 30.0, 30.0, 0.95, 100, "canned", "tok/s")
    quiet = few.with_(offered_rps=12.0, metrics={**few.level.metrics, "output_token_throughput": exact})
    busy = Estimate(90.0, 90.0, 90.0, 0.95, 100, "canned", "tok/s")
    before = template.with_(metrics={**template.level.metrics, "output_token_throughput": busy})
    assert curve_of([before, quiet], wanted=False).saturation is None


def test_the_knee_lies_above_the_level_of_the_minimum(template: Seen) -> None:
    # The first level is slow (cold): only levels above the minimum can be the knee.
    found = canned_curve(template, (2, 100, 500), (4, 200, 100), (6, 300, 199), (8, 400, 201)).metrics[
        "knee_rate"
    ]
    assert found.point == 8.0


def test_no_knee_lies_above_all_levels(template: Seen) -> None:
    found = canned_curve(template, (2, 100, 100), (4, 200, 200)).metrics["knee_rate"]
    assert (found.point, found.lower, found.upper) == (None, 4.0, None)


def test_the_operating_point_has_the_highest_throughput_that_meets_the_objective(template: Seen) -> None:
    found = canned_curve(template, *EXAMPLE, slo_ms=600)
    assert found.metrics["operating_point_rate"].point == 14.0
    assert found.metrics["operating_point_throughput"].point == 1988.0
    assert (
        canned_curve(template, *EXAMPLE, slo_ms=10).metrics["operating_point_rate"].method
        == "no level meets the SLO"
    )
    assert canned_curve(template, *EXAMPLE).metrics["operating_point_rate"].method == "no SLO given"


def test_what_a_sweep_found_is_known_to_the_next_level_that_failed(template: Seen) -> None:
    found = canned_curve(template, *EXAMPLE, slo_ms=600).metrics["operating_point_throughput"]
    assert found.upper is not None
    assert "up to the next tested load, 18 req/s" in found.method
    assert found.upper == pytest.approx(1988.0 * 18 / 14)
    above = canned_curve(template, *EXAMPLE, slo_ms=1e9)
    assert above.metrics["operating_point_throughput"].upper is None
    assert above.metrics["max_output_token_throughput"].upper is None
    assert "a lower bound" in above.metrics["max_output_token_throughput"].method


def test_shares_of_a_range_that_ended_are_shares_of_a_lower_bound(template: Seen) -> None:
    setting = canned_setting()
    sequence = RequestSlice(setting.workload)
    ended = search(setting, sequence, bounds=Range(10.0, 30.0, 10.0))
    rate = rate_found(drive(ended, QueueServer(slots=100_000)), sequence)
    assert rate.rps == 30.0
    assert "a lower bound: every tested load up to 30 held" in rate.source
    assert rate.facts["load.capacity_source"] == rate.source
    rows = {row[0]: row for row in points_table(canned_curve(template, *EXAMPLE), rate).rows}
    assert rows["Estimated capacity"][1].startswith("at least ")
    assert rows["Estimated capacity"][2] == rate.source
    found = run(levels_percent=(50.0, 100.0))
    assert found.facts["load.capacity_source"].origin is Origin.MEASURED
    assert "at least" not in points(found)["Estimated capacity"]


def test_the_operating_point_is_never_above_the_maximum(swept: TestResult, template: Seen) -> None:
    operating = swept.metrics["operating_point_throughput"].point
    most = swept.metrics["max_output_token_throughput"].point
    assert operating is not None
    assert most is not None
    assert operating <= most
    # The ten-fold rule names the upper levels, and the objectives allow what it forbids.
    passing = canned_curve(template, *EXAMPLE, slo_ms=4000).levels
    told = curve_of([seen.with_(saturated=value_of(seen) > 14) for seen in passing], wanted=True)
    assert told.metrics["operating_point_throughput"].point == 2712.0
    assert told.sustained is told.operating


def test_a_level_with_a_growing_queue_meets_no_objective() -> None:
    wide = run(scale="standard", capacity_rps=40, duration_s=2, ttft_p99_ms=1e6)
    growing = [level for level in wide.levels if level.overloaded]
    assert growing
    assert not any(level.passed for level in growing)


def test_the_grid_in_ascending_order_open_loop_poisson(swept: TestResult) -> None:
    levels = [level for level in swept.levels if level.role == "level"]
    assert [level.percent_of_capacity for level in levels][:12] == [10.0 * i for i in range(1, 13)]
    assert all(earlier.offered_rps < later.offered_rps for earlier, later in pairwise(levels))  # type: ignore[operator]
    plans = [run.plan for run in swept.observations]
    assert all(
        plan.load == OpenLoop(level.offered_rps or 0, "poisson")
        for plan, level in zip(plans, levels, strict=True)
    )
    starts = [run.started_ns for run in swept.observations]
    ends = [run.ended_ns for run in swept.observations]
    assert all(end < start for end, start in zip(ends, starts[1:], strict=False))


def test_metrics_are_those_of_each_level(swept: TestResult) -> None:
    # half of the capacity: 20 req/s of ten tokens each, nearly nobody waits
    assert swept.metrics["ttft[50%].p50"].point == pytest.approx(20.0, abs=0.1)
    assert swept.metrics["completion_rate[120%]"].point == 1.0
    assert swept.metrics["output_token_throughput[120%]"].point == pytest.approx(400, rel=0.1)
    assert are_in_the_catalogue(swept.metrics)


def test_the_table_has_a_row_per_level_and_the_drafts_columns_in_order(swept: TestResult) -> None:
    table = next(one for one in swept.tables if one.id == "tradeoff_levels")
    draft = ("Offered (r/s)", "Achieved (tok/s)", "TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "Success")
    assert [column for column in table.columns if column in draft] == list(draft)
    assert {"TTFT P95", "E2E P50", "E2E P95", "E2E P99", "Queue"} <= set(table.columns)
    assert len(table.rows) == len([level for level in swept.levels if level.role == "level"])
    assert table.rows[0][table.columns.index("Success")] == "100 %"


def test_the_points_are_told_in_words(swept: TestResult) -> None:
    told = points(swept)
    assert list(told)[:3] == ["Knee point", "Saturation point", "Optimal operating point"]
    assert told["Estimated capacity"] == "40 req/s"
    assert "req/s (" in told["Optimal operating point"]
    passing = [level for level in swept.levels if level.passed]
    operating = max(passing, key=lambda level: level.metrics["output_token_throughput"].point or 0.0)
    assert operating.label in told["Optimal operating point"]
    assert swept.metrics["operating_point_rate"].point == operating.offered_rps


def test_the_plot_draws_latency_over_throughput(swept: TestResult) -> None:
    plot = swept.plots[0]
    assert plot.id == "throughput_latency"
    assert {"TTFT P50", "TTFT P99"} <= set(plot.series)
    assert set(plot.bands) <= set(plot.series)
    assert plot.bands


def test_facts(swept: TestResult) -> None:
    assert swept.facts.value("load.capacity_rps") == 40
    assert swept.facts.value("load.model") == "open"
    assert swept.facts.value("load.duration_s") == 2
    assert swept.facts.value("load.levels_percent")[:2] == [10, 20]
    assert swept.facts.value("load.slo") == {"ttft_p99_ms": 60}


def test_levels_beyond_capacity_are_not_in_the_error_budget(swept: TestResult) -> None:
    saturated = {level.observation for level in swept.levels if level.saturated}
    assert saturated
    assert swept.budgeted is not None
    assert not saturated & set(swept.budgeted)


def test_levels_are_added_until_one_is_saturated() -> None:
    result = run(capacity_rps=25)
    percents = [level.percent_of_capacity for level in result.levels]
    assert percents[:5] == [10, 40, 70, 90, 120]
    assert percents[5:] == [120.0 + 10 * (i + 1) for i in range(len(percents) - 5)]
    assert [level.saturated for level in result.levels].index(True) == len(percents) - 1
    assert any("levels were added" in note for note in map(str, result.notes))


def test_a_burst_that_a_higher_level_holds_ends_no_sweep(template: Seen) -> None:
    levels = [template.with_(saturated=saturated) for saturated in (False, True, False)]
    setting = canned_setting()
    found = SaturationRate(None, "", RequestSlice(setting.workload))
    sweep = partial(tradeoff._Sweep, tradeoff.Parameters(), setting, found)
    assert not sweep(levels).saturated
    assert sweep(levels[:2]).saturated
    assert not sweep().saturated


def test_added_levels_are_bounded() -> None:
    result = run(capacity_rps=5)
    assert result.levels[-1].percent_of_capacity == 200
    assert any("estimated too low" in note for note in map(str, result.notes))


def test_without_a_declared_capacity_it_starts_from_the_common_search() -> None:
    result = run()
    roles = [level.role for level in result.levels]
    assert roles[0] == "burst"
    assert roles.index("level") > roles.index("probe")
    capacity = result.facts.value("load.capacity_rps")
    assert 24 <= capacity <= 40
    first = next(level for level in result.levels if level.role == "level")
    assert first.offered_rps == pytest.approx(0.1 * capacity, rel=0.01)


def test_no_capacity_no_levels() -> None:
    result = run(QueueServer(dies=True))
    assert not [level for level in result.levels if level.role == "level"]
    assert result.metrics["knee_rate"].point is None
    assert any("no capacity was found" in note for note in map(str, result.notes))


def test_levels_by_scale() -> None:
    parameters = tradeoff.Parameters(capacity_rps=40, levels_percent=(20.0, 75.0))
    setting = canned_setting("standard")
    assert tradeoff.percents(parameters, setting) == (20.0, 75.0)
    full = tradeoff.percents(parameters, replace(setting, scale="full"))
    assert set(tradeoff.GRID) < set(full)
    assert list(full) == sorted(full)
    quick = tradeoff.percents(tradeoff.Parameters(), replace(setting, scale="quick"))
    assert (len(quick), quick[0], quick[-1]) == (5, 10.0, 120.0)


def test_limits() -> None:
    parameters = tradeoff.Parameters(
        min_knee_rate=3, min_saturation_rate=4, min_operating_tok_s=5, ttft_p99_ms=100
    )
    assert [str(objective) for objective in parameters.objectives] == [
        "knee_rate >= 3 req/s",
        "saturation_rate >= 4 req/s",
        "operating_point_throughput >= 5 tok/s",
    ]
    with pytest.raises(SuiteError, match="needs ttft_p99_ms or tpot_p99_ms"):
        build(tradeoff.Parameters, {"min_operating_tok_s": 5})


def test_plans_cover_the_levels_and_those_that_may_be_added() -> None:
    plans = tradeoff.TEST.plans(tradeoff.Parameters(capacity_rps=40), canned_setting("standard"))
    assert [plan.label for plan in plans][-1] == "200%"
    assert len(plans) == 20
    searching = tradeoff.TEST.plans(tradeoff.Parameters(), canned_setting("standard"))
    assert len(searching) > len(plans)


def test_recovers_what_a_replayed_engine_can_do() -> None:
    parameters = tradeoff.Parameters(capacity_rps=40, levels_percent=(20.0, 60.0, 150.0), ttft_p99_ms=40)
    result = drive(tradeoff.TEST.procedure(parameters, replay_setting()), replay_engine().run)
    # beyond capacity each 10 ms step gives 8 tokens
    found = result.metrics["output_token_throughput[150%]"]
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower - 1 <= 800 <= found.upper + 1
    # alone a request has its first token within two steps
    first = result.metrics["ttft[20%].p50"].point
    assert first is not None
    assert 10 <= first <= 21
    assert result.levels[-1].saturated is True
    # at 60 % now and then all eight places are taken
    assert result.metrics["knee_rate"].point == 24.0


def test_a_capacity_that_was_searched_is_measured_and_a_given_one_declared() -> None:
    for result, origin in ((run(), Origin.MEASURED), (run(capacity_rps=40.0), Origin.DECLARED)):
        assert result.facts["load.capacity_rps"].origin is origin
        assert result.facts["load.capacity_source"].origin is origin
        assert result.facts["load.model"].origin is Origin.DECLARED
