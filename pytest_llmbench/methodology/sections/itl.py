"""Inter-Token Latency Distribution, section 5.4 of the draft.

Objective: the variability of token delivery in decode; how smooth a stream is for the user. Procedure: warm
up; per load level, a percentage of the saturation rate, store the arrival of each token after the first,
compute the gaps of consecutive tokens and pool them over all requests; per request the standard deviation of
its gaps (jitter) and its longest pause. The way tokens are timed (AMB-13) is fixed before the first level,
from the search for the saturation rate or from a short characterisation run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import Seen, level_of, qualified, saturated_notes
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.parameters import TestParameters, limit, parameter
from pytest_llmbench.methodology.procedure import (
    LEVEL_S,
    ByScale,
    Procedure,
    Setting,
    TestDefinition,
)
from pytest_llmbench.methodology.remeasured import Attempts, attempted
from pytest_llmbench.methodology.search.search import SaturationRate, saturation_rate
from pytest_llmbench.methodology.sections.itl_method import (
    FEWEST_ELIGIBLE,
    HANDLING,
    Method,
    findings,
    fixed_method,
    method_facts,
    method_notes,
)
from pytest_llmbench.methodology.uncertainty import late_gaps
from pytest_llmbench.metrics.chunking import tokens_per_chunk
from pytest_llmbench.metrics.differences import change
from pytest_llmbench.metrics.itl import (
    ItlCounts,
    Option,
    itl_distribution,
    itl_samples,
    jitter_ms,
    longest_pause_ms,
)
from pytest_llmbench.metrics.summary import GivenUp, distribution
from pytest_llmbench.metrics.throughput import RAMP_UP_SHARE, submitted_inside, window_of
from pytest_llmbench.model.draft import FEWEST_TOKENS, ITL_PERCENTS, ITL_REQUESTS, ITL_SAMPLES
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, LoadFact, Origin, ResultFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import (
    NOT_MEASURED,
    Amount,
    Cell,
    Row,
    cells,
    number,
    percent_label,
    quantity,
)
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import Plot, Table, TestResult, WarmupReport, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.counted import ecdf, ecdf_ranks, look_up
from pytest_llmbench.stats.percentiles import PERCENTILES, percentile_ranks
from pytest_llmbench.stats.shape import Modality, modality, tail_class, tail_variation

_PERCENTILES = (("P50", "p50"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99"), ("P99.9", "p99_9"))
_MOMENTS = (("Mean", "mean"), ("Std Dev", "std"))
_PER_REQUEST = (("Jitter", "jitter"), ("Longest Pause", "longest_pause"))
_TAIL_WORDS = {"heavy": "heavy-tailed", "exponential": "exponential", "light": "light"}

HEADING = Heading("itl", "5.4", "Inter-Token Latency Distribution")

REQUESTS = ByScale(quick=0, standard=ITL_REQUESTS, full=ITL_REQUESTS)

SAMPLES = ByScale(quick=0, standard=ITL_SAMPLES, full=ITL_SAMPLES)
"""Fewest samples of every level (AMB-12); a quick level takes what its few seconds bring."""

_MOST_MARKED = 8

_MARGIN = 1.15
"""Factor for the planned requests beyond the floors, since the arrivals in the ramp-up vary."""


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Inter-token latency, jitter and pauses at shares of the saturation rate. Ceilings hold at every
    level."""

    levels_percent: Sequence[float] = parameter(
        "percents", ITL_PERCENTS, doc="loads, in percent of the saturation rate."
    )
    capacity_rps: float | None = parameter(
        "positive", doc="known saturation rate in requests per second; it replaces the search."
    )
    method: Literal["direct", "A", "B", "C"] | None = parameter(
        "choice",
        doc="how tokens are timed (section 4.6.3): ``direct``: one token per chunk; ``A``: gaps between "
        "chunks; ``B``: tokens arrive with their chunk; ``C``: the server's instants. Default: chosen from "
        "the stream (AMB-13).",
    )
    requests: int | None = parameter(
        "count",
        doc="replies with at least 50 tokens per level; they determine the length of the load (default "
        "100; a quick run takes as many as it gets).",
    )
    duration_s: float | None = parameter("positive", doc="shortest duration of a level.", scale=LEVEL_S)
    p50_ms: float | None = limit("itl[{}].p50")
    p90_ms: float | None = limit("itl[{}].p90")
    p95_ms: float | None = limit("itl[{}].p95")
    p99_ms: float | None = limit("itl[{}].p99")
    p99_9_ms: float | None = limit("itl[{}].p99_9")
    jitter_p99_ms: float | None = limit("jitter[{}].p99")
    longest_pause_p99_ms: float | None = limit("longest_pause[{}].p99")
    max_tail_ratio: float | None = limit("itl_tail_ratio[{}]", doc="largest P99 / P50.")

    @property
    def qualifiers(self) -> Sequence[str]:
        return [percent_label(percent) for percent in self.levels_percent]

    @property
    def own_objectives(self) -> tuple[Objective, ...]:
        """Level by level."""
        found = super().own_objectives
        return tuple(each for level in self.qualifiers for each in found if f"[{level}]" in each.metric)


