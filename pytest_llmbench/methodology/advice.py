"""Advice for limits that were not decided: how many requests, sessions or runs in all would decide them, and
the keyword of the marker that gets as many."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np

from pytest_llmbench.methodology.measuring.adaptive import GATE_REQUESTS
from pytest_llmbench.methodology.parameters import LoadParameters, TestParameters
from pytest_llmbench.methodology.procedure import Scale
from pytest_llmbench.metrics.definitions import SLOWDOWNS
from pytest_llmbench.model.estimate import OF_RUNS
from pytest_llmbench.model.judgement import Advice, Gate, JudgedObjective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Load, judged_name
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.stats.deciding import MOST, MOST_RUNS

_SHORTEST_S = 1.0
_NS = 1e9
_STANDARD = "--llm-scale=standard"


class _Counted(NamedTuple):
    """What would have to be more of, with the keyword, or several, that gets it."""

    unit: str
    now: int
    total: int
    setting: str | None


def advised(gate: Gate, result: TestResult, parameters: TestParameters, scale: Scale) -> Gate:
    """The gate, with advice on each undecided objective, which is its reason then."""
    return replace(
        gate, objectives=tuple(_advised(each, result, parameters, scale) for each in gate.objectives)
    )


def _advised(
    judged: JudgedObjective, result: TestResult, parameters: TestParameters, scale: Scale
) -> JudgedObjective:
    metric = judged.objective.metric
    loads = _loads(metric, result)
    if judged.growth is None or not loads:
        return judged
    estimate = result.metrics.get(judged_name(metric)) or result.metrics.get(metric)
    unbounded = math.isinf(judged.growth)
    times = MOST if unbounded else judged.growth
    if estimate is not None and estimate.kind in OF_RUNS:
        runs = MOST_RUNS if unbounded else round(times * estimate.runs)
        counted = _Counted("runs", estimate.runs, runs, f"runs={runs}")
    elif metric.partition(".")[0] in SLOWDOWNS:
        counted = _more_probes(times, loads, parameters)
    else:
        counted = _more_load(loads, parameters, times)
    unit, now, total, setting = counted
    if unbounded:
        setting = None
    elif scale == "quick" and setting is not None:
        there = unit == "pairs" or total <= _standard(parameters, unit)
        setting = _STANDARD if there else f"{_STANDARD} and {setting}"
    advice = Advice(unit, now, total, setting, more_than=unbounded)
    return replace(judged, advice=advice, reason=f"{advice}")


def _standard(parameters: TestParameters, unit: str) -> int:
    """The runs, or requests, of the marker's load at the usual scale; 0 where that is not one number."""
    if unit == "runs":
        return parameters.run_count
    asked = parameters.most_requests if isinstance(parameters, LoadParameters) else 0
    return GATE_REQUESTS if asked is None else asked


def _loads(metric: str, result: TestResult) -> Sequence[Observation]:
    """The loads that the metric rests on: those of the level that it names, else of the largest level, else
    all."""
    levels = [level for level in result.levels if level.observation is not None]
    if not levels:
        return result.observations
    qualifier = metric.partition("[")[2].partition("]")[0]
    named = [level for level in levels if level.label in (qualifier, f"{qualifier} of capacity")]
    if not named:
        named = [max(levels, key=lambda level: level.n_submitted)]
    return [result.observations[level.observation] for level in named[-1:] if level.observation is not None]


def _more_load(loads: Sequence[Observation], parameters: TestParameters, times: float) -> _Counted:
    """A metric of some of the requests, or of their tokens, needs as many times the load as samples."""
    known = {each.name for each in fields(parameters) if each.init}
    plans = [load.plan for load in loads]
    if "duration_s" in known and any(plan.duration_s is not None for plan in plans):
        lasted = max(map(_lasted_s, loads))
        wanted = math.ceil(times * lasted)
        return _Counted("s of load", round(lasted), wanted, f"duration_s={wanted}")
    if plans[0].load.of_sessions:
        return _more_sessions(loads, plans[0].load, known, times)
    most = max(plan.most_requests for plan in plans)
    wanted, load = math.ceil(round(times * most, 6)), plans[0].load
    beyond = load.is_trace and wanted > len(load.offsets_ns)
    for own in ("prompts", "questions"):
        if own in known:  # a load may send each of them more than once
            once = min(plan.most_requests for plan in plans)
            wanted = math.ceil(round(times * once, 6))
            return _Counted(own, once, wanted, f"{own}={wanted}")
    if "requests" not in known or beyond:
        return _Counted("requests", most, wanted, None)
    if getattr(parameters, "is_auto", False):
        longest_s = getattr(parameters, "max_seconds", None)
        seconds = "" if longest_s is None else f", max_seconds={math.ceil(times * longest_s)}"
        return _Counted("requests", most, wanted, f"max_requests={wanted}{seconds}")
    if parameters.repeats and len(plans) > 1:
        runs = len(plans)
        return _Counted("requests", runs * most, runs * wanted, f"requests={wanted}, runs={runs}")
    return _Counted("requests", most, wanted, f"requests={wanted}")


def _more_sessions(loads: Sequence[Observation], load: Load, known: Set[str], times: float) -> _Counted:
    counts = [len(np.unique(each.records.session)) for each in loads]
    if "sessions_per_class" in known:
        fewest = min(counts)  # those of a class alone
        wanted = math.ceil(times * fewest)
        return _Counted("sessions", fewest, wanted, f"sessions_per_class={wanted}")
    most = max(counts)
    wanted = math.ceil(times * most)
    beyond = load.is_trace and wanted > len(load.offsets_ns)
    takes = "total_sessions" in known and not beyond
    return _Counted("sessions", most, wanted, f"total_sessions={wanted}" if takes else None)


def _more_probes(times: float, loads: Sequence[Observation], parameters: TestParameters) -> _Counted:
    """More pairs of a slowdown. There are as many as probes, and no more probes than sessions."""
    now = getattr(parameters, "probes", 0)
    probes = math.ceil(times * now)
    sessions = max(len(np.unique(load.records.session)) for load in loads)
    more = "" if probes <= sessions else f"total_sessions={probes}, "
    return _Counted("pairs", now, probes, f"{more}probe_sessions={probes}")


def _lasted_s(load: Observation) -> float:
    ended_ns = load.ended_ns if load.load_ended_ns is None else load.load_ended_ns
    return max(load.plan.duration_s or 0.0, (ended_ns - load.started_ns) / _NS, _SHORTEST_S)
