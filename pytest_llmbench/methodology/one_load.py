"""The plans of a test with one load of the author's choice: how many requests, in how many runs."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.methodology.adaptive import MOST_REQUESTS, AdaptiveParameters, bounded
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop

GATE_REQUESTS = 1_000
"""Default of a gate: the draft's minimum for P99."""
FULL_REQUESTS = 10_000
"""The draft's minimum for P99.9, which a compliant run always reports (AMB-01)."""
QUICK_REQUESTS = 50


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
    "request_count",
]
