"""The throughput-latency tradeoff test (section 5.3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pytest_llmbench.compliance.capacity_evidence import confirmed_by_sweep, measurement_behind
from pytest_llmbench.compliance.checks.levels import SWEEP, at_least_s, overloaded, percentiles_agree
from pytest_llmbench.compliance.checks.registry import Checks, lacking_columns, lacking_rows
from pytest_llmbench.compliance.checks.throughput import LIMITS
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.tested_levels import Tested, close, names_of, over, tested
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.plan import OpenLoop

check = Checks()

SHORTEST_S, FEWEST_LEVELS = 60.0, 10
LOWEST_PERCENT = 10.0
KNEE_FACTOR = 2.0
SOURCES = ("declared", "published", "search", "throughput")
"""Words for the origin of a capacity; the evidence for it is another question."""
_RATE_TOLERANCE = 0.01
_THROUGHPUT = "output_token_throughput"
_FAMILIES, _STATISTICS = ("ttft", "tpot", "e2e"), ("p50", "p95", "p99")
_COLUMNS = (
    "Offered",
    "Achieved",
    *(f"{family} {statistic}" for family in ("TTFT", "TPOT", "E2E") for statistic in ("P50", "P95", "P99")),
    "Success",
    "Queue",
)

check("P-5.3.2-min-duration-60s")(at_least_s(SHORTEST_S, SWEEP))


@check("P-5.3.2-min-10-levels")
def ten_levels(view: EvidenceView) -> Answer:
    """Distinct rates of levels that ran to their end."""
    levels = [one for one in tested(view, SWEEP) if one.run.interrupted is None]
    rates = {one.value for one in levels}
    view.note("rates", sorted(rates))
    return view.answer(
        len(rates) >= FEWEST_LEVELS,
        f"{len(rates)} load levels",
        f"{len(rates)} load levels, {FEWEST_LEVELS} are needed",
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
        if one.level.load_model != "open" or not isinstance(one.run.plan.load, OpenLoop)
    ]
    return view.answer(not closed, "open loop at every level", f"not an open loop: {names_of(closed)}")


@check("P-5.3.3-capacity-estimate")
def capacity_estimate(view: EvidenceView) -> Answer:
    """A rate and where it comes from; the levels are the shares of it that they say, and do not show it to be
    another one. A published figure that nothing measured is confirmed by the sweep itself."""
    rate, source = view.need_all("load.capacity_rps", "load.capacity_source")
    if not any(word in source for word in SOURCES):
        return view.unmet(f"the capacity comes from {source!r}, no test and no figure")
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
    """Load, throughput, nine latencies, success rate and queue of every level, from its own records."""
    for one in tested(view, SWEEP):
        complaint = percentiles_agree(view, one, _FAMILIES, _STATISTICS) or _incomplete(one)
        if complaint is not None:
            return view.unmet(complaint)
    return view.met("load, throughput, latencies, success rate and queue of every level")


def _incomplete(one: Tested) -> str | None:
    load, level = one.run.plan.load, one.level
    tokens = one.output_tokens / one.window_s
    success = one.records.ok_share
    complaints = {
        "its offered rate is not that of its plan": not isinstance(load, OpenLoop)
        or level.offered_rps != load.rate,
        f"its throughput is not the {tokens:g} tok/s of its records": not close(
            one.point(_THROUGHPUT), tokens
        ),
        "its success rate is not that of its records": success is None
        or not close(level.completion_ratio, success, relative=1e-6, absolute=1e-6),
        "its queue is neither stable nor growing": level.queue_growing is None,
    }
    return next((f"{one.label}: {text}" for text, holds in complaints.items() if holds), None)


@check("P-5.3.4-operating-point")
def operating_point(view: EvidenceView) -> Answer:
    """The level with the highest throughput among those that keep the limits, or that there is none."""
    limits = {name: limit for name, limit in view.need("load.slo").items() if name in LIMITS}
    keeping = [
        one
        for one in tested(view, SWEEP)
        if not overloaded(one)
        and all(one.point(f"{LIMITS[name]}.p99") <= limit for name, limit in limits.items())
    ]
    stated = view.result.metrics.get("operating_point_rate")
    point = None if stated is None else stated.point
    if not keeping:
        return view.answer(point is None, "no level meets the SLO", f"{point} req/s does not meet the SLO")
    best = max(keeping, key=lambda one: one.point(_THROUGHPUT))
    return view.answer(
        close(point, best.value), f"{best.value:g} req/s", f"{point} req/s, the levels say {best.value:g}"
    )


@check("P-5.3.4-knee")
def knee(view: EvidenceView) -> Answer:
    """Lowest level above that of the smallest TTFT P99 with more than twice of it; else ``not reached``."""
    levels = sorted(tested(view, SWEEP), key=lambda one: one.value)
    tails = [one.point("ttft.p99") for one in levels]
    lowest = tails.index(min(tails))
    beyond = [
        one for one, tail in zip(levels[lowest + 1 :], tails[lowest + 1 :], strict=True)
        if tail > KNEE_FACTOR * tails[lowest]
    ]  # fmt: skip
    return _point_agrees(view, "knee_rate", beyond[0] if beyond else None, "Knee point")


@check("P-5.3.4-saturation-point")
def saturation_point(view: EvidenceView) -> Answer:
    """First level with less throughput than the one before; else ``not reached`` and the flagged level."""
    levels = sorted(tested(view, SWEEP), key=lambda one: one.value)
    drops = [later for earlier, later in pairwise(levels) if _drops(earlier, later)]
    answer = _point_agrees(view, "saturation_rate", drops[0] if drops else None, "Saturation point")
    flagged = [one for one in levels if one.level.saturated]
    if not answer.met or drops or not flagged:
        return answer
    (row,) = (row for row in view.table("tradeoff_points").rows if row[0] == "Saturation point")
    return view.answer(
        flagged[0].label in row[1],
        answer.reason + f"; first flagged {flagged[0].label}",
        f"not reached, but the level flagged first, {flagged[0].label}, is not named",
    )


def _drops(earlier: Tested, later: Tested) -> bool:
    """Whether throughput is lower by more than both intervals allow, though no fewer requests came."""
    before, after = (one.level.metrics[_THROUGHPUT] for one in (earlier, later))
    if before.lower is None or after.upper is None or after.upper >= before.lower:
        return False
    return over(len(later.inside), later.window_s, "window") >= over(
        len(earlier.inside), earlier.window_s, "window"
    )


def _point_agrees(view: EvidenceView, metric: str, level: Tested | None, row_title: str) -> Answer:
    """The metric is the level's rate; where there is no such level, metric and line say ``not reached``."""
    estimate = view.result.metrics.get(metric)
    if estimate is None:
        raise NoEvidenceError(f"metric {metric}")
    lines = [row[1] for row in view.table("tradeoff_points").rows if row and row[0] == row_title]
    if not lines:
        return view.unmet(f"no line {row_title!r}")
    if level is None:
        return view.answer(
            estimate.point is None and estimate.reason is Reason.NOT_REACHED and "not reached" in lines[0],
            "not reached",
            f"{metric} is {estimate.point}, the levels do not reach it",
        )
    return view.answer(
        close(estimate.point, level.value) and "not reached" not in lines[0],
        f"{level.value:g} req/s ({level.label})",
        f"{metric} is {estimate.point}, the levels say {level.value:g} req/s",
    )


@check("P-5.3.5-table-and-plot")
def table_and_plot(view: EvidenceView) -> Answer:
    """One row per level, the two lines below, and a curve with more than one point."""
    table, levels = view.table("tradeoff_levels"), tested(view, SWEEP)
    lacking = lacking_columns(table, *_COLUMNS)
    lacking += lacking_rows(view.table("tradeoff_points"), "Knee point", "Saturation point")
    if len(table.rows) != len(levels):
        lacking.append(f"rows for {len(levels) - len(table.rows)} levels")
    points = max((len(x) for x, _ in view.plot("throughput_latency").series.values()), default=0)
    if points < 2:
        lacking.append("points of the curve")
    return view.answer(not lacking, "curve, table and points", f"lacking: {', '.join(lacking)}")
