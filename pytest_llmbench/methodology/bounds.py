"""What each test sends at least and at most (``--llm-plan``): its procedure, with every way that it may go.

A load is counted here once. How often it may be measured again, and what is shared with other tests, is for
the plan of the whole session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pytest_llmbench.methodology.amounts import (
    SPREAD_REQUESTS,
    SPREAD_SHARE,
    Bounds,
    of_plan,
    warm_up,
)
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.measuring.one_load import one_load_plans
from pytest_llmbench.methodology.measuring.scales import LEVEL_S, REPORTED_S
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.methodology.search.capacity_search import (
    COMPLETIONS_PER_SLOT,
    FIRST_LEVEL,
    GAP_SHARE,
    HIGHEST_LEVEL,
    QUICK_MAXIMUM,
    level_requests,
)
from pytest_llmbench.methodology.search.capacity_search import (
    LEVEL_S as SLOTS_S,
)
from pytest_llmbench.methodology.search.probing import Range
from pytest_llmbench.methodology.search.saturation_rate import SaturationRate
from pytest_llmbench.methodology.search_amounts import SearchAmounts
from pytest_llmbench.methodology.sections import (
    capacity,
    fairness,
    guardrail,
    itl,
    long_context,
    memory_pressure,
    prefix_cache,
    throughput,
    tradeoff,
)
from pytest_llmbench.methodology.sections.itl_method import (
    CHARACTERISED_CONCURRENCY,
    CHARACTERISED_REQUESTS,
    FEWEST_ELIGIBLE,
    Method,
)
from pytest_llmbench.methodology.sections.memory_pressure import MOST_PROBES, PROBES_BEFORE
from pytest_llmbench.methodology.throughput_metrics import CONSTRAINED, REPORTED
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.workloads.adapted import WithFixedOutput
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

Loads = list[Bounds]


def bounds_of(test: TestDefinition, parameters: TestParameters, setting: Setting) -> Loads:
    """All that the test sends, warm-ups and probes included. SuiteError for what cannot be run."""
    return _BY_TEST[test.name](parameters, setting)


def _one_load(parameters: Any, setting: Setting) -> Loads:
    load = parameters.load
    concurrency = load.concurrency if isinstance(load, ClosedLoop) else None
    plans = one_load_plans(parameters, setting)
    return [
        *warm_up(setting, concurrency=concurrency),
        *(of_plan(plan, least=None if plan.looks is None else 1) for plan in plans),
    ]


def _throughput(parameters: throughput.Parameters, setting: Setting) -> Loads:
    search = SearchAmounts(
        setting,
        RequestSlice(setting.workload),
        bounds=parameters.bounds,
        load_model=parameters.model,
        law=parameters.law,
        limits=parameters.limits,
        duration_s=parameters.probe_s,
    )
    seconds = REPORTED_S.at(setting.scale, parameters.duration_s)
    runs = max(setting.least_runs, 1 if setting.scale == "quick" else (parameters.runs or 1))
    roles = (REPORTED, CONSTRAINED) if parameters.limits else (REPORTED,)
    held = [search.held(role, seconds=seconds, runs=runs) for role in roles]
    return [*warm_up(setting), *search.all(), *held]


def _searched(
    setting: Setting, declared_rps: float | None, sequence: RequestSlice
) -> tuple[Loads, RequestSlice]:
    """The search for the saturation rate, unless that is declared, and the part that comes before others."""
    if declared_rps is not None:
        return [], sequence
    search = SearchAmounts(setting, sequence)
    return search.all(), search.own


def _rated(plan: LoadPlan, capacity_rps: float | None, share: float, fixed: int = SPREAD_REQUESTS) -> Bounds:
    """An open loop for ``plan.duration_s`` at that share of the capacity: known where the capacity is. Else
    ``plan`` tells only whose requests they are, and ``fixed`` how many more there may be than by the rate."""
    if capacity_rps is not None:
        return of_plan(plan)
    found = of_plan(plan, least=0)
    per_rps = SPREAD_SHARE * share * (plan.duration_s or 0.0)
    return replace(found, key=f"{plan.part} {plan.variant}", most=fixed, per_rps=per_rps)


def _tradeoff(parameters: tradeoff.Parameters, setting: Setting) -> Loads:
    declared = parameters.capacity_rps
    found, before = _searched(setting, declared, RequestSlice(setting.workload))
    grid = tradeoff.percents(parameters, setting)
    for percent in tradeoff.with_further(grid):
        plan = tradeoff.level_plan(
            parameters, setting, before, percent, 1.0 if declared is None else declared
        )
        level = _rated(plan, declared, percent / 100)
        found.append(level if percent in grid else replace(level, least=0, least_s=0.0))
    return [*warm_up(setting), *found]


def _itl(parameters: itl.Parameters, setting: Setting) -> Loads:
    declared = parameters.capacity_rps
    found, before = _searched(setting, declared, RequestSlice(setting.workload))
    shown = before.next_part(setting, "characterisation").closed_loop(
        setting,
        "characterisation",
        CHARACTERISED_CONCURRENCY,
        duration_s=None,
        at_least=CHARACTERISED_REQUESTS,
    )
    found.append(of_plan(shown, least=None if declared is not None else 0))
    good, poor = (Method("direct", "", share, gaps) for share, gaps in ((1.0, 1e9), (FEWEST_ELIGIBLE, 1.0)))
    usual = itl.usual_method(setting)
    for percent in parameters.levels_percent:
        if declared is not None:
            own = itl.requests_of(parameters, setting, before, percent)
            capacity_ = SaturationRate(declared, "", before)
            plans = [
                itl.level_plan(parameters, setting, capacity_, method, percent, own)
                for method in (good, usual, poor)
            ]
            least, most, worst = (plan.requests for plan in plans)
            level = of_plan(plans[1])
            found.append(replace(level, least=min(least, most), most=max(least, most), worst=worst))
        else:
            found.append(_itl_level(parameters, setting, before, percent, usual, poor))
    return [*warm_up(setting), *found]


def _itl_level(
    parameters: itl.Parameters,
    setting: Setting,
    before: RequestSlice,
    percent: float,
    usual: Method,
    poor: Method,
) -> Bounds:
    """The bounds of an ITL level: as many requests as the floors ask for, or as the shortest duration has at
    the rate."""
    own = itl.requests_of(parameters, setting, before, percent)
    most, worst = (
        math.ceil(1.05 * itl.requests_of_level(parameters, setting, method)) + SPREAD_REQUESTS
        for method in (usual, poor)
    )
    plan = own.closed_loop(setting, f"{percent:g}% of saturation", 1, duration_s=None, at_least=most)
    seconds = LEVEL_S.at(setting.scale, parameters.duration_s)
    level = _rated(plan.with_(duration_s=seconds), None, percent / 100, most)
    return replace(level, worst=worst, open_ended=True)


def _capacity(parameters: capacity.Parameters, setting: Setting) -> Loads:
    told = replace(setting, workload=WithFixedOutput(setting.workload, parameters.output_tokens))
    levels = _slots_search(
        told,
        RequestSlice(told.workload),
        parameters.initial,
        parameters.maximum,
        SLOTS_S.at(setting.scale, parameters.duration_s),
        parameters.duration_s,
        key=str(parameters.criteria),
    )
    return [*warm_up(told), levels]


def _slots_search(
    setting: Setting,
    sequence: RequestSlice,
    initial: int,
    maximum: int,
    seconds: float,
    asked_s: float | None,
    key: str,
) -> Bounds:
    """Doubling and bisection, by where the system ends."""
    ceiling = min(maximum, QUICK_MAXIMUM) if setting.scale == "quick" else maximum
    initial = min(initial, ceiling)
    first = level_requests(setting, sequence, initial, asked_s, initial, ceiling)
    assert first.part is not None
    per_slot = COMPLETIONS_PER_SLOT.count(setting.scale)
    ways = [_slots_tried(initial, ceiling, end) for end in range(ceiling + 1)]
    floors = [per_slot * sum(way) for way in ways]
    longest, shortest = max(map(len, ways)), min(map(len, ways))
    return Bounds(
        first.workload,
        first.part.seed,
        f"{first.part.name} {first.variant} {key}",
        least=min(floors),
        # A level goes on for its time, or until so many are through; then all slots are still taken.
        most=max(floors),
        per_rps=longest * seconds,
        least_s=shortest * seconds,
        most_s=longest * seconds,
        open_ended=True,
        variant=first.variant,
        one_sequence=False,
    )


def _slots_tried(initial: int, ceiling: int, end: int) -> list[int]:
    """The levels of a search where the system holds up to ``end`` requests in flight."""
    tried, level = [initial], initial
    if initial <= end:
        while level < ceiling and level <= end:
            level = min(2 * level, ceiling)
            tried.append(level)
        passed, failed = (tried[-2], level) if level > end else (level, level)
    else:
        while level > 1 and level > end:
            level //= 2
            tried.append(level)
        passed, failed = (level, tried[-2]) if level <= end else (level, level)
    while failed - passed > max(1.0, GAP_SHARE * passed):
        middle = (passed + failed) // 2
        tried.append(middle)
        passed, failed = (middle, failed) if middle <= end else (passed, middle)
    return tried


def _fairness(parameters: fairness.Parameters, setting: Setting) -> Loads:
    mix = fairness.mix_of(parameters, setting)
    told, declared = replace(setting, workload=mix), parameters.capacity_rps
    found, before = _searched(told, declared, RequestSlice(mix))
    capacity_ = SaturationRate(1.0 if declared is None else declared, "", before)
    loads = fairness.MixLoads(parameters, told, mix, capacity_)
    plans = [(loads.alone(each.name), loads.alone_s) for each in mix.classes]
    for plan, least_s in [*plans, (loads.mixed(), loads.mixed_s)]:
        if declared is not None:
            found.append(of_plan(plan))
            continue
        # As many as it takes for every class, or as the shortest duration has at the rate.
        most = math.ceil(SPREAD_SHARE * plan.requests) + SPREAD_REQUESTS
        per_rps = SPREAD_SHARE * _rate(plan) * least_s
        load = replace(of_plan(plan, least=0), key=plan.part, most=most, per_rps=per_rps)
        found.append(replace(load, most_s=0.0, open_ended=True))
    return [*warm_up(told), *found]


def _rate(plan: LoadPlan) -> float:
    return plan.load.rate if isinstance(plan.load, OpenLoop) else 0.0


def _prefix_cache(parameters: prefix_cache.Parameters, setting: Setting) -> Loads:
    info = setting.variants.get(parameters.enabled)
    fresh = info is not None and info.can_be_fresh
    disabled, cold, warm = prefix_cache.plans(parameters, setting)
    populate = prefix_cache.populating(parameters, setting)

    def warmed(variant: str, *, anew: bool) -> Loads:
        return warm_up(setting, workload=SYNTHETIC_UNIFORM, variant=variant, fresh=anew)

    found = [*warmed(parameters.disabled, anew=False), of_plan(disabled)]
    if fresh:
        found += [*warmed(parameters.enabled, anew=True), replace(of_plan(cold), fresh=True)]
    found += warmed(parameters.enabled, anew=fresh)
    found += [of_plan(populate)] if populate is not None else []
    return [*found, replace(of_plan(warm), fresh=True)]


def _memory_pressure(parameters: memory_pressure.Parameters, setting: Setting) -> Loads:
    told = memory_pressure.fitted(setting)
    sequence, declared = RequestSlice(told.workload), parameters.capacity
    found = warm_up(told, workload=SYNTHETIC_UNIFORM)
    most = HIGHEST_LEVEL if declared is None else declared
    if declared is None:
        if parameters.ttft_p99_ms is None:
            found.append(of_plan(memory_pressure.unloaded_plan(told, sequence)))
        seconds = SLOTS_S.at(told.scale)
        key = str(parameters.ttft_p99_ms)
        found.append(_slots_search(told, sequence, FIRST_LEVEL, most, seconds, None, key))
        most = min(most, QUICK_MAXIMUM) if told.scale == "quick" else most
    for percent in parameters.levels_percent:
        plan = memory_pressure.pressure_plan(parameters, told, sequence, most, percent, None)
        level = of_plan(plan, least=0)
        key = f"{plan.part} {declared}"
        found.append(replace(level, key=key, most=plan.requests, per_rps=level.most_s, open_ended=True))
    return [*found, _recovery(parameters, told, sequence)]


def _recovery(parameters: memory_pressure.Parameters, setting: Setting, sequence: RequestSlice) -> Bounds:
    probes = memory_pressure.probes_of(parameters, setting, sequence)
    assert probes.part is not None
    levels = len(parameters.levels_percent)
    return Bounds(
        probes.workload,
        probes.part.seed,
        probes.part.name,
        least=0,
        most=PROBES_BEFORE + levels * MOST_PROBES,
        open_ended=True,
        phase=Phase.PROBE,
    )


def _long_context(parameters: long_context.Parameters, setting: Setting) -> Loads:
    """A length that the server refuses ends the test; the first is always tried."""
    (short,) = long_context.warmups(parameters, setting)
    plans = long_context.plans(parameters, setting)
    levels = [of_plan(plan, least=None if number == 0 else 0) for number, plan in enumerate(plans)]
    return [*warm_up(setting, workload=short), *levels]


def _guardrail(parameters: guardrail.Parameters, setting: Setting) -> Loads:
    declared, baseline = parameters.capacity_rps, parameters.baseline
    found = warm_up(setting, variant=baseline)
    searched, _ = _searched(setting, declared, RequestSlice(setting.workload, variant=baseline))
    found += searched
    for name, variant in parameters.configurations.items():
        sequence = RequestSlice(setting.workload, variant=variant)
        found += [] if name == guardrail.BASELINE else warm_up(setting, variant=variant)
        for percent in parameters.levels_percent:
            rate = (declared or 1.0) * percent / 100
            plan = guardrail.level_plan(parameters, setting, sequence, name, percent, rate)
            found.append(_rated(plan, declared, percent / 100))
        found += _guardrail_search(parameters, setting, sequence)
    return found


def _guardrail_search(parameters: guardrail.Parameters, setting: Setting, sequence: RequestSlice) -> Loads:
    own, declared = guardrail.search_requests(parameters, setting, sequence), parameters.capacity_rps
    low, high, step = guardrail.search_shares(setting)
    if declared is not None:
        bounds = Range(declared * low, declared * high, declared * step, chosen=True)
        search = SearchAmounts(setting, own, bounds=bounds, passes=2)
    else:
        search = SearchAmounts(setting, own, relative=Range(low, high, step, chosen=True), passes=2)
    return [replace(each, least=0, least_s=0.0) for each in search.all()]


_BY_TEST: Mapping[str, Callable[[Any, Setting], Loads]] = {
    "ttft": _one_load,
    "goodput": _one_load,
    "throughput": _throughput,
    "tradeoff": _tradeoff,
    "itl": _itl,
    "capacity": _capacity,
    "fairness": _fairness,
    "prefix_cache": _prefix_cache,
    "memory_pressure": _memory_pressure,
    "long_context": _long_context,
    "guardrail": _guardrail,
}
