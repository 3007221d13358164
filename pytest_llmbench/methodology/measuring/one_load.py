"""Tests with one load of the author's choice: the procedure, how many requests in how many runs; and the
metrics of each part of a mixture, beside those of all requests together.

``ttft[chat].p99`` is of the requests of part ``chat`` alone, under the load of the whole mixture. Limits may
name it, as any other metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_llmbench.methodology.measuring.adaptive import (
    AS_MEASURED,
    GATE_REQUESTS,
    MOST_REQUESTS,
    AdaptiveParameters,
    AsJudged,
    as_judged,
    bounded,
    looks_of,
)
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.job_figures import (
    equal_lengths,
    figures,
    first_wave,
    is_decided,
    with_first_wave,
)
from pytest_llmbench.methodology.measuring.load_plans import part_of, with_lengths
from pytest_llmbench.methodology.measuring.manifest import bare_result
from pytest_llmbench.methodology.measuring.offered import offered_rate
from pytest_llmbench.methodology.measuring.over_time import over_time_of_runs
from pytest_llmbench.methodology.measuring.replies import as_believed
from pytest_llmbench.methodology.measuring.warmup import warm_up
from pytest_llmbench.methodology.parameters import AUTO_RUNS, TestParameters
from pytest_llmbench.methodology.patience import with_raised_deadlines
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.remeasured import disturbed, measured_again, void_load
from pytest_llmbench.methodology.uncertainty import limits_at_stake, with_uncertainty
from pytest_llmbench.metrics.input_lengths import LABELS
from pytest_llmbench.metrics.latency import distribution_of
from pytest_llmbench.metrics.overload import as_overloaded, overload, with_slots
from pytest_llmbench.metrics.throughput import (
    Window,
    input_token_throughput,
    load_end_ns,
    output_token_throughput,
    rates,
    request_throughput,
)
from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.estimate import ByRun, Estimate
from pytest_llmbench.model.facts import SUTFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Cell, cells
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import JUDGED, LoadPlan, Quantity
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import Plot, Table, TestResult, VoidLoad, WarmupReport
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.batching import as_lasting
from pytest_llmbench.workloads.stream import streamed

if TYPE_CHECKING:
    from pytest_llmbench.model.plan import Stage

FULL_REQUESTS = SAMPLES_REQUIRED["p99_9"]
"""The draft's minimum of requests for P99.9, which a compliant run always reports (AMB-01)."""
OVERSENT_REQUESTS = math.ceil(FULL_REQUESTS / 0.99)
"""How many requests are sent so that 10,000 samples are left with 1 % of failures, the usual budget."""
QUICK_REQUESTS = 50
FEWEST_FAILURES = 20
"""The failures that a load may always have before it ends, whatever its error budget."""

Before = tuple[LoadPlan, Observation] | None
"""The load before, with its observation; None if there is none."""
Result = Callable[[Any, Setting, WarmupReport, Sequence[Observation]], TestResult]


def one_load_procedure(
    result: Result, *, by_class: bool = True
) -> Callable[[Any, Setting], Procedure[TestResult]]:
    """The test's procedure: warm-up, the runs, then ``result`` of the observations; Ctrl-C ends it there.
    ``by_class``: add the usual metrics of the parts of a mixture, which are about tokens.

    A run that this machine spoiled is measured again with the next requests of the sequence.
    """

    def procedure(parameters: AdaptiveParameters, setting: Setting) -> Procedure[TestResult]:
        load = parameters.load
        warmup = yield from warm_up(setting, concurrency=load.in_flight)
        setting = _listed(parameters, setting)
        count = request_count(parameters, setting)

        def plan_of(run: int, attempt: int, before: Before) -> LoadPlan:
            first = run * count if before is None else max(_next(*before), run * count)
            return _plan(parameters, setting, run, first, attempt)

        runs, attempts = run_count(parameters, setting), 1 + setting.remeasure
        may_be_cached = setting.facts.value(SUTFact.PREFIX_CACHING) != "disabled"
        if load.is_trace and may_be_cached and not streamed(setting.workload).draws_anew:
            attempts = 1  # it begins anew, and a cache may have kept its prompts, which no seed changes

        def is_enough(seen: Sequence[Observation]) -> bool:
            found = result(parameters, setting, warmup, seen)
            return is_decided(found.objectives, found.metrics)

        stake = limits_at_stake(parameters.objectives, parameters.limits_ms)
        one_may_do = is_enough if may_be_one(parameters, setting) else None
        seen, void = yield from measured_runs(runs, attempts, plan_of, one_may_do, stake)
        made = result(parameters, setting, warmup, seen)
        if by_class:
            made = with_classes(made, parameters, setting)
        if parameters.beside is not None:
            # Imported here: few tests have adapters that come and go.
            from pytest_llmbench.methodology.measuring.adapter_calls import with_adapter_calls

            made = with_adapter_calls(made, parameters.beside, is_job=parameters.is_job)
        found = (*first_wave(parameters), *equal_lengths(parameters, seen))
        made = replace(made, findings=(*made.findings, *found))
        made = with_first_wave(made, load.in_flight, is_job=parameters.is_job)
        return with_void(made if parameters.is_job else _by_load(made, parameters.limits_ms), void)

    return with_raised_deadlines(as_believed(procedure))


