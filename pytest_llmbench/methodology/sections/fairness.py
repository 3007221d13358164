"""Scheduling Fairness, section 5.6 of the draft.

Objective: how evenly resources go to concurrent requests of different kinds; head-of-line blocking,
starvation, priority effects. Procedure: find the saturation rate of the mix of classes; measure each class
alone at the same total load (AMB-08); then the mix, at a percentage of the saturation rate, until every class
has its requests; compare the classes with their own baselines and all requests with each other.

The classes may be of sessions, short chats beside long agents: each alone with as many sessions at once as
the mix, then the mix. The draft knows requests alone, so clauses about these are not met then.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import (
    FAMILIES,
    Seen,
    level_of,
    live_answers,
    saturated_notes,
    too_long,
)
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.measuring.session_fairness import (
    ONE_CLASS,
    SESSIONS_PER_CLASS,
    ComparedClass,
    Fairness,
    SessionClasses,
    fairness_of_sessions,
)
from pytest_llmbench.methodology.measuring.warmup import warm_up
from pytest_llmbench.methodology.parameters import DEFAULT_CONCURRENCY, TestParameters, limit, parameter
from pytest_llmbench.methodology.procedure import (
    LEVEL_S,
    REPORTED_S,
    ByScale,
    Procedure,
    Setting,
    TestDefinition,
    by_load,
    no_needs,
    one_warmup,
)
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.methodology.search.search import SaturationRate, saturation_rate
from pytest_llmbench.metrics import fairness, latency
from pytest_llmbench.metrics.throughput import RAMP_UP_SHARE, completion_rate
from pytest_llmbench.model.draft import CLASS_REQUESTS, UNFAIR_BELOW
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, LoadFact, Origin, ResultFact, WorkloadFact
from pytest_llmbench.model.numbers import Amount, Cell, Figure, Row, cells, percent_label
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import Table, TestResult, WarmupReport, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.workloads.catalogue import workload as find_workload
from pytest_llmbench.workloads.mixture import LONG, SHORT, ClassMix, RequestClass, SessionMix
from pytest_llmbench.workloads.sequence import drawn
from pytest_llmbench.workloads.synthetic import SYNTHETIC_SKEWED, SyntheticWorkload

HEADING = Heading("fairness", "5.6", "Scheduling Fairness")
LOAD_PERCENT = 80.0
REQUESTS_PER_CLASS = ByScale(quick=10, standard=CLASS_REQUESTS, full=CLASS_REQUESTS)
RULES = {
    "tokens": "equal offered tokens per second: the rate of the mix times its mean tokens per request (input "
    "and requested output) over those of the class (AMB-08)",
    "requests": "equal request rate: each class alone at the request rate of the mix",
}


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """A mix of request classes against each class alone at equal load. With a mix of workloads of sessions,
    classes of sessions."""

    takes_adapters = False
    for_sessions = ("sessions", "sessions_per_class")
    any_of_sessions = "a mix of workloads of sessions"
    for_requests = dict.fromkeys(
        ("classes", "capacity_rps", "requests_per_class", "duration_s", "load_percent", "equal_load"),
        "give sessions (how many at once) and sessions_per_class",
    )

    workload: str | Workload = parameter(
        "workload",
        SYNTHETIC_SKEWED.name,
        doc='``synthetic-skewed``, a synthetic workload, a ``ClassMix``; or sessions, ``{"chat": '
        '("session:chat", 0.8), "agent": ({"sessions": {…}}, 0.2)}``.',
    )
    classes: Sequence[RequestClass] | None = parameter(
        "classes", doc="request classes; default: the draft's short and long requests, mixed 80 to 20."
    )
    load_percent: float = parameter(
        "positive",
        LOAD_PERCENT,
        doc="load in percent of the saturation rate of the mix; the draft advises 70 to 90.",
    )
    capacity_rps: float | None = parameter(
        "positive", doc="known saturation rate of the mix in requests per second; it replaces the search."
    )
    requests_per_class: int | None = parameter(
        "count",
        doc="fewest requests of a class, in the mix and alone; the rarest class determines the length of "
        "the load.",
        scale=REQUESTS_PER_CLASS,
    )
    duration_s: float | None = parameter("positive", doc="shortest duration of the mix.", scale=REPORTED_S)
    equal_load: Literal["tokens", "requests"] = parameter(
        "choice",
        "tokens",
        doc="what a class sends alone at the same rate as the mix: ``tokens`` per second, or ``requests`` "
        "per second.",
    )
    min_jain: float | None = limit("jain_index", "share")
    min_class_jain: float | None = limit("class_jain_index", "share")
    max_starvation: float | Mapping[str, float] | None = limit(
        "starvation_rate[{}]",
        "share_by_class",
        doc="largest share of starved requests, for all classes or by class.",
    )
    max_inflation: float | Mapping[str, float] | None = limit(
        "ttft_inflation[{}].p50",
        "positive_by_class",
        doc="largest ratio of the median TTFT, mix over alone; for all classes or by class.",
    )
    ttft_p99_ms: float | Mapping[str, float] | None = limit(
        "ttft[{}].p99", "positive_by_class", doc="limit on TTFT P99 in the mix, for all classes or by class."
    )

    sessions: int | None = parameter(
        "count", doc="with sessions: sessions at once, in the mix and for each class alone; default 8."
    )
    sessions_per_class: int | None = parameter(
        "count",
        doc="with sessions: fewest sessions of a class, in the mix and alone.",
        scale=SESSIONS_PER_CLASS,
    )

    @property
    def class_names(self) -> tuple[str, ...]:
        own = find_workload(self.workload)
        if isinstance(own, SessionMix):
            return tuple(part.name for part in own.parts)
        if self.has_sessions:
            return (own.name,)
        given = own.classes if isinstance(own, ClassMix) else (SHORT, LONG)
        return tuple(each.name for each in self.classes or given)

    def contradictions(self) -> list[str]:
        found, own = [], find_workload(self.workload)
        if self.has_sessions:
            found = [] if isinstance(own, SessionMix) else [ONE_CLASS]
            found += live_answers(own, "a class alone and in the mix")
        elif isinstance(own, ClassMix):
            found += [] if self.classes is None else ["classes are given twice: by workload and by classes"]
            if len(own.classes) < 2:
                found.append("workload has one class: fairness needs at least two")
        elif self.workload != SYNTHETIC_SKEWED.name and not isinstance(self.workload, SyntheticWorkload):
            # Classes are cut out of one law of lengths, so a mixture of workloads has none of them.
            got = self.workload if isinstance(self.workload, str) else self.workload.name
            found.append(
                f"workload must be {SYNTHETIC_SKEWED.name!r} (section 5.6.2 requires it), a synthetic "
                f"workload of your own or a ClassMix, got {got!r}; or a mix of workloads of sessions"
            )
        for name in ("max_starvation", "max_inflation", "ttft_p99_ms"):
            limits = getattr(self, name)
            given = limits if isinstance(limits, Mapping) else ()
            unknown = [key for key in given if key not in self.class_names]
            if unknown:
                found.append(f"{name} limits {unknown}; the classes are {', '.join(self.class_names)}")
        return found

    @property
    def qualifiers(self) -> Sequence[str]:
        return self.class_names


def measure(parameters: Parameters, setting: Setting, _: WarmupReport) -> Procedure[TestResult]:
    mix = mix_of(parameters, setting)
    setting = replace(setting, workload=mix)
    warmup = yield from warm_up(setting)
    capacity = yield from saturation_rate(setting, RequestSlice(mix), parameters.capacity_rps)
    if capacity.rps is None:
        return _without_rate(parameters, setting, warmup, capacity)
    load = MixLoads(parameters, setting, mix, capacity)
    alone: dict[str, Seen] = {}
    for each in mix.classes:
        see = partial(
            level_of, label=f"{each.name} alone", seed=setting.seed, role="baseline", class_label=each.name
        )
        alone[each.name] = yield from load.level(partial(load.alone, each.name), see)
    see = partial(
        level_of,
        label="mix",
        reference=capacity.reference,
        seed=setting.seed,
        role="mix",
        percent_of_capacity=parameters.load_percent,
    )
    mixed = yield from load.level(load.mixed, see)
    results = fairness_results(mix, mixed, alone, setting.seed)
    return _result(parameters, setting, warmup, load, results)


def measure_sessions(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    report = yield from fairness_of_sessions(_session_classes(parameters, setting))
    report = replace(report, notes=(*report.notes, *_unfair(report.metrics["jain_index"])))
    return result_of(HEADING, parameters, setting, warmup, report)


def _session_classes(parameters: Parameters, setting: Setting) -> SessionClasses:
    mix, at_once = setting.workload, parameters.sessions or DEFAULT_CONCURRENCY
    assert isinstance(mix, SessionMix)
    return SessionClasses(setting, mix, at_once, parameters.sessions_per_class)


def _unfair(jain: Estimate) -> list[Note]:
    if jain.point is None or jain.point >= UNFAIR_BELOW:
        return []
    return [Note.of("unfair", index=jain.point, limit=UNFAIR_BELOW)]


def mix_of(parameters: Parameters, setting: Setting) -> ClassMix:
    """The mix of the test: Synthetic-Skewed, conditional on the classes (section 5.6.2, AMB-07)."""
    if isinstance(setting.workload, ClassMix):
        return setting.workload
    base = setting.workload if isinstance(setting.workload, SyntheticWorkload) else SYNTHETIC_SKEWED
    return ClassMix(tuple(parameters.classes or (SHORT, LONG)), base)


@dataclass
class MixLoads:
    """The loads of the test."""

    parameters: Parameters
    setting: Setting
    mix: ClassMix
    capacity: SaturationRate
    disturbed: list[Seen] = field(default_factory=list)
    """Runs that the generator spoiled, so that they were repeated."""
    notes: list[Note] = field(default_factory=list)
    sequences: dict[str, RequestSlice] = field(default_factory=dict)
    """Label of a load → its sequence."""

    @property
    def rate(self) -> float:
        return self.capacity.percent(self.parameters.load_percent)

    def rate_alone(self, name: str) -> float:
        """The rate at which a class is sent alone, by the rule of equal load (AMB-08)."""
        if self.parameters.equal_load == "requests":
            return self.rate
        return float(f"{self.rate * self.mix.mean_tokens() / self.mix.mean_tokens(name):.4g}")

    def alone(self, name: str) -> LoadPlan:
        workload = self.mix.isolated(name)
        return self._plan(f"{name} alone", workload, self.rate_alone(name), self.alone_s)

    def mixed(self) -> LoadPlan:
        return self._plan("mix of classes", self.mix, self.rate, self.mixed_s)

    @property
    def alone_s(self) -> float:
        """Shortest duration of a class alone, in seconds."""
        return min(LEVEL_S.at(self.setting.scale), self.mixed_s)

    @property
    def mixed_s(self) -> float:
        """Shortest duration of the mix, in seconds."""
        return REPORTED_S.at(self.setting.scale, self.parameters.duration_s)

    def level(self, plan: Callable[[], LoadPlan], see: Callable[[Observation], Seen]) -> Procedure[Seen]:
        def sent(run: Observation) -> Seen:
            return see(self.sequences[run.plan.label].sent(run))

        attempts = yield from attempted(plan, sent, self.setting.remeasure, needed=True)
        self.disturbed += attempts.runs[:-1]
        self.notes += attempts.notes
        return attempts.level

    def _plan(self, label: str, workload: ClassMix, rate: float, least_s: float) -> LoadPlan:
        sequence = self._sequence(label, workload)
        floor = REQUESTS_PER_CLASS.count(self.setting.scale, self.parameters.requests_per_class)
        load = OpenLoop(rate)
        count = requests_for(workload, sequence.seed(self.setting), sequence.first, floor)
        seconds = sequence.seconds_for(self.setting, load, count, least_s)
        return sequence.open_loop(self.setting, label, load, seconds)

    def _sequence(self, label: str, workload: ClassMix) -> RequestSlice:
        if label not in self.sequences:
            names = ("load_percent", "capacity_rps", "requests_per_class", "duration_s", "equal_load")
            asked = {name: getattr(self.parameters, name) for name in names}
            classes = replace(self.capacity.sequence, workload=workload)
            self.sequences[label] = classes.next_part(self.setting, label, **asked)
        return self.sequences[label]


def requests_for(mix: ClassMix, seed: int, first: int, floor: int) -> int:
    """How many requests it takes to have ``floor`` of every class after the ramp-up. Arrivals vary: three
    standard deviations more than a tenth of them may fall into it."""
    rarest = min(each.share for each in mix.classes)
    count = math.ceil(floor / rarest)
    while True:
        ramp_up = RAMP_UP_SHARE * count
        skipped = math.ceil(ramp_up + 3 * math.sqrt(ramp_up))
        behind = drawn(mix, first + skipped, max(count - skipped, 0), seed)
        counted = Counter(request.class_label for request in behind)
        if all(counted[each.name] >= floor for each in mix.classes):
            return count
        count = math.ceil(count * 1.05) + 1


def _result(
    parameters: Parameters,
    setting: Setting,
    warmup: WarmupReport,
    load: MixLoads,
    results: Fairness,
) -> TestResult:
    runs = (*(each.alone_level for each in results.classes), results.mixed)
    report = Report(
        levels=(*load.capacity.levels, *load.disturbed, *runs),
        metrics=results.metrics,
        tables=tables(results),
        plots=results.plots,
        notes=(*load.capacity.notes, *load.notes, *_notes(parameters, load, results)),
        load=_load_facts(parameters, load.capacity, load.rate, results.mixed.level.duration_s),
        facts=Facts.of(Origin.MEASURED, _facts(parameters, load, results)),
        budgeted=runs,
    )
    return result_of(HEADING, parameters, setting, warmup, report)


def _without_rate(
    parameters: Parameters, setting: Setting, warmup: WarmupReport, capacity: SaturationRate
) -> TestResult:
    report = Report(
        levels=capacity.levels,
        metrics={},
        notes=(*capacity.notes, Note.of("no_sustained_load.mix")),
        load=_load_facts(parameters, capacity, None, None),
        budgeted=(),
    )
    return result_of(HEADING, parameters, setting, warmup, report)


def _load_facts(
    parameters: Parameters, capacity: SaturationRate, rate: float | None, duration_s: float | None
) -> dict[str, Any]:
    return {
        **capacity.facts,
        LoadFact.MODEL: "open",
        LoadFact.ARRIVAL: "poisson",
        LoadFact.RATE_RPS: rate,
        LoadFact.LEVELS_PERCENT: [parameters.load_percent],
        LoadFact.DURATION_S: duration_s,
    }


def _facts(parameters: Parameters, load: MixLoads, results: Fairness) -> dict[str, Any]:
    labels = np.array(results.mixed.records.class_label, dtype=object)
    return {
        WorkloadFact.CLASS_MIX: {each.name: each.share for each in load.mix.classes},
        WorkloadFact.REALISED_CLASS_MIX: {
            each.name: float(np.mean(labels == each.name)) if len(labels) else 0.0
            for each in load.mix.classes
        },
        ResultFact.FAIRNESS_EQUAL_LOAD: parameters.equal_load,
        ResultFact.FAIRNESS_LOAD_RULE: RULES[parameters.equal_load],
        ResultFact.FAIRNESS_WAIT_SOURCE: results.wait_source,
        ResultFact.FAIRNESS_JAIN_NORMALISATION: (
            "end-to-end latency / output tokens, completed requests of the mix"
        ),
        ResultFact.FAIRNESS_JAIN_N: results.metrics["jain_index"].n,
        ResultFact.FAIRNESS_CLASSES: [each.facts for each in results.classes],
    }


def _notes(parameters: Parameters, load: MixLoads, results: Fairness) -> tuple[Note, ...]:
    percent, rate = percent_label(parameters.load_percent), Amount(load.capacity.rps, "req/s")
    source, wait = load.capacity.source, results.wait_source
    return (
        Note.of("mix_at", percent=percent, rate=rate, source=source),
        Note.of("classes_alone", rule=RULES[parameters.equal_load]),
        Note.of("starved", wait=wait, by_ttft=wait == "TTFT"),
        *_unfair(results.metrics["jain_index"]),
        *saturated_notes([*(each.alone_level for each in results.classes), results.mixed]),
    )


def _plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The plans: each class alone, then the mix; without ``capacity_rps`` rates and times follow from a
    search."""
    mix = mix_of(parameters, setting)
    sequence = RequestSlice(mix)
    found: list[LoadPlan] = []
    if parameters.capacity_rps is not None:
        load = MixLoads(parameters, setting, mix, SaturationRate(parameters.capacity_rps, "", sequence))
        for each in mix.classes:
            found.append(load.alone(each.name))
            sequence.first += found[-1].requests
        return (*found, load.mixed())
    floor = REQUESTS_PER_CLASS.count(setting.scale, parameters.requests_per_class)
    for label, workload in (
        *((f"{each.name} alone", mix.isolated(each.name)) for each in mix.classes),
        ("mix of classes", mix),
    ):
        count = requests_for(workload, setting.seed, sequence.first, floor)
        one = replace(sequence, workload=workload)
        found.append(one.closed_loop(setting, label, 1, duration_s=None, at_least=count))
        sequence.first += count
    return tuple(found)


