"""Long Context Scaling, section 5.9 of the draft.

Objective: how latency and throughput grow with the length of the context. Procedure: warm up with short
contexts; per length, ascending, send documents of that length in a closed loop of one to four requests and
store TTFT and total latency; fit a power law and a straight line to the means (AMB-21).

A length that the server refuses is a result: it is named and left out of the fit, and no longer one is tried.
A length whose prompts the server silently cut short is not measured at all, and voids the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import FAMILIES, Seen, level_of, qualified
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.measuring.warmup import warm_up
from pytest_llmbench.methodology.parameters import TestParameters, limit, parameter
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.remeasured import Attempts, attempted
from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.input_lengths import (
    PrefillScaling,
    length_group,
    ms_per_1k_tokens,
    prefill_scaling,
)
from pytest_llmbench.metrics.server_side import LEAST_READ_SHARE
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.draft import (
    CONTEXT_LENGTHS,
    CONTEXT_OUTPUT_TOKENS,
    FEWEST_LENGTHS,
    MOST_IN_FLIGHT,
    REQUESTS_PER_LENGTH,
)
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, LoadFact, Origin, ResultFact, SUTFact, WarmupFact, WorkloadFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import (
    PLAIN,
    Amount,
    Cell,
    Figure,
    Row,
    cells,
    number,
    quantity,
)
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.model.result import Plot, Table, TestResult, WarmupReport, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.lengths import Choice
from pytest_llmbench.workloads.long_context import (
    LONG_CONTEXT,
    QUESTION_TOKENS,
    UNIFORM_NAME,
    LongContextWorkload,
    fitting_targets,
)
from pytest_llmbench.workloads.sequence import drawn, sequence_sha256

CUT_SHARE = 0.9
"""Share of the tokens that the server makes of a length below which, by its own count, it has cut the
prompt."""
GROWTH_SHARE = 0.5
"""Least growth of the server's count from one length to the next, as a share of the growth that was
requested."""
_REFUSALS = (400, 413, 422)


_CURVE_POINTS = 40


HEADING = Heading("long_context", "5.9", "Long Context Scaling")


REQUESTS = ByScale(quick=3, standard=REQUESTS_PER_LENGTH, full=REQUESTS_PER_LENGTH)
"""Requests per length."""


QUICK_LONGEST = 8192
"""Longest length, in tokens, of a quick run that names none."""


_SHORTEST = 2 * QUESTION_TOKENS
_SHORTER = (256, 512)
"""Lengths for a context into which one of the usual ones fits; where two do, the second makes them three."""


_WARMUP_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """TTFT against input length: scaling exponent and straight line."""

    takes_adapters = False

    workload: str | LongContextWorkload = parameter("workload", LONG_CONTEXT.name)
    lengths: Sequence[int] | None = parameter(
        "counts",
        doc="input lengths in tokens, at least three. Default: the powers of two from 1024 to 131072 (to "
        "8192 in a quick run; 512 and 256 are added where fewer than three fit). Lengths that exceed "
        "the model's context together with the output are left out.",
    )
    concurrency: int = parameter("count", 1, doc="requests in flight, 1 to 4.")
    requests: int | None = parameter(
        "count",
        doc="requests per length; a limit on P95 needs about 80.",
        scale=REQUESTS,
    )
    output_tokens: int = parameter(
        "count",
        CONTEXT_OUTPUT_TOKENS,
        doc="output limit; any value but the default makes it a custom workload.",
    )
    max_exponent: float | None = limit("prefill_exponent", doc="largest k in TTFT ∝ length^k.")
    max_slope_us: float | None = limit(
        "prefill_slope", doc="largest slope of the straight line, in µs per input token."
    )
    ttft_p95_ms: Mapping[int, float] | None = limit(
        "ttft[{}].p95", "positive_by_length", doc="limits on TTFT P95 by length: ``{8192: 1500}``."
    )

    def contradictions(self) -> list[str]:
        found = []
        names = (LONG_CONTEXT.name, UNIFORM_NAME)
        if not isinstance(self.workload, LongContextWorkload) and self.workload not in names:
            found.append(f"workload must be {LONG_CONTEXT.name!r}: section 5.9.2 requires it for this test")
        if self.concurrency > MOST_IN_FLIGHT:
            found.append(f"concurrency must lie between 1 and {MOST_IN_FLIGHT}, got {self.concurrency}")
        if self.lengths is not None and len(self.lengths) < FEWEST_LENGTHS:
            found.append(f"lengths must have at least {FEWEST_LENGTHS} entries: two points fit any line")
        short = [length for length in self.lengths or () if length < _SHORTEST]
        if short:
            found.append(f"lengths must be at least {_SHORTEST}, a document and its question, got {short}")
        known = self.lengths or CONTEXT_LENGTHS
        unknown = [length for length in self.ttft_p95_ms or () if length not in known]
        if unknown:
            found.append(f"ttft_p95_ms limits {unknown}, which are not among the lengths {list(known)}")
        return found


@dataclass(frozen=True)
class _Run:
    """The lengths that were tried."""

    measured: tuple[MeasuredLength, ...]
    """The lengths that the results rest on."""
    truncated: tuple[MeasuredLength, ...]
    refused: tuple[MeasuredLength, ...]
    untried: tuple[int, ...]
    omitted: tuple[int, ...]
    limit_tokens: int | None
    void: tuple[Seen, ...]
    """Attempts that this machine spoiled, and notes on them."""
    void_notes: tuple[Note, ...]

    @property
    def all(self) -> tuple[MeasuredLength, ...]:
        return tuple(sorted((*self.measured, *self.truncated, *self.refused), key=lambda m: m.length))


def measure(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    base = workload_of(parameters, setting)
    wanted = lengths_of(parameters, setting)
    (short,) = warmups(parameters, setting)
    warmup = yield from warm_up(setting, workload=short)
    tried: list[MeasuredLength] = []
    void, notes = list[Seen](), list[Note]()
    for length in wanted:
        attempts = yield from _length(parameters, setting, base, length)
        void += attempts.runs[:-1]
        notes += attempts.notes
        tried.append(measured_at(length, attempts.level, seed=setting.seed))
        if is_refused(attempts.level.records):
            break
    truncated = truncated_lengths(tried)
    run = _Run(
        measured=tuple(m for m in tried if m.length not in truncated and not is_refused(m.records)),
        truncated=tuple(m for m in tried if m.length in truncated),
        refused=tuple(m for m in tried if is_refused(m.records)),
        untried=wanted[len(tried) :],
        omitted=tuple(length for length in _listed(parameters, setting) if length not in wanted),
        limit_tokens=setting.facts.value(SUTFact.CONTEXT_LIMIT_TOKENS),
        void=tuple(void),
        void_notes=tuple(notes),
    )
    lengths = tuple(m.length for m in tried)
    told = replace(setting, workload=replace(base, targets=Choice(lengths)))
    return _result(parameters, told, warmup, run)


def _length(
    parameters: Parameters, setting: Setting, base: LongContextWorkload, length: int
) -> Procedure[Attempts]:
    own = _documents(parameters, setting, base, length)

    def see(run: Observation) -> Seen:
        return level_of(own.sent(run), label=f"{length}", seed=setting.seed, role="length")

    return (
        yield from attempted(
            lambda: _plan(parameters, setting, own, length),
            see,
            setting.remeasure,
            needed=True,
            at_stake=parameters.objectives,
        )
    )


def workload_of(parameters: Parameters, setting: Setting) -> LongContextWorkload:
    """The workload with the wanted output limit; any other than 256 tokens makes it a custom workload."""
    base = setting.workload if isinstance(setting.workload, LongContextWorkload) else LONG_CONTEXT
    if parameters.output_tokens == base.output_tokens:
        return base
    return replace(base, output_tokens=parameters.output_tokens, name=f"{LONG_CONTEXT.name} (custom output)")


def _asked(parameters: Parameters, setting: Setting) -> tuple[int, ...]:
    if parameters.lengths is not None:
        return tuple(parameters.lengths)
    if setting.scale == "quick":
        return tuple(length for length in CONTEXT_LENGTHS if length <= QUICK_LONGEST)
    return CONTEXT_LENGTHS


def _listed(parameters: Parameters, setting: Setting) -> tuple[int, ...]:
    """The lengths that are measured or named as left out: those asked for, and of the usual ones all if there
    are no others."""
    asked = _asked(parameters, setting)
    if parameters.lengths is None or not set(asked) <= set(CONTEXT_LENGTHS):
        return asked
    limit = setting.facts.value(SUTFact.CONTEXT_LIMIT_TOKENS)
    beyond = [t for t in CONTEXT_LENGTHS if limit is not None and t + parameters.output_tokens > limit]
    return (*asked, *(length for length in beyond if length not in asked))


def lengths_of(parameters: Parameters, setting: Setting) -> tuple[int, ...]:
    """The lengths that fit the model's context; all where it is unknown. Of the usual ones there are at least
    three: where fewer fit, halves of the shortest are with them. SuiteError for fewer than three."""
    limit, asked = setting.facts.value(SUTFact.CONTEXT_LIMIT_TOKENS), _asked(parameters, setting)
    if parameters.lengths is None and limit is not None:
        fit = sum(length + parameters.output_tokens <= limit for length in asked)
        asked = (*_SHORTER[max(0, fit - 1) :], *asked)
    return fitting_targets(
        asked,
        limit,
        at_least=FEWEST_LENGTHS,
        output_tokens=parameters.output_tokens,
        remedy="name shorter lengths= or fewer output_tokens=, or serve the model with a longer context",
    )


def _documents(
    parameters: Parameters, setting: Setting, base: LongContextWorkload, length: int
) -> RequestSlice:
    # Every length is a part of its own, so that no two documents begin alike.
    count, in_flight = REQUESTS.count(setting.scale, parameters.requests), parameters.concurrency
    sequence = RequestSlice(base.at_length(length))
    return sequence.next_part(setting, "length", requests=count, concurrency=in_flight)


def _plan(parameters: Parameters, setting: Setting, own: RequestSlice, length: int) -> LoadPlan:
    count, in_flight = REQUESTS.count(setting.scale, parameters.requests), parameters.concurrency
    return own.closed_loop(setting, f"{length} tokens", in_flight, duration_s=None, at_least=count)


def _result(parameters: Parameters, setting: Setting, warmup: WarmupReport, run: _Run) -> TestResult:
    scaling = prefill_scaling([m.records for m in run.measured])
    best = best_fit(scaling, run.measured)
    facts = {
        **sequence_facts(run.all),
        WarmupFact.LONGEST_INPUT_TOKENS: min(_WARMUP_TOKENS, run.all[0].length) if warmup.performed else None,
        ResultFact.LONG_CONTEXT_LENGTHS: [m.facts() for m in run.measured],
        ResultFact.LONG_CONTEXT_REFUSED: [m.length for m in run.refused],
        ResultFact.LONG_CONTEXT_TRUNCATED: [m.length for m in run.truncated],
        ResultFact.LONG_CONTEXT_OMITTED: [*run.omitted, *run.untried],
        ResultFact.LONG_CONTEXT_FIT: fit_facts(scaling, run.measured),
        ResultFact.LONG_CONTEXT_BEST_FIT: best,
    }
    metrics = {name: value for name, value in scaling.metrics.items() if name != "prefill_intercept"}
    for level in run.measured:
        metrics |= qualified(level.metrics, f"{level.length}")
    report = Report(
        levels=[*run.void, *(m.seen for m in run.all)],
        metrics=metrics,
        tables=tables(run.measured, scaling, parameters.concurrency, best),
        plots=plots(run.measured, scaling),
        notes=(*_notes(run, best), *run.void_notes),
        load={LoadFact.MODEL: "closed", LoadFact.CONCURRENCY: parameters.concurrency},
        facts=Facts.of(Origin.MEASURED, facts),
        budgeted=[m.seen for m in (*run.measured, *run.truncated)],
        findings=(truncation_finding(run.truncated),),
    )
    return result_of(HEADING, parameters, setting, warmup, report)


def _notes(run: _Run, best: str | None) -> tuple[Note, ...]:
    notes = [] if best is None else [Note.of("best_fit", fit=best)]
    if run.limit_tokens is None:
        notes.append(Note.of("context_not_known"))
    if run.omitted:
        notes.append(Note.of("lengths_left_out", context=run.limit_tokens, lengths=run.omitted))
    for level in run.refused:
        told = next((error for error in level.records.error if error), None)
        notes.append(Note.of("length_refused", length=level.length, error=told, untried=run.untried))
    if best is None:
        notes.append(Note.of("no_fit", fewest=FEWEST_LENGTHS))
    return tuple(notes)


def needs(parameters: Parameters, setting: Setting) -> Sequence[str]:
    """What is missing: a context that holds at least three of the lengths."""
    try:
        lengths_of(parameters, setting)
    except SuiteError as error:
        return (error.what,)
    return ()


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The plans, one per length."""
    base = workload_of(parameters, setting)
    return tuple(
        _plan(parameters, setting, _documents(parameters, setting, base, length), length)
        for length in lengths_of(parameters, setting)
    )


