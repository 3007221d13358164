"""Output Token Throughput, section 5.2 of the draft (METHODOLOGY §11.2).

Objective: the highest rate of output tokens at a latency that is acceptable; what the system carries.
Procedure: warm up, search for the highest load that is not saturated and, with objectives, for the highest
that meets them, then hold what was found for the long duration and report that level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.methodology.by_run import ByRun, by_run
from pytest_llmbench.methodology.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.held import Held, held
from pytest_llmbench.methodology.levels import Seen, run_metrics, window_of
from pytest_llmbench.methodology.load_plans import Sequence
from pytest_llmbench.methodology.parameters import TestParameters, parameter
from pytest_llmbench.methodology.probing import (
    BURST,
    LoadModel,
    Range,
    beyond_generator,
    lowest_beyond,
    meets,
    sustainable,
    value_of,
)
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.scales import REPORTED_S
from pytest_llmbench.methodology.search import UNKNOWN_RPS, Searched, search, search_plans
from pytest_llmbench.methodology.throughput_tables import (
    latency_at_max_table,
    summary_table,
    throughput_plot,
)
from pytest_llmbench.metrics.server_side import NOT_MEASURABLE, batch_utilisation
from pytest_llmbench.metrics.throughput import Window, output_token_throughput
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import ARRIVALS, LoadPlan, OpenLoop
from pytest_llmbench.model.result import TestResult, WarmupReport

HEADING = Heading("throughput", "5.2", "Output Token Throughput")
_OPEN, _CLOSED = ("min_rate", "max_rate", "rate_step"), (
    "min_concurrency", "max_concurrency", "concurrency_step",
)  # fmt: skip
_FLOORS = {
    "min_output_tok_s": ("max_output_token_throughput", "tok/s"),
    "min_request_s": ("max_request_throughput", "req/s"),
    "min_input_tok_s": ("max_input_token_throughput", "tok/s"),
    "min_constrained_tok_s": ("constrained_output_token_throughput", "tok/s"),
    "min_tokens_per_gpu_s": ("output_tokens_per_gpu_second", "tok/s"),
}
_OF_THE_SEARCH = ("sustainable_rate", "sustainable_concurrency")
_MAXIMA = {
    "max_output_token_throughput": "output_token_throughput",
    "max_request_throughput": "request_throughput",
    "max_input_token_throughput": "input_token_throughput",
}


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Keywords of ``@llmbench.throughput``. Without a range the search chooses one from short bursts."""

    repeats = True

    load_model: str | None = parameter("load_model")
    """``open`` (default), or ``closed``; a concurrency range makes it closed."""
    min_rate: float | None = parameter("positive")
    max_rate: float | None = parameter("positive")
    rate_step: float | None = parameter("positive")
    """Open loop: range of the search in requests per second, and the width at which it stops."""
    arrival: str | None = parameter("arrival")
    burstiness: float | None = parameter("positive")
    min_concurrency: int | None = parameter("count")
    max_concurrency: int | None = parameter("count")
    concurrency_step: int | None = parameter("count")
    """Closed loop: range of the search in requests in flight."""
    duration_s: float | None = parameter("positive")
    """Of the reported level, ramp-up included."""
    probe_s: float | None = parameter("positive")
    """Of a level of the search."""
    ttft_p99_ms: float | None = parameter("positive")
    tpot_p99_ms: float | None = parameter("positive")
    """Objectives on latency: the constrained throughput is the highest that meets them."""
    min_output_tok_s: float | None = parameter("positive")
    min_request_s: float | None = parameter("positive")
    min_input_tok_s: float | None = parameter("positive")
    min_constrained_tok_s: float | None = parameter("positive")
    min_tokens_per_gpu_s: float | None = parameter("positive")

    def contradictions(self) -> list[str]:
        found = []
        for names in (_OPEN, _CLOSED):
            missing = [name for name in names if getattr(self, name) is None]
            if missing and len(missing) < len(names):
                found.append(f"{', '.join(names)} belong together: {', '.join(missing)} is missing")
            elif not missing:
                low, high = getattr(self, names[0]), getattr(self, names[1])
                found += [f"{names[1]} must be above {names[0]}, got {high:g}"] if high <= low else []
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
        if self.min_constrained_tok_s is not None and not self.limits:
            found.append("min_constrained_tok_s needs ttft_p99_ms or tpot_p99_ms: the constraint it is under")
        return found

    @property
    def model(self) -> LoadModel:
        closed = self.load_model == "closed" or self.min_concurrency is not None
        return "closed" if closed else "open"

    @property
    def bounds(self) -> Range | None:
        names = _CLOSED if self.model == "closed" else _OPEN
        values = [getattr(self, name) for name in names]
        if None in values:
            return None
        low, high, step = (float(value) for value in values)
        return Range(low, high, step)

    @property
    def law(self) -> OpenLoop:
        arrival = next(name for name in ARRIVALS if name == (self.arrival or "poisson"))
        return OpenLoop(1.0, arrival, 1.0 if self.burstiness is None else self.burstiness)

    @property
    def limits(self) -> dict[str, float]:
        """Of the constrained search."""
        named = {"ttft.p99": self.ttft_p99_ms, "tpot.p99": self.tpot_p99_ms}
        return {metric: limit for metric, limit in named.items() if limit is not None}

    @property
    def objectives(self) -> tuple[Objective, ...]:
        floors = [
            Objective(metric, ">=", limit, unit)
            for name, (metric, unit) in _FLOORS.items()
            if (limit := getattr(self, name)) is not None
        ]
        return (*floors, *self.slo)