def fairness_results(mix: ClassMix, mixed: Seen, alone: Mapping[str, Seen], seed: int) -> Fairness:
    """The results that section 5.6.4 asks for, from the mix and the baselines."""
    inside = mixed.inside
    waits = fairness.waits([inside])
    classes = [
        _class_result(each, inside, alone[each.name], waits.by_class.get(each.name, []))
        for each in mix.classes
    ]
    plot = ("fairness_ttft_cdf", "TTFT by class, in the mix and alone", "TTFT (ms)", "share of requests")
    jain = fairness.jain_index([inside])
    return Fairness.of(mixed, classes, waits.source, jain, latency.ttft_ms, plot, seed)


def _class_result(
    requested: RequestClass, inside: Records, alone: Seen, waits: list[FloatArray]
) -> ComparedClass:
    own, baseline = inside.of_class(requested.name), alone.inside
    metrics = _latencies(own)
    metrics["starvation_rate"] = fairness.starvation_rate(waits)
    metrics |= fairness.inflation(latency.ttft_ms(own), latency.ttft_ms(baseline))
    points = {name: estimate.point for name, estimate in metrics.items()}
    every = np.concatenate(waits) if waits else np.empty(0)
    facts = {
        "name": requested.name,
        "input": list(requested.input),
        "output": list(requested.output),
        "share": requested.share,
        "requests": len(own),
        "requests_ok": int(own.ok.sum()),
        "requests_alone": len(baseline),
        "rate_alone_rps": alone.level.offered_rps,
        "ttft": {q: points[f"ttft.{q}"] for q in ("p50", "p95", "p99")},
        "tpot": {q: points[f"tpot.{q}"] for q in ("p50", "p99")},
        "inflation": {q: points[f"ttft_inflation.{q}"] for q in fairness.TAILS},
        "starvation_rate": points["starvation_rate"],
        # Five times of it is what nobody should wait longer than.
        "median_wait_ms": float(np.median(every)) if len(every) else None,
    }
    return ComparedClass(requested.name, own, alone, metrics, _latencies(baseline), facts)