def warmups(parameters: Parameters, setting: Setting) -> tuple[LongContextWorkload, ...]:
    """The workload of the warm-up, with a short context (section 5.9.3)."""
    shortest = lengths_of(parameters, setting)[0]
    return (workload_of(parameters, setting).at_length(min(_WARMUP_TOKENS, shortest)),)


@dataclass(frozen=True)
class MeasuredLength:
    """One length. The metrics of its level cover all its requests, since a closed loop of one has no
    ramp-up."""

    length: int
    seen: Seen
    ms_per_1k: Estimate

    @property
    def records(self) -> Records:
        return self.seen.records

    @property
    def metrics(self) -> Mapping[str, Estimate]:
        return self.seen.level.metrics

    @property
    def mean_input_tokens(self) -> float | None:
        lengths = length_group(self.records).lengths
        return float(np.mean(lengths)) if len(lengths) else None

    def facts(self) -> dict[str, Any]:
        """The facts that the audit reads."""
        points = {name: self.metrics[name].point for name in ("ttft.mean", "ttft.p50", "ttft.p95")}
        return {
            "length": self.length,
            "concurrency": self.seen.level.concurrency,
            "requests_ok": int(self.records.ok.sum()),
            "mean_input_tokens": self.mean_input_tokens,
            "ttft_mean_ms": points["ttft.mean"],
            "ttft_p50_ms": points["ttft.p50"],
            "ttft_p95_ms": points["ttft.p95"],
            "ms_per_1k_tokens": self.ms_per_1k.point,
            "output_tok_s": self.metrics["output_token_throughput"].point,
            "input_tok_s": self.metrics["input_token_throughput"].point,
        }