def measure(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    capacity = yield from saturation_rate(setting, RequestSlice(setting.workload), parameters.capacity_rps)
    method, characterised = yield from fixed_method(parameters.method, setting, capacity)
    before, levels = [*capacity.levels, *characterised], list[LevelItl]()
    loads, notes = _Levels(parameters, setting, capacity, method), list[Note]()
    for percent in parameters.levels_percent if capacity.rps is not None else ():
        attempts = yield from loads.level(percent)
        before += attempts.runs[:-1]
        notes += attempts.notes
        levels.append(level_itl(attempts.level, method.option))
    result = result_of(HEADING, parameters, setting, warmup, _report(loads, before, levels))
    return replace(result, notes=(*result.notes, *notes))


@dataclass(frozen=True)
class _Levels:
    """The levels of the test, as they are sent."""

    parameters: Parameters
    setting: Setting
    capacity: SaturationRate
    method: Method

    def level(self, percent: float) -> Procedure[Attempts]:
        own = self.requests(percent)

        def see(run: Observation) -> Seen:
            return level_of(
                own.sent(run),
                label=percent_label(percent),
                reference=self.capacity.reference,
                seed=self.setting.seed,
                role="level",
                percent_of_capacity=percent,
            )

        plan, again = partial(self.plan, percent, own), self.setting.remeasure
        gaps, stake = self.method.option != "C", self.parameters.objectives
        return (yield from attempted(plan, see, again, needed=True, gaps=gaps, at_stake=stake))

    def requests(self, percent: float) -> RequestSlice:
        names = ("capacity_rps", "method", "requests", "duration_s")
        asked = {name: getattr(self.parameters, name) for name in names}
        return self.capacity.sequence.next_part(self.setting, "level of itl", percent=percent, **asked)

    def plan(self, percent: float, own: RequestSlice) -> LoadPlan:
        """The plan of a level, long enough at its rate for both floors of AMB-12 after the ramp-up."""
        load = OpenLoop(self.capacity.percent(percent))
        least_s = LEVEL_S.at(self.setting.scale, self.parameters.duration_s)
        seconds = own.seconds_for(self.setting, load, self.count, least_s)
        return own.open_loop(self.setting, f"{percent_label(percent)} of saturation", load, seconds)

    @property
    def count(self) -> int:
        """How many requests have to be sent to reach the floors; 1 at quick scale, where the time decides."""
        scale, method = self.setting.scale, self.method
        floor = REQUESTS.count(scale, self.parameters.requests) if scale != "quick" else 0
        eligible = max(floor, SAMPLES.count(scale) / max(method.gaps_per_request, 1.0))
        return max(1, math.ceil(eligible / method.eligible_share / (1 - RAMP_UP_SHARE) * _MARGIN))


def _late_gaps(runs: Sequence[Seen]) -> list[Finding]:
    """The finding on late gaps, for the worst level. With instants from the server it does not matter when
    chunks were read."""
    known = [finding for run in runs if (finding := late_gaps(run.observation)) is not None]
    return sorted(known, key=lambda finding: (finding.value or 0.0) / (finding.limit or 1.0))[-1:]


def _report(loads: _Levels, before: Sequence[Seen], levels: Sequence[LevelItl]) -> Report:
    parameters, capacity, method = loads.parameters, loads.capacity, loads.method
    runs = [level.seen for level in levels]
    metrics = itl_distribution(itl_samples(Records.from_rows(()), method.option))
    if levels:  # the plain names have those of the highest level
        metrics = dict(runs[-1].level.metrics)
    for level in levels:
        metrics |= qualified(level.seen.level.metrics, level.label)
    return Report(
        levels=(*before, *runs),
        metrics=metrics,
        tables=tables(levels, method, [run.records for run in runs]),
        plots=plots(levels, parameters.objectives),
        notes=(*capacity.notes, *_notes(capacity, levels), *method_notes(method, runs)),
        load={
            **capacity.facts,
            LoadFact.MODEL: "open",
            LoadFact.ARRIVAL: "poisson",
            LoadFact.LEVELS_PERCENT: list(parameters.levels_percent),
            LoadFact.DURATION_S: min((run.level.duration_s for run in runs), default=None),
        },
        facts=method_facts(method, runs or before)
        | Facts.of(Origin.MEASURED, {ResultFact.ITL_LEVELS: [level.facts() for level in levels]}),
        budgeted=runs,
        findings=(
            *findings(method, [(level.label, level.seen.records, level.samples) for level in levels]),
            *_late_gaps(runs if method.option != "C" else ()),
        ),
    )


def _notes(capacity: SaturationRate, levels: Sequence[LevelItl]) -> tuple[Note, ...]:
    if capacity.rps is None:
        return (Note.of("no_sustained_load.levels"),)
    found = [Note.of("percentages_of", rate=Amount(capacity.rps, "req/s"), source=capacity.source)]
    found += [
        Note.of(
            "short_replies_left_out",
            level=level.label,
            excluded=level.samples.excluded,
            replies=level.samples.eligible + level.samples.excluded,
        )
        for level in levels
        if level.samples.excluded
    ]
    found += saturated_notes([level.seen for level in levels])
    found += [
        Note.of("zero_gaps_left_out", level=level.label, gaps=level.samples.zeros)
        for level in levels
        if level.samples.zeros
    ]
    return tuple(found)


def usual_method(setting: Setting) -> Method:
    """The method for usual streams: replies as long as asked for, one token at a time."""
    some = setting.workload.requests(REQUESTS.count("full"), setting.seed)
    eligible = [request.max_tokens for request in some if request.max_tokens >= FEWEST_TOKENS]
    share = max(len(eligible) / len(some), FEWEST_ELIGIBLE)
    gaps = float(np.mean(eligible)) - 1 if eligible else FEWEST_TOKENS - 1
    return Method("direct", "", eligible_share=share, gaps_per_request=gaps)


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The plans of the levels; without ``capacity_rps`` their rates and times follow from a search."""
    sequence, found = RequestSlice(setting.workload), list[LoadPlan]()
    capacity = SaturationRate(parameters.capacity_rps, "", sequence)
    loads = _Levels(parameters, setting, capacity, usual_method(setting))
    for percent in parameters.levels_percent:
        if capacity.rps is not None:
            found.append(loads.plan(percent, loads.requests(percent)))
        else:
            label = f"{percent_label(percent)} of saturation"
            found.append(sequence.closed_loop(setting, label, 1, duration_s=None, at_least=loads.count))
        sequence.first += found[-1].requests
    return tuple(found)


@dataclass(frozen=True)
class LevelItl:
    """One load level with its gaps. Requests of the ramp-up are left out."""

    seen: Seen
    samples: ItlCounts
    metrics: Mapping[str, Estimate]
    modality: Modality
    tail: str | None
    """Class of the tail: heavy, exponential or light; None with too few samples beyond P90."""
    cdf: tuple[tuple[float, ...], tuple[float, ...]]
    """Empirical distribution of the gaps: values, shares."""

    @property
    def label(self) -> str:
        return self.seen.level.label

    def facts(self) -> dict[str, Any]:
        """The facts that the audit reads."""
        planned = self.seen.records.requested_max_tokens
        return {
            "level": self.label,
            "percent_of_capacity": self.seen.level.percent_of_capacity,
            "eligible": self.samples.eligible,
            "excluded": self.samples.excluded,
            "excluded_share": self.samples.excluded_share,
            "samples": self.samples.gaps,
            "zero_gaps": self.samples.zeros,
            "fewest_requested_tokens": int(planned.min()) if len(planned) else None,
            "modality": modality_word(self.modality),
            "modes_ms": list(self.modality.modes),
            "tail_class": self.tail,
            "p99_over_p50": self.metrics["itl_tail_ratio"].point,
        }


def level_itl(seen: Seen, option: Option) -> LevelItl:
    """The gaps of the requests submitted in the window of the level, and their statistics."""
    samples = itl_samples(submitted_inside(window_of(seen.observation)), option)
    gaps = samples.clusters
    # Where gaps are too many to be sorted, what is going to be asked for is counted together.
    look_up(gaps.ordered, (*percentile_ranks(len(gaps), (*PERCENTILES.values(),)), *ecdf_ranks(len(gaps))))
    shape = modality(gaps)
    variation = tail_variation(gaps)
    gone = GivenUp.of_unknown(samples.given_up)
    metrics = {
        **itl_distribution(samples),
        **distribution("jitter", jitter_ms(samples), given_up=gone),
        **distribution("longest_pause", longest_pause_ms(samples), given_up=gone),
    }
    # Taken as independent, which they are not quite: what slows all tokens moves both, so the interval is too
    # wide rather than too narrow.
    metrics["itl_tail_ratio"] = change(metrics["itl.p50"], metrics["itl.p99"], "ratio")
    metrics["itl_modes"] = _observed(len(shape.modes) or None, "count", samples.counts)
    metrics["itl_tail_variation"] = _observed(variation, "ratio", samples.counts)
    with_itl = seen.with_(metrics={**seen.level.metrics, **metrics})
    tail = None if variation is None else tail_class(variation)
    return LevelItl(with_itl, samples.counts, metrics, shape, tail, ecdf(gaps.ordered))


def _observed(value: float | None, unit: str, samples: ItlCounts) -> Estimate:
    n = samples.gaps
    if value is None:
        return Estimate.undefined(unit=unit, method="too few samples", n=n)
    return Estimate.observed(float(value), n, "observed", unit)


def modality_word(shape: Modality) -> str | None:
    return None if not shape.modes else "multimodal" if shape.multimodal else "unimodal"


def tables(levels: Sequence[LevelItl], method: Method, runs: Sequence[Records]) -> tuple[Table, ...]:
    """Table 6 for each level, the levels side by side, and the chunk sizes where a chunk is not one token."""
    chunks = chunk_sizes_table(method, runs)
    side_by_side = (by_level_table(levels),) if len(levels) > 1 else ()
    return (*map(results_table, levels), *side_by_side, *((chunks,) if chunks is not None else ()))


def results_table(level: LevelItl) -> Table:
    label, metrics, samples = level.samples.label, level.metrics, level.samples
    named = {f"{label} {name}": f"itl.{key}" for name, key in (*_PERCENTILES, *_MOMENTS)}
    named["P99/P50 Ratio"] = "itl_tail_ratio"
    named |= {
        f"{title} {name}": f"{family}.{key}"
        for title, family in _PER_REQUEST
        for name, key in (("P50", "p50"), ("P95", "p95"), ("P99", "p99"))
    }
    word, variation = modality_word(level.modality), metrics["itl_tail_variation"].point
    modes = ", ".join(map(number, level.modality.modes))
    modality = NOT_MEASURED if word is None else f"{word}: {modes} ms"
    tail = "not measurable: too few samples beyond P90"
    if level.tail is not None and variation is not None:
        beyond = f"coefficient of variation beyond P90: {number(variation)}"
        tail = f"{_TAIL_WORDS[level.tail]} ({beyond})"
    rows: list[tuple[str, Cell]] = [(f"{label} Samples", samples.gaps)]
    rows += zip(named, cells(metrics, named.values()), strict=True)
    rows += [
        ("Modality", modality),
        ("Tail", tail),
        ("Requests", samples.eligible),
        ("Left Out (under 50 tokens)", samples.excluded),
        ("Share Left Out", Amount(samples.excluded_share, "ratio")),
    ]
    rate = level.seen.level.offered_rps
    at = f"{level.label} of saturation" + ("" if rate is None else f", {quantity(rate, 'req/s')}")
    return metric_table("itl_results", f"{label} Results at {at}", rows)


def by_level_table(levels: Sequence[LevelItl]) -> Table:
    label = levels[0].samples.label
    named = {
        **{f"{label} {name}": f"itl.{key}" for name, key in _PERCENTILES if key != "p90"},
        "P99/P50": "itl_tail_ratio",
        "Jitter P99": "jitter.p99",
        "Longest Pause P99": "longest_pause.p99",
    }
    rows: tuple[Row, ...] = tuple(
        (
            level.label,
            Amount(level.seen.level.offered_rps, "req/s"),
            *cells(level.metrics, named.values()),
        )
        for level in levels
    )
    return Table("itl_by_level", f"{label} by Load Level", ("Load", "Rate", *named), rows)


def chunk_sizes_table(method: Method, runs: Sequence[Records]) -> Table | None:
    """The chunk-size distribution, which option A has to report (section 4.6.3); None where all chunks are
    one token."""
    sizes = tokens_per_chunk(runs)
    if sizes is None:
        if method.option != "A":
            return None
        unknown = f"{NOT_MEASURED}: the server does not say"
        rows: tuple[tuple[str, Cell], ...] = (("Tokens per chunk", unknown),)
    elif sizes.max == 1:
        return None
    else:
        rows = (
            ("Chunks", sizes.chunks),
            ("Tokens per chunk, mean", Amount(sizes.mean, "")),
            ("Tokens per chunk, P50", Amount(sizes.p50, "")),
            ("Tokens per chunk, P99", Amount(sizes.p99, "")),
            ("Tokens per chunk, max", sizes.max),
        )
    told = (*rows, ("Timing", HANDLING[method.option]))
    return Table("chunk_sizes", "Chunk Sizes", ("Metric", "Value"), told)


def plots(levels: Sequence[LevelItl], objectives: Sequence[Objective]) -> tuple[Plot, ...]:
    """Plots of the empirical distribution of the gaps at every level, with the limits on it as marks; and of
    the shape at the highest level."""
    filled = [level for level in levels if level.samples.gaps]
    return (_cdf_plot(filled, objectives), *_histogram_plot(filled[-1])) if filled else ()


def _cdf_plot(levels: Sequence[LevelItl], objectives: Sequence[Objective]) -> Plot:
    marks: dict[str, float] = {}
    for objective in objectives:
        family, _, statistic = objective.metric.partition(".")
        if family.partition("[")[0] == "itl":
            marks[f"limit {statistic.replace('p99_9', 'p99.9').upper()}"] = objective.limit
    label = levels[0].samples.label
    series = {level.label: level.cdf for level in levels}
    return Plot(
        id="itl_cdf",
        title=f"Distribution of {label} by load level",
        x_label=f"{label} (ms)",
        y_label="share of gaps",
        series=series,
        marks=marks,
        step=True,
        x_log=all(x[0] > 0 for x, _ in series.values()),
    )


def _histogram_plot(level: LevelItl) -> tuple[Plot, ...]:
    """A histogram of the gaps with the modes as marks, unless these are too many to be told apart. Nothing
    where all gaps have zero length."""
    edges, shares = level.modality.histogram
    if not shares:
        return ()
    label, modes = level.samples.label, level.modality.modes
    marks = {f"mode {i}" if len(modes) > 1 else "mode": mode for i, mode in enumerate(modes, start=1)}
    found = "1 mode" if len(modes) == 1 else f"{len(modes)} modes"
    plot = Plot(
        id="itl_histogram",
        title=f"Histogram of {label} at {level.label} of saturation, {found}",
        x_label=f"{label} (ms)",
        y_label="share of gaps",
        series={level.label: ((edges[0], *edges), (0.0, *shares, 0.0))},
        marks=marks if len(modes) <= _MOST_MARKED else {},
        step=True,
        x_log=True,
    )
    return (plot,)


TEST = TestDefinition(*HEADING, Parameters, framed(HEADING, measure), plans)
