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
from pytest_llmbench.model.numbers import (
    Amount,
    Cell,
    Figure,
    Row,
    cells,
    percent_label,
    quantity,
    trimmed,
)
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.result import PROBE, Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.stream import streamed

HEADING = Heading("guardrail", "5.10", "Guardrail Overhead")


BASELINE, INPUT, OUTPUT, FULL = "baseline", "input_filter", "output_filter", "full"
NAMES = {BASELINE: "Baseline", INPUT: "Input Filter", OUTPUT: "Output Filter", FULL: "Full Filter"}


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
        return [percent_label(percent) for percent in self.levels_percent]


@dataclass
class GuardrailRuns:
    """The levels and searches that were run, by configuration and load level."""

    parameters: Parameters
    setting: Setting
    """Its workload has one list of lengths, where configurations get words of their own."""
    levels: dict[tuple[str, float], Seen] = field(default_factory=dict)
    searches: dict[str, Searched] = field(default_factory=dict)
    warmups: list[WarmupReport] = field(default_factory=list)
    order: list[Seen] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    yardstick: Reference = field(default_factory=Reference)
    """The reference TTFT of the baseline, for the throughput searches of all configurations."""

    @classmethod
    def of(cls, parameters: Parameters, setting: Setting) -> GuardrailRuns:
        """Each configuration is sent words of its own, of one list of lengths: a prefix cache is on by
        default, and would have known those of the configuration before. The very same prompts where every
        configuration is declared to have none, and of a workload that has no others."""
        if not _declared_off(parameters, setting):
            setting = with_lengths(replace(setting, lengths="shared"), "guardrails", **_asked(parameters))
        return cls(parameters, setting)

    @property
    def met_before(self) -> Finding | None:
        """The finding on a level whose prompts a prefix cache knew; None where none did."""
        return _cached(self.levels, at_most=MOST_CACHED)

    @property
    def maxima(self) -> Maxima:
        return Maxima(self.searches, self.yardstick)

    @property
    def duration_s(self) -> float:
        return LEVEL_S.at(self.setting.scale, self.parameters.duration_s)

    @property
    def has_own_words(self) -> bool:
        """Whether each configuration is sent words of its own."""
        return streamed(self.setting.workload).lengths_seed is not None

    def requests(self, variant: str) -> RequestSlice:
        return RequestSlice(self.setting.workload, variant=variant)

    def warm(self, variant: str, *, fresh: bool = False) -> Procedure[None]:
        self.warmups.append((yield from warm_up(self.setting, variant=variant, fresh_state=fresh)))

    def configuration(self, name: str, variant: str, capacity: SaturationRate) -> Procedure[None]:
        """Measure one configuration: its warm-up, its load levels, its throughput search."""
        if name != BASELINE:
            yield from self.warm(variant)
        reference = capacity.reference if name == BASELINE else Reference()
        for percent in self.parameters.levels_percent:
            seen = yield from self.level(name, variant, percent, capacity.percent(percent), reference)
            if self.met_before:  # which voids the test, whatever comes
                return
            if reference.ttft_p50_ms is None:  # what the filter adds is no sign of load: its own lowest level
                reference = Reference.of(seen.level)
        if name == BASELINE:
            self.yardstick = replace(reference, of_level="the baseline's lowest level")
        # The same lengths for all configurations, so that chance favours none of them.
        own = self.requests(variant).next_part(
            self.setting, "search of guardrails", paired=not self.has_own_words, **_asked(self.parameters)
        )
        bounds = _around(capacity, self.setting)
        found = yield from search(
            self.setting, own, bounds=bounds, reference=self.yardstick, and_carried=True
        )
        self.searches[name] = found
        self.order += [seen.with_(label=f"{name}: {seen.level.label}") for seen in found.levels]

    def level(
        self, name: str, variant: str, percent: float, rate: float, reference: Reference
    ) -> Procedure[Seen]:
        """Run a load level. A further attempt sends requests of the same lengths, as these are compared with
        those of other configurations; the very same ones where all are sent the same."""
        setting, numbers = self.setting, count(1)
        again = setting.remeasure if self.has_own_words else same_requests_again(setting, variant)

        def prepare() -> Procedure[None]:
            info = setting.variants.get(variant)
            yield from self.warm(variant, fresh=info is not None and info.can_be_fresh)

        def plan() -> LoadPlan:
            return self.plan(name, variant, percent, rate, next(numbers))

        see = partial(
            level_of, reference=reference, seed=setting.seed, percent_of_capacity=percent, role=name
        )
        attempts = yield from attempted(plan, see, again, needed=True, prepare=prepare)
        self.notes += attempts.notes
        self.levels[name, percent] = attempts.level
        self.order += attempts.runs
        return attempts.level

    def plan(self, name: str, variant: str, percent: float, rate: float, attempt: int = 1) -> LoadPlan:
        words, asked = self.has_own_words, _asked(self.parameters)
        if words and attempt > 1:
            asked["attempt"] = attempt
        own = self.requests(variant).next_part(
            self.setting, "level of guardrails", paired=not words, percent=percent, **asked
        )
        label, least = f"{name} at {percent_label(percent)}", PROBE_REQUESTS.count(self.setting.scale)
        return own.open_loop(self.setting, label, OpenLoop(rate), self.duration_s, at_least=least)


