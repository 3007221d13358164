"""Guardrail Overhead, section 5.10 of the draft.

Objective: what safety systems and content filtering cost in latency and throughput. Procedure: capacity of
the baseline, all guardrails off; then every configuration (baseline, input filter, output filter, full) after
a warm-up of its own at 25, 50 and 75 % of that capacity, the same requests at the same instants each time, so
that they are compared one with one; then a throughput search per configuration (AMB-20), all judged by the
baseline's yardstick. The content is benign: what is measured is the cost of looking, not of refusing.

One yardstick for all throughputs: the ten-fold rule of saturation measures every configuration by the TTFT of
the baseline's lowest level. By a yardstick of its own, a filter that delays the first token would be allowed
a longer queue than the baseline has, and look faster. A filter that breaks the rule at the lowest load says
nothing about load by it (AMB-14); then the rule is off for all of them, and queue and completions decide.

A maximum is known to within the search's bracket, so its interval reaches up to what the next tested load,
which did not hold, would have given. Beside it stand the rates at one load that was offered to all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import Reference, Seen, level_of, qualified
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice, with_lengths
from pytest_llmbench.methodology.measuring.offered import is_offered
from pytest_llmbench.methodology.measuring.variants import missing_variants, same_system, variant_facts
from pytest_llmbench.methodology.measuring.warmup import joined, warm_up
from pytest_llmbench.methodology.parameters import TestParameters, limit, parameter
from pytest_llmbench.methodology.procedure import (
    LEVEL_S,
    PROBE_REQUESTS,
    ByScale,
    Procedure,
    Setting,
    TestDefinition,
)
from pytest_llmbench.methodology.remeasured import attempted, same_requests_again
from pytest_llmbench.methodology.search.probing import (
    Range,
    carried,
    known_to_bracket,
    lower_bound,
    sustainable,
    value_of,
)
from pytest_llmbench.methodology.search.search import (
    UNKNOWN_RPS,
    SaturationRate,
    Searched,
    saturation_rate,
    search,
    search_plans,
)
from pytest_llmbench.metrics.differences import (
    Unexplained,
    change,
    gained_throughput,
    paired_changes,
    paired_throughput_reduction,
    pairs,
    unlike_configurations,
)
from pytest_llmbench.metrics.server_side import cached_input
from pytest_llmbench.metrics.throughput import window_of
from pytest_llmbench.model.draft import GUARDRAIL_PERCENTS
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.facts import Facts, GuardrailFact, LoadFact, Origin, SUTFact, WarmupFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount, Cell, Figure, Row, cells, quantity
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import PROBE, Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.stream import streamed

NAMES = {
    "baseline": "Baseline",
    "input_filter": "Input Filter",
    "output_filter": "Output Filter",
    "full": "Full Filter",
}

HEADING = Heading("guardrail", "5.10", "Guardrail Overhead")


BASELINE, INPUT, OUTPUT, FULL = "baseline", "input_filter", "output_filter", "full"


STATISTICS = ("p50", "p95", "p99", "mean")

MOST_CACHED = 0.05
"""Largest share of the input that a prefix cache may serve: the configurations get the same prompts."""


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """The same requests without guardrails, with each filter and with all: four SUT variants. Limits are
    ceilings, at every load level."""

    baseline: str = parameter(
        "name",
        "guardrails_baseline",
        doc="SUT variant with all guardrails off; the other three name variants too.",
    )
    input_filter: str | None = parameter("name", "guardrails_input")
    output_filter: str | None = parameter("name", "guardrails_output")
    full: str = parameter("name", "guardrails_full")
    without: str | None = parameter(
        "name",
        doc="why the single-filter configurations cannot be run; they are then left out (AMB-20).",
    )
    capacity_rps: float | None = parameter(
        "positive",
        doc="known capacity of the baseline in requests per second; otherwise a search finds it.",
    )
    levels_percent: Sequence[float] = parameter(
        "percents", GUARDRAIL_PERCENTS, doc="loads in percent of that capacity."
    )
    duration_s: float | None = parameter("positive", doc="duration of a level.", scale=LEVEL_S)
    max_overhead_ms: float | None = limit(
        "guardrail_overhead[{}].p50",
        doc="largest total overhead: E2E P50 with all guardrails minus that of the baseline.",
    )
    max_overhead_p95_ms: float | None = limit("guardrail_overhead[{}].p95")
    max_input_overhead_ms: float | None = limit(
        "input_filter_overhead[{}].p50",
        doc="largest overhead of the input filter: TTFT P50 with it minus that of the baseline.",
    )
    max_throughput_loss: float | None = limit(
        "throughput_reduction[full]",
        "share",
        doc="largest share of maximum output throughput that is lost with all guardrails.",
    )

    @property
    def configurations(self) -> dict[str, str]:
        """Configuration → SUT variant, the baseline first."""
        single = {INPUT: self.input_filter, OUTPUT: self.output_filter} if self.without is None else {}
        return {BASELINE: self.baseline, **{k: v for k, v in single.items() if v}, FULL: self.full}

    @property
    def qualifiers(self) -> Sequence[str]:
        return [_percent(percent) for percent in self.levels_percent]


@dataclass
class GuardrailRuns:
    """The levels and searches that were run, by configuration and load level."""

    levels: dict[tuple[str, float], Seen] = field(default_factory=dict)
    searches: dict[str, Searched] = field(default_factory=dict)
    warmups: list[WarmupReport] = field(default_factory=list)
    order: list[Seen] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    yardstick: Reference = field(default_factory=Reference)
    """The reference TTFT of the baseline, for the throughput searches of all configurations."""

    @property
    def met_before(self) -> Finding | None:
        """The finding on a level whose prompts a prefix cache knew; None where none did."""
        return _cached(self.levels, at_most=MOST_CACHED)

    @property
    def maxima(self) -> Maxima:
        return Maxima(self.searches, BASELINE, self.yardstick)


def measure(parameters: Parameters, setting: Setting, _: WarmupReport) -> Procedure[TestResult]:
    measured, setting = GuardrailRuns(), listed(parameters, setting)
    yield from _warm(measured, setting, parameters.baseline)
    sequence = RequestSlice(setting.workload, variant=parameters.baseline)
    capacity = yield from saturation_rate(setting, sequence, parameters.capacity_rps)
    measured.order += capacity.levels
    if capacity.rps is not None:
        for name, variant in parameters.configurations.items():
            yield from _configuration(parameters, setting, measured, name, variant, capacity)
            if measured.met_before:
                break
    return _result(parameters, setting, measured, capacity)


def listed(parameters: Parameters, setting: Setting) -> Setting:
    """The setting whose workload has one list of lengths, of which each configuration is sent words of its
    own: a prefix cache is on by default, and would have known those of the configuration before. The very
    same prompts where every configuration is declared to have none, and of a workload that has no others."""
    if _declared_off(parameters, setting):
        return setting
    return with_lengths(replace(setting, lengths="shared"), "guardrails", **_asked(parameters))


def _warm(measured: GuardrailRuns, setting: Setting, variant: str) -> Procedure[None]:
    measured.warmups.append((yield from warm_up(setting, variant=variant)))


def _configuration(
    parameters: Parameters,
    setting: Setting,
    measured: GuardrailRuns,
    name: str,
    variant: str,
    capacity: SaturationRate,
) -> Procedure[None]:
    """Measure one configuration: its warm-up, its load levels, its throughput search."""
    if name != BASELINE:
        yield from _warm(measured, setting, variant)
    sequence = RequestSlice(setting.workload, variant=variant)
    reference = capacity.reference if name == BASELINE else Reference()
    for percent in parameters.levels_percent:
        key = (name, percent)
        seen = yield from _level(parameters, setting, measured, sequence, key, capacity, reference)
        if measured.met_before:  # which voids the test, whatever comes
            return
        if reference.ttft_p50_ms is None:  # what the filter adds is no sign of load: its own lowest level
            reference = Reference.of(seen.level)
    if name == BASELINE:
        measured.yardstick = replace(reference, of_level="the baseline's lowest level")
    bounds, yardstick = _around(capacity, setting), measured.yardstick
    own = search_requests(parameters, setting, sequence)
    found = yield from search(setting, own, bounds=bounds, reference=yardstick, and_carried=True)
    measured.searches[name] = found
    measured.order += [seen.with_(label=f"{name}: {seen.level.label}") for seen in found.levels]


def _level(
    parameters: Parameters,
    setting: Setting,
    measured: GuardrailRuns,
    sequence: RequestSlice,
    key: tuple[str, float],
    capacity: SaturationRate,
    reference: Reference,
) -> Procedure[Seen]:
    """Run a load level. A further attempt sends requests of the same lengths, as these are compared with
    those of other configurations; the very same ones where all are sent the same."""
    name, percent = key
    variant, numbers = sequence.variant, count(1)
    again = setting.remeasure if _has_own_words(setting) else same_requests_again(setting, variant)

    def prepare() -> Procedure[None]:
        info = setting.variants.get(variant)
        fresh = info is not None and info.can_be_fresh
        measured.warmups.append((yield from warm_up(setting, variant=variant, fresh_state=fresh)))

    rate = capacity.percent(percent)

    def plan() -> LoadPlan:
        return level_plan(parameters, setting, sequence, name, percent, rate, next(numbers))

    see = partial(level_of, reference=reference, seed=setting.seed, percent_of_capacity=percent, role=name)
    attempts = yield from attempted(plan, see, again, needed=True, prepare=prepare)
    measured.notes += attempts.notes
    measured.levels[key] = attempts.level
    measured.order += attempts.runs
    return attempts.level


def level_plan(
    parameters: Parameters,
    setting: Setting,
    sequence: RequestSlice,
    name: str,
    percent: float,
    rate: float,
    attempt: int = 1,
) -> LoadPlan:
    duration_s, asked = LEVEL_S.at(setting.scale, parameters.duration_s), _asked(parameters)
    words = _has_own_words(setting)
    if words and attempt > 1:
        asked["attempt"] = attempt
    own = sequence.next_part(setting, "level of guardrails", paired=not words, percent=percent, **asked)
    label, least = f"{name} at {_percent(percent)}", PROBE_REQUESTS.count(setting.scale)
    return own.open_loop(setting, label, OpenLoop(rate), duration_s, at_least=least)


def search_requests(parameters: Parameters, setting: Setting, sequence: RequestSlice) -> RequestSlice:
    """The requests of a throughput search, the same lengths for all configurations, so that chance favours
    none of them."""
    paired = not _has_own_words(setting)
    return sequence.next_part(setting, "search of guardrails", paired=paired, **_asked(parameters))


def _has_own_words(setting: Setting) -> bool:
    """Whether each configuration is sent words of its own."""
    return streamed(setting.workload).lengths_seed is not None


def _asked(parameters: Parameters) -> dict[str, Any]:
    """The author's parameters of the loads, which are the same for all configurations."""
    return {name: getattr(parameters, name) for name in ("capacity_rps", "levels_percent", "duration_s")}


