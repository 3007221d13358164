"""The throughput test (section 5.2) and the throughput-latency tradeoff test (section 5.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from pytest_llmbench.compliance.checks.levels import (
    NINE_LATENCIES,
    REPORTED,
    SWEEP,
    WIDEST_BRACKET,
    Tested,
    at_least_s,
    confirmed_by_sweep,
    every_level,
    is_narrow,
    names_of,
    need_points,
    overloaded,
    tested,
    was_measured,
)
from pytest_llmbench.compliance.checks.registry import Checks, Predicate, figures, one_of, tables
from pytest_llmbench.compliance.checks.ttft import workload_defined
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.model.draft import ADVISED_LEVEL_S, LEVELS_OF_A_SWEEP, SHORTEST_LEVEL_S
from pytest_llmbench.model.facts import Key, LoadFact, ResultFact
from pytest_llmbench.model.numbers import number, percentage, quantity, trimmed
from pytest_llmbench.model.result import PROBE

check = Checks()

CONSTRAINED = "constrained"
LIMITS = {"ttft_p99_ms": "ttft", "tpot_p99_ms": "tpot"}
_STEP_TOLERANCE = 0.01
"""Tolerance of steps between rates: rates of plans have three or four digits."""

check("M-5.2.2.1-workload-defined")(workload_defined)
check("P-5.3.2-workload-named")(workload_defined)
check("M-5.2.2.2-load-model-defined")(one_of(LoadFact.MODEL, "open", "closed"))
check("P-5.2.2.1-min-duration-60s")(at_least_s(SHORTEST_LEVEL_S))
check("S-5.2.2.1-duration-300s")(at_least_s(ADVISED_LEVEL_S, REPORTED))


@check("M-5.2.2.1-duration-defined")
def duration_defined(view: EvidenceView) -> Answer:
    duration_s = view.need(LoadFact.DURATION_S)
    told = quantity(duration_s, "s")
    return view.answer(duration_s > 0, f"{told} per level", f"{told} is not a duration")


def _range(view: EvidenceView, key: Key[list[float]]) -> tuple[float, float, float]:
    values = view.need(key)
    if len(values) != 3:
        raise NoEvidenceError(f"{key} [minimum, maximum, step]")
    low, high, step = values
    return float(low), float(high), float(step)


def _range_defined(key: Key[list[float]]) -> Predicate:
    """A predicate that is met when the fact is a range with a step."""

    def predicate(view: EvidenceView) -> Answer:
        low, high, step = _range(view, key)
        told = f"from {trimmed(low)} to {trimmed(high)} in steps of {trimmed(step)}"
        return view.answer(0 < low < high and step > 0, told, f"{told} is no range")

    return predicate


check("M-5.2.2.2-open-loop-range")(_range_defined(LoadFact.RATE_RANGE))
check("M-5.2.2.2-closed-loop-range")(_range_defined(LoadFact.CONCURRENCY_RANGE))


@check("P-5.2.2.3-slo-semantics")
def slo_semantics(view: EvidenceView) -> Answer:
    """The reported level keeps every limit, the next tested higher one does not."""
    limits = {name: value for name, value in view.need(LoadFact.SLO).items() if name in LIMITS}
    everything = tested(view)
    chosen = [one for one in everything if one.level.role == CONSTRAINED]
    chosen = chosen or [one for one in everything if one.level.role == REPORTED and _keeps(one, limits)]
    if not chosen:
        under = view.result.metrics.get("constrained_output_token_throughput")
        if under is not None and under.point is not None:
            return view.unmet("a throughput under the limits is reported, and no level keeps them")
        return view.answer(
            not any(_keeps(one, limits) for one in everything),
            "no tested level keeps the limits, and none is reported",
            "a tested level keeps the limits, yet none is reported under them",
        )
    broken = [one for one in chosen if not _keeps(one, limits)]
    if broken:
        return view.unmet(f"the limits are not kept at {names_of(broken)}")
    return _bracket(view, chosen[0], everything, lambda one: _keeps(one, limits))


def _keeps(one: Tested, limits: Mapping[str, float]) -> bool:
    """Whether a level is not overloaded and P99 of every limited latency is at or under its limit."""
    if overloaded(one):
        return False
    tails = {name: one.level.metrics.get(f"{LIMITS[name]}.p99") for name in limits}
    return all(
        tail is not None and tail.point is not None and tail.point <= limits[name]
        for name, tail in tails.items()
    )


@check("P-5.2.3-throughput-formula")
def throughput_formula(view: EvidenceView) -> Answer:
    """The rate of the window at the reported level, and the raw quotient beside it."""
    view.need(ResultFact.THROUGHPUT_RAW_OUTPUT_TOK_S)
    tested(view, REPORTED)
    rate = view.metric("output_token_throughput").point
    return view.met(f"{number(rate)} output tokens per second of the window")


@check("P-5.2.3-binary-search")
def binary_search(view: EvidenceView) -> Answer:
    """Minimum and maximum tested; the level above the reported one, at most a step away, is saturated."""
    everything = tested(view)
    low, high, _ = _range(view, _range_key(view))
    probes = [one for one in everything if one.level.role == PROBE]
    if not any(abs(one.value - low) <= _STEP_TOLERANCE * low for one in probes):
        return view.unmet(f"the minimum of the range, {trimmed(low)}, was not tested")
    reported = [one for one in everything if one.level.role == REPORTED]
    if not reported:
        return view.answer(
            not any(_acceptable(view, one) for one in probes),
            "no tested level is sustainable, and none is reported",
            "a sustainable level was found, yet none is reported",
        )
    if not _acceptable(view, reported[0]):
        return view.unmet(f"the reported level {reported[0].label} is saturated")
    if not any(one.value >= high * (1 - _STEP_TOLERANCE) for one in probes):
        return view.unmet(f"the maximum of the range, {trimmed(high)}, was not tested")
    return _bracket(view, reported[0], everything, lambda one: _acceptable(view, one))


def _acceptable(view: EvidenceView, one: Tested) -> bool:
    """Whether a level is not saturated. Limits on latency, if there are any, replace the ten-fold rule."""
    if one.level.saturated is False:
        return True
    limits = {name: value for name, value in (view.fact(LoadFact.SLO) or {}).items() if name in LIMITS}
    return bool(limits) and _keeps(one, limits)


def _range_key(view: EvidenceView) -> Key[list[float]]:
    return LoadFact.RATE_RANGE if view.need(LoadFact.MODEL) == "open" else LoadFact.CONCURRENCY_RANGE


def _bracket(
    view: EvidenceView, best: Tested, everything: Sequence[Tested], holds: Callable[[Tested], bool]
) -> Answer:
    step = _range(view, _range_key(view))[2]
    above = sorted(
        (one for one in everything if one.value > best.value and not holds(one)), key=lambda one: one.value
    )
    view.note("reported", best.value)
    if not above:
        return view.unmet(f"no tested level above {best.label} fails: it is a lower bound, not the highest")
    gap = above[0].value - best.value
    view.note("lowest_failing_above", above[0].value)
    held, failed = trimmed(best.value), trimmed(above[0].value)
    if gap > step + _STEP_TOLERANCE * best.value:
        return view.unmet(
            f"between {held}, which holds, and {failed} lies more than the step {trimmed(step)}"
        )
    return view.answer(
        is_narrow(best.value, above[0].value, best.level.load_model),
        f"{held} holds, {failed} does not, the step is {trimmed(step)}",
        f"{held} holds and {failed} does not: a maximum in between is found by steps of at most "
        f"{percentage(WIDEST_BRACKET)}, so give a smaller step than {trimmed(step)}",
    )


@check("P-5.2.4.1-primary")
def primary(view: EvidenceView) -> Answer:
    tested(view, REPORTED)
    view.need_metrics(f"max_{kind}_throughput" for kind in ("output_token", "request", "input_token"))
    return view.met("output, request and input rate")


check("P-5.2.4.2-tokens-per-gpu-second")(figures("output_tokens_per_gpu_second"))


@check("P-5.2.4.2-batch-utilization")
def batch_utilization(view: EvidenceView) -> Answer:
    """A share, or not measurable."""
    share = view.measured("batch_utilisation")
    return view.met("not measurable" if share is None else f"{percentage(share)} of the batch")


@check("P-5.2.4.3-latency-at-max")
def latency_at_max(view: EvidenceView) -> Answer:
    """P50, P95 and P99 of the three latencies, at the reported level."""
    need_points(tested(view, REPORTED), NINE_LATENCIES)
    view.need_metrics(NINE_LATENCIES)
    return view.met("TTFT, TPOT and end-to-end latency at the sustainable maximum")


check("P-5.2.5-tables")(tables("throughput_summary", "latency_at_max"))


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
        f"from {trimmed(min(percents))} % up to saturation",
        f"from {trimmed(min(percents))} to {trimmed(max(percents))} % of the capacity: not from 10 % up to "
        "saturation",
    )


check("M-5.3.2-open-loop-required")(
    every_level(
        lambda one: one.level.load_model == "open" and one.run.plan.load.request_rate is not None,
        "open loop at every level",
        "not an open loop",
        SWEEP,
    )
)


def shares_of_capacity(*, sweep_confirms: bool = False) -> Predicate:
    """A predicate that is met when the capacity was measured and every level's rate is the share of it that
    the level names. ``sweep_confirms``: a published figure that nothing measured is confirmed by levels that
    saturate about there."""

    def predicate(view: EvidenceView) -> Answer:
        rate, found = view.need_all(LoadFact.CAPACITY_RPS, LoadFact.CAPACITY_FOUND)
        told = f"{trimmed(rate)} req/s, {'found by a search' if found else 'declared'}"
        levels = tested(view, SWEEP)
        wrong = [
            one
            for one in levels
            if one.level.percent_of_capacity is None
            or abs(one.value - rate * one.level.percent_of_capacity / 100) > _RATE_TOLERANCE * one.value
        ]
        confirmed = was_measured(view, rate) or (sweep_confirms and confirmed_by_sweep(levels))
        if rate > 0 and not wrong and not confirmed:
            nor = ", and no level saturates about there" if sweep_confirms else ""
            return view.unmet(f"{told}: no search and no throughput test here measured it{nor}")
        return view.answer(
            rate > 0 and not wrong, told, f"not the share of {told}, that they name: {names_of(wrong)}"
        )

    return predicate


check("P-5.3.3-capacity-estimate")(shares_of_capacity(sweep_confirms=True))


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
        f"load, success rate or queue is unknown: {names_of(wrong)}",
    )


def _reported_if_any(metric: str) -> Predicate:
    """A predicate that is met when the metric is reported; undefined means that no level is so."""

    def predicate(view: EvidenceView) -> Answer:
        tested(view, SWEEP)
        point = view.measured(metric)
        return view.met("not reached" if point is None else quantity(point, "req/s"))

    return predicate


check("P-5.3.4-operating-point")(_reported_if_any("operating_point_rate"))
check("P-5.3.4-knee")(_reported_if_any("knee_rate"))
check("P-5.3.4-saturation-point")(_reported_if_any("saturation_rate"))


@check("P-5.3.5-table-and-plot")
def table_and_plot(view: EvidenceView) -> Answer:
    """The levels, the points below them, and a curve with more than one point."""
    view.table("tradeoff_levels")
    view.table("tradeoff_points")
    return view.curve("throughput_latency")
