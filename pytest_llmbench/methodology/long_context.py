"""Long Context Scaling, section 5.9 of the draft (METHODOLOGY §11.9).

Objective: how latency and throughput grow with the length of the context. Procedure: warm up with short
contexts; per length, ascending, send documents of that length in a closed loop of one to four requests and
store TTFT and total latency; fit a power law and a straight line to the means (AMB-21).

A length that the server refuses is a result: it is named and left out of the fit, and no longer one is tried.
A length whose prompts the server silently cut short is not measured at all, and voids the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology import long_context_tables
from pytest_llmbench.methodology.context_lengths import (
    Measured,
    is_refused,
    measured_at,
    sequence_facts,
    truncated_lengths,
    truncation_finding,
)
from pytest_llmbench.methodology.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.levels import level_of, qualified
from pytest_llmbench.methodology.load_plans import RequestSlice
from pytest_llmbench.methodology.parameters import TestParameters, parameter
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.scales import ByScale
from pytest_llmbench.methodology.warmup import warm_up
from pytest_llmbench.metrics.scaling import PrefillScaling, prefill_scaling
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.result import TestResult, WarmupReport
from pytest_llmbench.workloads.lengths import Choice
from pytest_llmbench.workloads.long_context import (
    LONG_CONTEXT,
    OUTPUT_TOKENS,
    QUESTION_TOKENS,
    SCALING_TARGETS,
    UNIFORM_NAME,
    LongContextWorkload,
    fitting_targets,
)

HEADING = Heading("long_context", "5.9", "Long Context Scaling")
REQUESTS = ByScale(quick=3, standard=20, full=20)
"""Per length."""
QUICK_LONGEST = 8192
"""Longest length of a quick run that names none."""
FEWEST_LENGTHS, MOST_IN_FLIGHT = 3, 4
_SHORTEST = 2 * QUESTION_TOKENS
_WARMUP_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Keywords of ``@llmbench.long_context``."""

    workload: str | LongContextWorkload = parameter("workload", LONG_CONTEXT.name)
    lengths: Sequence[int] | None = parameter("counts")
    """Input lengths in tokens; default: the powers of two from 1024 to 131072. What does not fit the model's
    context together with the output is left out."""
    concurrency: int = parameter("count", 1)
    """Requests in flight, 1 to 4."""
    requests: int | None = parameter("count")
    """Per length; 20 support a mean and a median. A limit on P95 needs more: about 80."""
    output_tokens: int = parameter("count", OUTPUT_TOKENS)
    max_exponent: float | None = parameter("positive")
    """Of k in TTFT ∝ length^k."""
    max_slope_us: float | None = parameter("positive")
    """Of the straight line, in µs per input token."""
    ttft_p95_ms: Mapping[int, float] | None = parameter("positive_by_length")
    """Limits by length: ``{8192: 1500}``."""

    def contradictions(self) -> list[str]:
        found = []
        names = (LONG_CONTEXT.name, UNIFORM_NAME)
        if not isinstance(self.workload, LongContextWorkload) and self.workload not in names:
            found.append(f"workload has to be {LONG_CONTEXT.name!r}: section 5.9.2 requires it for this test")
        if self.concurrency > MOST_IN_FLIGHT:
            found.append(f"concurrency must lie between 1 and {MOST_IN_FLIGHT}, got {self.concurrency}")
        if self.lengths is not None and len(self.lengths) < FEWEST_LENGTHS:
            found.append(f"lengths must have at least {FEWEST_LENGTHS} entries: two points fit any line")
        short = [length for length in self.lengths or () if length < _SHORTEST]
        if short:
            found.append(f"lengths must be at least {_SHORTEST}, a document and its question, got {short}")
        known = self.lengths or SCALING_TARGETS
        unknown = [length for length in self.ttft_p95_ms or () if length not in known]
        if unknown:
            found.append(f"ttft_p95_ms limits {unknown}, which are not among the lengths {list(known)}")
        return found

    @property
    def objectives(self) -> tuple[Objective, ...]:
        own = []
        if self.max_exponent is not None:
            own.append(Objective("prefill_exponent", "<=", self.max_exponent, "ratio"))
        if self.max_slope_us is not None:
            own.append(Objective("prefill_slope", "<=", self.max_slope_us, "us/token"))
        own += [
            Objective(f"ttft[{length}].p95", "<=", limit, "ms")
            for length, limit in (self.ttft_p95_ms or {}).items()
        ]
        return (*own, *self.slo)


@dataclass(frozen=True)
class _Run:
    """All lengths that were tried."""

    measured: tuple[Measured, ...]
    """What the results rest on."""
    truncated: tuple[Measured, ...]
    refused: tuple[Measured, ...]
    untried: tuple[int, ...]
    omitted: tuple[int, ...]
    limit_tokens: int | None

    @property
    def all(self) -> tuple[Measured, ...]:
        return tuple(sorted((*self.measured, *self.truncated, *self.refused), key=lambda m: m.length))


