"""The test of speculative decoding: one load, and the same requests once more with speculation off.

Acceptance is what the engine tells of the load, held against what its stream shows. The speedup is that of
decoding, as the acceptance of tokens has no part in prefill: TPOT with speculation off / with it on, request
by request, the geometric mean.

How many guessed tokens are accepted is known by the engine's counters, by its replies, and by the stream.
A step without a draft gives one token, one with a draft as many more as are accepted:

    acceptance length = 1 + accepted / drafts,      acceptance rate = accepted / guessed,
    tokens of a step  = tokens after the first / max(drafts, tokens after the first - accepted).

Length and tokens of a step differ where steps have no draft, as with n-grams, which guess where a text
repeats itself. What a last draft holds beyond the end of its reply counts as accepted, so there are as many
steps as drafts at least.

Counters give the spread of a draft where they tell acceptance by place, P(A > j) = c_j / drafts:
E A² = Σ (2j + 1) P(A > j). Else drafts are taken to be accepted whole or not at all, the widest spread with
that mean; where nobody tells how long they are, to end at each token alike: Var A = E A (1 + E A). Drafts
are taken to be independent of each other. Replies are clusters: the ratio of two sums has the standard error
of the residuals y - r x over replies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final, NamedTuple

import numpy as np

from pytest_llmbench.compare.regression import paired_ratio
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.measuring.manifest import bare_result
from pytest_llmbench.methodology.measuring.one_load import Before, measured_runs, with_void
from pytest_llmbench.methodology.measuring.variants import missing_variants
from pytest_llmbench.methodology.measuring.warmup import joined, warm_up
from pytest_llmbench.methodology.parameters import DEFAULT_CONCURRENCY, TestParameters, limit, parameter
from pytest_llmbench.methodology.patience import with_raised_deadlines
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting, TestDefinition
from pytest_llmbench.metrics.definitions import MetricDefinition
from pytest_llmbench.metrics.latency import FAMILIES, distributions, tpot_ms
from pytest_llmbench.metrics.ratios import exact_share
from pytest_llmbench.metrics.throughput import rates
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount, Row, cells, with_intervals
from pytest_llmbench.model.observation import ACCEPTED_AT, EngineReadings, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import MISSING, IntColumn, Records, split_by_class
from pytest_llmbench.model.result import Table, TestResult, WarmupReport, metric_table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.latencies import streamed_tokens

LENGTH: Final = MetricDefinition(
    "acceptance_length",
    "Acceptance length",
    "tokens",
    "higher",
    "1 + accepted tokens / drafts; of a class of requests: tokens after the first / steps",
    "speculative",
)

RATE: Final = MetricDefinition(
    "acceptance_rate", "Acceptance rate", "ratio", "higher", "accepted / guessed tokens", "speculative"
)

HEADING = Heading("speculative", "", "Speculative Decoding")
SPEEDUP: Final = MetricDefinition(
    "speedup",
    "Speedup by speculation",
    "ratio",
    "higher",
    "TPOT with speculation off / on, the same requests in pairs, geometric mean",
    "speculative",
)
MAIN_METRICS = (LENGTH.name, RATE.name, SPEEDUP.name, "tpot.p50")

PROMPTS = ByScale(quick=32, standard=128, full=512)
_AGREES = 0.1
"""The share by which tokens of an event and tokens of a step may differ and still be the same thing."""
_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """How many guessed tokens are accepted; with ``min_speedup``, the same requests with speculation off.

    Limits are judged on the whole confidence interval.
    """

    of_the_draft = False

    prompts: int | None = parameter("count", doc="requests in the load.", scale=PROMPTS)
    concurrency: int = parameter("count", DEFAULT_CONCURRENCY, doc="requests in flight.")
    without: str = parameter(
        "name", "speculation_disabled", doc="SUT variant with speculation off, for ``min_speedup``."
    )
    min_acceptance_length: float | None = limit(LENGTH.name, doc="least tokens per request and step.")
    min_acceptance_rate: float | None = limit(
        RATE.name, "share", doc="least share of guessed tokens that are accepted."
    )
    min_speedup: float | None = limit(
        SPEEDUP.name, doc="least TPOT with speculation off / on; both get the same load."
    )


def plans(parameters: Parameters, setting: Setting, attempt: int = 1) -> tuple[LoadPlan, ...]:
    """The load, and the same with speculation off where that is asked for."""
    count = PROMPTS.count(setting.scale, parameters.prompts)
    asked = {"concurrency": parameters.concurrency, "count": count}
    part = part_of(
        setting, setting.workload, HEADING.test, **asked, **({"attempt": attempt} if attempt > 1 else {})
    )
    on = part.plan(setting, "speculation on", ClosedLoop(min(parameters.concurrency, count)), count)
    return (on,) if parameters.min_speedup is None else (on, _off(parameters, on))


def _off(parameters: Parameters, on: LoadPlan) -> LoadPlan:
    return on.with_(label="speculation off", variant=parameters.without)


def measure(parameters: Parameters, setting: Setting) -> Procedure[TestResult]:
    attempts, concurrency = 1 + setting.remeasure, parameters.concurrency
    warmups = [(yield from warm_up(setting, concurrency=concurrency))]

    def plan_of(_run: int, attempt: int, _before: Before) -> LoadPlan:
        return plans(parameters, setting, attempt)[0]

    seen, void = yield from measured_runs(1, attempts, plan_of)
    if parameters.min_speedup is not None and seen and seen[0].interrupted is None:
        off = _off(parameters, seen[0].plan)
        warmups.append((yield from warm_up(setting, concurrency=concurrency, variant=off.variant)))
        more, again = yield from measured_runs(1, attempts, lambda *_: off)
        seen, void = [*seen, *more], [*void, *again]
    warmup = joined(warmups, "with speculation on, and off") if len(warmups) > 1 else warmups[0]
    return with_void(result(parameters, setting, warmup, seen), void)


def needs(parameters: Parameters, setting: Setting) -> Sequence[str]:
    if parameters.min_speedup is None:
        return ()
    return missing_variants(setting, {parameters.without: "speculative decoding off"})


def result(
    parameters: Parameters, setting: Setting, warmup: WarmupReport, seen: Sequence[Observation]
) -> TestResult:
    on = [run for run in seen if run.plan.variant != parameters.without]
    off = [run for run in seen if run.plan.variant == parameters.without]
    metrics: dict[str, Estimate] = distributions(FAMILIES, [run.records for run in on])
    metrics |= rates(on, seed=setting.seed)
    notes, findings = [Note.of("outside_draft", test=HEADING.test)], []
    if on:
        found = acceptance_of(on[0].engine, on[0].records)
        untold = "guessed tokens are not reported"
        metrics |= {
            row.name: Estimate.undefined(unit=row.unit, method=untold, reason=Reason.NOT_MEASURABLE)
            for row in (LENGTH, RATE)
        }
        metrics |= found.metrics
        metrics[PER_EVENT.name] = by_stream(on[0].records)
        told = Note.of("acceptance_told_by", source=found.source) if found.source else None
        notes.append(told or Note.of("no_acceptance_told"))
        length, every = metrics[LENGTH.name], metrics.get(PER_STEP.name)
        if every is not None and every.n and length.n < (1 - _AGREES) * every.n:
            notes.append(Note.of("steps_without_draft", share=Amount(length.n / every.n, "ratio")))
        of_event, of_step = metrics[PER_EVENT.name].point, (every or length).point
        if of_event is not None and of_step:
            share = of_event / of_step
            findings.append(Finding.of("steps_in_stream", abs(share - 1) <= _AGREES, share, 1 - _AGREES))
    classes = split_by_class([run.records for run in on])
    metrics |= by_class(classes)
    if parameters.min_speedup is not None:
        metrics[SPEEDUP.name] = _speedup(*([run.records for run in arm] for arm in (on, off)))
        slower = rates(off, seed=setting.seed)
        metrics |= {f"{name}[off]": each for name, each in slower.items() if "[" not in name}
    sent = [run.plan for run in seen] or list(plans(parameters, setting))
    return replace(
        bare_result(HEADING, parameters, setting, warmup, seen, sent),
        metrics=metrics,
        tables=tuple(_tables(metrics, classes)),
        notes=tuple(notes),
        findings=tuple(findings),
    )


def _speedup(on: Sequence[Records], off: Sequence[Records]) -> Estimate:
    """TPOT with speculation off / on, over the requests of which both have one."""
    method = "fewer than two requests have a TPOT with speculation on and off"
    none = Estimate.undefined(unit="ratio", method=method, n=0, reason=Reason.NO_SAMPLES)
    if not on or not off:
        return none
    one, other = _with_tpot(on[0]), _with_tpot(off[0])
    _, first, second = np.intersect1d(one.index, other.index, return_indices=True)
    if len(first) < 2:
        return none
    faster, slower = np.maximum(tpot_ms(one)[first], 1e-6), np.maximum(tpot_ms(other)[second], 1e-6)
    return paired_ratio(faster.tolist(), slower.tolist())


def _with_tpot(records: Records) -> Records:
    ends = (records.first_content_ns != MISSING) & (records.last_content_ns != MISSING)
    return records.select(records.ok & ends & (streamed_tokens(records) >= 2))


def _tables(metrics: Mapping[str, Estimate], labels: Iterable[str]) -> Iterator[Table]:
    shown = {
        row.name: row.title for row in (LENGTH, RATE, PER_STEP, PER_EVENT, SPEEDUP) if row.name in metrics
    }
    shown |= {"tpot.p50": "TPOT P50", "output_token_throughput": "Output throughput"}
    shown |= {"output_token_throughput[off]": "Output throughput, speculation off"}
    known = {name: title for name, title in shown.items() if name in metrics}
    rows = zip(known.values(), cells(metrics, known), strict=True)
    yield metric_table(HEADING.test, HEADING.title, rows)
    places = [name for name in metrics if name.startswith(f"{AT.name}[")]
    if places:
        rows = zip(map(str, range(1, len(places) + 1)), cells(metrics, places), strict=True)
        title, columns = "Acceptance by Place in the Draft", ("Place", "Accepted", "95 % interval")
        yield Table("acceptance_by_place", title, columns, with_intervals(rows))
    names = (LENGTH.name, RATE.name, PER_EVENT.name)
    by_class: list[Row] = [(each, *cells(metrics, [f"{name}[{each}]" for name in names])) for each in labels]
    if by_class:
        titles = ("Class", "Acceptance length", "Acceptance rate", "Tokens of an event")
        yield Table("acceptance_by_class", "Acceptance by Class", titles, tuple(by_class))


TEST = TestDefinition(*HEADING, Parameters, with_raised_deadlines(measure), plans, needs, result=result)

_Z = NormalDist().inv_cdf((1 + _LEVEL) / 2)

AT: Final = MetricDefinition(
    "acceptance_at",
    "Acceptance at a place in the draft",
    "ratio",
    "higher",
    "drafts whose n-th token was accepted / drafts, n from 1",
    "speculative",
)
PER_STEP: Final = MetricDefinition(
    "tokens_per_step",
    "Tokens of a step",
    "tokens",
    "higher",
    "tokens after the first / steps that gave them, with a draft or without",
    "speculative",
)
PER_EVENT: Final = MetricDefinition(
    "tokens_per_event",
    "Tokens of an event of the stream",
    "tokens",
    "higher",
    "tokens after the first event / events after the first",
    "speculative",
)


class Acceptance(NamedTuple):
    """What was found of a load, by name, and who told it; empty: nobody did."""

    metrics: dict[str, Estimate]
    source: str = ""


def acceptance_of(engine: EngineReadings | None, records: Records) -> Acceptance:
    """The figures of the counters of the metrics page, else of the replies, else of a gauge of the page."""
    replies = by_replies(records)
    counted = {} if engine is None else _by_counters(engine, int(records.ok.sum()))
    if LENGTH.name in counted:
        # SGLang's counter tells no guessed tokens; its replies may.
        return Acceptance({**replies, **counted}, "the counters of the metrics page")
    if LENGTH.name in replies:
        return Acceptance({**counted, **replies}, "the replies")
    shown = None if engine is None else engine.gauges.get("acceptance_length")
    if shown is not None and len(known := shown[shown > 0]):
        length = Estimate(
            float(known.mean()), None, None, _LEVEL, len(known), "mean of a gauge over the load", "tokens"
        )
        return Acceptance({**counted, LENGTH.name: length}, "a gauge of the metrics page")
    return Acceptance(counted, "the counters of the metrics page" if counted else "")


def _by_counters(engine: EngineReadings, replies: int) -> dict[str, Estimate]:
    """``replies``: how many there were, where the engine does not count them."""
    drafts, accepted = engine.grown("drafts"), engine.grown("accepted_draft_tokens")
    guessed = engine.grown("draft_tokens")
    if not drafts:
        if not guessed or accepted is None:
            return {}
        method = "accepted / guessed, by counters without a number of drafts"
        return {RATE.name: Estimate(accepted / guessed, None, None, _LEVEL, round(guessed), method, "ratio")}
    generated, finished = engine.grown("generated_tokens"), engine.grown("requests_finished")
    further = None if generated is None else generated - (replies if finished is None else finished)
    if accepted is None:
        if further is None or finished is None:
            return {}
        mean = further / drafts
        error = math.sqrt(max(mean * (mean - 1), 0.0) / drafts)
        method = "tokens after the first / steps, by counters"
        length = _normal(mean, error, round(drafts), method, "tokens", least=1.0)
        return {LENGTH.name: length, PER_STEP.name: length}
    told = engine.grown_by_label(ACCEPTED_AT) or {}
    counts = [told.get(str(place)) for place in range(len(told))]
    places = [] if None in counts else [count for count in counts if count is not None]
    longest = (guessed or accepted) / drafts

    def error_of(steps: float) -> float:
        mean = accepted / steps
        weighted = sum((2 * place + 1) * count for place, count in enumerate(places))
        square = weighted / steps if places else mean * longest
        return math.sqrt(max(square - mean * mean, 0.0) / steps)

    mean, error = accepted / drafts, error_of(drafts)
    found = {LENGTH.name: _normal(1 + mean, error, round(drafts), "counters of drafts", "tokens", least=1.0)}
    if further:
        steps = max(drafts, further - accepted)
        found[PER_STEP.name] = _normal(
            further / steps,
            error_of(steps),
            round(steps),
            "counters of tokens and drafts",
            "tokens",
            least=1.0,
        )
    if guessed:
        scale = drafts / guessed
        rate = _normal(mean * scale, error * scale, round(drafts), "counters of drafts", "ratio")
        found[RATE.name] = rate
    for place, count in enumerate(places, 1):
        found[f"{AT.name}[{place}]"] = exact_share(min(round(count), round(drafts)), round(drafts))
    return found


def _normal(point: float, error: float, n: int, method: str, unit: str, least: float = 0.0) -> Estimate:
    lower, upper = max(point - _Z * error, least), point + _Z * error
    return Estimate(point, lower, upper, _LEVEL, n, f"normal interval, {method}", unit)


def by_replies(records: Records) -> dict[str, Estimate]:
    """The figures that replies tell of themselves; empty where none does, or where nothing was guessed."""
    further, accepted = streamed_tokens(records) - 1, records.accepted_draft_tokens
    told = records.ok & (records.draft_tokens != 0) & (accepted != MISSING) & (further > accepted)
    guessed = told & (records.draft_tokens > 0)  # TensorRT-LLM tells what was accepted alone
    if not guessed.any() and not accepted[told].any():
        return {}
    steps = (further - accepted)[told]
    length = _ratio(further[told], steps, "tokens", "tokens after the first / steps, by replies")
    found = {LENGTH.name: length, PER_STEP.name: length}
    if guessed.any():
        method = "accepted / guessed, by replies"
        found[RATE.name] = _ratio(accepted[guessed], records.draft_tokens[guessed], "ratio", method)
    return found


def by_stream(records: Records) -> Estimate:
    """Tokens of an event after the first, over the replies whose tokens are known event by event."""
    counts = np.diff(records.chunk_offsets)
    owner = np.repeat(np.arange(len(records)), counts)
    unknown = np.bincount(owner[records.chunk_tokens == MISSING], minlength=len(records)) > 0
    tokens = np.bincount(owner, weights=records.chunk_tokens, minlength=len(records)).astype(np.int64)
    known = records.ok & ~unknown & (counts > 1)
    if not known.any():
        method = "no reply reports the tokens of each event"
        return Estimate.undefined(unit="tokens", method=method, n=0, reason=Reason.NOT_MEASURABLE)
    first = records.chunk_tokens[records.chunk_offsets[:-1][known]]
    return _ratio(tokens[known] - first, counts[known] - 1, "tokens", "tokens / events after the first")


def _ratio(over: IntColumn, under: IntColumn, unit: str, method: str) -> Estimate:
    """The sum of ``over`` / the sum of ``under``, of one reply each."""
    n, whole = len(over), int(under.sum())
    ratio = float(over.sum()) / whole
    if n < 2:
        return Estimate(ratio, None, None, _LEVEL, n, method, unit)
    residuals = over - ratio * under
    error = math.sqrt(n / (n - 1) * float((residuals**2).sum())) / whole
    return _normal(ratio, error, n, method, unit)


def by_class(classes: Mapping[str, Sequence[Records]]) -> dict[str, Estimate]:
    """Length and rate of the requests of each label, which only replies tell, and what the stream shows; of
    the first run."""
    found: dict[str, Estimate] = {}
    for label, (own, *_) in classes.items():
        told = {**by_replies(own), PER_EVENT.name: by_stream(own)}
        found |= {f"{name}[{label}]": estimate for name, estimate in told.items()}
    return found