def measured_at(length: int, seen: Seen, *, seed: int) -> MeasuredLength:
    records = seen.records
    metrics = latency.distributions(FAMILIES, [records]) | rates([seen.observation], seed=seed)
    return MeasuredLength(length, seen.with_(metrics=metrics), ms_per_1k_tokens(records, seed=seed))


def is_refused(records: Records) -> bool:
    """Whether no request succeeded and the server refused every one as too long or malformed."""
    return len(records) > 0 and not records.ok.any() and bool(np.isin(records.http_status, _REFUSALS).all())


def truncated_lengths(levels: Sequence[MeasuredLength]) -> frozenset[int]:
    """Lengths at which the server counts clearly fewer input tokens than were sent, by the tokens that it
    makes of those of the shortest, or hardly more than at the length before. Only where the server counts:
    our own count does not show what it processed."""
    counted = [(m.length, tokens) for m in levels if (tokens := _server_count(m.records)) is not None]
    usual = min((tokens / length for length, tokens in counted[:1]), default=1.0)
    usual = min(usual, 1.0) if usual >= LEAST_READ_SHARE else 1.0
    cut = {length for length, tokens in counted if tokens < CUT_SHARE * usual * length}
    for (length, tokens), (longer, more) in pairwise(counted):
        if more - tokens < GROWTH_SHARE * (longer - length):
            cut.add(longer)
    return frozenset(cut)


