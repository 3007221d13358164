"""Output Token Throughput, section 5.2 of the draft.

Objective: the highest rate of output tokens at a latency that is acceptable; what the system carries.
Procedure: warm up, search for the highest load that is not saturated and, with objectives, for the highest
that meets them, then hold what was found for the long duration and report that level. What latency is
acceptable the objectives say; where there are none, the ten-fold rule of saturation stands in for them.

Where no tested load failed, the system may do more than was found: the maximum is a lower bound then, its
interval is open upwards and its method says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import Seen, run_metrics, with_band
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.parameters import (
    OF_BURSTINESS,
    TestParameters,
    arrival_law,
    limit,
    parameter,
)
from pytest_llmbench.methodology.procedure import (
    PROBE_S,
    REPORTED_S,
    Procedure,
    Setting,
    TestDefinition,
)
from pytest_llmbench.methodology.search.probing import (
    Holds,
    LoadModel,
    Range,
    ceilings,
    constraint_of,
    known_to_bracket,
    lower_bound,
    lowest_beyond,
    meets,
    stated_constraint,
    sustainable,
    value_of,
)
from pytest_llmbench.methodology.search.search import UNKNOWN_RPS, Searched, search, search_plans
from pytest_llmbench.methodology.search.sustained import Sustained, Sustaining
from pytest_llmbench.metrics.server_side import batch_utilisation
from pytest_llmbench.metrics.throughput import Window, output_token_throughput, window_of
from pytest_llmbench.model.estimate import ByRun, Estimate, EstimateKind, Reason, by_run
from pytest_llmbench.model.facts import Facts, LoadFact, Origin, ResultFact, SUTFact
from pytest_llmbench.model.numbers import Cell, Row, cells, trimmed
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.result import Plot, Table, TestResult, WarmupReport, metric_table
from pytest_llmbench.model.sentences import Note

_LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("End-to-End", "e2e"))


HEADING = Heading("throughput", "5.2", "Output Token Throughput")


_OPEN, _CLOSED = ("min_rate", "max_rate", "rate_step"), (
    "min_concurrency", "max_concurrency", "concurrency_step",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Search for the highest sustainable load, open loop unless a concurrency range is given; then measure
    there.

    Without a range it is found by short bursts; a range without a maximum goes on upwards until it saturates.
    """

    repeats = True

    load_model: Literal["open", "closed"] | None = parameter(
        "choice", doc="``open`` (default), or ``closed``; a concurrency range makes it closed."
    )
    min_rate: float | None = parameter("positive")
    max_rate: float | None = parameter("positive")
    rate_step: float | None = parameter(
        "positive",
        doc="open loop, requests per second: the search between ``min_rate`` and ``max_rate`` ends when "
        "its bracket is this narrow.",
    )
    arrival: Literal["poisson", "uniform", "gamma"] | str | None = parameter(
        "arrival", doc="open loop: arrival process, as for ``ttft``."
    )
    burstiness: float | None = parameter("positive", doc=OF_BURSTINESS)
    min_concurrency: int | None = parameter("count")
    max_concurrency: int | None = parameter("count")
    concurrency_step: int | None = parameter(
        "count",
        doc="closed loop, requests in flight: the search between ``min_concurrency`` and "
        "``max_concurrency`` ends when its bracket is this narrow.",
    )
    duration_s: float | None = parameter(
        "positive", doc="duration of the reported level, ramp-up included.", scale=REPORTED_S
    )
    probe_s: float | None = parameter(
        "positive",
        doc="duration of a level of the search; longer if fewer than 20 requests would arrive.",
        scale=PROBE_S,
    )
    ttft_p99_ms: float | None = parameter("positive")
    tpot_p99_ms: float | None = parameter(
        "positive",
        doc="with ``ttft_p99_ms``: limits on latency; the constrained throughput is the highest that "
        "meets them.",
    )
    min_output_tok_s: float | None = limit("max_output_token_throughput")
    min_request_s: float | None = limit("max_request_throughput")
    min_input_tok_s: float | None = limit("max_input_token_throughput")
    min_constrained_tok_s: float | None = limit("constrained_output_token_throughput")
    min_tokens_per_gpu_s: float | None = limit("output_tokens_per_gpu_second")

    def contradictions(self) -> list[str]:
        found = []
        for names in (_OPEN, _CLOSED):
            low, high, step = (getattr(self, name) for name in names)
            missing = [name for name in (names[0], names[2]) if getattr(self, name) is None]
            if missing and (low, high, step) != (None, None, None):
                found.append(f"{', '.join(names)} belong together: {', '.join(missing)} is missing")
            elif not missing and high is not None and high <= low:
                found.append(f"{names[1]} must be above {names[0]}, got {trimmed(high)}")
        given = [
            names for names in (_OPEN, _CLOSED) if any(getattr(self, name) is not None for name in names)
        ]
        if len(given) == 2:
            found.append("give a range of rates (open loop) or of concurrency (closed loop), not both")
        if given == [_OPEN] and self.load_model == "closed":
            found.append("load_model='closed' takes a concurrency range, not a range of rates")
        if given == [_CLOSED] and self.load_model == "open":
            found.append("load_model='open' takes a range of rates, not a concurrency range")
        if self.model == "closed" and (self.arrival is not None or self.burstiness is not None):
            found.append("arrival and burstiness describe an open loop")
        if (self.arrival == "gamma") != (self.burstiness is not None):
            found.append("arrival='gamma' and burstiness belong together")
        if self.min_constrained_tok_s is not None and not self.constraint:
            found.append("min_constrained_tok_s needs its constraint: ttft_p99_ms or tpot_p99_ms")
        return found

    @property
    def model(self) -> LoadModel:
        closed = self.load_model == "closed" or self.min_concurrency is not None
        return "closed" if closed else "open"

    @property
    def bounds(self) -> Range | None:
        names = _CLOSED if self.model == "closed" else _OPEN
        low, high, step = (getattr(self, name) for name in names)
        if low is None or step is None:
            return None
        return Range(float(low), math.inf if high is None else float(high), float(step), chosen=high is None)

    @property
    def law(self) -> OpenLoop:
        return OpenLoop(1.0, *arrival_law(self.arrival, self.burstiness))

    @property
    def constraint(self) -> dict[str, float]:
        """Metric → its limit in the constrained search."""
        return constraint_of(self.ttft_p99_ms, self.tpot_p99_ms)