def measured_runs(
    runs: int,
    attempts: int,
    plan_of: Callable[[int, int, Before], LoadPlan],
    one_may_do: Callable[[Sequence[Observation]], bool] | None = None,
    at_stake: Sequence[Objective] = (),
) -> Procedure[tuple[list[Observation], list[VoidLoad]]]:
    """The runs of a load, each measured again while this machine spoils it, and the loads that were void.

    ``plan_of(run, attempt, before)``: ``before`` is the load before it, if any. ``one_may_do``: whether the
    first run is enough, or the first five; None: all are measured. ``at_stake``: see
    :class:`Observation`. Ctrl-C ends it, and a load that is declined.
    """
    seen: list[Observation] = []
    void: list[VoidLoad] = []
    before: Before = None
    for run in range(runs):
        for attempt in range(1, attempts + 1):
            plan = plan_of(run, attempt, before).with_(attempt=attempt)
            observation = replace((yield plan), at_stake=tuple(at_stake))
            if observation.declined is not None:
                return seen, void
            before = plan, observation
            if not disturbed(observation):
                break
            void.append(void_load(observation, plan.label))
        if disturbed(observation):
            del void[-1]  # there is no other: it counts, and voids the test
        seen.append(observation)
        if observation.interrupted is not None:
            break
        if one_may_do is not None and run + 1 in (1, AUTO_RUNS) and one_may_do(seen):
            break
    return seen, void


def _by_load(made: TestResult, limits_ms: Sequence[tuple[Quantity, float]]) -> TestResult:
    """The result of an open loop with how much more was offered than served, where it was; else without the
    ends that so busy a server does not allow. ``limits_ms``: the limits that decide which requests
    are good."""
    rates_of_runs = {offered_rate(run) for run in made.observations}
    rate = rates_of_runs.pop() if len(rates_of_runs) == 1 else None
    if rate is None:
        return made
    good_by = [quantity for quantity, _ in limits_ms]
    runs = [*map(with_slots, made.observations)]
    found = overload(runs, rate, good_by)
    if found is None:
        lasting = as_lasting(made.metrics, runs, rate, limits_ms)
        # The ends of looks are these already.
        if any(run.plan.looks is not None for run in made.observations):
            lasting |= {name: each for name, each in made.metrics.items() if JUDGED in name}
        return made.with_metrics(lasting)
    seen = "overload" if found.wait_growth else "overload.ahead"
    warning = Finding.of(seen, value=found.served_rps, limit=rate)
    metrics = as_overloaded(made.metrics, found)
    return replace(made.with_metrics(metrics), overload=found, findings=(*made.findings, warning))


def with_void(made: TestResult, void: Sequence[VoidLoad]) -> TestResult:
    """The result with notes on the loads that were measured again, and the uncertainty of its metrics."""
    notes = (*made.notes, *map(measured_again, void))
    return with_uncertainty(replace(made, void_loads=tuple(void), notes=notes))


