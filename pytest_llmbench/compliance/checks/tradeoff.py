"""The throughput-latency tradeoff test (section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pytest_llmbench.compliance.capacity_evidence import confirmed_by_sweep, measurement_behind
from pytest_llmbench.compliance.checks.levels import SWEEP, at_least_s
from pytest_llmbench.compliance.checks.registry import Checks, Predicate
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.tested_levels import NINE_LATENCIES, Tested, names_of, need_points, tested
from pytest_llmbench.model.draft import LEVELS_OF_A_SWEEP, SHORTEST_LEVEL_S
from pytest_llmbench.model.facts import LoadFact

check = Checks()

LOWEST_PERCENT = 10.0
_RATE_TOLERANCE = 0.01

check("P-5.3.2-min-duration-60s")(at_least_s(SHORTEST_LEVEL_S, SWEEP))


@check("P-5.3.2-min-10-levels")
def ten_levels(view: EvidenceView) -> Answer:
    """Distinct rates of levels that ran to their end."""
    levels = [one for one in tested(view, SWEEP) if one.run.interrupted is None]
    rates = {one.value for one in levels}
    view.note("rates", sorted(rates))
    return view.answer(
        len(rates) >= LEVELS_OF_A_SWEEP,
        f"{len(rates)} load levels",
        f"{len(rates)} load levels, {LEVELS_OF_A_SWEEP} are needed",
    )


@check("P-5.3.2-span-to-saturation")
def span_to_saturation(view: EvidenceView) -> Answer:
    levels = tested(view, SWEEP)
    percents = [one.level.percent_of_capacity for one in levels if one.level.percent_of_capacity is not None]
    if len(percents) < len(levels):
        raise NoEvidenceError("level.percent_of_capacity")
    view.note("percent_of_capacity", percents)
    low = min(percents) <= LOWEST_PERCENT
    high = any(one.level.saturated for one in levels)
    return view.answer(
        low and high,
        f"from {min(percents):g} % up to saturation",
        f"from {min(percents):g} to {max(percents):g} % of the capacity: not from 10 % up to saturation",
    )


@check("M-5.3.2-open-loop-required")
def open_loop_required(view: EvidenceView) -> Answer:
    closed = [
        one
        for one in tested(view, SWEEP)
        if one.level.load_model != "open" or one.run.plan.load.request_rate is None
    ]
    return view.answer(not closed, "open loop at every level", f"not an open loop: {names_of(closed)}")


@check("P-5.3.3-capacity-estimate")
def capacity_estimate(view: EvidenceView) -> Answer:
    """A rate that was measured; the levels are the shares of it that they say, and do not show it to be
    another one. A published figure that nothing measured is confirmed by the sweep itself."""
    rate, found = view.need_all(LoadFact.CAPACITY_RPS, LoadFact.CAPACITY_FOUND)
    source = "found by a search" if found else "declared"
    levels = tested(view, SWEEP)
    wrong = shares_wrong(levels, rate)
    if rate > 0 and not wrong and measurement_behind(view, rate) is None and not confirmed_by_sweep(levels):
        return view.unmet(
            f"{rate:g} req/s, {source}: no test measured it, and no level saturates about there"
        )
    return view.answer(
        rate > 0 and not wrong,
        f"{rate:g} req/s, {source}",
        f"not the share of {rate:g} req/s that they name: {names_of(wrong)}",
    )


def shares_wrong(levels: Sequence[Tested], rate: float) -> list[Tested]:
    """The levels whose offered rate is not their percentage of the capacity."""
    return [
        one
        for one in levels
        if one.level.percent_of_capacity is None
        or abs(one.value - rate * one.level.percent_of_capacity / 100) > _RATE_TOLERANCE * one.value
    ]


@check("P-5.3.3-level-grid")
def level_grid(view: EvidenceView) -> Answer:
    percents = {one.level.percent_of_capacity for one in tested(view, SWEEP)}
    lacking = [percent for percent in range(10, 130, 10) if float(percent) not in percents]
    return view.answer(not lacking, "10 to 120 % in steps of 10", f"levels lacking: {lacking} %")


@check("P-5.3.3-ascending")
def ascending(view: EvidenceView) -> Answer:
    by_time = sorted(tested(view, SWEEP), key=lambda one: one.run.started_ns)
    rates = [one.value for one in by_time]
    view.note("rates_in_time", rates)
    rising = all(later > earlier for earlier, later in pairwise(rates))
    return view.answer(rising, "levels in ascending order", f"levels were run in the order {rates}")


@check("P-5.3.4-per-level")
def per_level(view: EvidenceView) -> Answer:
    """Load, throughput, nine latencies, success rate and queue of every level."""
    levels = tested(view, SWEEP)
    need_points(levels, (*NINE_LATENCIES, "output_token_throughput"))
    wrong = [
        one
        for one in levels
        if None in (one.level.offered_rps, one.level.completion_ratio, one.level.queue_growing)
    ]
    return view.answer(
        not wrong,
        "load, throughput, latencies, success rate and queue of every level",
        f"load, success rate or queue is not known: {names_of(wrong)}",
    )


def _reported_if_any(metric: str) -> Predicate:
    """A predicate that is met when the metric is reported; undefined means that no level is so."""

    def predicate(view: EvidenceView) -> Answer:
        tested(view, SWEEP)
        point = view.measured(metric)
        return view.met("not reached" if point is None else f"{point:g} req/s")

    return predicate


check("P-5.3.4-operating-point")(_reported_if_any("operating_point_rate"))
check("P-5.3.4-knee")(_reported_if_any("knee_rate"))
check("P-5.3.4-saturation-point")(_reported_if_any("saturation_rate"))


@check("P-5.3.5-table-and-plot")
def table_and_plot(view: EvidenceView) -> Answer:
    """The levels, the points below them, and a curve with more than one point."""
    view.table("tradeoff_levels")
    view.table("tradeoff_points")
    points = max((len(x) for x, _ in view.plot("throughput_latency").series.values()), default=0)
    return view.answer(points > 1, "curve, table and points", "the curve has no points")