def measure(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    law = parameters.law
    searched = yield from search(
        setting,
        RequestSlice(setting.workload),
        bounds=parameters.bounds,
        load_model=parameters.model,
        arrival=law.arrival,
        burstiness=law.burstiness,
        limits=parameters.constraint,
        duration_s=parameters.probe_s,
    )
    tenfold = yield from _hold(parameters, setting, searched, searched.best, sustainable, REPORTED)
    constrained = None
    if parameters.constraint:
        constrained = yield from _constrained(parameters, setting, searched, tenfold)
    found = found_of(searched, parameters.constraint, tenfold, constrained)
    return _result(parameters, setting, warmup, found)


def _hold(
    parameters: Parameters,
    setting: Setting,
    searched: Searched,
    start: Seen | None,
    holds: Holds,
    role: str,
) -> Procedure[Sustained]:
    duration_s = REPORTED_S.at(setting.scale, parameters.duration_s)
    runs = max(setting.least_runs, 1 if setting.scale == "quick" else parameters.run_count)
    assert searched.sequence is not None
    limits = parameters.constraint if role == CONSTRAINED else {}
    own = searched.sequence.next_part(setting, role, duration_s=duration_s, limits=limits)
    if start is None:
        return Sustained()
    level = Sustaining(
        setting=setting,
        searched=replace(searched, sequence=own),
        start=start,
        role=role,
        law=parameters.law,
        duration_s=duration_s,
        at_stake=ceilings(parameters.constraint),
    )
    return (yield from level.held(holds, runs))


def _constrained(
    parameters: Parameters, setting: Setting, searched: Searched, tenfold: Sustained
) -> Procedure[Sustained]:
    """Hold the long level under the objectives: that of the ten-fold rule where it meets them and the search
    found none above it, else its own."""

    def holds(seen: Seen) -> bool | None:
        return meets(seen, parameters.constraint)

    start, highest = searched.best_constrained, max(map(value_of, tenfold.tried), default=0.0)
    same = tenfold.value is not None and (start is None or value_of(start) <= highest)
    above = [seen for seen in tenfold.tried if value_of(seen) > (tenfold.value or 0.0)]
    if same and all(map(holds, tenfold.runs)) and not any(map(holds, above)):
        return replace(tenfold, tried=())
    return (yield from _hold(parameters, setting, searched, start, holds, CONSTRAINED))


def _result(parameters: Parameters, setting: Setting, warmup: WarmupReport, found: Found) -> TestResult:
    metrics = metrics_of(found, setting)
    name = LoadFact.RATE_RANGE if found.searched.load_model == "open" else LoadFact.CONCURRENCY_RANGE
    searched_levels = [seen for seen in found.levels if not seen.level.is_burst]
    report = Report(
        levels=found.levels,
        metrics=metrics,
        tables=(summary_table(metrics, found), latency_at_max_table(metrics)),
        plots=(throughput_plot(searched_levels, found.reported),),
        notes=found.notes,
        load={
            LoadFact.MODEL: found.searched.load_model,
            name: found.searched.range.as_list(),
            LoadFact.DURATION_S: REPORTED_S.at(setting.scale, parameters.duration_s),
        }
        | stated_constraint(parameters.constraint),
        facts=raw_throughput(found.reported),
        budgeted=[seen for held_ in found.held for seen in held_.runs] or searched_levels[:1],
    )
    result = result_of(HEADING, parameters, setting, warmup, report)
    return replace(result, by_run=runs_of(found, setting))


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The plans of the search at its worst, and of the reported levels at the highest load that they may
    have."""
    sequence, bounds = RequestSlice(setting.workload), parameters.bounds
    found = search_plans(
        setting,
        sequence,
        bounds=bounds,
        load_model=parameters.model,
        constrained=bool(parameters.constraint),
        duration_s=parameters.probe_s,
    )
    duration_s = REPORTED_S.at(setting.scale, parameters.duration_s)
    runs = max(setting.least_runs, 1 if setting.scale == "quick" else parameters.run_count)
    highest = UNKNOWN_RPS if bounds is None or bounds.upwards else bounds.maximum
    for _ in range(runs * (2 if parameters.constraint else 1)):
        if parameters.model == "open":
            found += (sequence.open_loop(setting, "reported", OpenLoop(highest), duration_s),)
        else:
            n = int(highest)
            found += (sequence.closed_loop(setting, "reported", n, duration_s=duration_s, at_least=n),)
    return found


def summary_table(metrics: Mapping[str, Estimate], found: Found) -> Table:
    """Table 3: the draft's five rows, the first of which is the maximum, then what the objectives and the
    engine's gauges add."""
    named = {
        "Max Output Throughput": "max_output_token_throughput",
        "Max Request Throughput": "max_request_throughput",
        "Max Input Throughput": "max_input_token_throughput",
        **{title: name for name, title in _OF_THE_SEARCH.items() if name in metrics},
        "Tokens per GPU-second": "output_tokens_per_gpu_second",
        "Batch Utilisation": "batch_utilisation",
    }
    rows: list[tuple[str, Cell]] = list(zip(named, cells(metrics, named.values()), strict=True))
    if found.constrained is None or found.tenfold is None:
        rows.append(("Latency Constraint", "none: the rows above are unconstrained"))
    else:
        under, tenfold = cells(
            metrics, ("constrained_output_token_throughput", "tenfold_output_token_throughput")
        )
        constraint = [
            f"{metric.upper().replace('.', ' ')} <= {trimmed(limit)} ms"
            for metric, limit in found.limits.items()
        ]
        is_it = metrics["constrained_output_token_throughput"] == metrics["max_output_token_throughput"]
        is_it = is_it and metrics["max_output_token_throughput"].defined
        rows += [
            ("Latency Constraint", ", ".join(constraint)),
            ("Output Throughput under it", "the maximum above" if is_it else under),
            ("Load under it", _at(found.constrained) or "none"),
            ("Output Throughput by the Ten-fold Rule", tenfold),
            ("Load by the Ten-fold Rule", _at(found.tenfold) or "none"),
        ]
    return metric_table("throughput_summary", "Throughput Summary", rows)


def _at(run: Sustained) -> str:
    return run.runs[0].level.label.partition(": ")[2] if run.runs else ""


def latency_at_max_table(metrics: Mapping[str, Estimate]) -> Table:
    """Table 4: latencies at the sustainable maximum, with the samples that they rest on."""
    rows: tuple[Row, ...] = tuple(
        (
            title,
            *cells(metrics, (f"{family}.{key}" for key in ("p50", "p95", "p99"))),
            metrics[f"{family}.p99"].n,
        )
        for title, family in _LATENCIES
    )
    columns = ("Metric", "P50", "P95", "P99", "Samples")
    return Table("latency_at_max", "Latency at Maximum Throughput", columns, rows)


def throughput_plot(levels: Sequence[Seen], reported: Sustained) -> Plot:
    """A plot of output tokens per second over the load, with the intervals as a band."""
    found = [
        (value_of(seen), seen.level.metrics["output_token_throughput"])
        for seen in sorted(levels, key=value_of)
    ]
    series, bands = with_band("Output tokens/s", found)
    open_loop = not levels or levels[0].level.load_model == "open"
    return Plot(
        id="throughput_load",
        title="Throughput over Load",
        x_label="offered load (req/s)" if open_loop else "requests in flight",
        y_label="output tokens/s",
        series=series or {"Output tokens/s": ((), ())},
        bands=bands,
        marks={} if reported.value is None else {"sustainable": reported.value},
    )


TEST = TestDefinition(*HEADING, Parameters, framed(HEADING, measure), plans)


_OF_THE_SEARCH = {
    "sustainable_rate": "Sustainable Load",
    "sustainable_concurrency": "Sustainable Load (requests in flight)",
}
_MAXIMA = {
    "max_output_token_throughput": "output_token_throughput",
    "max_request_throughput": "request_throughput",
    "max_input_token_throughput": "input_token_throughput",
}


REPORTED, CONSTRAINED, TENFOLD = "reported", "constrained", "ten-fold"
"""Roles of the levels that are held for the long duration."""


@dataclass(frozen=True)
class Found:
    """The result of the search, and of the levels held after it."""

    searched: Searched
    limits: Mapping[str, float]
    reported: Sustained
    """The maximum: the higher of the two below."""
    constrained: Sustained | None = None
    """The highest level that keeps up and meets the limits; None without limits."""
    tenfold: Sustained | None = None
    """The highest level that no rule of saturation names, the ten-fold rule among them; None without limits,
    since it is the maximum then."""

    @property
    def held(self) -> tuple[Sustained, ...]:
        every = (self.tenfold, self.reported, self.constrained)
        return tuple(one for one in every if one is not None)

    @property
    def levels(self) -> tuple[Seen, ...]:
        """All levels that were run, in the order run."""
        tried = {id(seen): seen for one in self.held for seen in one.tried}
        return (*self.searched.levels, *tried.values())

    @property
    def notes(self) -> tuple[Note, ...]:
        notes = [*self.searched.notes, *(note for one in self.held for note in one.notes)]
        if self.tenfold is not None and self.tenfold.value != self.reported.value:
            allowed, alone = self.reported.value, self.tenfold.value
            notes.append(Note.of("maximum_by_objectives", allowed=allowed, tenfold=alone))
        return tuple(dict.fromkeys(notes))

    def holds(self, seen: Seen) -> bool | None:
        """Whether a level counts for the maximum: by the limits, or by the ten-fold rule."""
        return sustainable(seen) or (meets(seen, self.limits) if self.limits else False)

    def run(self, number: int) -> Found:
        """What was found with one run alone; without levels that were held another number of times."""
        count = len(self.reported.runs)
        own = [
            replace(one, runs=(one.runs[number],)) if one is not None and len(one.runs) == count else None
            for one in (self.constrained, self.tenfold)
        ]
        reported = replace(self.reported, runs=(self.reported.runs[number],))
        return replace(self, reported=reported, constrained=own[0], tenfold=own[1])


def found_of(
    searched: Searched, limits: Mapping[str, float], tenfold: Sustained, constrained: Sustained | None
) -> Found:
    if constrained is None:
        return Found(searched, limits, tenfold)
    if constrained.value is None or constrained.value <= (tenfold.value or 0.0):
        return Found(searched, limits, tenfold, constrained, tenfold)
    maximum = _in_role(constrained, CONSTRAINED, REPORTED)
    return Found(searched, limits, maximum, maximum, _in_role(tenfold, REPORTED, TENFOLD))


def _in_role(held: Sustained, old: str, new: str) -> Sustained:
    def told(seen: Seen) -> Seen:
        return seen.with_(role=seen.level.role.replace(old, new, 1))

    return replace(held, runs=tuple(map(told, held.runs)), tried=tuple(map(told, held.tried)))


def runs_of(found: Found, setting: Setting) -> ByRun:
    """The metrics of the held levels by run. The result of the one search has no runs."""
    every = [metrics_of(found.run(number), setting) for number in range(len(found.reported.runs))]
    return by_run([{name: own for name, own in one.items() if name not in _OF_THE_SEARCH} for one in every])


def metrics_of(found: Found, setting: Setting) -> dict[str, Estimate]:
    reported, levels = found.reported, found.levels
    windows = [window_of(seen.observation) for seen in reported.runs]
    metrics = run_metrics(windows, seed=setting.seed)
    metrics |= {
        name: _highest(metrics[source], reported, levels, found.holds) for name, source in _MAXIMA.items()
    }
    rate = found.searched.load_model == "open"
    name, unit = ("sustainable_rate", "req/s") if rate else ("sustainable_concurrency", "count")
    metrics[name] = _bracket(found, unit)
    if found.constrained is not None:
        metrics["constrained_output_token_throughput"] = _throughput_of(
            found.constrained, found, lambda seen: meets(seen, found.limits), setting
        )
    if found.tenfold is not None:
        tenfold = _throughput_of(found.tenfold, found, sustainable, setting)
        metrics["tenfold_output_token_throughput"] = tenfold
    metrics["output_tokens_per_gpu_second"] = per_accelerator(
        metrics["max_output_token_throughput"], setting.facts
    )
    read = [(seen.observation.engine, window) for seen, window in zip(reported.runs, windows, strict=True)]
    metrics["batch_utilisation"] = batch_utilisation(read)
    return metrics


def _throughput_of(held: Sustained, found: Found, holds: Holds, setting: Setting) -> Estimate:
    if not held.runs:
        why, reason = "no tested level keeps the ten-fold rule", Reason.NO_LEVEL
        if held is found.constrained:
            why = "no tested level meets the objectives"
            if any(meets(seen, found.limits) is None for seen in found.levels if not seen.level.is_burst):
                why, reason = f"{why} for sure: some have too few requests to tell", Reason.UNDECIDED
        return Estimate.undefined(unit="tok/s", method=why, reason=reason)
    windows = [window_of(seen.observation) for seen in held.runs]
    return _highest(output_token_throughput(windows, seed=setting.seed), held, found.levels, holds)


def _highest(estimate: Estimate, held: Sustained, levels: Sequence[Seen], holds: Holds) -> Estimate:
    return known_to_bracket(estimate, held.runs[0], levels, holds) if held.runs else estimate


def _bracket(found: Found, unit: str) -> Estimate:
    """The highest load that held, with a bracket up to the lowest one above it that did not."""
    levels, reported = found.levels, found.reported
    tested = len({value_of(seen) for seen in levels if not seen.level.is_burst})
    if not reported.runs:
        return Estimate.undefined(unit=unit, method="no tested load held", n=tested, reason=Reason.NO_LEVEL)
    value, beyond = value_of(reported.runs[0]), lowest_beyond(reported.runs[0], levels, found.holds)
    why = lower_bound(reported.runs[0], levels, found.holds)
    method = f"bracket of the search: {trimmed(value)} held"
    method += "" if beyond is None else f", {trimmed(beyond)} did not"
    found_it = Estimate(value, value, beyond, 0.95, tested, method, unit, kind=EstimateKind.BRACKET)
    return found_it if why is None else found_it.at_least(*why)


def per_accelerator(throughput: Estimate, facts: Facts) -> Estimate:
    """Output tokens per second / accelerators (section 5.2.4.2)."""
    count = facts.value(SUTFact.ACCELERATOR_COUNT)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        why = "no accelerator" if count == 0 else "the number of accelerators is not declared"
        return Estimate.undefined(unit="tok/s", method=why, reason=Reason.NOT_MEASURABLE)
    ends = (throughput.point, throughput.lower, throughput.upper)
    point, lower, upper = (None if end is None else end / count for end in ends)
    method = f"{throughput.method}; divided by {count} accelerators"
    return replace(throughput, point=point, lower=lower, upper=upper, method=method)


def raw_throughput(reported: Sustained) -> Facts:
    """Output tokens per second over the whole duration, ramp-up included, as a fact beside the figure of the
    window."""
    runs = [seen.observation for seen in reported.runs]
    if not runs:
        return Facts()
    whole = [Window(run.records, run.started_ns, window_of(run).end_ns) for run in runs]
    raw = output_token_throughput(whole, seed=0).point
    return Facts.of(Origin.MEASURED, {ResultFact.THROUGHPUT_RAW_OUTPUT_TOK_S: raw})