def measure(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    law = parameters.law
    searched = yield from search(
        setting,
        Sequence(setting.workload),
        bounds=parameters.bounds,
        load_model=parameters.model,
        arrival=law.arrival,
        burstiness=law.burstiness,
        limits=parameters.limits,
        duration_s=parameters.probe_s,
    )
    reported = yield from _hold(parameters, setting, searched, searched.best, sustainable, "reported")
    constrained = None
    if parameters.limits:
        constrained = yield from _constrained(parameters, setting, searched, reported)
    return _result(parameters, setting, warmup, searched, reported, constrained)


def _hold(
    parameters: Parameters,
    setting: Setting,
    searched: Searched,
    start: Seen | None,
    holds: Callable[[Seen], bool],
    role: str,
) -> Procedure[Held]:
    duration_s = REPORTED_S.at(setting.scale, parameters.duration_s)
    runs = max(setting.least_runs, 1 if setting.scale == "quick" else (parameters.runs or 1))
    return (
        yield from held(
            setting, searched, start, holds, role=role, law=parameters.law, duration_s=duration_s, runs=runs
        )
    )


def _constrained(
    parameters: Parameters, setting: Setting, searched: Searched, reported: Held
) -> Procedure[Held]:
    """The long level under the objectives: the reported one where that meets them, one of its own else."""

    def holds(seen: Seen) -> bool:
        return meets(seen, parameters.limits)

    start = searched.best_constrained
    same = start is not None and reported.value is not None and value_of(start) >= reported.value
    if same and all(holds(seen) for seen in reported.runs):
        return replace(reported, tried=())
    return (yield from _hold(parameters, setting, searched, start, holds, "constrained"))


def _result(
    parameters: Parameters,
    setting: Setting,
    warmup: WarmupReport,
    searched: Searched,
    reported: Held,
    constrained: Held | None,
) -> TestResult:
    levels = (*searched.levels, *reported.tried, *(constrained.tried if constrained else ()))
    metrics = _metrics(setting, searched, reported, constrained)
    kept = (*reported.runs, *(constrained.runs if constrained else ()))
    searched_levels = [seen for seen in levels if seen.level.role != BURST]
    report = Report(
        levels=levels,
        metrics=metrics,
        tables=(
            summary_table(metrics, constrained, parameters.limits),
            latency_at_max_table(metrics),
        ),
        plots=(throughput_plot(searched_levels, reported),),
        notes=(*searched.notes, *reported.notes, *(constrained.notes if constrained else ())),
        load=_load(parameters, setting, searched),
        facts=_raw(reported),
        budgeted=kept or searched_levels[:1],
    )
    result = result_of(HEADING, parameters, setting, warmup, report)
    return replace(result, by_run=_by_run(setting, searched, reported, constrained))


def _by_run(setting: Setting, searched: Searched, reported: Held, constrained: Held | None) -> ByRun:
    """Of the levels that were held. What the one search found, and a constrained level that was held another
    number of times, has no runs."""
    runs = []
    for number, run in enumerate(reported.runs):
        under = None
        if constrained is not None and len(constrained.runs) == len(reported.runs):
            under = replace(constrained, runs=(constrained.runs[number],))
        metrics = _metrics(setting, searched, replace(reported, runs=(run,)), under)
        runs.append({name: own for name, own in metrics.items() if name not in _OF_THE_SEARCH})
    return by_run(runs)


def _metrics(
    setting: Setting, searched: Searched, reported: Held, constrained: Held | None
) -> dict[str, Estimate]:
    windows = [window_of(seen.observation) for seen in reported.runs]
    metrics = run_metrics(windows, seed=setting.seed)
    metrics |= {name: metrics[source] for name, source in _MAXIMA.items()}
    limit = _generator_limit(searched, reported)
    if limit is not None:
        metrics |= {name: _at_least(metrics[name], limit) for name in _MAXIMA}
    name, unit = (
        ("sustainable_rate", "req/s")
        if searched.load_model == "open"
        else ("sustainable_concurrency", "count")
    )
    metrics[name] = _bracket(searched, reported, unit)
    if constrained is not None:
        under = [window_of(seen.observation) for seen in constrained.runs]
        metrics["constrained_output_token_throughput"] = (
            output_token_throughput(under, seed=setting.seed)
            if under
            else Estimate.undefined(unit="tok/s", method="no tested level met the objectives")
        )
    metrics["output_tokens_per_gpu_second"] = _per_gpu(metrics["output_token_throughput"], setting.facts)
    read = [(seen.observation.engine, window) for seen, window in zip(reported.runs, windows, strict=True)]
    metrics["batch_utilisation"] = batch_utilisation(read)
    return metrics


def _generator_limit(searched: Searched, reported: Held) -> float | None:
    """The load that the generator could not offer, where only that ends the search."""
    if not reported.runs:
        return None
    return beyond_generator(reported.runs[0], (*searched.levels, *reported.tried), sustainable)


def _at_least(estimate: Estimate, limit: float) -> Estimate:
    """The system may do more than the generator could show."""
    method = f"{estimate.method}; a lower bound: {limit:g} req/s is beyond this generator"
    return replace(estimate, upper=None, method=method)


def _bracket(searched: Searched, reported: Held, unit: str) -> Estimate:
    """The highest load that held, up to the lowest one above it that did not."""
    levels = (*searched.levels, *reported.tried)
    tested = len({value_of(seen) for seen in levels if seen.level.role != BURST})
    if not reported.runs:
        return Estimate.undefined(unit=unit, method="no tested load held", n=tested)
    best = reported.runs[0]
    beyond, limit = lowest_beyond(best, levels, sustainable), _generator_limit(searched, reported)
    if limit is not None:
        method = f"bracket of the search: {value_of(best):g} held, {limit:g} is beyond this generator"
    elif beyond is None:
        method = f"bracket of the search: every tested load up to {value_of(best):g} held (range exhausted)"
    else:
        method = f"bracket of the search: {value_of(best):g} held, {beyond:g} did not"
    value = value_of(best)
    return Estimate(value, value, beyond, level=0.95, n=tested, method=method, unit=unit)


def _per_gpu(throughput: Estimate, facts: Facts) -> Estimate:
    """Output tokens per second / accelerators (section 5.2.4.2)."""
    count = facts.value("sut.hardware.accelerator_count")
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        why = "no accelerator" if count == 0 else "the number of accelerators is not declared"
        return Estimate.undefined(unit="tok/s", method=f"{NOT_MEASURABLE}: {why}")
    ends = (throughput.point, throughput.lower, throughput.upper)
    point, lower, upper = (None if end is None else end / count for end in ends)
    method = f"{throughput.method}; divided by {count} accelerators"
    return replace(throughput, point=point, lower=lower, upper=upper, method=method)


def _load(parameters: Parameters, setting: Setting, searched: Searched) -> Mapping[str, Any]:
    name = "load.rate_range" if searched.load_model == "open" else "load.concurrency_range"
    limits = {"ttft_p99_ms": parameters.ttft_p99_ms, "tpot_p99_ms": parameters.tpot_p99_ms}
    stated = {key: limit for key, limit in limits.items() if limit is not None}
    return {
        "load.model": searched.load_model,
        name: searched.range.as_list(),
        "load.duration_s": REPORTED_S.at(setting.scale, parameters.duration_s),
    } | ({"load.slo": stated} if stated else {})


def _raw(reported: Held) -> Facts:
    """Output tokens per second over the whole duration, ramp-up included, beside the figure of the window."""
    runs = [seen.observation for seen in reported.runs]
    if not runs:
        return Facts()
    whole = [Window(run.records, run.started_ns, window_of(run).end_ns) for run in runs]
    raw = output_token_throughput(whole, seed=0).point
    return Facts.of(Origin.MEASURED, {"throughput.raw_output_tok_s": raw})


procedure = framed(HEADING, measure)


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The search at its worst, and the reported levels at the highest load they may have."""
    sequence, bounds = Sequence(setting.workload), parameters.bounds
    found = search_plans(
        setting,
        sequence,
        bounds=bounds,
        load_model=parameters.model,
        constrained=bool(parameters.limits),
        duration_s=parameters.probe_s,
    )
    duration_s = REPORTED_S.at(setting.scale, parameters.duration_s)
    runs = max(setting.least_runs, 1 if setting.scale == "quick" else (parameters.runs or 1))
    highest = UNKNOWN_RPS if bounds is None else bounds.maximum
    for _ in range(runs * (2 if parameters.limits else 1)):
        if parameters.model == "open":
            found += (sequence.open_loop(setting, "reported", OpenLoop(highest), duration_s),)
        else:
            n = int(highest)
            found += (sequence.closed_loop(setting, "reported", n, duration_s=duration_s, at_least=n),)
    return found


TEST = TestDefinition(HEADING.test, HEADING.section, HEADING.title, Parameters, procedure, plans)

__all__ = ["HEADING", "TEST", "Parameters", "measure", "plans", "procedure"]