def _around(capacity: SaturationRate, setting: Setting) -> Range:
    """The range of the throughput searches. Guardrails reduce throughput, so the baseline's capacity is near
    its top."""
    shares = search_shares(setting)
    low, high, step = (float(f"{capacity.percent(100) * share:.3g}") for share in shares)
    return Range(low, high, step, chosen=True)


def search_shares(setting: Setting) -> tuple[float, float, float]:
    """Minimum, maximum and step of the searches, as shares of the baseline's capacity."""
    return 0.2, 1.2, ByScale(quick=0.4, standard=0.2, full=0.1).at(setting.scale)


def _result(
    parameters: Parameters, setting: Setting, measured: GuardrailRuns, capacity: SaturationRate
) -> TestResult:
    metrics = _metrics(parameters, measured)
    tables = [
        latency_table(percent, {name: seen for (name, at), seen in measured.levels.items() if at == percent})
        for percent in parameters.levels_percent
        if (BASELINE, percent) in measured.levels
    ]
    if measured.searches:
        tables.append(throughput_table(measured.searches, measured.levels, metrics))
    levels = list(measured.levels.values())
    unlike = (*_unexplained(measured), *gained_throughput(metrics))
    report = Report(
        levels=measured.order,
        metrics=metrics,
        tables=tables,
        notes=(*capacity.notes, *_notes(parameters, measured, capacity)),
        load={
            **capacity.facts,
            LoadFact.MODEL: "open",
            LoadFact.DURATION_S: LEVEL_S.at(setting.scale, parameters.duration_s),
            LoadFact.LEVELS_PERCENT: list(parameters.levels_percent),
        },
        facts=variant_facts(setting, parameters.full)
        | _declared(parameters, measured)
        | Facts.of(Origin.MEASURED, {WarmupFact.COUNT: sum(each.performed for each in measured.warmups)}),
        budgeted=levels,
        findings=(
            *_findings(parameters, setting, measured),
            *same_system(unlike),
        ),
    )
    return result_of(HEADING, parameters, setting, joined(measured.warmups, "one per configuration"), report)