def _server_count(records: Records) -> float | None:
    """Mean input tokens by the server's own usage; None where it reports none."""
    own = [TOKEN_SOURCES.index(TokenSource.SERVER_USAGE)]
    told = records.ok & np.isin(records.token_source, own) & (records.input_tokens != MISSING)
    return float(np.mean(records.input_tokens[told])) if told.any() else None


def truncation_finding(truncated: Sequence[MeasuredLength]) -> Finding:
    """The finding about cut prompts.

    It is not ok where there are any: the run did not measure the lengths it names.
    """
    if not truncated:
        return Finding.of("context_truncated", ok=True)
    lengths = tuple(
        Note.of("counted_length", length=each.length, counted=Amount(_server_count(each.records), "count"))
        for each in truncated
    )
    return Finding.of("context_truncated.cut", lengths=lengths)


def sequence_facts(levels: Sequence[MeasuredLength]) -> dict[str, Any]:
    """``workload.*`` of the whole test, whose sequence is that of the lengths, one after another.

    ``workload.targets[i]`` is the length of the requests in ``workload.slices[i]``; the digest is of all of
    them together.
    """
    plans = [m.seen.observation.plan for m in levels]
    parts = [(plan, len(m.records)) for plan, m in zip(plans, levels, strict=True)]
    requests = (
        request for plan, count in parts for request in drawn(plan.workload, plan.first, count, plan.seed)
    )
    return {
        WorkloadFact.N_REQUESTS: sum(count for _, count in parts),
        WorkloadFact.TARGETS: [m.length for m in levels],
        WorkloadFact.SLICES: [[plan.first, count] for plan, count in parts],
        WorkloadFact.PARTS: [[plan.part, plan.seed] for plan, _ in parts],
        WorkloadFact.SEQUENCE_SHA256: sequence_sha256(requests),
    }