def _latencies(records: Records) -> dict[str, Estimate]:
    return latency.distributions(FAMILIES, [records]) | {"completion_rate": completion_rate([records])}


_SHOWN = ("ttft.p50", "ttft.p95", "ttft.p99", "tpot.p50", "tpot.p99")


def tables(results: Fairness) -> tuple[Table, ...]:
    """The tables: per class, the fairness metrics, and the baselines that they rest on."""
    return classes_table(results), metrics_table(results), baselines_table(results)


def classes_table(results: Fairness) -> Table:
    columns = (
        "Class", "Count", "TTFT P50", "TTFT P95", "TTFT P99", "TPOT P50", "TPOT P99",
        "TTFT Inflation P50", "P95", "P99", "Completion",
    )  # fmt: skip
    names = (*_SHOWN, *(f"ttft_inflation.{q}" for q in ("p50", "p95", "p99")), "completion_rate")
    rows: tuple[Row, ...] = tuple(
        (each.title, len(each.mixed), *cells(each.metrics, names)) for each in results.classes
    )
    return Table("fairness_classes", "Per-Class Results", columns, rows)


def metrics_table(results: Fairness) -> Table:
    """Table 9, the rows of the draft first."""

    def of_classes(title: str, name: str) -> list[tuple[str, Cell]]:
        return [(f"{each.title} Class {title}", Figure(name, each.metrics[name])) for each in results.classes]

    jain, by_class = cells(results.metrics, ("jain_index", "class_jain_index"))
    rows = [
        ("Jain's Fairness Index", jain),
        *of_classes("Starvation", "starvation_rate"),
        ("Class-Level Fairness Index", by_class),
        *of_classes("TTFT Inflation P50", "ttft_inflation.p50"),
    ]
    waits = tuple(
        (f"{each.title} Class Median Wait", Amount(wait_ms, "ms"), results.wait_source)
        for each in results.classes
        if (wait_ms := each.facts["median_wait_ms"]) is not None
    )
    table = metric_table("fairness_metrics", "Fairness Metrics", rows)
    return replace(table, cells=table.cells + waits)


def baselines_table(results: Fairness) -> Table:
    columns = ("Class Alone", "Rate", "Count", "TTFT P50", "TTFT P95", "TTFT P99", "TPOT P50", "TPOT P99")
    rows: tuple[Row, ...] = tuple(
        (
            each.title,
            Amount(each.alone_level.level.offered_rps, "req/s"),
            len(each.alone),
            *cells(each.alone_metrics, _SHOWN),
        )
        for each in results.classes
    )
    return Table("fairness_baselines", "Isolated Baselines", columns, rows)


def _session_plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    return _session_classes(parameters, setting).plans


procedure = by_load(framed(HEADING, measure, warm=False), framed(HEADING, measure_sessions))
plans = by_load(_plans, _session_plans)

TEST = TestDefinition(
    *HEADING,
    Parameters,
    procedure,
    plans,
    by_load(no_needs, lambda own, setting: too_long(setting, _session_plans(own, setting))),
    by_load(lambda own, setting: (mix_of(own, setting),), one_warmup),
)