def _declared(parameters: Parameters, measured: GuardrailRuns) -> Facts:
    refusals = {
        name: sum(
            int(seen.records.has_outcome(Outcome.REFUSED).sum())
            for (other, _), seen in measured.levels.items()
            if other == name
        )
        for name in parameters.configurations
    }
    values = {
        GuardrailFact.COMPARATIVE_RUN: "this test runs with and without them",
        GuardrailFact.CONFIGURATIONS: list(parameters.configurations),
        GuardrailFact.IMPOSSIBLE: parameters.without,
        GuardrailFact.REFUSALS_BY_CONFIGURATION: refusals,
    }
    return Facts.of(Origin.DECLARED, values, "marker")


def _metrics(parameters: Parameters, measured: GuardrailRuns) -> dict[str, Estimate]:
    metrics: dict[str, Estimate] = {}
    for (name, percent), seen in measured.levels.items():
        metrics |= qualified(seen.level.metrics, f"{name}@{_percent(percent)}")
    for percent in parameters.levels_percent:
        overheads = _overheads(measured, percent)
        # Levels ascend, so the plain names are left to the highest.
        metrics |= qualified(overheads, _percent(percent)) | overheads
    full = max((percent for name, percent in measured.levels if name == FULL), default=None)
    if full is not None:
        metrics |= measured.levels[FULL, full].level.metrics
    metrics |= at_equal_load(measured.levels, BASELINE) | measured.maxima.metrics()
    if f"{REDUCTION}[{FULL}]" in metrics:
        metrics[REDUCTION] = metrics[f"{REDUCTION}[{FULL}]"]
    return metrics