def measure(parameters: Parameters, setting: Setting, _: WarmupReport) -> Procedure[TestResult]:
    runs = GuardrailRuns.of(parameters, setting)
    yield from runs.warm(parameters.baseline)
    baseline = runs.requests(parameters.baseline)
    capacity = yield from saturation_rate(runs.setting, baseline, parameters.capacity_rps)
    runs.order += capacity.levels
    if capacity.rps is not None:
        for name, variant in parameters.configurations.items():
            yield from runs.configuration(name, variant, capacity)
            if runs.met_before:
                break
    warmup = joined(runs.warmups, "one per configuration")
    return result_of(HEADING, parameters, runs.setting, warmup, _report(runs, capacity))


def _asked(parameters: Parameters) -> dict[str, Any]:
    """The author's parameters of the loads, which are the same for all configurations."""
    return {name: getattr(parameters, name) for name in ("capacity_rps", "levels_percent", "duration_s")}


def _around(capacity: SaturationRate, setting: Setting) -> Range:
    """The range of the throughput searches. Guardrails reduce throughput, so the baseline's capacity is near
    its top."""
    narrow = ByScale(quick=0.4, standard=0.2, full=0.1).at(setting.scale)
    low, high, step = (float(f"{capacity.percent(100) * share:.3g}") for share in (0.2, 1.2, narrow))
    return Range(low, high, step, chosen=True)


def _report(runs: GuardrailRuns, capacity: SaturationRate) -> Report:
    parameters, metrics, by_percent = runs.parameters, _metrics(runs), dict[float, dict[str, Seen]]()
    for (name, percent), seen in runs.levels.items():
        by_percent.setdefault(percent, {})[name] = seen
    tables = [latency_table(percent, seen) for percent, seen in by_percent.items()]
    if runs.searches:
        tables.append(throughput_table(runs.searches, runs.levels, metrics))
    unexplained = [
        each
        for seen in by_percent.values()
        for each in unlike_configurations({name: own.records for name, own in seen.items()})
    ]
    return Report(
        levels=runs.order,
        metrics=metrics,
        tables=tables,
        notes=(*capacity.notes, *_notes(runs, capacity)),
        load={
            **capacity.facts,
            LoadFact.MODEL: "open",
            LoadFact.DURATION_S: runs.duration_s,
            LoadFact.LEVELS_PERCENT: list(parameters.levels_percent),
        },
        facts=variant_facts(runs.setting, parameters.full)
        | _declared(parameters, runs)
        | Facts.of(Origin.MEASURED, {WarmupFact.COUNT: sum(each.performed for each in runs.warmups)}),
        budgeted=list(runs.levels.values()),
        findings=(*_findings(runs), *same_system((*unexplained, *gained_throughput(metrics)))),
    )


