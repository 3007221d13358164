"""A test with one load of the author's choice: its procedure, how many requests, in how many runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytest_llmbench.methodology.adaptive import MOST_REQUESTS, AdaptiveParameters, bounded
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.warmup import warm_up
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.result import TestResult, WarmupReport

GATE_REQUESTS = 1_000
"""Default of a gate: the draft's minimum for P99."""
FULL_REQUESTS = 10_000
"""The draft's minimum for P99.9, which a compliant run always reports (AMB-01)."""
QUICK_REQUESTS = 50

Result = Callable[[Any, Setting, WarmupReport, Sequence[Observation]], TestResult]


def one_load_procedure(result: Result) -> Callable[[Any, Setting], Procedure[TestResult]]:
    """The test's procedure: warm-up, the runs, then ``result`` of what was seen; Ctrl-C ends it there."""

    def procedure(parameters: AdaptiveParameters, setting: Setting) -> Procedure[TestResult]:
        concurrency = parameters.concurrency if isinstance(parameters.load, ClosedLoop) else None
        warmup = yield from warm_up(setting, concurrency=concurrency)
        seen: list[Observation] = []
        for plan in one_load_plans(parameters, setting):
            seen.append((yield plan))
            if seen[-1].interrupted is not None:
                break
        return result(parameters, setting, warmup, seen)

    return procedure


def one_load_plans(parameters: AdaptiveParameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """One plan per run. The runs share one sequence of requests and one schedule, each taking up where the
    one before it ended: no prompt is sent twice, and no two runs have the same arrivals."""
    count = request_count(parameters, setting)
    runs = max(setting.least_runs, 1 if setting.scale == "quick" else (parameters.runs or 1))
    plans = tuple(
        LoadPlan(
            label="measure" if runs == 1 else f"run {run + 1} of {runs}",
            workload=setting.workload,
            load=parameters.load,
            requests=count,
            seed=setting.seed,
            first=run * count,
            deadlines=setting.deadlines,
            ignore_eos=setting.ignore_eos,
        )
        for run in range(runs)
    )
    # A smoke run is over before the first look, the draft wants its numbers whatever the limits say, and runs
    # that are compared have to be alike.
    if parameters.is_auto and runs == 1 and setting.scale == "standard":
        return (bounded(parameters, setting, plans[0]),)
    return plans


def request_count(parameters: AdaptiveParameters, setting: Setting) -> int:
    load = parameters.load
    if isinstance(load, OpenLoop) and load.arrival == "trace":
        asked = parameters.count or len(load.offsets_ns)
        return min(asked, QUICK_REQUESTS) if setting.scale == "quick" else asked
    asked = parameters.count or GATE_REQUESTS
    if parameters.is_auto:
        asked = parameters.max_requests or MOST_REQUESTS
    if setting.scale == "quick":
        return min(asked, QUICK_REQUESTS)
    return max(asked, FULL_REQUESTS) if setting.scale == "full" else asked


def intended(
    parameters: AdaptiveParameters, setting: Setting, seen: Sequence[Observation]
) -> tuple[LoadPlan, ...]:
    """What was to be sent; of a load that may end early what was sent."""
    plans = one_load_plans(parameters, setting)
    if plans[0].looks is None:
        return plans
    return tuple(plan.with_(requests=len(run.records)) for plan, run in zip(plans, seen, strict=False))


__all__ = [
    "FULL_REQUESTS",
    "GATE_REQUESTS",
    "QUICK_REQUESTS",
    "intended",
    "one_load_plans",
    "one_load_procedure",
    "request_count",
]