def _overheads(measured: GuardrailRuns, percent: float) -> dict[str, Estimate]:
    """The overheads at one load level, from paired requests; undefined where a configuration was not run."""
    found: dict[str, Estimate] = {}
    for metric, family, name in (
        ("input_filter_overhead", "ttft", INPUT),
        ("guardrail_overhead", "e2e", FULL),
    ):
        base, filtered = measured.levels.get((BASELINE, percent)), measured.levels.get((name, percent))
        if base is None or filtered is None:
            missing = Estimate.undefined(
                unit="ms", method=f"no run with {name}", reason=Reason.NOT_MEASURABLE
            )
            found |= {f"{metric}.{statistic}": missing for statistic in STATISTICS}
            continue
        arms = pairs(family, [base.inside], [filtered.inside])
        found |= paired_changes(metric, arms, statistics=STATISTICS)
    return found


def _notes(parameters: Parameters, measured: GuardrailRuns, capacity: SaturationRate) -> list[Note]:
    found = [*measured.notes, *measured.maxima.notes()]
    if (met := measured.met_before) is not None:
        found.append(Note.of("ended_as_void", why=met.message))
    if capacity.rps is None:
        found.append(Note.of("no_capacity_of_baseline"))
    if parameters.without is not None:
        found.append(Note.of("no_single_filters", why=parameters.without))
    for (name, percent), seen in measured.levels.items():
        refused = int(seen.records.has_outcome(Outcome.REFUSED).sum())
        if refused:
            share = Amount(refused / max(len(seen.records), 1), "ratio")
            level = _percent(percent)
            found.append(Note.of("refused", configuration=name, level=level, count=refused, share=share))
    return found


def _unexplained(measured: GuardrailRuns) -> list[Unexplained | None]:
    by_percent: dict[float, dict[str, Records]] = {}
    for (name, percent), seen in measured.levels.items():
        by_percent.setdefault(percent, {})[name] = seen.records
    return [each for records in by_percent.values() for each in unlike_configurations(records)]