def measure(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    base = workload_of(parameters, setting)
    wanted = lengths_of(parameters, setting)
    (short,) = warmups(parameters, setting)
    warmup = yield from warm_up(setting, workload=short)
    tried: list[Measured] = []
    for length in wanted:
        plan = _plan(parameters, setting, base, length)
        seen = level_of((yield plan), label=f"{length}", seed=setting.seed, role="length")
        tried.append(measured_at(length, seen, seed=setting.seed))
        if is_refused(seen.records):
            break
    truncated = truncated_lengths(tried)
    run = _Run(
        measured=tuple(m for m in tried if m.length not in truncated and not is_refused(m.records)),
        truncated=tuple(m for m in tried if m.length in truncated),
        refused=tuple(m for m in tried if is_refused(m.records)),
        untried=wanted[len(tried) :],
        omitted=tuple(length for length in _asked(parameters, setting) if length not in wanted),
        limit_tokens=setting.facts.value("sut.context_limit_tokens"),
    )
    lengths = tuple(m.length for m in tried)
    told = replace(setting, workload=replace(base, targets=Choice(lengths)))
    return _result(parameters, told, warmup, run)


def workload_of(parameters: Parameters, setting: Setting) -> LongContextWorkload:
    """The workload with the wanted output; another one than 256 tokens makes it a custom workload."""
    base = setting.workload if isinstance(setting.workload, LongContextWorkload) else LONG_CONTEXT
    if parameters.output_tokens == base.output_tokens:
        return base
    return replace(base, output_tokens=parameters.output_tokens, name=f"{LONG_CONTEXT.name} (custom output)")


def _asked(parameters: Parameters, setting: Setting) -> tuple[int, ...]:
    if parameters.lengths is not None:
        return tuple(parameters.lengths)
    if setting.scale == "quick":
        return tuple(length for length in SCALING_TARGETS if length <= QUICK_LONGEST)
    return SCALING_TARGETS


def lengths_of(parameters: Parameters, setting: Setting) -> tuple[int, ...]:
    """The lengths that fit the model's context; all where it is unknown. SuiteError for fewer than three."""
    limit = setting.facts.value("sut.context_limit_tokens")
    return fitting_targets(
        _asked(parameters, setting), limit, at_least=FEWEST_LENGTHS, output_tokens=parameters.output_tokens
    )


def _plan(parameters: Parameters, setting: Setting, base: LongContextWorkload, length: int) -> LoadPlan:
    # Every length is a part of its own, so that no two documents begin alike.
    count, in_flight = REQUESTS.count(setting.scale, parameters.requests), parameters.concurrency
    sequence = RequestSlice(base.at_length(length))
    own = sequence.next_part(setting, "length", requests=count, concurrency=in_flight)
    return own.closed_loop(setting, f"{length} tokens", in_flight, duration_s=None, at_least=count)


def _result(parameters: Parameters, setting: Setting, warmup: WarmupReport, run: _Run) -> TestResult:
    scaling = prefill_scaling([m.records for m in run.measured])
    best = long_context_tables.best_fit(scaling, run.measured)
    facts = {
        **sequence_facts(run.all),
        "warmup.longest_input_tokens": min(_WARMUP_TOKENS, run.all[0].length) if warmup.performed else None,
        "long_context.lengths": [m.facts() for m in run.measured],
        "long_context.refused": [m.length for m in run.refused],
        "long_context.truncated": [m.length for m in run.truncated],
        "long_context.omitted": [*run.omitted, *run.untried],
        "long_context.fit": long_context_tables.fit_facts(scaling, run.measured),
        "long_context.best_fit": best,
    }
    report = Report(
        levels=[m.seen for m in run.all],
        metrics=_metrics(run.measured, scaling),
        tables=long_context_tables.tables(run.measured, scaling, parameters.concurrency, best),
        plots=long_context_tables.plots(run.measured, scaling),
        notes=_notes(run, best),
        load={"load.model": "closed", "load.concurrency": parameters.concurrency},
        facts=Facts.of(Origin.MEASURED, facts),
        budgeted=[m.seen for m in (*run.measured, *run.truncated)],
        findings=(truncation_finding(run.truncated),),
    )
    return result_of(HEADING, parameters, setting, warmup, report)


def _metrics(measured: Sequence[Measured], scaling: PrefillScaling) -> dict[str, Estimate]:
    """Every length under its own name, and the fits."""
    metrics = {name: value for name, value in scaling.metrics.items() if name != "prefill_intercept"}
    for level in measured:
        metrics |= qualified(level.seen.level.metrics, f"{level.length}")
    return metrics


def _notes(run: _Run, best: str | None) -> tuple[str, ...]:
    notes = [] if best is None else [f"best fit: {best}"]
    if run.limit_tokens is None:
        notes.append(
            "the model's context limit is not known (sut.context_limit_tokens): lengths were tried in "
            "ascending order until one was refused"
        )
    if run.omitted:
        notes.append(
            f"left out, since they do not fit a context of {run.limit_tokens} tokens with the output: "
            f"{', '.join(map(str, run.omitted))}"
        )
    for level in run.refused:
        told = next((error for error in level.records.error if error), "no reason given")
        rest = f"; not tried: {', '.join(map(str, run.untried))}" if run.untried else ""
        notes.append(f"the server refused prompts of {level.length} tokens ({told}){rest}")
    if best is None:
        notes.append(f"no fit: fewer than {FEWEST_LENGTHS} lengths were measured")
    return tuple(notes)


def needs(parameters: Parameters, setting: Setting) -> Sequence[str]:
    """A context that holds at least three of the lengths."""
    try:
        lengths_of(parameters, setting)
    except SuiteError as error:
        return (error.what,)
    return ()


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """One per length."""
    base = workload_of(parameters, setting)
    return tuple(_plan(parameters, setting, base, length) for length in lengths_of(parameters, setting))


def warmups(parameters: Parameters, setting: Setting) -> tuple[LongContextWorkload, ...]:
    """With a short context (section 5.9.3)."""
    shortest = lengths_of(parameters, setting)[0]
    return (workload_of(parameters, setting).at_length(min(_WARMUP_TOKENS, shortest)),)


procedure = framed(HEADING, measure, warm=False)
TEST = TestDefinition(
    HEADING.test, HEADING.section, HEADING.title, Parameters, procedure, plans, needs, warmups
)

__all__ = [
    "HEADING",
    "TEST",
    "Parameters",
    "lengths_of",
    "measure",
    "needs",
    "plans",
    "procedure",
    "workload_of",
]
