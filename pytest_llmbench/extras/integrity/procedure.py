"""Integrity: is the benchmark served as everything else is?

Section 7.2 of the draft warns of systems that are tuned to a benchmark; MLPerf's compliance tests look for
them. The audit sends two loads. One at a time, in a random order: new prompts, each of them once more, and
published prompts of the same lengths. Then the new ones again, several at once. Compared are the times of
prompts that are known with those of prompts that are not, and replies under load with replies alone.

The system is asked as in every load, so that it cannot tell the audit from a benchmark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytest_llmbench.extras.integrity.checks import (
    CHECKS,
    AuditPrompts,
    Kind,
    fewest_prompts,
    replies_of,
)
from pytest_llmbench.methodology.measuring.frame import Heading
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.measuring.manifest import bare_result
from pytest_llmbench.methodology.measuring.one_load import Before, measured_runs, with_void
from pytest_llmbench.methodology.measuring.warmup import warm_up
from pytest_llmbench.methodology.parameters import DEFAULT_CONCURRENCY, TestParameters, parameter
from pytest_llmbench.methodology.patience import with_raised_deadlines
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting, TestDefinition
from pytest_llmbench.metrics.throughput import completion_rate
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import SUTFact
from pytest_llmbench.model.numbers import PLAIN, Amount, Row, cells, quantity
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.result import Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note

HEADING = Heading("integrity", "", "Integrity")  # section 7.2 of the draft asks for no test
MAIN_METRICS = (
    "repeated_tpot_ratio",
    "published_tpot_ratio",
    "length_ratio_under_load",
    "changed_under_load",
)

PROMPTS = ByScale(quick=44, standard=64, full=128)
_TEXTS_ALONE = (Objective("completion_rate", ">=", 0.0, "ratio"),)
"""The limits at stake under load: on what comes, and not on when."""
_SAID = {True: "equivalent", False: "different", None: "undecided"}


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Repeated against new prompts, published against new ones, replies under load against replies alone.

    Fails on a difference beyond its margin; undecided is inconclusive.
    """

    of_the_draft = False
    takes_adapters = False

    prompts: int | None = parameter("count", doc="new prompts (default 64); each is asked three times.")
    concurrency: int = parameter("count", DEFAULT_CONCURRENCY, doc="requests in flight under load.")
    margin: float = parameter(
        "share",
        0.1,
        doc="largest difference in the length of replies under load; also the largest share of canned "
        "first tokens.",
    )
    single_stream_margin: float = parameter(
        "share", 0.2, doc="how much faster repeated and published prompts may be, sent one at a time."
    )
    text_margin: float = parameter(
        "share",
        0.2,
        doc="largest share of prompts whose first eight words of the reply change under load, less the "
        "share that changes without load.",
    )

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The limits of all checks but those that a prefix cache would fail."""
        return (*self._limits(cache_off=False), *self.slo)

    def on(self, *, cache_off: bool) -> tuple[Objective, ...]:
        """The limits on this system."""
        return (*self._limits(cache_off=cache_off), *self.slo)

    def _limits(self, *, cache_off: bool) -> list[Objective]:
        judged = [check for check in CHECKS if cache_off or not check.cache_helps]
        return [each for check in judged for each in check.objectives(getattr(self, check.margin))]

    def contradictions(self) -> list[str]:
        found = [
            f"{name} is {quantity(getattr(self, name), PLAIN)}: give a share above 0 and below 1"
            for name in ("margin", "single_stream_margin", "text_margin")
            if not 0 < getattr(self, name) < 1
        ]
        if self.concurrency < 2:
            found.append("concurrency is 1: a load has two requests in flight or more")
        return found

    def undecidable(self) -> list[str]:
        asked, fewest = self.prompts or PROMPTS.count("standard"), fewest_prompts(self.text_margin)
        told = (
            f"text_margin {quantity(self.text_margin, PLAIN)} needs at least {fewest} prompts to be decided"
        )
        return [f"{told}, there are {asked}"] if asked < fewest else []


def _count(parameters: Parameters, setting: Setting) -> int:
    return PROMPTS.count(setting.scale, parameters.prompts)


def _words(parameters: Parameters, setting: Setting, attempt: int) -> int:
    """The seed of the new prompts. A load that is measured again has others: the first are not new then."""
    asked = {"concurrency": parameters.concurrency, "count": _count(parameters, setting)}
    return part_of(setting, setting.workload, "new prompts", attempt=attempt, **asked).seed


def _plan(parameters: Parameters, setting: Setting, kind: Kind, words_seed: int) -> LoadPlan:
    count = _count(parameters, setting)
    workload = AuditPrompts(setting.workload, setting.seed, words_seed, count, kind)
    in_flight, requests = (1, 3 * count) if kind == "alone" else (min(parameters.concurrency, count), count)
    part = part_of(setting, workload, f"audit {kind}", in_flight=in_flight)
    return part.plan(setting, kind, ClosedLoop(in_flight), requests, workload=workload, ignore_eos=False)


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    words = _words(parameters, setting, 1)
    return _plan(parameters, setting, "alone", words), _plan(parameters, setting, "loaded", words)


def measure(parameters: Parameters, setting: Setting) -> Procedure[TestResult]:
    warmup = yield from warm_up(setting, concurrency=parameters.concurrency)
    attempts = 1 + setting.remeasure

    def alone(_run: int, attempt: int, _before: Before) -> LoadPlan:
        return _plan(parameters, setting, "alone", _words(parameters, setting, attempt))

    seen, void = yield from measured_runs(1, attempts, alone)
    if seen and seen[0].interrupted is None:
        told = seen[0].plan.workload
        assert isinstance(told, AuditPrompts)
        loaded = _plan(parameters, setting, "loaded", told.words_seed)
        more, again = yield from measured_runs(1, attempts, lambda *_: loaded, at_stake=_TEXTS_ALONE)
        seen, void = [*seen, *more], [*void, *again]
    return with_void(result(parameters, setting, warmup, seen), void)


def result(
    parameters: Parameters, setting: Setting, warmup: WarmupReport, seen: Sequence[Observation]
) -> TestResult:
    replies = replies_of(seen)
    metrics: dict[str, Estimate] = {check.metric.name: check.measured(replies) for check in CHECKS}
    metrics["completion_rate"] = completion_rate([run.records for run in seen])
    cache_off = setting.facts.value(SUTFact.PREFIX_CACHING) == "disabled"
    judged = [check for check in CHECKS if cache_off or not check.cache_helps]
    found = [check.finding(metrics[check.metric.name], getattr(parameters, check.margin)) for check in judged]
    sent = [run.plan for run in seen] or list(plans(parameters, setting))
    told = replace(setting, workload=sent[0].workload)
    rows: list[Row] = []
    for check in CHECKS:
        name, margin = check.metric.name, getattr(parameters, check.margin)
        outcome = _SAID[check.outcome(metrics[name], margin)] if check in judged else "not judged"
        (cell,) = cells(metrics, (name,))
        ends = replace(cell, part="interval")
        rows.append((check.metric.title, cell, ends, Amount(margin, "ratio"), outcome))
    columns = ("Compared", "Value", "95 % interval", "Margin", "Outcome")
    return replace(
        bare_result(HEADING, parameters, told, warmup, seen, sent),
        metrics=metrics,
        tables=(Table(HEADING.test, HEADING.title, columns, tuple(rows)),),
        objectives=parameters.on(cache_off=cache_off),
        notes=(
            Note.of("outside_draft", test=HEADING.test),
            *(() if cache_off else (Note.of("ttft_not_judged"),)),
        ),
        findings=tuple(finding for finding in found if finding is not None),
    )


TEST = TestDefinition(*HEADING, Parameters, with_raised_deadlines(measure), plans, result=result)