def _findings(parameters: Parameters, setting: Setting, measured: GuardrailRuns) -> list[Finding]:
    """Findings on prefix caching, which would favour some of the configurations. Where every one is sent the
    same prompts and nothing tells of a cache, it has to be declared off."""
    found = _cached(measured.levels)
    if found is not None:
        return [found]
    told = not measured.levels or _has_own_words(setting) or _declared_off(parameters, setting)
    return [] if told else [Finding.of("equal_work.untold")]


def _cached(levels: Mapping[tuple[str, float], Seen], *, at_most: float = -1.0) -> Finding | None:
    """The finding on the level with the largest share of its input from a prefix cache; None if no level
    tells of one, or the share is ``at_most`` so much."""
    cached = {key: cached_input([seen.observation]) for key, seen in levels.items()}
    known = {key: told.share for key, told in cached.items() if told is not None}
    (name, percent), worst = max(known.items(), key=lambda entry: entry[1], default=(("", 0.0), -1.0))
    if worst <= at_most:
        return None
    level = _percent(percent)
    return Finding.of("equal_work", worst <= MOST_CACHED, worst, MOST_CACHED, configuration=name, level=level)


def _declared_off(parameters: Parameters, setting: Setting) -> bool:
    """Whether every configuration is declared to have no prefix cache."""
    variants = (setting.variants.get(variant) for variant in parameters.configurations.values())
    declared = (setting.facts if info is None else setting.facts | info.facts for info in variants)
    return all(facts.value(SUTFact.PREFIX_CACHING) == "disabled" for facts in declared)