def _declared(parameters: Parameters, runs: GuardrailRuns) -> Facts:
    refusals = {
        name: sum(
            int(seen.records.has_outcome(Outcome.REFUSED).sum())
            for (other, _), seen in runs.levels.items()
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


def _metrics(measured: GuardrailRuns) -> dict[str, Estimate]:
    metrics: dict[str, Estimate] = {}
    for (name, percent), seen in measured.levels.items():
        metrics |= qualified(seen.level.metrics, f"{name}@{percent_label(percent)}")
    for percent in measured.parameters.levels_percent:
        overheads = _overheads(measured, percent)
        # Levels ascend, so the plain names are left to the highest.
        metrics |= qualified(overheads, percent_label(percent)) | overheads
    full = max((percent for name, percent in measured.levels if name == FULL), default=None)
    if full is not None:
        metrics |= measured.levels[FULL, full].level.metrics
    metrics |= at_equal_load(measured.levels) | measured.maxima.metrics()
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


def _notes(measured: GuardrailRuns, capacity: SaturationRate) -> list[Note]:
    without = measured.parameters.without
    found = [*measured.notes, *measured.maxima.notes()]
    if (met := measured.met_before) is not None:
        found.append(Note.of("ended_as_void", why=met.message))
    if capacity.rps is None:
        found.append(Note.of("no_capacity_of_baseline"))
    if without is not None:
        found.append(Note.of("no_single_filters", why=without))
    for (name, percent), seen in measured.levels.items():
        refused = int(seen.records.has_outcome(Outcome.REFUSED).sum())
        if refused:
            share = Amount(refused / max(len(seen.records), 1), "ratio")
            level = percent_label(percent)
            found.append(Note.of("refused", configuration=name, level=level, count=refused, share=share))
    return found


def _findings(measured: GuardrailRuns) -> list[Finding]:
    """Findings on prefix caching, which would favour some of the configurations. Where every one is sent the
    same prompts and nothing tells of a cache, it has to be declared off."""
    found = _cached(measured.levels)
    if found is not None:
        return [found]
    off = _declared_off(measured.parameters, measured.setting)
    return [] if not measured.levels or measured.has_own_words or off else [Finding.of("equal_work.untold")]


def _cached(levels: Mapping[tuple[str, float], Seen], *, at_most: float = -1.0) -> Finding | None:
    """The finding on the level with the largest share of its input from a prefix cache; None if no level
    tells of one, or the share is ``at_most`` so much."""
    cached = {key: cached_input([seen.observation]) for key, seen in levels.items()}
    known = {key: told.share for key, told in cached.items() if told is not None}
    (name, percent), worst = max(known.items(), key=lambda entry: entry[1], default=(("", 0.0), -1.0))
    if worst <= at_most:
        return None
    level = percent_label(percent)
    return Finding.of("equal_work", worst <= MOST_CACHED, worst, MOST_CACHED, configuration=name, level=level)


def _declared_off(parameters: Parameters, setting: Setting) -> bool:
    """Whether every configuration is declared to have no prefix cache."""
    variants = (setting.variants.get(variant) for variant in parameters.configurations.values())
    declared = (setting.facts if info is None else setting.facts | info.facts for info in variants)
    return all(facts.value(SUTFact.PREFIX_CACHING) == "disabled" for facts in declared)


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The levels and searches; with a stand-in for the capacity where it is not declared."""
    runs = GuardrailRuns.of(parameters, setting)
    setting, declared = runs.setting, parameters.capacity_rps
    found = list(search_plans(setting, runs.requests(parameters.baseline))) if declared is None else []
    capacity = UNKNOWN_RPS if declared is None else declared
    around = _around(SaturationRate(capacity, "", RequestSlice(setting.workload)), setting)
    for name, variant in parameters.configurations.items():
        found += search_plans(setting, runs.requests(variant), bounds=around, constrained=True)
        for percent in parameters.levels_percent:
            found.append(runs.plan(name, variant, percent, capacity * percent / 100))
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
    # Only variants that are there have facts.
    boundary = None if found else setting.facts | setting.variants[parameters.full].facts
    if boundary is not None and boundary.value(SUTFact.BOUNDARY) == "model_engine":
        found.append(
            "the SUT boundary is model_engine, but guardrails lie outside it (AMB-40): declare "
            'sut.boundary = "application_gateway" for the variants, and measure the gateway'
        )
    return found


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
    return Table(
        "guardrail_latency", f"Guardrail Overhead at {trimmed(percent)} % of Capacity{at}", columns, rows
    )


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
            Figure(THROUGHPUT, metrics.get(f"{THROUGHPUT}[{name}@{percent_label(percent)}]")),
            _signed(metrics, f"{AT_EQUAL_LOAD}[{name}@{percent_label(percent)}]"),
        )
        for name in configurations
    )
    at = f"at {trimmed(percent)} %"
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
        highest = dict[str, Estimate]()
        for name, searched in self.searches.items():
            best = self.best(name)
            highest[name] = Estimate.undefined(
                unit="tok/s", method="no tested level held", reason=Reason.NO_LEVEL
            )
            if best is not None:
                at = best.level.metrics[THROUGHPUT]
                highest[name] = known_to_bracket(at, best, searched.levels, self.holds)
        found = {f"{MAXIMUM}[{name}]": estimate for name, estimate in highest.items()}
        for name, estimate in highest.items():
            if name != BASELINE:
                found[f"{REDUCTION}[{name}]"] = change(highest[BASELINE], estimate, "reduction")
        return found

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


def at_equal_load(levels: Mapping[tuple[str, float], Seen]) -> dict[str, Estimate]:
    """The reduction of output tokens per second where all configurations were offered the same requests."""
    return {
        f"{AT_EQUAL_LOAD}[{name}@{percent_label(percent)}]": paired_throughput_reduction(
            window_of(levels[BASELINE, percent].observation), window_of(seen.observation)
        )
        for (name, percent), seen in levels.items()
        if name != BASELINE and (BASELINE, percent) in levels and is_offered(seen.level)
    }
