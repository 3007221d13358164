"""Inter-Token Latency Distribution, section 5.4 of the draft (METHODOLOGY §11.4).

Objective: the variability of token delivery in decode; how smooth a stream is for the user. Procedure: warm
up; per load level, a percentage of the saturation rate, store the arrival of each token after the first,
compute the gaps of consecutive tokens and pool them over all requests; per request the standard deviation of
its gaps (jitter) and its longest pause. The way tokens are timed (AMB-13) is fixed before the first level,
from the search for the saturation rate or from a short characterisation run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pytest_llmbench.methodology import itl_tables
from pytest_llmbench.methodology.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.itl_levels import LevelItl, level_itl
from pytest_llmbench.methodology.itl_method import (
    FEWEST_ELIGIBLE,
    Method,
    findings,
    fixed_method,
    method_facts,
    method_notes,
)
from pytest_llmbench.methodology.levels import (
    Seen,
    level_of,
    qualified,
)
from pytest_llmbench.methodology.load_plans import RequestSlice
from pytest_llmbench.methodology.parameters import TestParameters, parameter
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.remeasured import Attempts, attempted
from pytest_llmbench.methodology.saturation_rate import SaturationRate, saturation_rate
from pytest_llmbench.methodology.scales import LEVEL_S, ByScale
from pytest_llmbench.methodology.spoiled import late_gaps
from pytest_llmbench.metrics.itl import FEWEST_TOKENS, Option, itl_distribution, itl_samples
from pytest_llmbench.metrics.windows import RAMP_UP_SHARE
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import TestResult, WarmupReport

HEADING = Heading("itl", "5.4", "Inter-Token Latency Distribution")
LEVELS_PERCENT = (25.0, 50.0, 75.0, 90.0)
REQUESTS = ByScale(quick=0, standard=100, full=100)
SAMPLES = ByScale(quick=0, standard=5_000, full=5_000)
"""Of every level (AMB-12); a quick level takes what its few seconds bring."""
STATISTICS = ("p50", "p90", "p95", "p99", "p99_9")
_MARGIN = 1.15
"""Requests planned beyond the floors: what arrives in the ramp-up varies."""


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Keywords of ``@llmbench.itl``. Limits are ceilings that every level has to keep."""

    levels_percent: Sequence[float] = parameter("percents", LEVELS_PERCENT)
    """Loads, in percent of the saturation rate."""
    capacity_rps: float | None = parameter("positive")
    """The saturation rate, where it is known: no search is made."""
    method: str | None = parameter("itl_method")
    """How tokens are timed: ``direct``, ``A``, ``B``, ``C`` (section 4.6.3); AMB-13 decides if not given."""
    requests: int | None = parameter("count")
    """Requests of at least 50 output tokens per level; the length of the schedule follows."""
    duration_s: float | None = parameter("positive")
    """Shortest duration of a level."""
    p50_ms: float | None = parameter("positive")
    p90_ms: float | None = parameter("positive")
    p95_ms: float | None = parameter("positive")
    p99_ms: float | None = parameter("positive")
    p99_9_ms: float | None = parameter("positive")
    jitter_p99_ms: float | None = parameter("positive")
    longest_pause_p99_ms: float | None = parameter("positive")
    max_tail_ratio: float | None = parameter("positive")
    """Of P99 / P50."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        limits = [("itl", f".{name}", getattr(self, f"{name}_ms"), "ms") for name in STATISTICS]
        limits += [
            ("jitter", ".p99", self.jitter_p99_ms, "ms"),
            ("longest_pause", ".p99", self.longest_pause_p99_ms, "ms"),
            ("itl_tail_ratio", "", self.max_tail_ratio, "ratio"),
        ]
        own = [
            Objective(f"{family}[{percent:g}%]{statistic}", "<=", limit, unit)
            for percent in self.levels_percent
            for family, statistic, limit, unit in limits
            if limit is not None
        ]
        return (*own, *self.slo)


def measure(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    capacity = yield from saturation_rate(setting, RequestSlice(setting.workload), parameters.capacity_rps)
    method, characterised = yield from fixed_method(parameters.method, setting, capacity)
    before, levels = [*capacity.levels, *characterised], list[LevelItl]()
    notes: list[str] = []
    for percent in parameters.levels_percent if capacity.rps is not None else ():
        attempts = yield from _level(parameters, setting, capacity, method, percent)
        before += attempts.runs[:-1]
        notes += attempts.notes
        levels.append(level_itl(attempts.level, method.option))
    result = _result(parameters, setting, warmup, capacity, method, before, levels)
    return replace(result, notes=(*result.notes, *notes))


def _level(
    parameters: Parameters, setting: Setting, capacity: SaturationRate, method: Method, percent: float
) -> Procedure[Attempts]:
    sequence = requests_of(parameters, setting, capacity.sequence, percent)

    def see(run: Observation) -> Seen:
        return level_of(
            sequence.sent(run),
            label=f"{percent:g}%",
            reference=capacity.reference,
            seed=setting.seed,
            role="level",
            percent_of_capacity=percent,
        )

    plan = partial(level_plan, parameters, setting, capacity, method, percent, sequence)
    gaps = method.option != "C"
    return (yield from attempted(plan, see, setting.remeasure, needed=True, gaps=gaps))


def requests_of(
    parameters: Parameters, setting: Setting, before: RequestSlice, percent: float
) -> RequestSlice:
    asked = {name: getattr(parameters, name) for name in ("capacity_rps", "method", "requests", "duration_s")}
    return before.next_part(setting, "level of itl", percent=percent, **asked)


def level_plan(
    parameters: Parameters,
    setting: Setting,
    capacity: SaturationRate,
    method: Method,
    percent: float,
    sequence: RequestSlice,
) -> LoadPlan:
    """Long enough for both floors of AMB-12 behind the ramp-up, at this rate."""
    load = OpenLoop(capacity.percent(percent))
    least_s = LEVEL_S.at(setting.scale, parameters.duration_s)
    count = requests_of_level(parameters, setting, method)
    seconds = sequence.seconds_for(setting, load, count, least_s)
    return sequence.open_loop(setting, f"{percent:g}% of saturation", load, seconds)


def _late_gaps(method: Method, runs: Sequence[Seen]) -> list[Finding]:
    """The worst level. Of instants that the server gives it is no matter when they were read."""
    found = [late_gaps(run.observation) for run in runs if method.option != "C"]
    known = [finding for finding in found if finding is not None]
    return sorted(known, key=lambda finding: (finding.value or 0.0) / (finding.limit or 1.0))[-1:]


def requests_of_level(parameters: Parameters, setting: Setting, method: Method) -> int:
    """How many have to be sent for the floors to be reached; 1 at quick scale, where the time decides."""
    floor = REQUESTS.count(setting.scale, parameters.requests) if setting.scale != "quick" else 0
    samples = SAMPLES.count(setting.scale)
    eligible = max(floor, samples / max(method.gaps_per_request, 1.0))
    return max(1, math.ceil(eligible / method.eligible_share / (1 - RAMP_UP_SHARE) * _MARGIN))


def _result(
    parameters: Parameters,
    setting: Setting,
    warmup: WarmupReport,
    capacity: SaturationRate,
    method: Method,
    before: Sequence[Seen],
    levels: Sequence[LevelItl],
) -> TestResult:
    runs = [level.seen for level in levels]
    report = Report(
        levels=(*before, *runs),
        metrics=_metrics(levels, method.option),
        tables=itl_tables.tables(levels, method, [run.records for run in runs]),
        plots=itl_tables.plots(levels, parameters.objectives),
        notes=(*capacity.notes, *_notes(capacity, levels), *method_notes(method, runs)),
        load=_load(parameters, capacity, runs),
        facts=method_facts(method, runs or before)
        | Facts.of(Origin.MEASURED, {"itl.levels": [level.facts() for level in levels]}),
        budgeted=runs,
        findings=(
            *findings(method, [(level.label, level.seen.records, level.samples) for level in levels]),
            *_late_gaps(method, runs),
        ),
    )
    return result_of(HEADING, parameters, setting, warmup, report)


def _metrics(levels: Sequence[LevelItl], option: Option) -> dict[str, Estimate]:
    """Every level under its qualifier; the plain names are those of the highest level."""
    if not levels:
        nothing = itl_samples(Records.from_rows(()), option)
        return itl_distribution(nothing)
    metrics = dict(levels[-1].seen.level.metrics)
    for level in levels:
        metrics |= qualified(level.seen.level.metrics, level.label)
    return metrics


def _load(parameters: Parameters, capacity: SaturationRate, runs: Sequence[Seen]) -> dict[str, Any]:
    return {
        **capacity.facts,
        "load.model": "open",
        "load.arrival": "poisson",
        "load.levels_percent": list(parameters.levels_percent),
        "load.duration_s": min((run.level.duration_s for run in runs), default=None),
    }


def _notes(capacity: SaturationRate, levels: Sequence[LevelItl]) -> tuple[str, ...]:
    if capacity.rps is None:
        return ("no load was found that the SUT sustains: there is no level to take a percentage of",)
    found = [f"levels are percentages of {capacity.rps:g} req/s, {capacity.source}"]
    found += [
        f"at {level.label}: {level.samples.excluded} of {level.samples.eligible + level.samples.excluded} "
        "replies ended before 50 output tokens and are left out"
        for level in levels
        if level.samples.excluded
    ]
    found += [
        f"at {level.label} the SUT was saturated: {'; '.join(level.seen.level.saturation_reasons)}"
        for level in levels
        if level.seen.level.saturated
    ]
    found += [
        f"at {level.label}: {level.samples.zeros} gaps of no length are left out of the shape"
        for level in levels
        if level.samples.zeros
    ]
    return tuple(found)


def usual_method(setting: Setting) -> Method:
    """What the streams are like where replies are as long as asked for and come a token at a time."""
    asked = [
        request.max_tokens for request in setting.workload.requests(REQUESTS.count("full"), setting.seed)
    ]
    eligible = [tokens for tokens in asked if tokens >= FEWEST_TOKENS]
    share = max(len(eligible) / len(asked), FEWEST_ELIGIBLE)
    return Method("direct", "", share, float(np.mean(eligible)) - 1 if eligible else FEWEST_TOKENS - 1)


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The levels; without ``capacity_rps`` their rates and times follow from a search."""
    sequence = RequestSlice(setting.workload)
    method, found = usual_method(setting), list[LoadPlan]()
    for percent in parameters.levels_percent:
        if parameters.capacity_rps is not None:
            capacity = SaturationRate(parameters.capacity_rps, "", sequence)
            own = requests_of(parameters, setting, sequence, percent)
            plan = level_plan(parameters, setting, capacity, method, percent, own)
        else:
            count = requests_of_level(parameters, setting, method)
            label = f"{percent:g}% of saturation"
            plan = sequence.closed_loop(setting, label, 1, duration_s=None, at_least=count)
        found.append(plan)
        sequence.first += plan.requests
    return tuple(found)


procedure = framed(HEADING, measure)
TEST = TestDefinition(HEADING.test, HEADING.section, HEADING.title, Parameters, procedure, plans)

__all__ = [
    "HEADING",
    "LEVELS_PERCENT",
    "TEST",
    "Parameters",
    "level_plan",
    "measure",
    "plans",
    "procedure",
    "requests_of",
    "requests_of_level",
    "usual_method",
]