def tables(
    measured: Sequence[MeasuredLength], scaling: PrefillScaling, concurrency: int, best: str | None
) -> tuple[Table, ...]:
    """Table 12, with the median that the text asks for, and the two fits."""
    return (_lengths_table(measured, concurrency), _fit_table(scaling, measured, best))


def _lengths_table(measured: Sequence[MeasuredLength], concurrency: int) -> Table:
    at = f"at {concurrency} in flight"
    columns = (
        "Context (tokens)", "TTFT Mean", "TTFT P50", "TTFT P95", "ms/1K tokens", "Requests",
        f"Output tok/s {at}", f"Input tok/s {at}",
    )  # fmt: skip
    rows: tuple[Row, ...] = tuple(
        (
            level.length,
            *cells(level.metrics, ("ttft.mean", "ttft.p50", "ttft.p95"), "both"),
            Figure("ms_per_1k_tokens", level.ms_per_1k),
            level.seen.level.n_ok,
            *cells(level.metrics, ("output_token_throughput", "input_token_throughput")),
        )
        for level in measured
    )
    return Table("long_context", "Long Context Scaling", columns, rows)


def _fit_table(scaling: PrefillScaling, measured: Sequence[MeasuredLength], best: str | None) -> Table:
    named = ("prefill_exponent", "prefill_exponent_fit", "prefill_slope", "prefill_intercept")
    exponent, fit, slope, crossing = cells(scaling.metrics, named)
    logarithmic, straight = r_squared(scaling, measured)
    rows: list[tuple[str, Cell]] = [
        ("Power law exponent k", exponent),
        ("R² (logarithms)", fit),
        ("R² (original scale)", Amount(logarithmic, PLAIN)),
        ("Straight line, slope", slope),
        ("Straight line, intercept", crossing),
        ("R² (straight line)", Amount(straight, PLAIN)),
        ("Best fit", best or "not measured: fewer than three lengths"),
    ]
    return metric_table("long_context_fit", "Scaling of TTFT with Length", rows)