def _percent(value: float) -> str:
    return f"{value:g}%"


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The levels and searches; with a stand-in for the capacity where it is not declared."""
    setting = listed(parameters, setting)
    capacity = UNKNOWN_RPS if parameters.capacity_rps is None else parameters.capacity_rps
    found: list[LoadPlan] = []
    if parameters.capacity_rps is None:
        found += search_plans(setting, RequestSlice(setting.workload, variant=parameters.baseline))
    around = _around(SaturationRate(capacity, "", RequestSlice(setting.workload)), setting)
    for name, variant in parameters.configurations.items():
        sequence = RequestSlice(setting.workload, variant=variant)
        found += search_plans(setting, sequence, bounds=around, constrained=True)
        for percent in parameters.levels_percent:
            rate = capacity * percent / 100
            found.append(level_plan(parameters, setting, sequence, name, percent, rate))
    return tuple(found)


def needs(parameters: Parameters, setting: Setting) -> list[str]:
    states: Mapping[str, str] = {
        BASELINE: "all guardrails off",
        INPUT: "input filtering only; or give the reason in without=",
        OUTPUT: "output filtering only; or give the reason in without=",
        FULL: "all production guardrails on",
    }
    wanted = {variant: states[name] for name, variant in parameters.configurations.items()}
    found = missing_variants(setting, wanted)
    if not found and variant_boundary(setting, parameters.full) == "model_engine":
        found.append(
            "the SUT boundary is model_engine, but guardrails lie outside it (AMB-40): declare "
            'sut.boundary = "application_gateway" for the variants, and measure the gateway'
        )
    return found


def variant_boundary(setting: Setting, variant: str) -> str | None:
    boundary: str | None = (setting.facts | setting.variants[variant].facts).value(SUTFact.BOUNDARY)
    return boundary


def latency_table(percent: float, by_configuration: Mapping[str, Seen]) -> Table:
    """Table 13, once per load level."""
    columns = (
        "Configuration", "TTFT P50", "TTFT P95", "TTFT P99", "E2E P50", "E2E P95", "E2E P99", "Refused"
    )  # fmt: skip
    named = [f"{family}.{q}" for family in ("ttft", "e2e") for q in ("p50", "p95", "p99")]
    rows: tuple[Row, ...] = tuple(
        (NAMES[name], *cells(seen.level.metrics, named, "both"), seen.level.errors.get("refused", 0))
        for name, seen in by_configuration.items()
    )
    rate = next((seen.level.offered_rps for seen in by_configuration.values()), None)
    at = "" if rate is None else f" ({quantity(rate, 'req/s')})"
    return Table("guardrail_latency", f"Guardrail Overhead at {percent:g} % of Capacity{at}", columns, rows)


def throughput_table(
    configurations: Iterable[str], levels: Mapping[tuple[str, float], Seen], metrics: Mapping[str, Estimate]
) -> Table:
    """Table 14: the highest sustainable throughput, and the throughput at the highest load that all were
    offered. Reduction is signed, negative for a loss (AMB-20)."""
    percent = max(percent for _, percent in levels)
    rows: tuple[Row, ...] = tuple(
        (
            NAMES[name],
            Figure(MAXIMUM, metrics[f"{MAXIMUM}[{name}]"], "both"),
            _signed(metrics, f"{REDUCTION}[{name}]"),
            Figure(THROUGHPUT, metrics.get(f"{THROUGHPUT}[{name}@{percent:g}%]")),
            _signed(metrics, f"{AT_EQUAL_LOAD}[{name}@{percent:g}%]"),
        )
        for name in configurations
    )
    at = f"at {percent:g} %"
    columns = ("Configuration", "Max Throughput", "Reduction", f"Throughput {at}", f"Reduction {at}")
    return Table("guardrail_throughput", "Throughput Impact", columns, rows)


def _signed(metrics: Mapping[str, Estimate], name: str) -> Cell:
    """A reduction as the change that it is."""
    found = metrics.get(name)
    if found is None:
        return "-"
    point, lower, upper = (None if end is None else -end for end in (found.point, found.upper, found.lower))
    return Figure(name, replace(found, point=point, lower=lower, upper=upper), "change")


TEST = TestDefinition(*HEADING, Parameters, framed(HEADING, measure, warm=False), plans, needs)

THROUGHPUT = "output_token_throughput"
MAXIMUM, REDUCTION = "max_output_token_throughput", "throughput_reduction"
AT_EQUAL_LOAD = "throughput_reduction_at_equal_load"


@dataclass(frozen=True)
class Maxima:
    """The throughput searches of all configurations, the baseline's included, judged by one rule."""

    searches: Mapping[str, Searched]
    baseline: str
    yardstick: Reference

    @property
    def breaking(self) -> dict[str, Seen]:
        """Configuration whose lowest level breaks the ten-fold rule by itself → that level."""
        lowest = {
            name: min(levels, key=value_of)
            for name, found in self.searches.items()
            if (levels := [seen for seen in found.levels if seen.level.role == PROBE])
        }
        return {name: seen for name, seen in lowest.items() if carried(seen) and not sustainable(seen)}

    @property
    def holds(self) -> Callable[[Seen], bool]:
        return carried if self.breaking else sustainable

    def best(self, name: str) -> Seen | None:
        found = self.searches[name]
        return found.best_carried if self.breaking else found.best

    def metrics(self) -> dict[str, Estimate]:
        highest = {name: self._maximum(name) for name in self.searches}
        found = {f"{MAXIMUM}[{name}]": estimate for name, estimate in highest.items()}
        for name, estimate in highest.items():
            if name != self.baseline:
                found[f"{REDUCTION}[{name}]"] = change(highest[self.baseline], estimate, "reduction")
        return found

    def _maximum(self, name: str) -> Estimate:
        best = self.best(name)
        if best is None:
            return Estimate.undefined(unit="tok/s", method="no tested level held", reason=Reason.NO_LEVEL)
        at = best.level.metrics[THROUGHPUT]
        return known_to_bracket(at, best, self.searches[name].levels, self.holds)

    def notes(self) -> list[Note]:
        found = [self.yardstick.note] if self.yardstick.note else []
        if self.breaking:
            why = tuple(
                Note.of("named_reasons", name=name, reasons=seen.level.saturation_reasons)
                for name, seen in self.breaking.items()
            )
            found.append(Note.of("tenfold_off_for_all", why=why))
        for name in self.searches:
            best = self.best(name)
            bound = None if best is None else lower_bound(best, self.searches[name].levels, self.holds)
            if bound is not None:
                found.append(Note.of("maximum_is_bound", configuration=name, why=bound.words))
        return found


def at_equal_load(levels: Mapping[tuple[str, float], Seen], baseline: str) -> dict[str, Estimate]:
    """The reduction of output tokens per second where all configurations were offered the same requests."""
    return {
        f"{AT_EQUAL_LOAD}[{name}@{percent:g}%]": paired_throughput_reduction(
            window_of(levels[baseline, percent].observation), window_of(seen.observation)
        )
        for (name, percent), seen in levels.items()
        if name != baseline and (baseline, percent) in levels and is_offered(seen.level)
    }
