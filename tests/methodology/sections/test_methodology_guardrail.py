"""Guardrail overhead: requests of the same lengths through four configurations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canned_levels import QueueServer, canned_setting
from replayed_sut import QUARTER, ReplayedSUT, ended

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.measuring.levels import Reference
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import VariantInfo
from pytest_llmbench.methodology.search.probing import Range
from pytest_llmbench.methodology.search.search import Searched, search
from pytest_llmbench.methodology.sections.guardrail import TEST, Maxima, Parameters
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.record import Outcome, Phase
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt

FILTER_MS = 20.0
SCENARIO = (
    "fast?input_filter_us=20000&input_filter_us_per_token=0"
    "&output_filter_us=5000&output_filter_us_per_token=0&output_filter_window_tokens=32"
)
QUARTER_WITH_FILTERS = SCENARIO.replace("fast?", f"{QUARTER}&")
"""For what does not depend on how fast the engine is."""
TWO: dict[str, Any] = {
    "capacity_rps": 25.0,
    "levels_percent": [50],
    "without": "the product has one switch",
}
"""The least that has a configuration to compare with the baseline: that of all filters."""


@pytest.fixture(scope="module")
def measured() -> tuple[ReplayedSUT, TestResult]:
    sut = ReplayedSUT(SCENARIO)
    return sut, sut.measure(TEST, "quick", capacity_rps=50.0)


def test_overhead_of_the_input_filter_is_the_configured_one(measured: tuple[ReplayedSUT, TestResult]) -> None:
    """Known beforehand: the filter looks for 20 ms before the prompt is queued, whatever the load."""
    for level in ("25%", "50%", "75%"):
        overhead = measured[1].metrics[f"input_filter_overhead[{level}].p50"]
        assert overhead.lower is not None
        assert overhead.upper is not None
        assert overhead.lower <= FILTER_MS <= overhead.upper
        assert overhead.point == pytest.approx(FILTER_MS, abs=1.0)


def test_total_overhead_is_that_of_both_filters(measured: tuple[ReplayedSUT, TestResult]) -> None:
    """Known beforehand: 20 ms ahead of the prompt, 5 ms for the last window of the answer, and at most one
    step of the batch (some 2.5 ms at this load) until the next one takes the request in."""
    overhead = measured[1].metrics["guardrail_overhead[25%].p50"]
    assert overhead.point is not None
    assert FILTER_MS + 5.0 <= overhead.point <= FILTER_MS + 5.0 + 2.5


@pytest.mark.parametrize(("cache", "alike"), [("off", 1), ("on", 4)])
def test_configurations_get_the_same_lengths_at_the_same_rates(cache: str, alike: int) -> None:
    """With words of their own, unless a cache is declared off: one is on by default."""
    sut = ReplayedSUT(f"{QUARTER_WITH_FILTERS}&prefix_caching={cache}")
    result = sut.measure(TEST, "quick", capacity_rps=25.0)
    by_role: dict[str, list[object]] = {}
    words: dict[str, list[str]] = {}
    for level in result.levels:
        if level.percent_of_capacity is not None:
            assert level.observation is not None
            run = result.observations[level.observation]
            lengths = (*run.records.requested_input_tokens, *run.records.requested_max_tokens)
            offsets = tuple(run.records.scheduled_ns - run.started_ns)
            by_role.setdefault(level.role, []).append((level.offered_rps, lengths, offsets))
            words.setdefault(level.role, []).append(run.sequence_sha256)
    assert list(by_role) == ["baseline", "input_filter", "output_filter", "full"]
    assert len({tuple(levels) for levels in by_role.values()}) == 1
    assert [rate for rate, *_ in by_role["full"]] == [6.25, 12.5, 18.8]  # type: ignore[misc]
    assert len({tuple(each) for each in words.values()}) == alike


def test_a_cache_that_is_on_knows_none_of_the_prompts() -> None:
    """The first engine of a session keeps what it was sent, as every one does by default."""
    result = ReplayedSUT(f"{QUARTER_WITH_FILTERS}&prefix_caching=on").measure(TEST, "quick", **TWO)
    finding = next(finding for finding in result.findings if finding.check == "equal_work")
    assert (finding.ok, finding.value) == (True, 0.0)


def test_every_configuration_has_a_warm_up_of_its_own(measured: tuple[ReplayedSUT, TestResult]) -> None:
    sut, result = measured
    first_measured = {}
    warmed = set()
    for plan in sut.plans:
        if plan.phase is Phase.WARMUP:
            warmed.add(plan.variant)
        elif plan.phase is Phase.MEASURE:
            first_measured.setdefault(plan.variant, plan.variant in warmed)
    assert set(first_measured.values()) == {True}
    assert result.warmup.description.startswith("4 warm-ups")


def test_throughput_is_searched_for_in_every_configuration(measured: tuple[ReplayedSUT, TestResult]) -> None:
    metrics = measured[1].metrics
    for name in ("baseline", "input_filter", "output_filter", "full"):
        assert metrics[f"max_output_token_throughput[{name}]"].point is not None
    assert metrics["throughput_reduction"] == metrics["throughput_reduction[full]"]


def test_filters_are_not_faster_beyond_the_interval(measured: tuple[ReplayedSUT, TestResult]) -> None:
    for name in ("input_filter", "output_filter", "full"):
        reduction = measured[1].metrics[f"throughput_reduction[{name}]"]
        assert reduction.upper is None or reduction.upper >= 0.0


def test_a_filter_that_delays_the_first_token_may_not_queue_longer_for_it() -> None:
    """Known beforehand: the engine gives as many tokens behind the filters as without them."""
    result = ReplayedSUT(QUARTER).measure(
        TEST, capacity_rps=26.5, levels_percent=[25], without="one switch", duration_s=3
    )
    reduction = result.metrics["throughput_reduction[full]"]
    assert reduction.point == pytest.approx(0.0, abs=0.03)
    assert reduction.lower is not None
    assert reduction.upper is not None
    assert reduction.lower < 0.0 < reduction.upper


def test_one_yardstick_judges_every_throughput_search(measured: tuple[ReplayedSUT, TestResult]) -> None:
    """The output filter holds back 32 tokens, which is more than ten times the TTFT of the idle engine."""
    result = measured[1]
    judged = [
        level
        for level in result.levels
        if level.percent_of_capacity is None and level.saturated and not level.overloaded
    ]
    assert {level.label.partition(":")[0] for level in judged} >= {"output_filter", "full"}
    assert all("of the baseline's lowest level" in level.saturation_reasons[-1] for level in judged)
    assert any(
        "the ten-fold rule is off" in note and "output_filter" in note for note in map(str, result.notes)
    )


def test_throughput_is_compared_at_one_offered_rate_too(measured: tuple[ReplayedSUT, TestResult]) -> None:
    """Known beforehand: below capacity as much comes out as goes in, whatever is filtered."""
    result = measured[1]
    for name in ("input_filter", "output_filter", "full"):
        reduction = result.metrics[f"throughput_reduction_at_equal_load[{name}@75%]"]
        assert reduction.lower is not None
        assert reduction.upper is not None
        assert reduction.lower <= 0.01
        assert reduction.upper >= -0.01
        assert reduction.upper - reduction.lower < 0.15
    assert result.tables[-1].columns[3:] == ("Throughput at 75 %", "Reduction at 75 %")


def canned_search(bounds: Range) -> Searched:
    setting, yardstick = canned_setting(), Reference(20.0, applies=True, note="")
    sequence = RequestSlice(setting.workload)
    steps = search(setting, sequence, bounds=bounds, arrival="uniform", reference=yardstick, and_carried=True)
    return drive(steps, QueueServer())


def maxima_of(baseline: Searched, full: Searched) -> Maxima:
    return Maxima({"baseline": baseline, "full": full}, baseline.reference)


def test_the_bracket_of_the_search_is_in_the_interval_of_the_maximum() -> None:
    """40 req/s hold, 44 do not: the maximum lies between."""
    found = canned_search(Range(8, 72, 4))
    maxima = maxima_of(found, found)
    assert found.best is not None
    alone = found.best.level.metrics["output_token_throughput"]
    metrics = maxima.metrics()
    maximum, reduction = metrics["max_output_token_throughput[full]"], metrics["throughput_reduction[full]"]
    assert alone.upper is not None
    assert maximum.upper == pytest.approx(alone.upper * 44 / 40)
    assert maximum.lower == alone.lower
    assert "44 req/s, which did not hold" in maximum.method
    assert reduction.point == 0.0
    assert reduction.lower is not None
    assert reduction.lower <= 1 - 44 / 40
    assert maxima.notes() == []


def test_a_maximum_from_an_exhausted_range_is_a_lower_bound() -> None:
    maxima = maxima_of(canned_search(Range(8, 72, 4)), canned_search(Range(8, 24, 4)))
    metrics = maxima.metrics()
    assert metrics["max_output_token_throughput[full]"].upper is None
    assert metrics["throughput_reduction[full]"].lower is None  # it may be no loss at all
    assert list(map(str, maxima.notes())) == [
        "the maximum throughput of full is a lower bound: every tested load up to 24 held"
    ]


def test_tables(measured: tuple[ReplayedSUT, TestResult]) -> None:
    tables = measured[1].tables
    assert [table.id for table in tables] == ["guardrail_latency"] * 3 + ["guardrail_throughput"]
    assert [row[0] for row in tables[0].rows] == ["Baseline", "Input Filter", "Output Filter", "Full Filter"]
    assert tables[-1].rows[0][2] == "-"
    assert tables[-1].rows[3][2][0] in "+-"


def test_single_filters_may_be_declared_impossible() -> None:
    result = ReplayedSUT(QUARTER_WITH_FILTERS).measure(TEST, "quick", **TWO)
    roles = {level.role for level in result.levels if level.percent_of_capacity is not None}
    assert roles == {"baseline", "full"}
    overhead = result.metrics["input_filter_overhead[50%].p50"]
    assert overhead.point is None
    assert overhead.reason is Reason.NOT_MEASURABLE
    assert result.facts.value("guardrails.impossible") == "the product has one switch"


def test_refusals_are_counted_by_configuration() -> None:
    def refuse_some(seen: Observation) -> Observation:
        if seen.plan.variant != "guardrails_full" or seen.plan.phase is not Phase.MEASURE:
            return seen
        return ended(seen, Outcome.REFUSED, slice(2))

    result = ReplayedSUT(QUARTER_WITH_FILTERS, change=refuse_some).measure(
        TEST, "quick", capacity_rps=25.0, levels_percent=[50]
    )
    refused = result.facts.value("guardrails.refusals_by_configuration")
    assert refused == {"baseline": 0, "input_filter": 0, "output_filter": 0, "full": 2}
    assert any("full at 50%: 2 requests were refused" in note for note in map(str, result.notes))


def test_a_prefix_cache_that_helps_later_configurations_voids_the_run() -> None:
    def cached(seen: Observation) -> Observation:
        if seen.plan.variant != "guardrails_full":
            return seen
        return replace(
            seen, records=replace(seen.records, cached_tokens=np.full(len(seen.records), 100, dtype=np.int64))
        )

    result = ReplayedSUT(QUARTER_WITH_FILTERS, change=cached).measure(TEST, "quick", **TWO)
    finding = next(finding for finding in result.findings if finding.check == "equal_work")
    assert not finding.ok
    assert finding.voids
    # Nothing that comes could make it valid: no further level, no search.
    assert [level.role for level in result.levels][-1] == "full"
    assert "max_output_token_throughput[full]" not in result.metrics
    assert any("the test ended there" in note for note in map(str, result.notes))


QUESTIONS = DatasetWorkload(
    "mine", tuple(Prompt(f"Question {k}?", 8) for k in range(400)), DatasetIdentity("mine", "1", "all")
)


@pytest.mark.parametrize(
    ("declared", "given", "warned"),
    [
        ("disabled", {}, False),
        ("enabled", {}, False),  # each configuration has words of its own
        ("disabled", {"workload": QUESTIONS}, False),
        ("enabled", {"workload": QUESTIONS}, True),
        (None, {"workload": QUESTIONS}, True),
    ],
)
def test_where_nothing_tells_of_a_cache_it_has_to_be_declared_off(
    declared: str | None, given: dict[str, Any], warned: bool
) -> None:
    def silent(seen: Observation) -> Observation:
        unknown = np.full(len(seen.records), MISSING)
        return replace(seen, records=replace(seen.records, cached_tokens=unknown), engine=None)

    sut = ReplayedSUT(QUARTER_WITH_FILTERS, change=silent)
    parameters = build(Parameters, {**TWO, **given})
    setting = sut.setting(parameters.workload, "quick")
    facts = {} if declared is None else {"sut.prefix_caching": declared}
    said = Facts.of(Origin.DECLARED, facts, "the SUT file")
    variants = {name: replace(info, facts=said) for name, info in setting.variants.items()}
    setting = replace(setting, facts=said, variants=variants)
    result = drive(TEST.procedure(parameters, setting), sut.run)
    found = [(each.ok, each.voids) for each in result.findings if each.check == "equal_work"]
    assert found == [(False, False)] * warned


@pytest.mark.parametrize(("hits", "ok"), [(0.0, True), (1000.0, False)])
def test_so_it_does_where_only_the_metrics_page_tells_of_it(hits: float, ok: bool) -> None:
    def cached(seen: Observation) -> Observation:
        grown = hits if seen.plan.variant == "guardrails_full" else 0.0
        page = EngineReadings(
            np.empty(0, np.int64),
            {},
            {"prefix_queries_tokens": 7.0, "prefix_hits_tokens": 3.0},
            {"prefix_queries_tokens": 2007.0, "prefix_hits_tokens": 3.0 + grown},
        )
        silent = replace(seen.records, cached_tokens=np.full(len(seen.records), MISSING))
        return replace(seen, records=silent, engine=page)

    result = ReplayedSUT(QUARTER_WITH_FILTERS, change=cached).measure(TEST, "quick", **TWO)
    finding = next(finding for finding in result.findings if finding.check == "equal_work")
    assert (finding.ok, finding.value) == (ok, hits / 2000)


def test_the_engine_boundary_is_refused() -> None:
    setting = ReplayedSUT().setting("synthetic-uniform")
    engine = Facts.of(Origin.DECLARED, {"sut.boundary": "model_engine"})
    variants = {name: VariantInfo(name, engine) for name in setting.variants}
    missing = TEST.needs(build(Parameters, {}), replace(setting, variants=variants))
    assert len(missing) == 1
    assert "AMB-40" in missing[0]


def test_missing_variants_are_listed() -> None:
    missing = TEST.needs(
        build(Parameters, {}), replace(ReplayedSUT().setting("synthetic-uniform"), variants={})
    )
    assert len(missing) == 4


def test_limits_hold_at_every_load() -> None:
    parameters = build(Parameters, {"max_overhead_ms": 50, "max_throughput_loss": 0.2})
    assert [str(objective) for objective in parameters.objectives] == [
        "guardrail_overhead[25%].p50 <= 50 ms",
        "guardrail_overhead[50%].p50 <= 50 ms",
        "guardrail_overhead[75%].p50 <= 50 ms",
        "throughput_reduction[full] <= 0.2",
    ]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ({"guardrails_baseline": {"step_base_us": "15000"}}, "after baseline"),
        ({"guardrails_full": {"step_base_us": "2400"}}, "with full after"),
        ({"guardrails_input": {"step_base_us": "15000"}}, "after input_filter"),
        ({}, ""),
    ],
    ids=["slow baseline", "quick filters", "slow input filter", "one system"],
)
def test_what_no_filter_explains_is_told(overrides: dict[str, dict[str, str]], told: str) -> None:
    sut = ReplayedSUT(QUARTER_WITH_FILTERS, overrides=overrides)
    result = sut.measure(TEST, "quick", capacity_rps=12.0, levels_percent=[50], duration_s=30.0)
    (finding,) = [each for each in result.findings if each.check == "same_system"]
    assert (finding.ok, finding.ok or finding.voids) == (not overrides, True)
    assert told in finding.message


@pytest.mark.parametrize(
    ("further", "told"),
    [({}, "a decoding step of input_filter"), ({"without": "no switch"}, "with full after baseline")],
    ids=["all filters", "no single ones"],
)
def test_a_baseline_that_is_slower_by_less_than_a_tenth_is_told(further: dict[str, str], told: str) -> None:
    """Also where no filter was run by itself."""
    sut = ReplayedSUT(QUARTER_WITH_FILTERS, overrides={"guardrails_baseline": {"step_base_us": "5200"}})
    asked: dict[str, Any] = {"capacity_rps": 12.0, "levels_percent": [50], "duration_s": 30.0, **further}
    result = sut.measure(TEST, "quick", **asked)
    (finding,) = [each for each in result.findings if each.check == "same_system"]
    assert (finding.ok, finding.voids) == (False, False)
    assert finding.value is not None
    assert 0.03 < finding.value < 0.1
    assert told in finding.message