def best_fit(scaling: PrefillScaling, measured: Sequence[MeasuredLength]) -> str | None:
    """The name of the fit with the better R² on the original scale (AMB-21), for the report."""
    exponent, slope = scaling.metrics["prefill_exponent"].point, scaling.metrics["prefill_slope"].point
    logarithmic, straight = r_squared(scaling, measured)
    if exponent is None or slope is None or logarithmic is None or straight is None:
        return None
    if straight >= logarithmic:
        return f"Linear (R² = {quantity(straight, PLAIN)}), about {number(slope)} µs per input token"
    power = quantity(exponent, PLAIN)
    return f"Power law (R² = {quantity(logarithmic, PLAIN)}), TTFT grows with length to the power {power}"


def r_squared(
    scaling: PrefillScaling, measured: Sequence[MeasuredLength]
) -> tuple[float | None, float | None]:
    """R² of the power law and of the straight line, both about the mean TTFTs themselves; None for a missing
    fit."""
    if scaling.power is None or scaling.line is None:
        return None, scaling.line.r_squared if scaling.line is not None else None
    lengths, means = _points(measured)
    about = float(np.sum(np.square(means - means.mean())))
    if about == 0:
        return None, scaling.line.r_squared
    power = math.exp(scaling.power.intercept) * lengths**scaling.power.slope
    return 1 - float(np.sum(np.square(means - power))) / about, scaling.line.r_squared


def fit_facts(scaling: PrefillScaling, measured: Sequence[MeasuredLength]) -> dict[str, Any] | None:
    """The facts about both fits, as the audit reads them; None where a fit is missing."""
    if scaling.power is None or scaling.line is None:
        return None
    exponent = scaling.metrics["prefill_exponent"]
    logarithmic, straight = r_squared(scaling, measured)
    return {
        "power": {
            "k": exponent.point,
            "k_interval": [exponent.lower, exponent.upper],
            "r2": scaling.power.r_squared,
            "r2_original_scale": logarithmic,
        },
        "linear": {
            "slope_us_per_token": scaling.metrics["prefill_slope"].point,
            "intercept_ms": scaling.line.intercept,
            "r2": straight,
        },
    }


def plots(measured: Sequence[MeasuredLength], scaling: PrefillScaling) -> tuple[Plot, ...]:
    """A plot of mean TTFT over length on logarithmic axes, with the power law and the straight line."""
    lengths, means = _points(measured)
    if not len(lengths):
        return ()
    series = {"mean TTFT": (tuple(lengths.tolist()), tuple(means.tolist()))}
    found = [(level.mean_input_tokens, level.metrics["ttft.mean"]) for level in measured]
    ends = [(x, e.lower, e.upper) for x, e in found if x and e.lower is not None and e.upper is not None]
    x, low, high = zip(*ends, strict=True) if ends else ((), (), ())
    if scaling.power is not None and scaling.line is not None:
        at = np.geomspace(lengths.min(), lengths.max(), _CURVE_POINTS)
        power = math.exp(scaling.power.intercept) * at**scaling.power.slope
        straight = scaling.line.intercept + scaling.line.slope * at
        series[f"power law, k = {quantity(scaling.power.slope, PLAIN)}"] = (
            tuple(at.tolist()),
            tuple(power.tolist()),
        )
        above = straight > 0
        series["straight line"] = (tuple(at[above].tolist()), tuple(straight[above].tolist()))
    plot = Plot(
        id="long_context_scaling",
        title="TTFT by context length",
        x_label="input tokens",
        y_label="mean TTFT (ms)",
        series=series,
        bands={"mean TTFT": (x, low, high)} if len(x) == len(measured) else {},
        x_log=True,
        y_log=True,
    )
    return (plot,)


def _points(measured: Sequence[MeasuredLength]) -> tuple[np.ndarray, np.ndarray]:
    """Mean input tokens and mean TTFT of each length that has them."""
    found = [(level.mean_input_tokens, level.metrics["ttft.mean"].point) for level in measured]
    known = [(x, y) for x, y in found if x is not None and y is not None]
    points = np.array(known, dtype=np.float64).reshape(-1, 2)
    return points[:, 0], points[:, 1]


TEST = TestDefinition(*HEADING, Parameters, framed(HEADING, measure, warm=False), plans, needs, warmups)