def one_load_plans(parameters: AdaptiveParameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """One plan per run. The runs share one sequence of requests and one schedule, each taking up where the
    one before it ended: no prompt is sent twice, and no two runs have the same arrivals. Where lengths are
    ``repeated``, each run has the same ones and the same arrivals, with words of its own."""
    setting = _listed(parameters, setting)
    count, runs = request_count(parameters, setting), run_count(parameters, setting)
    return tuple(_plan(parameters, setting, run, run * count) for run in range(runs))


def run_count(parameters: TestParameters, setting: Setting) -> int:
    """How often the load is measured, at most."""
    if setting.most_runs is not None:
        return setting.most_runs
    return max(setting.least_runs, 1 if setting.scale == "quick" else parameters.run_count)


def _are_as_needed(parameters: TestParameters, setting: Setting) -> bool:
    """Whether it is not known beforehand how many runs there will be."""
    as_needed = parameters.runs_as_needed and setting.least_runs == 1
    return setting.most_runs is not None or (as_needed and run_count(parameters, setting) > 1)


def may_be_one(parameters: TestParameters, setting: Setting) -> bool:
    """Whether one run does if it decides the limits; not where runs are compared."""
    return parameters.is_job and setting.least_runs == 1 and _are_as_needed(parameters, setting)


def _plan(
    parameters: AdaptiveParameters, setting: Setting, run: int, first: int, attempt: int = 1
) -> LoadPlan:
    runs, listed = run_count(parameters, setting), streamed(setting.workload).lengths_seed
    if listed is not None:  # a run that is measured again has its lengths again, with other words
        first = 0 if setting.lengths == "repeated" else run * request_count(parameters, setting)
    if parameters.stages:  # each run begins with the first of them
        first = 0
    # The part is the same for all runs, as each goes on where the one before it ended. A trace cannot go on,
    # so it is drawn anew for each attempt; and so are the words of a list of lengths, for each run too that
    # has the same ones.
    asked = _asked(parameters, setting)
    if listed is not None or parameters.stages:
        again = {"attempt": attempt} if attempt > 1 else {}
        asked |= again | ({"run": run} if setting.lengths == "repeated" else {})
    elif parameters.load.is_trace:
        asked |= {"attempt": attempt}
    part = part_of(setting, setting.workload, "load", **asked)
    most = "at most " if _are_as_needed(parameters, setting) else ""
    label = "measure" if runs == 1 else f"run {run + 1} of {most}{runs}"
    count = request_count(parameters, setting)
    plan = part.plan(
        setting, label, parameters.load, count, lengths_seed=listed, first=first, beside=parameters.beside
    )
    if _may_end_early(parameters, setting):
        return bounded(parameters, plan)
    # Of all runs: what the error budget allows, and enough to see what fails and how often.
    allowed = math.floor(parameters.max_error_share * plan.requests * runs + 1e-9)
    return plan.with_(most_failures=max(FEWEST_FAILURES, allowed))


def _listed(parameters: AdaptiveParameters, setting: Setting) -> Setting:
    """The setting whose workload has its list of lengths; every run of a job has the same. A trace has its
    own."""
    if parameters.load.is_trace:
        return setting
    if parameters.is_job:
        setting = replace(setting, lengths="repeated")
    return with_lengths(setting, "load", **_asked(parameters, setting))


def _asked(parameters: AdaptiveParameters, setting: Setting) -> dict[str, Any]:
    """What decides the load, as the author asked for it."""
    load, looks = parameters.load, looks_of(parameters)
    asked: dict[str, Any] = {"load": load.terms(), "requests": request_count(parameters, setting)}
    if load.is_trace:
        asked |= {"load": "trace"}
    if parameters.beside is not None:
        asked |= {"beside": asdict(parameters.beside)}
    if looks is not None and _may_end_early(parameters, setting):
        asked |= {"looks": asdict(looks), "max_seconds": parameters.max_seconds}
    return asked


def _may_end_early(parameters: AdaptiveParameters, setting: Setting) -> bool:
    """Whether looks may end the load. Not a smoke run, which is over before the first look; not at full
    scale, where the draft wants its numbers whatever the limits say; not several runs, which have to be
    alike."""
    return parameters.is_auto and run_count(parameters, setting) == 1 and setting.scale == "standard"


def _next(plan: LoadPlan, seen: Observation) -> int:
    """Index of the first request that has not been sent; for a trace that of its first one."""
    if plan.load.is_trace:
        return plan.first
    last = int(seen.records.index.max()) if len(seen.records) else plan.first - 1
    return max(last + 1, plan.first + (plan.requests if plan.looks is None else 0))


def request_count(parameters: AdaptiveParameters, setting: Setting) -> int:
    load = parameters.load
    if load.is_trace:
        asked = parameters.count or len(load.offsets_ns)
        return min(asked, QUICK_REQUESTS) if setting.scale == "quick" else asked
    asked = parameters.count or GATE_REQUESTS
    if parameters.stages:  # no scale makes it longer: where it ends is its shape
        asked = parameters.most_requests or GATE_REQUESTS
        return min(asked, QUICK_REQUESTS) if setting.scale == "quick" else asked
    if parameters.is_auto:
        asked = parameters.max_requests or MOST_REQUESTS
    if setting.scale == "quick":
        return min(asked, QUICK_REQUESTS)
    return max(asked, OVERSENT_REQUESTS) if setting.scale == "full" and not parameters.fixed_count else asked


def intended(
    parameters: AdaptiveParameters, setting: Setting, seen: Sequence[Observation]
) -> tuple[LoadPlan, ...]:
    """The plans that were to be sent; those that were, as they were. A load that ended early counts as
    planned like that, and further runs that were not needed were not to be sent."""
    sent = [run.plan if run.plan.looks is None else run.plan.with_(requests=len(run.records)) for run in seen]
    if sent and _are_as_needed(parameters, setting):
        return tuple(sent)
    return (*sent, *one_load_plans(parameters, setting)[len(sent) :])


_FAMILIES = ("ttft", "tpot", "e2e")
_SERVED = {
    "output_token_throughput": output_token_throughput,
    "input_token_throughput": input_token_throughput,
    "request_throughput": request_throughput,
}
_COLUMNS = (
    ("TTFT P50", "ttft", "p50"),
    ("TTFT P99", "ttft", "p99"),
    ("TPOT P50", "tpot", "p50"),
    ("E2E P99", "e2e", "p99"),
)


class Told(NamedTuple):
    """What a test with one load makes of its runs."""

    metrics: Mapping[str, Estimate]
    by_run: ByRun
    tables: Iterable[Table]
    plots: Sequence[Plot] = ()
    notes: Sequence[Note] = ()
    findings: Sequence[Finding] = ()


def one_load_result(
    heading: Heading,
    parameters: Any,
    setting: Setting,
    warmup: WarmupReport,
    seen: Sequence[Observation],
    told: Told,
    *,
    judged: AsJudged = AS_MEASURED,
    plans: Sequence[LoadPlan] | None = None,
) -> TestResult:
    """The result of a test with one load: what it makes of it, and what follows from its observations.
    ``plans``: those that were to be sent; None: :func:`intended`."""
    plans = intended(parameters, setting, seen) if plans is None else plans
    return replace(
        bare_result(heading, parameters, setting, warmup, seen, plans, judged.facts),
        metrics={**told.metrics, **judged.metrics},
        tables=tuple(told.tables),
        plots=(*told.plots, *over_time_of_runs(seen)),
        notes=(*judged.notes, *told.notes),
        findings=tuple(told.findings),
        by_run=told.by_run,
    )


def one_load(heading: Heading) -> Callable[[Callable[[Any, Setting, Sequence[Observation]], Told]], Result]:
    """Make the result of a test with one load of what it makes of its runs."""

    def of(tell: Callable[[Any, Setting, Sequence[Observation]], Told]) -> Result:
        def result(
            parameters: Any, setting: Setting, warmup: WarmupReport, seen: Sequence[Observation]
        ) -> TestResult:
            told, judged = tell(parameters, setting, seen), as_judged(parameters, seen)
            return one_load_result(heading, parameters, setting, warmup, seen, told, judged=judged)

        return result

    return of


def one_load_test(heading: Heading, parameters: type[AdaptiveParameters], result: Result) -> TestDefinition:
    procedure = one_load_procedure(result)
    return TestDefinition(*heading, parameters, procedure, one_load_plans, result=result)


def with_classes(result: TestResult, parameters: AdaptiveParameters, setting: Setting) -> TestResult:
    """The result with the metrics and the table of the parts of its workload; unchanged if it has no
    parts."""
    stages = {stage.name: StagePart(stage) for stage in parameters.stages}
    divisions: dict[str, Parts] = {
        "Class": {label: partial(_of_class, label) for label in class_labels(setting.workload)},
        "Stage": stages,
    }
    for title, parts in divisions.items():
        if not parts or not result.observations:
            continue
        seen = result.observations
        metrics, runs = figures(parameters, setting, seen, partial(_metrics, parts=parts, seed=setting.seed))
        table = _table(title, metrics, result.metrics, parts, seen)
        result = replace(
            result,
            metrics={**result.metrics, **metrics},
            tables=(*result.tables, table),
            by_run={**result.by_run, **runs},
        )
    return result


Parts = Mapping[str, Callable[[Observation], Observation]]
"""Name of a part → a run as that part of it."""


@dataclass(frozen=True)
class StagePart:
    """The requests of a run that are due in a stage."""

    stage: Stage

    def __call__(self, run: Observation) -> Observation:
        begun_ns, over_ns = self.bounds_ns(run)
        due_ns = run.records.scheduled_ns
        return replace(run, records=run.records.select((due_ns >= begun_ns) & (due_ns < over_ns)))

    def bounds_ns(self, run: Observation) -> tuple[int, int]:
        """Begin and end of the stage."""
        end_s = self.stage.end_s
        over_ns = load_end_ns(run) + 1 if end_s is None else run.started_ns + round(end_s * 1e9)
        return run.started_ns + round(self.stage.at_s * 1e9), over_ns


def class_labels(workload: Workload) -> tuple[str, ...]:
    """The labels of the parts that the workload states, whether a request had them or not; without labels
    that are the name of a range of lengths, whose metrics have these names already."""
    stated = workload.specification()
    parts = stated.get("parts") or stated.get("classes") or ()
    names = (str(part["name"]) for part in parts if isinstance(part, Mapping) and "name" in part)
    return tuple(name for name in names if name not in LABELS)


def _metrics(seen: Sequence[Observation], parts: Parts, seed: int) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {}
    every = [run.records for run in seen]
    for label, part in parts.items():
        own = [part(run) for run in seen]
        for family in _FAMILIES:
            records = [run.records for run in own]
            found |= distribution_of(family, records, among=every, name=f"{family}[{label}]")
        # Those that have a qualifier (the reasons of schema violations) are given of all requests alone.
        own_rates = {name: value for name, value in rates(own, seed=seed).items() if "[" not in name}
        if isinstance(
            part, StagePart
        ):  # what was served meanwhile is of all requests, whenever they were due
            windows = [Window(run, *part.bounds_ns(one)) for run, one in zip(every, seen, strict=True)]
            own_rates |= {name: served(windows, seed=seed) for name, served in _SERVED.items()}
        found |= {f"{name}[{label}]": value for name, value in own_rates.items()}
    return found


def _of_class(label: str, run: Observation) -> Observation:
    return replace(run, records=run.records.of_class(label))


def _table(
    title: str,
    metrics: Mapping[str, Estimate],
    together: Mapping[str, Estimate],
    parts: Parts,
    seen: Sequence[Observation],
) -> Table:
    def row(
        label: str, runs: Iterable[Observation], own: Mapping[str, Estimate], of: str
    ) -> tuple[Cell, ...]:
        tails = (f"{family}{of}.{statistic}" for _, family, statistic in _COLUMNS)
        names = (f"completion_rate{of}", *tails, f"output_token_throughput{of}")
        return label, sum(len(run.records) for run in runs), *cells(own, names)

    rows = [row(label, map(part, seen), metrics, f"[{label}]") for label, part in parts.items()]
    titles = (title, "Requests", "Completed", *(title for title, _, _ in _COLUMNS), "Output")
    return Table(f"by_{title.lower()}", f"By {title}", titles, (*rows, row("all", seen, together, "")))
