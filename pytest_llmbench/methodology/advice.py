"""Advice for limits that were not decided: the keyword, with its value, that gets enough further samples."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import fields, replace

import numpy as np

from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Scale
from pytest_llmbench.metrics.definitions import SLOWDOWNS
from pytest_llmbench.model.judgement import Gate, JudgedObjective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import OpenLoop, SessionSlots, SessionStarts
from pytest_llmbench.model.result import TestResult

_SHORTEST_S = 1.0
_NS = 1e9


def advised(gate: Gate, result: TestResult, parameters: TestParameters, scale: Scale) -> Gate:
    """The gate, with advice on each undecided objective: how many further requests, and the keyword that gets
    them."""
    return replace(
        gate, objectives=tuple(_advised(each, result, parameters, scale) for each in gate.objectives)
    )


def _advised(
    judged: JudgedObjective, result: TestResult, parameters: TestParameters, scale: Scale
) -> JudgedObjective:
    loads = _loads(judged.objective.metric, result)
    if judged.growth is None or not loads:
        return judged
    if judged.objective.metric.partition(".")[0] in SLOWDOWNS:
        return replace(judged, advice=_more_probes(judged.growth, loads, parameters, scale))
    # A metric of some of the requests, or of their tokens, needs as many times the load as samples.
    sent = sum(len(load.records) for load in loads)
    needed = math.ceil(round((judged.growth - 1.0) * sent, 6))
    advice = _keyword(loads, parameters, judged.growth)
    if advice is not None and scale == "quick":
        advice = f"--llm-scale=standard and {advice}"
    return replace(judged, requests_needed=needed, advice=advice)


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


def _keyword(loads: Sequence[Observation], parameters: TestParameters, growth: float) -> str | None:
    """The keyword as the marker takes it; None where the marker has none for it."""
    known = {each.name for each in fields(parameters)}
    plans = [load.plan for load in loads]
    if "duration_s" in known and any(plan.duration_s is not None for plan in plans):
        return f"duration_s={math.ceil(growth * max(map(_lasted_s, loads)))}"
    if isinstance(plans[0].load, SessionSlots | SessionStarts):
        return _more_sessions(loads, plans[0].load, known, growth)
    if "requests" not in known:
        return None
    most = max(plan.most_requests for plan in plans)
    wanted = math.ceil(growth * most)
    load = plans[0].load
    if isinstance(load, OpenLoop) and load.arrival == "trace" and wanted > len(load.offsets_ns):
        return None
    if plans[0].looks is None:
        return f"requests={wanted}"
    longest_s = getattr(parameters, "max_seconds", None)
    seconds = "" if longest_s is None else f", max_seconds={math.ceil(growth * longest_s)}"
    return f"max_requests={wanted}{seconds}"


def _more_sessions(
    loads: Sequence[Observation], load: SessionSlots | SessionStarts, known: Set[str], growth: float
) -> str | None:
    """The keyword of a test of sessions; None where the marker has none for it."""
    counts = [len(np.unique(each.records.session)) for each in loads]
    if "sessions_per_class" in known:
        return (
            f"sessions_per_class={math.ceil(growth * min(counts))}"  # the fewest are those of a class alone
        )
    if "total_sessions" not in known:
        return None
    sessions = math.ceil(growth * max(counts))
    if isinstance(load, SessionStarts) and load.arrival == "trace" and sessions > len(load.offsets_ns):
        return None
    return f"total_sessions={sessions}"


def _more_probes(
    growth: float, loads: Sequence[Observation], parameters: TestParameters, scale: Scale
) -> str | None:
    """The keyword for more pairs of a slowdown. There are as many as probes, and no more probes than
    sessions."""
    probes = math.ceil(growth * getattr(parameters, "probes", 0))
    sessions = max(len(np.unique(load.records.session)) for load in loads)
    if scale == "quick":
        return "--llm-scale=standard"
    if probes <= sessions:
        return f"probe_sessions={probes}"
    return f"total_sessions={probes}, probe_sessions={probes}"


def _lasted_s(load: Observation) -> float:
    ended_ns = load.ended_ns if load.load_ended_ns is None else load.load_ended_ns
    return max(load.plan.duration_s or 0.0, (ended_ns - load.started_ns) / _NS, _SHORTEST_S)
